"""One connection to a server: the state machine, its transport, and the requests of callers."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from genmcp._core.client import events
from genmcp._core.client.dispatch import ClientDispatch, ConnectionState, DispatchOptions
from genmcp._core.client.lifecycle import Timeouts
from genmcp._core.subscription import ACKNOWLEDGED
from genmcp._wire.jsonrpc import RequestId
from genmcp.cancellation import CancelScope
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    Forbidden,
    HttpStatusError,
    ProcessExited,
    SessionEnded,
    TooManyRequests,
    as_client_error,
    transport_failure,
)
from genmcp.client.handler_runner import HandlerRunner, declared_capabilities
from genmcp.client.options import ClientOptions
from genmcp.client.pending import (
    BackgroundSender,
    Closing,
    DeadlineTimer,
    OnProgress,
    PendingResponse,
    PendingResponses,
    Readiness,
    Response,
    TimeoutPauses,
    WarningThrottle,
)
from genmcp.client.transports.base import Transport
from genmcp.errors import McpError, MethodNotFound, Overloaded
from genmcp.protocol.params import ProgressNotificationParams

ConnectionEvent: TypeAlias = (
    events.NotificationReceived
    | events.NotificationsMissed
    | events.Connected
    | events.SessionReset
    | events.Disconnected
    | events.ConnectionFailed
)
"""An event that belongs to no request."""

Outcomes: TypeAlias = Iterable[Any]

_PROGRESS: Final = "notifications/progress"
_BOTH_TRIED: Final = (
    "both eras of the protocol were tried; set ClientOptions(revision=...) to the right one"
)
_FINAL: Final = frozenset(
    {
        events.Answered,
        events.RequestRejected,
        events.RequestFailed,
        events.InputNeeded,
        events.TaskCreated,
    }
)


class MachineDriver:
    """Drives the state machine of one connection. Owned by the `Connection`.

    The driver is the `TransportSink` of the transport. It passes messages and failures to the state
    machine (`ClientDispatch`), and performs the outcomes that the machine returns.

    Args:
        transport: the transport.
        handler: answers the requests of the server.
        options: the options of the client.
        on_event: called with each notification and each change of the connection.
        remembered: the revision of the last connection to this server, if known.
    """

    def __init__(
        self,
        transport: Transport,
        handler: HandlerRunner[Any],
        options: ClientOptions,
        on_event: Callable[[ConnectionEvent], None],
        remembered: str | None,
    ) -> None:
        self._server_name = transport.server_name
        self._transport = transport
        self._handler = handler
        self._on_event = on_event
        self._throttle = WarningThrottle(self._server_name)
        self._timer = DeadlineTimer(self._check_timeouts)
        self._background = BackgroundSender(transport, self._throttle, options.initialized_timeout)
        self.machine = _machine(transport, handler, options, remembered)
        self.responses = PendingResponses(self._server_name, options.max_abandoned_calls)
        self.pauses = TimeoutPauses(self.machine, self._timer)
        self.readiness = Readiness(self.machine, self._background, self._server_name)
        self._loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        """Bind to the running event loop. Requests may wait for the handshake from now on."""
        self._loop = asyncio.get_running_loop()
        self.readiness.open()

    def close(self) -> None:
        """Fail the pending requests."""
        self.readiness.close()
        self.perform(self.machine.close())
        self._timer.stop()

    async def end(self) -> None:
        """Report the end of the transport to the machine, and cancel the background sends."""
        self.perform(self.machine.closed(None))
        await self._background.close()
        self._throttle.close()

    async def connect(self) -> None:
        """Open the transport and run the handshake.

        Raises:
            ClientError: The server cannot be reached, or the handshake failed.
        """
        # At most twice: 2026-07-28, stdio, "Backward Compatibility": a server of an earlier era may
        # exit on `server/discover` (`RestartTransport`).
        try:
            await self._connect_once()
        except ClientError:
            if self.machine.state is not ConnectionState.NEW:
                raise
        else:
            return
        self.readiness.open()
        try:
            await self._connect_once()
        except ProcessExited as error:
            raise error.with_advice(_BOTH_TRIED) from error

    async def _connect_once(self) -> None:
        await self._transport.open(self)
        if self.readiness.is_open:  # it may have been closed while the transport opened
            self.perform(self.machine.begin(self.now()))
        await self.readiness.wait()

    def now(self) -> float:
        """Return the time of the event loop."""
        return self._loop.time()

    def error(self, error: Exception | None) -> ClientError:
        """Return the ClientError to raise for *error*, the reason why the connection ended."""
        return as_client_error(error, "the connection", self._server_name)

    def on_message(self, message: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message of the server; see `TransportSink`."""
        outcomes = self.machine.received(message, self.now(), about=request_id)
        self._perform_received(outcomes, request_id)
        return request_id is None or not self.machine.is_pending(request_id)

    def on_oversized(self, size: int, head: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message that was too long to be read; see `TransportSink`."""
        outcomes = self.machine.too_long(size, head, now=self.now(), about=request_id)
        self._perform_received(outcomes, request_id)
        return not self.machine.is_pending(request_id)

    def on_failure(self, request_id: RequestId | None, error: ClientError) -> None:
        """Handle the failure of a request or of the transport; see `TransportSink`."""
        if request_id is None:
            self.perform(self.machine.closed(error))
            return
        # The body of an HTTP error may be the JSON-RPC response to the request. The body of
        # `SessionEnded` is ignored: the request is sent again in a new session. So is that of a 403
        # which names scopes: these are in its header, and the body has nothing more.
        ignored = isinstance(error, SessionEnded) or (
            isinstance(error, Forbidden) and bool(error.scopes)
        )
        if isinstance(error, HttpStatusError) and not ignored:
            body = error.content  # that of a 401 is often an error of OAuth
            if body.lstrip().startswith(b"{") and b'"jsonrpc"' in body:
                outcomes = self.machine.received(
                    body, self.now(), about=request_id, status=error.status
                )
                self.perform([_with_cause(outcome, error) for outcome in outcomes])
        self.perform(self.machine.failed(request_id, transport_failure(error), self.now()))

    def on_wait(self, request_id: RequestId, *, waiting: bool) -> None:
        """Pause or continue the timeouts of a request; see `TransportSink`."""
        self.pauses.set(request_id, waiting=waiting)

    def on_lost_notifications(self) -> None:
        """Handle a gap in the server's notifications; see `TransportSink`."""
        self.perform([events.NotificationsMissed()])

    def on_session_ended(self, error: ClientError) -> None:
        """Handle the end of the session; see `TransportSink`."""
        self.perform(self.machine.session_ended(error, self.now()))

    async def deliver(self, outcomes: Outcomes) -> None:
        """Perform *outcomes*, and wait until their messages are sent.

        Raises:
            ClientError: A message could not be sent.
        """
        self._timer.set(self.machine.next_check)
        for outcome in outcomes:
            if type(outcome) is events.SendMessage:
                await self._transport.send(outcome)
            else:
                self._handle(outcome)

    def perform(self, outcomes: Outcomes) -> None:
        """Perform *outcomes*; their messages are sent in the background."""
        # A received message never makes a deadline earlier; only a sent request can.
        stale = self._timer.due is None
        for outcome in outcomes:
            if type(outcome) is events.SendMessage:
                self._background.send(outcome)
                stale = True
            else:
                self._handle(outcome)
        if stale and self.readiness.is_open:
            self._timer.set(self.machine.next_check)

    def _perform_received(self, outcomes: Sequence[Any], request_id: RequestId | None) -> None:
        self.perform(outcomes)
        # A server may answer a request in the HTTP response of another request, or on the
        # notification stream. The response of the answered request may then never end: close it.
        for outcome in outcomes:
            if type(outcome) in _FINAL and outcome.id != request_id:
                self.responses.close_response(outcome.id)

    def _check_timeouts(self) -> None:
        self.perform(self.machine.check_timeouts(self.now()))

    def _handle(self, outcome: Any) -> None:
        """Handle an outcome other than `SendMessage`."""
        if self.responses.handle(outcome):
            if type(outcome) is events.ProgressReceived:
                self._handler.notify(_PROGRESS, _progress_params(outcome))
            return
        match outcome:
            case events.NotificationReceived():
                self._on_event(outcome)
                if outcome.method != ACKNOWLEDGED:  # the reply to `listen`, not of the server's own
                    self._handler.notify(outcome.method, outcome.params)
            case events.NotificationsMissed():
                self._on_event(outcome)
            case events.RequestReceived():
                reply = partial(self._reply, outcome)
                self._handler.start(outcome.id, outcome.method, outcome.params, reply)
            case events.ReceivedRequestCancelled():
                self._handler.cancel(outcome.id)
            case events.MessageDropped():
                self._throttle.warn(outcome.fault, f"{self._server_name}: {outcome.fault}")
            case events.Connected():
                self.readiness.connect()
                self._on_event(outcome)
            case events.SessionReset():
                self.readiness.renew()
                self._on_event(outcome)
            case events.RestartTransport():  # `connect` opens the transport again
                self.readiness.fail(self.error(outcome.error))
            case events.ConnectionFailed() | events.Disconnected():
                self.readiness.fail(self.error(outcome.error))
                self._on_event(outcome)

    async def _reply(self, request: events.RequestReceived, answer: Any) -> None:
        refused = isinstance(answer, McpError)
        reply = self.machine.refuse if refused else self.machine.answer
        await self.deliver(reply(request.id, answer))


class Connection:
    """The connection of a client to one server. Owned by a `ClientSession`, used in one event loop.

    Args:
        transport, handler, options, on_event, remembered: as for `MachineDriver`.

    Attributes:
        supports: called with a method; returns whether the negotiated revision has the method.
        notifications_ready: `Transport.notifications_ready`.
        abandoned_calls: `PendingResponses.abandoned`.
        error: `MachineDriver.error`.
    """

    def __init__(
        self,
        transport: Transport,
        handler: HandlerRunner[Any],
        options: ClientOptions,
        on_event: Callable[[ConnectionEvent], None],
        remembered: str | None = None,
    ) -> None:
        driver = MachineDriver(transport, handler, options, on_event, remembered)
        self.server_name = transport.server_name
        self._transport = transport
        self._handler = handler
        self._driver = driver
        self._machine = driver.machine
        self._readiness = driver.readiness
        self._responses = driver.responses
        self._loop: asyncio.AbstractEventLoop
        self._closing = Closing(transport.server_name, handler.runs_in)
        self.supports = driver.machine.supports
        self.notifications_ready = transport.notifications_ready
        self.abandoned_calls = driver.responses.abandoned
        self.error = driver.error

    @property
    def server(self) -> events.Connected:
        """The connected server.

        Raises:
            ClientClosed: The connection is not open.
        """
        if (server := self._machine.server) is None:
            raise ClientClosed(self.server_name)
        return server

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent now, or will be sent when the handshake is complete."""
        return self._readiness.is_open and self._machine.reason is None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.has_begun

    async def open(self, timeout: asyncio.Timeout | None = None) -> None:
        """Connect and run the handshake. *timeout* begins again after the user has logged in.

        Raises:
            ClientError: The server cannot be reached, the handshake failed, or `close` was called.
        """
        self._loop = asyncio.get_running_loop()
        self._driver.pauses.opening = timeout
        self._driver.open()
        try:
            await self._closing.run_opening(self._open())
        except BaseException as error:
            await self.close(error)
            raise
        finally:
            self._driver.pauses.opening = None

    async def close(self, reason: BaseException | None = None) -> None:
        """Close the connection, and wait until it is closed. Pending requests fail.

        May be called repeatedly. If the caller is cancelled, the closing continues. A hook of the
        handler does not wait, since the closing waits for hooks.
        """
        if self._readiness.is_open:
            self._driver.close()
            self._closing.begin(self._close(reason))
        await self._closing.wait()

    async def _open(self) -> None:
        await self._handler.open()
        await self._driver.connect()

    async def _close(self, reason: BaseException | None) -> None:
        try:
            await self._handler.close(reason)
        finally:
            await self._transport.close()
            await self._driver.end()

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeouts: Timeouts,
        on_progress: OnProgress | None = None,
        param_headers: events.ParamHeaders = (),
        on_id: Callable[[RequestId], None] | None = None,
    ) -> Response:
        """Send a request and return the response. Cancelling the caller cancels the request.

        Args:
            method: the method.
            params: the params.
            timeouts: the timeouts of the request.
            on_progress: called with the progress of the request.
            param_headers: the `Mcp-Param-*` headers.
            on_id: called with the id of the request before it is sent.

        Raises:
            ServerError: The server responded with an error, or the revision lacks the method.
            RequestTimeout: A timeout expired.
            OutcomeUnknown: The connection broke after the request was sent.
            TooManyRequests: `ClientOptions.max_pending` requests are pending.
            ClientError: The request was not sent, or the response is invalid.
        """
        machine, driver = self._machine, self._driver
        while True:
            await self._readiness.wait()
            renewals = self._readiness.renewals
            response = PendingResponse(self._loop, method, on_progress)
            try:
                id, outcomes = machine.request(
                    method,
                    params,
                    now=driver.now(),
                    timeouts=timeouts,
                    progress=on_progress is not None,
                    param_headers=param_headers,
                )
            except Overloaded as error:
                raise TooManyRequests(self.server_name, error.message) from None
            except MethodNotFound as error:
                raise self.error(error) from None
            if on_id is not None:
                on_id(id)
            try:
                return await self._exchange(id, outcomes, response)
            except ClientError as error:
                # 2025-11-25, transports, "Session Management", point 4: repeat the request in a new
                # session, but only if it was refused because the session was lost. The loop ends:
                # the machine fails the connection if the new session is lost at once as well.
                if error.sent or renewals == self._readiness.renewals:
                    raise

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification. Does nothing if the negotiated revision does not have *method*.

        Raises:
            ClientError: The notification could not be delivered.
        """
        await self._readiness.wait()
        await self._driver.deliver(self._machine.notify(method, params))

    async def log_level(self, level: Any, timeouts: Timeouts) -> None:
        """Set the log level of the server.

        Raises:
            ClientError: As for `request`.
        """
        await self._readiness.wait()
        if self.supports("logging/setLevel"):
            await self.request("logging/setLevel", {"level": level}, timeouts=timeouts)
        else:
            self._machine.log_level(level, now=self._driver.now())

    async def _exchange(
        self, id: RequestId, outcomes: Outcomes, response: PendingResponse
    ) -> Response:
        self._responses.add(id, response)
        try:
            # `CloseResponse` cancels the scope: over HTTP, `deliver` lasts as long as the response.
            with CancelScope() as response.scope:
                try:
                    await self._driver.deliver(outcomes)
                except ClientError as error:
                    self._driver.on_failure(id, error)
            response.scope = None
            return await response.future
        except BaseException:
            response.scope = None  # its block has been left
            self._driver.perform(self._machine.cancel(id))
            raise
        finally:
            self._responses.remove(id)


def _with_cause(outcome: Any, error: HttpStatusError) -> Any:
    if type(outcome) is events.RequestRejected:
        return replace(outcome, cause=error)
    return outcome


def _progress_params(event: events.ProgressReceived) -> ProgressNotificationParams:
    return ProgressNotificationParams(event.id, event.progress, event.total, event.message)


def _machine(
    transport: Transport,
    handler: HandlerRunner[Any],
    options: ClientOptions,
    remembered: str | None,
) -> ClientDispatch:
    return ClientDispatch(
        options.info,
        declared_capabilities(handler, options),
        per_message=transport.per_message,
        options=DispatchOptions(
            revision=options.revision,
            remembered=remembered,
            probe_timeout=options.probe_timeout,
            connect_timeout=options.open_timeout,
            max_pending=options.max_pending,
            max_asked=handler.max_asked,
        ),
    )
