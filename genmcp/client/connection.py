"""The connection of a client to a server: the state machine, its transport, and what waits for it.

`ClientDispatch` decides what the messages of the server mean, and what is sent. The connection
passes messages and failures of its transport to it, and performs what it returns. Around that are
the waits: of requests for their responses, of all requests for the handshake, of the caller of
`close` for the end of hooks and transport.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from genmcp.cancellation import CancelScope, shielded
from genmcp.client.cache import ResultCache
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    Forbidden,
    HttpStatusError,
    InputFailed,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
    ServerError,
    SessionEnded,
    as_client_error,
    error_after_first_response,
    transport_failure,
)
from genmcp.client.handler_runner import Answer, HandlerRunner
from genmcp.client.hooks import MAX_REPORTS, CallQueue, ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.client.transports.base import Transport
from genmcp.core.client import events
from genmcp.core.client.codec import Params
from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, DispatchOptions
from genmcp.core.client.lifecycle import Timeouts
from genmcp.core.subscription import ACKNOWLEDGED
from genmcp.errors import McpError, MethodNotFound
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.params import LoggingLevel, ProgressNotificationParams
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire.jsonrpc import RequestId

logger = logging.getLogger("genmcp.client")

Timeout: TypeAlias = float | UnsetType | None
"""A timeout in seconds; None: no timeout; UNSET: the timeout of the client's options."""

ConnectionEvent: TypeAlias = (
    events.NotificationReceived
    | events.NotificationsMissed
    | events.SessionReset
    | events.Disconnected
    | events.ConnectionFailed
)
"""An event that belongs to no request."""

Response: TypeAlias = events.Answered | events.InputNeeded | events.TaskCreated
"""The response to a request, other than an error."""

OnProgress: TypeAlias = Callable[[float, float | None, str | None], None]
"""Called with the progress of a request: the progress, the total if known, and a message."""

Outcomes: TypeAlias = Iterable[Any]

_BOTH_TRIED: Final = (
    "both eras of the protocol were tried; set ClientOptions(revision=...) to the right one"
)
# Seconds for the response to `server/discover`, after which a stdio server is treated as one of an
# earlier revision.
_PROBE_TIMEOUT = 5.0
# Seconds for the server to accept `notifications/initialized`, after which requests are sent.
_INITIALIZED_TIMEOUT = 5.0
_MAX_INPUT_ROUNDS: Final = 10  # of one call
_MAX_ABANDONED: Final = 1000  # calls that were given up and not answered
_MAX_BACKGROUND = 1000  # messages that are being sent, and that no caller waits for
#: Requests during which a server may ask the client for input.
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})


class Deadline:
    """The deadline of one call, shared by all its requests. Owned by the call.

    Args:
        idle: seconds without progress; None: no limit.
        total: seconds in all, from now on; None: no limit.
    """

    __slots__ = ("_until", "idle", "total")

    def __init__(self, idle: float | None, total: float | None) -> None:
        self.idle = idle
        self.total = total
        self._until = None if total is None else asyncio.get_running_loop().time() + total

    @property
    def timeouts(self) -> Timeouts:
        """The timeouts of the next request: its total is the time that remains for the call."""
        if self._until is None:
            return Timeouts(idle=self.idle, total=None)
        remaining = self._until - asyncio.get_running_loop().time()
        # Never 0 or less: the request is sent and times out, so the caller gets RequestTimeout.
        return Timeouts(idle=self.idle, total=max(remaining, 0.001), whole=self.total)

    def check(self, what: str, server_name: str) -> None:
        """Check that the deadline has not passed; otherwise *what* has timed out.

        Raises:
            RequestTimeout: it has passed.
        """
        if self._until is not None and asyncio.get_running_loop().time() >= self._until:
            raise RequestTimeout(what, server_name, self.total or 0)

    @asynccontextmanager
    async def limit(self, what: str, server_name: str) -> AsyncIterator[None]:
        """Limit the time of a block: at the deadline it is cancelled, and *what* has timed out.

        Raises:
            RequestTimeout: the deadline has passed.
        """
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            raise RequestTimeout(what, server_name, self.total or 0) from None


class ProgressReports:
    """Passes the progress of a call to the callback of its caller, while the block runs.

    Leaving the block waits for the callback, until the deadline of the call.

    Args:
        callback: the callback; None: no progress is requested, and the block gets None.
        deadline: the deadline of the call.
    """

    def __init__(self, callback: ProgressCallback | None, deadline: Deadline) -> None:
        self._queue = (
            None if callback is None else CallQueue(callback, MAX_REPORTS, "a progress callback")
        )
        self._deadline = deadline

    async def __aenter__(self) -> OnProgress | None:
        return None if self._queue is None else self._queue.put

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._queue is None:
            return
        try:
            if kind is None:
                await self._queue.end(self._deadline.timeouts.total)
        finally:
            await self._queue.cancel()


class _PendingResponse:
    """The future response to one request. Owned by the caller that sent the request."""

    __slots__ = ("future", "method", "on_progress", "refusal", "scope")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, method: str, on_progress: OnProgress | None
    ) -> None:
        self.future: asyncio.Future[Response] = loop.create_future()
        self.method = method
        self.on_progress = on_progress
        #: The scope of the transport's `send`, which over HTTP lasts as long as the response.
        self.scope: CancelScope | None = None
        #: The error with which a question of the server about this call was answered.
        self.refusal: McpError | None = None


class Connection:
    """The connection of a client to one server. Owned by a `Client`, used in one event loop.

    It is opened and closed once; a client that is opened again makes another one. It is the
    `TransportSink` of its transport.

    Args:
        transport: the transport.
        handler: answers the requests of the server.
        options: the options of the client.
        timeout: the default of the total timeout of a call, in seconds.

    Attributes:
        cache: the results that are fresh.
        tools: the tools that the server has listed.
        listeners: called with each notification, and with each loss that concerns subscriptions.
        subscribers: how many change streams share the session's subscription to a resource.
        subscribing: held while a resource is subscribed to, or unsubscribed from.
        abandoned: the ids of calls that were cancelled or timed out, and not answered yet. The
            server may still process them, and ask for input.
        supports: called with a method; returns whether the negotiated revision has the method.
    """

    def __init__(
        self,
        transport: Transport,
        handler: HandlerRunner,
        options: ClientOptions,
        timeout: float | None,
    ) -> None:
        self.server_name = transport.server_name
        self.handler = handler
        self.options = options
        self.cache = ResultCache(options.cache_size)
        self.tools = ToolCatalog(transport.server_name, mirrors=False)
        self.timeouts = Timeouts(idle=options.idle_timeout, total=timeout)
        self.listeners: list[Callable[[ConnectionEvent], None]] = []
        self.subscribers: Counter[str] = Counter()
        # Subscribing takes a round trip, during which another stream must not unsubscribe.
        self.subscribing = asyncio.Lock()
        self.abandoned: set[RequestId | None] = set()
        # Over HTTP since 2026-07-28 a closed response ends its call, and only that response could
        # have asked for input. An earlier server may go on, and ask on another stream.
        self._ends_by_closing = False
        self.transport = transport
        self._machine = ClientDispatch(
            options.info,
            handler.capabilities,
            per_message=transport.per_message,
            options=DispatchOptions(
                revision=options.revision,
                probe_timeout=_PROBE_TIMEOUT,
                connect_timeout=options.open_timeout,
                max_asked=handler.max_asked,
            ),
        )
        self.supports = self._machine.supports
        self._loop: asyncio.AbstractEventLoop
        self._pending: dict[RequestId, _PendingResponse] = {}
        self._background: set[asyncio.Task[None]] = set()
        # Faults of the server: the first of each kind is a warning, the others are logged at DEBUG.
        # A server that writes log lines to stdout would otherwise cause one warning a line.
        self._warned: set[type[Exception]] = set()
        # The handshake: requests wait for `_connected`, which is None unless the connection is
        # open, and then for the sending of `notifications/initialized`.
        self._connected: asyncio.Future[None] | None = None
        self._initialized: asyncio.Task[None] | None = None
        self._renewals = 0  # of the session
        # The timer of the earliest deadline of a request.
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Opening and closing.
        self._opening: CancelScope | None = None
        self._opener: asyncio.Task[Any] | None = None
        self._opened = asyncio.Event()  # opening has ended, with or without success
        self._closing: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._reason: ClientError | None = None  # why it has ended; None if it was closed

    @property
    def server(self) -> events.Connected:
        """The connected server.

        Raises:
            ClientClosed: the connection is not open.
        """
        if (server := self._machine.server) is None:
            raise ClientClosed(self.server_name)
        return server

    @property
    def is_modern(self) -> bool:
        """Whether the negotiated revision is 2026-07-28 or later, which has no sessions."""
        return REVISIONS[self.server.revision].modern

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent now, or will be sent when the handshake is complete."""
        return self._connected is not None and self._machine.reason is None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing is not None

    async def open(self) -> None:
        """Connect and run the handshake.

        Raises:
            ClientError: the server cannot be reached, the handshake failed, or `close` was called.
        """
        self._loop = asyncio.get_running_loop()
        self._opener = asyncio.current_task()
        self._connected = self._loop.create_future()
        try:
            try:
                await self._open()
            finally:
                self._opener = None
                self._opened.set()
        except BaseException as error:
            await self.close(error)
            raise

    async def opened(self) -> None:
        """Wait until `open` has succeeded or failed."""
        await self._opened.wait()

    async def ended(self) -> ClientError | None:
        """Wait until the connection has ended.

        Return the error that ended the connection; None if the client closed it.
        """
        await self._ended.wait()
        return self._reason

    async def close(self, reason: BaseException | None = None) -> None:
        """Close the connection, and wait until it is closed. Pending requests fail.

        May be called repeatedly. If the caller is cancelled, the closing continues. A hook of the
        handler does not wait, since the closing waits for hooks.
        """
        self._ended.set()
        if self._connected is not None:
            self._fail_waiting(ClientClosed(self.server_name))
            self._connected = None
            self.perform(self._machine.close())
            self._stop_timer()
            self._closing = self._loop.create_task(self._close(reason))
            if self._opening is not None:
                self._opening.cancel()  # it interrupts `open`
        caller = asyncio.current_task()
        if self._closing is None or caller is None or caller in (self._closing, self._opener):
            return
        if not self.handler.runs_in(caller):
            await asyncio.shield(self._closing)

    async def _open(self) -> None:
        try:
            with CancelScope() as self._opening:
                await self._connect()
                if self.options.log_level is not None:
                    await self._set_first_log_level(self.options.log_level)
        finally:
            self._opening = None
        if self._closing is not None:
            raise ClientClosed(self.server_name)

    async def _connect(self) -> None:
        # At most twice: 2026-07-28, stdio, "Backward Compatibility": a server of an earlier era may
        # exit on `server/discover` (`RestartTransport`).
        try:
            await self._connect_once()
        except ClientError:
            if self._machine.state is not ConnectionState.NEW:
                raise
        else:
            return
        self._connected = self._loop.create_future()
        try:
            await self._connect_once()
        except ProcessExited as error:
            raise error.with_advice(_BOTH_TRIED) from error

    async def _connect_once(self) -> None:
        await self.transport.open(self)
        if self._connected is not None:  # it may have been closed while the transport opened
            self.perform(self._machine.begin(self._loop.time()))
        await self._ready()

    async def _set_first_log_level(self, level: LoggingLevel) -> None:
        # 2025-11-25, server/utilities, "Logging": only servers that declare the capability have
        # `logging/setLevel`.
        if self.is_modern or self.server.capabilities.logging is not None:
            try:
                await self.set_log_level(level)
            except ServerError as error:  # the server is usable without log messages
                logger.warning("%s rejects the log level: %s", self.server_name, error)

    async def _close(self, reason: BaseException | None) -> None:
        try:
            await self._opened.wait()
        finally:  # the end of the event loop cancels this task
            try:
                await self.handler.close(reason)
            finally:
                await self.transport.close()
                self.perform(self._machine.closed(None))
                for task in self._background:
                    task.cancel()
                await asyncio.gather(*self._background, return_exceptions=True)

    async def _ready(self) -> None:
        """Wait until requests can be sent.

        Raises:
            ClientError: the connection is closed or has failed.
        """
        # A loop: each wait may end with another state, such as a new session.
        while (connected := self._connected) is not None:
            if not connected.done():
                await shielded(connected)  # other requests wait for it as well
            elif (reason := self._machine.reason) is not None:
                connected.result()
                raise self.error(reason)
            elif (sending := self._initialized) is not None and not sending.done():
                # 2025-11-25, lifecycle, "Initialization": `notifications/initialized` precedes all
                # requests.
                await asyncio.wait((sending,), timeout=_INITIALIZED_TIMEOUT)
                if self._initialized is sending:
                    self._initialized = None
            else:
                return
        raise ClientClosed(self.server_name)

    def _fail_waiting(self, error: ClientError) -> None:
        """Fail the requests that wait for the handshake."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # no warning of asyncio if no request waits

    def error(self, error: Exception | None) -> ClientError:
        """Return the ClientError to raise for *error*, the reason why the connection ended."""
        return as_client_error(error, "the connection", self.server_name)

    def deadline(self, timeout: Timeout = UNSET, idle_timeout: Timeout = UNSET) -> Deadline:
        """Return the deadline of a call that starts now. UNSET: the timeout of the options."""
        return Deadline(
            self.options.idle_timeout if idle_timeout is UNSET else idle_timeout,
            self.timeouts.total if timeout is UNSET else timeout,
        )

    async def request(
        self,
        method: str,
        params: Any,
        *,
        timeouts: Timeouts | None = None,
        on_progress: OnProgress | None = None,
        param_headers: events.ParamHeaders = (),
        on_id: Callable[[RequestId], None] | None = None,
    ) -> Response:
        """Send a request and return the response. Cancelling the caller cancels the request.

        Args:
            method: the method.
            params: the params.
            timeouts: the timeouts of the request; None: those of the options.
            on_progress: called with the progress of the request.
            param_headers: the `Mcp-Param-*` headers.
            on_id: called with the id of the request before it is sent.

        Raises:
            ServerError: the server responded with an error, or the revision lacks the method.
            RequestTimeout: a timeout expired.
            OutcomeUnknown: the connection broke after the request was sent.
            ClientError: the request was not sent, or the response is invalid.
        """
        while True:
            await self._ready()
            renewals = self._renewals
            response = _PendingResponse(self._loop, method, on_progress)
            try:
                id, outcomes = self._machine.request(
                    method,
                    params,
                    now=self._loop.time(),
                    timeouts=timeouts or self.timeouts,
                    progress=on_progress is not None,
                    param_headers=param_headers,
                )
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
                if error.sent or renewals == self._renewals:
                    raise

    async def _exchange(
        self, id: RequestId, outcomes: Sequence[events.SendMessage], response: _PendingResponse
    ) -> Response:
        self._pending[id] = response
        self._set_timer(self._machine.next_check)
        try:
            # `CloseResponse` cancels the scope: over HTTP, `send` lasts as long as the response.
            with CancelScope() as response.scope:
                try:
                    for message in outcomes:
                        await self.transport.send(message)
                except ClientError as error:
                    self.on_failure(id, error)
            response.scope = None
            return await response.future
        except BaseException as error:
            response.scope = None  # its block has been left
            self.perform(self._machine.cancel(id))
            answered = response.future.done() and not response.future.cancelled()
            if answered:
                response.future.exception()  # retrieved: no warning when the future is dropped
            gave_up = not answered or isinstance(error, RequestTimeout)
            may_run = response.method in _CALLS and not self._ends_by_closing
            if gave_up and may_run and len(self.abandoned) < _MAX_ABANDONED:
                self.abandoned.add(id)
            raise
        finally:
            del self._pending[id]

    async def result(self, method: str, params: Params, timeouts: Timeouts | None = None) -> Any:
        """Send a request that needs no input, and return its result.

        Raises:
            ClientError: as for `request`.
        """
        return self.complete(method, await self.request(method, params, timeouts=timeouts))

    def complete(self, method: str, response: Response) -> Any:
        """Return the result in *response*.

        Raises:
            ProtocolError: the response is a task or an input request, which *method* must not have.
        """
        if isinstance(response, events.Answered):
            return response.result
        raise ProtocolError(
            f"the response to {method} must not be a task or an input request", self.server_name
        )

    async def with_input(
        self,
        method: str,
        params: Mapping[str, Any],
        deadline: Deadline,
        on_progress: OnProgress | None = None,
        param_headers: events.ParamHeaders = (),
    ) -> tuple[events.Answered | events.TaskCreated, int]:
        """Send a request; while the response needs input, repeat it with the handler's answers.

        2026-07-28, basic/patterns, "Multi Round-Trip Requests". Return the final response, and the
        number of responses that needed input.

        Raises:
            ProtocolError: the server asked for input too often.
            InputFailed: the handler did not answer.
            ClientError: as for `request`.
        """
        answers: Mapping[str, Any] = {}
        for rounds in range(_MAX_INPUT_ROUNDS + 1):
            try:
                response = await self.request(
                    method,
                    {**params, **answers} if answers else params,
                    timeouts=deadline.timeouts,
                    on_progress=on_progress,
                    param_headers=param_headers,
                )
            except ClientError as error:
                if not rounds:
                    raise
                unknown = error_after_first_response(error, method)
                raise unknown from unknown.__cause__
            if not isinstance(response, events.InputNeeded):
                return response, rounds
            answers = await self._additional_params(method, response, deadline)
        raise ProtocolError(
            f"{method} needs input more than {_MAX_INPUT_ROUNDS} times", self.server_name
        )

    async def _additional_params(
        self, method: str, needed: events.InputNeeded, deadline: Deadline
    ) -> Mapping[str, Any]:
        """Return the additional params of the next round: the answers and the state."""
        params: dict[str, Any] = {}
        if asked := needed.requests:
            async with deadline.limit(f"{method}, including its input requests,", self.server_name):
                params["inputResponses"] = await self.answers(asked)
        if needed.state is not None:
            params["requestState"] = needed.state
        return params

    async def answers(self, requests: Mapping[str, InputRequest]) -> dict[str, Answer]:
        """Return the answers to *requests*; see `HandlerRunner.answer_all`.

        Raises:
            InputFailed: the handler refused or failed.
        """
        try:
            return await self.handler.answer_all(requests)
        except McpError as error:
            raise InputFailed(error, self.server_name) from error

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification. Does nothing if the negotiated revision does not have *method*.

        Raises:
            ClientError: the notification could not be delivered.
        """
        await self._ready()
        for message in self._machine.notify(method, params):
            await self.transport.send(message)

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Set the log level of the server.

        Raises:
            ClientError: as for `request`.
        """
        await self._ready()
        if self.supports("logging/setLevel"):
            await self.request("logging/setLevel", {"level": level})
        else:
            self._machine.set_log_level(level)

    def on_message(self, message: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message of the server; see `TransportSink`."""
        now = self._loop.time()
        self.perform(self._machine.received(message, now, about=request_id))
        return request_id is None or not self._machine.is_pending(request_id)

    def on_oversized(self, size: int, head: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message that was too long to be read; see `TransportSink`."""
        now = self._loop.time()
        self.perform(self._machine.too_long(size, head, now=now, about=request_id))
        return not self._machine.is_pending(request_id)

    def on_failure(self, request_id: RequestId | None, error: ClientError) -> None:
        """Handle the failure of a request or of the transport; see `TransportSink`."""
        if request_id is None:
            self.perform(self._machine.closed(error))
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
                now = self._loop.time()
                self.perform(
                    replace(outcome, cause=error)
                    if type(outcome) is events.RequestRejected
                    else outcome
                    for outcome in self._machine.received(
                        body, now, about=request_id, status=error.status
                    )
                )
        failure = transport_failure(error)
        self.perform(self._machine.failed(request_id, failure, self._loop.time()))

    def on_wait(self, request_id: RequestId, *, waiting: bool) -> None:
        """Pause or continue the timeouts of a request; see `TransportSink`."""
        now = self._loop.time()
        if waiting:
            self._machine.pause(request_id, now)
        else:
            self._machine.resume(request_id, now)
            self._set_timer(self._machine.next_check)

    def on_lost_notifications(self) -> None:
        """Handle a gap in the server's notifications; see `TransportSink`."""
        self.cache.clear()
        self._publish(events.NotificationsMissed())

    def on_session_ended(self, error: ClientError) -> None:
        """Handle the end of the session; see `TransportSink`."""
        self.perform(self._machine.session_ended(error, self._loop.time()))

    def perform(self, outcomes: Outcomes) -> None:
        """Perform *outcomes*; their messages are sent in the background."""
        # A received message never makes a deadline earlier; only a sent request can.
        stale = self._due is None
        for outcome in outcomes:
            if type(outcome) is events.SendMessage:
                self._send_in_background(outcome)
                stale = True
            else:
                self._handle(outcome)
        if stale and self._connected is not None:
            self._set_timer(self._machine.next_check)

    def _handle(self, outcome: Any) -> None:
        """Handle an outcome that belongs to a request, or a message of the server."""
        match outcome:
            case events.Answered() | events.InputNeeded() | events.TaskCreated():
                self._settle(outcome.id, outcome)
            case events.RequestRejected():
                rejected = self._error_of(outcome.id, outcome.error)
                rejected.__cause__ = outcome.cause
                self._settle(outcome.id, rejected)
            case events.RequestFailed():
                error = self._error_of(outcome.id, outcome.error, outcome.may_have_run)
                self._settle(outcome.id, error)
                self._close_response(outcome.id)  # `send` still runs if another one failed
            case events.RequestTimedOut():
                seconds, silent = outcome.seconds, outcome.silent
                name = self.server_name
                self._settle(
                    outcome.id, RequestTimeout(outcome.method, name, seconds, silent=silent)
                )
                # If the server does not read, `send` still waits, and so does the caller: end it.
                self._close_response(outcome.id)
            case events.CloseResponse():
                self._close_response(outcome.id)
            case events.ProgressReceived(id, progress, total, message):
                response = self._pending.get(id)
                if response is not None and response.on_progress is not None:
                    response.on_progress(progress, total, message)
                params = ProgressNotificationParams(id, progress, total, message)
                self.handler.notify("notifications/progress", params)
            case events.NotificationReceived():
                self.cache.invalidate(outcome.method, outcome.params)
                self._publish(outcome)
                if outcome.method != ACKNOWLEDGED:  # the reply to `listen`, not of the server's own
                    self.handler.notify(outcome.method, outcome.params)
            case events.RequestReceived():
                reply = partial(self._reply, outcome)
                self.handler.start(outcome.id, outcome.method, outcome.params, reply)
            case events.ReceivedRequestCancelled():
                self.handler.cancel(outcome.id)
            case events.MessageDropped():
                self._drop(outcome)
            case _:
                self._change(outcome)

    def _change(self, outcome: Any) -> None:
        """Handle a change of the whole connection."""
        match outcome:
            case events.Connected():
                # Over HTTP since 2026-07-28, headers repeat some arguments of a tool call.
                modern = REVISIONS[outcome.revision].modern
                self._ends_by_closing = self.transport.per_message and modern
                self.tools.mirrors = self._ends_by_closing
                if self._connected is not None and not self._connected.done():
                    self._connected.set_result(None)
            case events.SessionReset():
                self.abandoned.clear()
                self._renewals += 1
                self._connected = self._loop.create_future()
                self.cache.clear()
                self.subscribers.clear()
                self._publish(outcome)
            case events.RestartTransport():  # `_connect` opens the transport again
                self._fail_waiting(self.error(outcome.error))
            case events.ConnectionFailed() | events.Disconnected():
                error = self.error(outcome.error)
                self._fail_waiting(error)
                self.subscribers.clear()
                self._publish(outcome)
                if not self._ended.is_set():
                    self._reason = error
                    self._ended.set()

    def _publish(self, event: ConnectionEvent) -> None:
        for listener in self.listeners:
            listener(event)

    def _settle(self, id: RequestId, outcome: Response | ClientError) -> None:
        """Set the response to request *id*, or its error, unless either is already set."""
        response = self._pending.get(id)
        if response is None or response.future.done():
            return
        # The form that the failure has in 2026-07-28, in which the server does not get the refusal.
        if response.refusal is not None and _has_failed(outcome):
            refusal = response.refusal
            outcome = InputFailed(refusal, self.server_name)
            outcome.__cause__ = refusal
        if isinstance(outcome, ClientError):
            response.future.set_exception(outcome)
        else:
            response.future.set_result(outcome)

    def _error_of(
        self, id: RequestId, error: Exception | None, may_have_run: bool = False
    ) -> ClientError:
        response = self._pending.get(id)
        what = response.method if response else "a request"
        return as_client_error(error, what, self.server_name, may_have_run)

    def _close_response(self, id: RequestId) -> None:
        """Close the HTTP response to request *id*, if it is open."""
        response = self._pending.get(id)
        if response is not None and response.scope is not None:
            response.scope.cancel()

    def _drop(self, dropped: events.MessageDropped) -> None:
        if isinstance(dropped.fault, events.LateAnswer):
            # A late response to a cancelled call: the server no longer processes the call.
            self.abandoned.discard(dropped.id)
            logger.debug("%s: %s", self.server_name, dropped.fault)
        elif dropped.id not in self.abandoned:
            self._warn(dropped.fault, f"{self.server_name}: {dropped.fault}")

    def _warn(self, fault: Exception, text: str) -> None:
        first = type(fault) not in self._warned
        self._warned.add(type(fault))
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", text)

    async def _reply(self, request: events.RequestReceived, answer: Any) -> None:
        if isinstance(answer, McpError):
            messages = self._machine.refuse(request.id, answer)
            asking = [
                pending
                for id in request.about
                if (pending := self._pending.get(id)) is not None and pending.method in _CALLS
            ]
            if len(asking) == 1:  # over stdio, any of several calls may have asked
                asking[0].refusal = answer
        else:
            messages = self._machine.answer(request.id, answer)
        for message in messages:
            await self.transport.send(message)

    def _send_in_background(self, message: events.SendMessage) -> None:
        """Send a message that no caller waits for, such as a cancellation."""
        if len(self._background) >= _MAX_BACKGROUND:  # the server does not read
            logger.debug("%s was not sent: %d messages wait", message.method, _MAX_BACKGROUND)
            return
        # An empty context: hooks that the response starts must not see the context variables of
        # the code that runs now.
        task = self._loop.create_task(self._send(message), context=Context())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        if message.method == "notifications/initialized":
            self._initialized = task

    async def _send(self, message: events.SendMessage) -> None:
        what = message.method or "a response"
        try:
            await self.transport.send(message)
        except (ClientClosed, ProcessExited) as error:  # every request fails with it as well
            logger.debug("%s was not sent: %s", what, error)
        except ClientError as error:
            self._warn(error, f"{what} could not be sent: {error}")

    def _set_timer(self, due: float | None) -> None:
        """Check the timeouts at *due*, unless an earlier check is set. None has no effect."""
        # A later deadline does not replace the timer. Most requests end before their deadlines, so
        # one timer serves thousands of requests.
        if due is None or (self._due is not None and self._due <= due):
            return
        self._stop_timer()
        self._due = due
        self._timer = self._loop.call_at(due, self._check_timeouts)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._due = self._timer = None

    def _check_timeouts(self) -> None:
        self._due = self._timer = None
        self.perform(self._machine.check_timeouts(self._loop.time()))


def _has_failed(outcome: Response | ClientError) -> bool:
    """Return whether the server has failed a call: with an error, or as a tool."""
    if isinstance(outcome, events.Answered):
        return bool(getattr(outcome.result, "is_error", False))
    return isinstance(outcome, ServerError)
