"""One connection to a server: the machine that knows the rules, and what performs for it."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from genmcp.cancellation import CancelScope
from genmcp.client.beginning import begin
from genmcp.client.closing import Closing
from genmcp.client.errors import ClientClosed, ClientError, TooManyRequests, said
from genmcp.client.handler_runner import HandlerRunner
from genmcp.client.inlet import Inlet
from genmcp.client.options import ClientOptions
from genmcp.client.pending import (
    BackgroundSender,
    DeadlineTimer,
    Outcome,
    PendingResponse,
    PendingResponses,
    Report,
    WarningThrottle,
)
from genmcp.client.readiness import Readiness
from genmcp.client.transports.base import Transport
from genmcp.core.client import events
from genmcp.core.client.dispatch import ClientDispatch, DispatchOptions
from genmcp.core.client.lifecycle import Timeouts
from genmcp.errors import McpError, Overloaded
from genmcp.protocol.capabilities import TASKS, ClientCapabilities
from genmcp.protocol.params import ProgressNotificationParams
from genmcp.wire.jsonrpc import RequestId

__all__ = ["Connection"]

News: TypeAlias = (
    events.NotificationReceived
    | events.NotificationsMissed
    | events.Connected
    | events.SessionReset
    | events.Disconnected
    | events.ConnectionFailed
)
"""What concerns no request."""

Steps: TypeAlias = Iterable[Any]

_PROGRESS: Final = "notifications/progress"


class Connection:
    """The connection to one server.

    told: is given each notification as it comes, and what becomes of the connection.
    remembered: the revision the server spoke when it was last met.

    supports: says whether the revision that is spoken has a method. hearing: waits until what the
    server says unasked is heard, or will not be. left: see `PendingResponses`.
    """

    def __init__(
        self,
        transport: Transport,
        answering: HandlerRunner[Any],
        options: ClientOptions,
        told: Callable[[News], None],
        remembered: str | None = None,
    ) -> None:
        self.where = transport.server_name
        self._transport = transport
        self._answering = answering
        self._told = told
        self._complaints = WarningThrottle(transport.server_name)
        self._machine = _machine(transport, answering, options, remembered)
        self.supports = self._machine.supports
        self.hearing = transport.notifications_ready
        self._waiters = PendingResponses(transport.server_name)
        self.left = self._waiters.left
        self._inlet = Inlet(self._machine, self._perform, self._now, self._waiters.hang_up)
        self._background = BackgroundSender(transport, self._complaints)
        self._alarm = DeadlineTimer(self._check_timeouts)
        self._readiness = Readiness(self._machine, self._background, transport.server_name)
        self._ready = self._readiness.wait
        self._loop: asyncio.AbstractEventLoop
        self._closing = Closing(transport.server_name, answering.runs_in)

    @property
    def server(self) -> events.Connected:
        """The server, as it introduced itself.

        Raises:
            ClientClosed: the connection is not open.
        """
        if (server := self._machine.server) is None:
            raise ClientClosed(self.where)
        return server

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent, if not now then soon."""
        return self._readiness.is_open and self._machine.reason is None

    @property
    def is_closed(self) -> bool:
        """Whether this side has ended it, or begun to."""
        return self._closing.has_begun

    async def open(self) -> None:
        """Connect, and find out what the server is.

        Raises:
            ClientError: there is no server, none that can be talked to, or it was closed meanwhile.
        """
        self._loop = asyncio.get_running_loop()
        self._readiness.open()
        try:
            await self._closing.opening(self._connect())
        except BaseException as error:
            await self.close(error)
            raise

    async def close(self, reason: BaseException | None = None) -> None:
        """End the connection, and return when it is over: what is not answered yet fails.

        More than once does no harm.
        """
        if self._readiness.is_open:
            self._readiness.close()
            self._perform(self._machine.close())
            self._alarm.stop()
            self._closing.begin(self._end(reason))
        await self._closing.over()

    async def _connect(self) -> None:
        await self._answering.open()
        await begin(self._transport, self._inlet, self._machine, self._readiness)

    async def _end(self, reason: BaseException | None) -> None:
        try:
            await self._answering.close(reason)
        finally:
            await self._transport.close()
            self._perform(self._machine.closed(None))
            await self._background.end()
            self._complaints.close()

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeouts: Timeouts,
        progress: Report | None = None,
        param_headers: events.ParamHeaders = (),
        begun: Callable[[RequestId], None] | None = None,
    ) -> Outcome:
        """Send one request, and return what the server answers.

        progress: is told how far the request is. param_headers: the `Mcp-Param-*` headers.
        begun: is given the id of the request before it is sent.

        Raises:
            ServerError: the answer is an error.
            RequestTimeout: it took too long.
            OutcomeUnknown: the connection broke after it was sent.
            TooManyRequests: `max_pending` are unanswered.
            ClientError: it was not sent, or the answer is none.
        """
        while True:
            await self._ready()
            renewed = self._readiness.renewed
            waiter = PendingResponse(self._loop, method, progress)
            try:
                id, steps = self._machine.request(
                    method,
                    params,
                    now=self._now(),
                    timeouts=timeouts,
                    progress=progress is not None,
                    param_headers=param_headers,
                )
            except Overloaded as error:
                raise TooManyRequests(self.where, error.message) from None
            if begun is not None:
                begun(id)
            try:
                return await self._exchange(id, steps, waiter)
            except ClientError as error:
                # 2025-11-25, transports, "Session Management", point 4. The machine gives up a
                # server that forgets one session after the other.
                if error.sent or renewed == self._readiness.renewed:
                    raise

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification; one that the revision does not have is not sent.

        Raises:
            ClientError: it could not be delivered.
        """
        await self._ready()
        await self._deliver(self._machine.notify(method, params))

    async def log_level(self, level: Any, timeouts: Timeouts) -> None:
        """Ask for log messages of *level* and above, from now on.

        Raises:
            ClientError: as for a request.
        """
        await self._ready()
        if self.supports("logging/setLevel"):
            await self.request("logging/setLevel", {"level": level}, timeouts=timeouts)
        else:
            self._machine.log_level(level, now=self._now())

    def said(self, error: Exception | None) -> ClientError:
        """Return *error*, of the connection as a whole, as a caller sees it."""
        return said(error, "the connection", self.where)

    def _now(self) -> float:
        return self._loop.time()

    def _check_timeouts(self) -> None:
        self._perform(self._machine.check_timeouts(self._now()))

    async def _exchange(self, id: RequestId, steps: Steps, waiter: PendingResponse) -> Outcome:
        self._waiters.add(id, waiter)
        try:
            with CancelScope() as waiter.scope:  # cancelled by `CloseResponse`
                try:
                    await self._deliver(steps)
                except ClientError as error:
                    self._inlet.on_failure(id, error)
            waiter.scope = None
            return await waiter.future
        except BaseException:
            waiter.scope = None  # it is left already
            self._perform(self._machine.cancel(id))
            raise
        finally:
            self._waiters.remove(id)

    async def _deliver(self, steps: Steps) -> None:
        """Perform *steps*, and see what they send off in this asyncio.Task."""
        self._alarm.set(self._machine.next_check)
        for step in steps:
            if type(step) is events.Send:
                await self._transport.send(step)
            else:
                self._take(step)

    def _perform(self, steps: Steps) -> None:
        """Perform *steps*; what they send is sent beside whatever runs."""
        stale = self._alarm.due is None  # what is heard makes nothing due sooner, but what is sent
        for step in steps:
            if type(step) is events.Send:
                self._background.send(step)
                stale = True
            else:
                self._take(step)
        if stale and self._readiness.is_open:
            self._alarm.set(self._machine.next_check)

    def _take(self, step: Any) -> None:
        """Take what the machine asks for or tells of, other than a message to send."""
        if self._waiters.take(step):
            if type(step) is events.ProgressReceived:
                self._answering.tell(_PROGRESS, _progress(step))
            return
        match step:
            case events.NotificationReceived():
                self._told(step)
                self._answering.tell(step.method, step.params)
            case events.RequestReceived():
                self._answering.start(step.id, step.method, step.params, partial(self._reply, step))
            case events.ReceivedRequestCancelled():
                self._answering.cancel(step.id)
            case events.MessageDropped():
                self._complaints.add(step.fault, f"{self.where}: {step.fault}")
            case _:
                self._turn(step)

    def _turn(self, step: Any) -> None:
        """Take a change of the connection as a whole."""
        match step:
            case events.Connected():
                self._readiness.connect()
            case events.SessionReset():
                self._readiness.renew()
            case events.RestartTransport():
                self._readiness.fail(self.said(step.error))
                return  # whoever opens the connection begins again
            case events.ConnectionFailed() | events.Disconnected():
                self._readiness.fail(self.said(step.error))
        self._told(step)

    async def _reply(self, asked: events.RequestReceived, answer: Any) -> None:
        refused = isinstance(answer, McpError)
        reply = self._machine.refuse if refused else self._machine.answer
        await self._deliver(reply(asked.id, answer))


def _progress(event: events.ProgressReceived) -> ProgressNotificationParams:
    return ProgressNotificationParams(event.id, event.progress, event.total, event.message)


def _machine(
    transport: Transport,
    answering: HandlerRunner[Any],
    options: ClientOptions,
    remembered: str | None,
) -> ClientDispatch:
    return ClientDispatch(
        options.info,
        _declared(answering, options),
        per_message=transport.per_message,
        options=DispatchOptions(
            revision=options.revision,
            remembered=remembered,
            probe_timeout=options.probe_timeout,
            connect_timeout=options.open_timeout,
            max_pending=options.max_pending,
            max_asked=answering.max_asked,
        ),
    )


def _declared(answering: HandlerRunner[Any], options: ClientOptions) -> ClientCapabilities:
    """What the client says it can do: what its handler can, and tasks."""
    capabilities = options.capabilities or answering.capabilities
    if not options.tasks:
        return capabilities
    extensions = {TASKS: {}, **(capabilities.extensions or {})}
    return msgspec.structs.replace(capabilities, extensions=extensions)
