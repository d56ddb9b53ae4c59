"""The parts of a `Connection` that wait: for responses, timeouts, sends, handshake and close."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeAlias

import msgspec

from genmcp._core.client import events
from genmcp._core.client.dispatch import ClientDispatch
from genmcp._core.client.events import LateAnswer, SendMessage
from genmcp._wire.jsonrpc import RequestId
from genmcp.cancellation import CancelScope
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ProcessExited,
    RequestTimeout,
    as_client_error,
)
from genmcp.client.transports.base import Transport

logger = logging.getLogger("genmcp.client")

#: Requests during which a server may ask the client for input.
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})

Response: TypeAlias = events.Answered | events.InputNeeded | events.TaskCreated
"""The response to a request, other than an error."""

OnProgress: TypeAlias = Callable[[float, float | None, str | None], None]
"""Called with the progress of a request: the progress, the total if known, and a message."""


class PendingResponse:
    """The future response to one request. Owned by the caller that sent the request."""

    __slots__ = ("future", "method", "on_progress", "scope")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, method: str, on_progress: OnProgress | None
    ) -> None:
        self.future: asyncio.Future[Response] = loop.create_future()
        self.method = method
        self.on_progress = on_progress
        #: The scope of the transport's `send`, which over HTTP lasts as long as the response.
        self.scope: CancelScope | None = None

    def settle(self, outcome: Response | ClientError) -> None:
        """Set the response or the error. Does nothing if either is already set."""
        if self.future.done():
            return
        if isinstance(outcome, ClientError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    @property
    def was_abandoned(self) -> bool:
        """Whether the caller gave up before the response: cancelled, or timed out."""
        future = self.future
        if not future.done() or future.cancelled():
            return True
        # `exception()` also marks the error as retrieved: no warning when the future is dropped.
        return isinstance(future.exception(), RequestTimeout)


class PendingResponses:
    """The pending responses of one connection, by request id. Owned by the connection.

    Args:
        server_name: the server, for errors.
        max_abandoned: maximum size of `abandoned`.

    Attributes:
        abandoned: the ids of calls that were cancelled or timed out, and not answered yet. The
            server may still process them, and ask for input.
    """

    def __init__(self, server_name: str, max_abandoned: int) -> None:
        self._server_name = server_name
        self._max_abandoned = max_abandoned
        self._by_id: dict[RequestId, PendingResponse] = {}
        self.abandoned: set[RequestId | None] = set()

    def add(self, id: RequestId, response: PendingResponse) -> None:
        """Register the pending response to request *id*."""
        self._by_id[id] = response

    def remove(self, id: RequestId) -> None:
        """Remove the pending response to request *id*: its caller returns."""
        response = self._by_id.pop(id)
        # Evaluated for every request, and not only for calls: `was_abandoned` also marks the error
        # of the future as retrieved.
        abandoned = response.was_abandoned
        if abandoned and response.method in _CALLS and len(self.abandoned) < self._max_abandoned:
            self.abandoned.add(id)

    def close_response(self, id: RequestId) -> None:
        """Close the HTTP response to request *id*, if it is open."""
        response = self._by_id.get(id)
        if response is not None and response.scope is not None:
            response.scope.cancel()

    def handle(self, event: Any) -> bool:
        """Pass *event* to the pending response of its request.

        Return False if the connection must handle *event*, because it belongs to no request.
        """
        match event:
            case events.Answered() | events.InputNeeded() | events.TaskCreated():
                self._settle(event.id, event)
            case events.RequestRejected():
                rejected = self._error(event.id, event.error)
                rejected.__cause__ = event.cause
                self._settle(event.id, rejected)
            case events.RequestFailed():
                self._settle(event.id, self._error(event.id, event.error, event.may_have_run))
            case events.RequestTimedOut():
                seconds, silent = event.seconds, event.silent
                name = self._server_name
                self._settle(event.id, RequestTimeout(event.method, name, seconds, silent=silent))
                # If the server does not read, `send` still waits, and so does the caller: end it.
                self.close_response(event.id)
            case events.SubscriptionEnded():
                self._settle(event.id, events.Answered(event.id, None, msgspec.Raw()))
            case events.CloseResponse():
                self.close_response(event.id)
            case events.ProgressReceived():
                response = self._by_id.get(event.id)
                if response is not None and response.on_progress is not None:
                    response.on_progress(event.progress, event.total, event.message)
            case events.MessageDropped() if event.id in self.abandoned:
                # A late response to a cancelled call: the server no longer processes the call.
                if isinstance(event.fault, LateAnswer):
                    self.abandoned.discard(event.id)
            case events.SessionReset():
                self.abandoned.clear()
                return False
            case _:
                return False
        return True

    def _settle(self, id: RequestId, outcome: Response | ClientError) -> None:
        if (response := self._by_id.get(id)) is not None:
            response.settle(outcome)

    def _error(
        self, id: RequestId, error: Exception | None, may_have_run: bool = False
    ) -> ClientError:
        response = self._by_id.get(id)
        what = response.method if response else "a request"
        return as_client_error(error, what, self._server_name, may_have_run)


class WarningThrottle:
    """Logs the first fault of each kind as a warning, the others at DEBUG. Owned by a connection.

    A server that writes log lines to stdout would otherwise cause one warning a line.
    """

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._kinds: set[type[Exception]] = set()
        self._suppressed = 0

    def warn(self, fault: Exception, text: str) -> None:
        """Log *text*, which describes *fault*."""
        first = type(fault) not in self._kinds
        self._kinds.add(type(fault))
        self._suppressed += not first
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", text)

    def close(self) -> None:
        """Log the number of faults that were not logged as warnings."""
        if self._suppressed:
            logger.warning(
                "%s: %d more of such faults (at DEBUG)", self._server_name, self._suppressed
            )
            self._suppressed = 0


class DeadlineTimer:
    """Calls *on_due* at the earliest deadline that was set. Owned by a connection.

    `due` is that deadline, a time of the event loop; None while no deadline is set.
    """

    def __init__(self, on_due: Callable[[], None]) -> None:
        self.due: float | None = None
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        """Call `on_due` at *due*, unless an earlier deadline is set. None has no effect."""
        # A later deadline does not replace the timer. Most requests end before their deadlines, so
        # one timer serves thousands of requests.
        if due is None or (self.due is not None and self.due <= due):
            return
        self.stop()
        self.due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._fire)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self.due = self._timer = None

    def _fire(self) -> None:
        self.due = self._timer = None
        self._on_due()


class TimeoutPauses:
    """Pauses the timeouts of requests while the user logs in. Owned by a connection.

    Attributes:
        opening: the timeout of the whole handshake; None without one.
    """

    def __init__(self, machine: ClientDispatch, timer: DeadlineTimer) -> None:
        self.opening: asyncio.Timeout | None = None
        self._machine = machine
        self._timer = timer
        self._allowed: float | None = None  # the seconds that `opening` had left
        self._waiting = 0

    def set(self, request_id: RequestId, *, waiting: bool) -> None:
        """Pause the timeouts of a request, or continue them."""
        now = asyncio.get_running_loop().time()
        limit = self.opening
        self._waiting += 1 if waiting else -1
        if waiting:
            self._machine.pause(request_id, now)
            if limit is not None and (due := limit.when()) is not None and due > now:
                self._allowed = due - now
                limit.reschedule(None)
            return
        self._machine.resume(request_id, now)
        self._timer.set(self._machine.next_check)
        if limit is not None and self._allowed is not None and not self._waiting:
            limit.reschedule(now + self._allowed)
            self._allowed = None


class BackgroundSender:
    """Sends the messages that no caller waits for, such as cancellations. Owned by a connection.

    Args:
        transport: the transport.
        throttle: logs messages that could not be sent.
        initialized_timeout: `ClientOptions.initialized_timeout`.
    """

    def __init__(
        self, transport: Transport, throttle: WarningThrottle, initialized_timeout: float
    ) -> None:
        self._throttle = throttle
        self._transport = transport
        self._timeout = initialized_timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self._initialized: asyncio.Task[None] | None = None

    def send(self, message: SendMessage) -> None:
        """Send *message* in a task of its own, and return at once."""
        # An empty context: no caller waits for this message. Hooks that its response starts must
        # not see the context variables of the code that runs now.
        task = asyncio.get_running_loop().create_task(self._send(message), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if message.method == "notifications/initialized":
            self._initialized = task

    @property
    def is_initializing(self) -> bool:
        """Whether `notifications/initialized` is being sent."""
        return self._initialized is not None and not self._initialized.done()

    async def initialized(self) -> None:
        """Wait until `notifications/initialized` is sent, or its timeout has expired."""
        sending = self._initialized
        if sending is not None:
            await asyncio.wait((sending,), timeout=self._timeout)
            if self._initialized is sending:
                self._initialized = None

    async def close(self) -> None:
        """Cancel all sends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, message: SendMessage) -> None:
        what = message.method or "a response"
        try:
            await self._transport.send(message)
        except (ClientClosed, ProcessExited) as error:  # every request fails with it as well
            logger.debug("%s was not sent: %s", what, error)
        except ClientError as error:
            self._throttle.warn(error, f"{what} could not be sent: {error}")


class Readiness:
    """Lets requests wait until the handshake is complete. Owned by a connection.

    `renewals` is the number of times that the session was replaced.
    """

    def __init__(
        self, machine: ClientDispatch, background: BackgroundSender, server_name: str
    ) -> None:
        self.renewals = 0
        self._machine = machine
        self._background = background
        self._server_name = server_name
        self._connected: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests may wait: between `open` and `close`."""
        return self._connected is not None

    def open(self) -> None:
        """Let requests wait from now on."""
        self._connected = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Fail the waiting requests and all later ones."""
        self.fail(ClientClosed(self._server_name))
        self._connected = None

    def connect(self) -> None:
        """Release the waiting requests: the handshake is complete."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)

    def renew(self) -> None:
        """Let requests wait for another handshake: the session is being replaced."""
        self.renewals += 1
        self.open()

    def fail(self, error: ClientError) -> None:
        """Fail the waiting requests with *error*."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # no warning of asyncio if no request waits

    async def wait(self) -> None:
        """Wait until requests can be sent.

        Raises:
            ClientError: The connection is closed or has failed.
        """
        # A loop: each wait may end with another state, such as a new session.
        while (connected := self._connected) is not None:
            if not connected.done():
                await asyncio.shield(connected)
            elif (reason := self._machine.reason) is not None:
                connected.result()
                raise as_client_error(reason, "the connection", self._server_name)
            elif self._background.is_initializing:
                # 2025-11-25, lifecycle, "Initialization": `notifications/initialized` precedes all
                # requests.
                await self._background.initialized()
            else:
                return
        raise ClientClosed(self._server_name)


class Closing:
    """Closes a connection exactly once. Owned by the connection.

    Args:
        server_name: the server, for errors.
        is_own: returns whether a task runs hooks, which the closing waits for. If such a task
            waited for the closing, both would wait forever.
    """

    def __init__(self, server_name: str, is_own: Callable[[asyncio.Task[Any]], bool]) -> None:
        self._server_name = server_name
        self._is_own = is_own
        self._attempt: asyncio.Timeout | None = None
        self._opener: asyncio.Task[Any] | None = None
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether `begin` was called."""
        return self._task is not None

    async def run_opening(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work*, which opens the connection; `begin` interrupts it.

        Raises:
            ClientClosed: `begin` was called.
        """
        self._opener = asyncio.current_task()
        try:
            # A timeout that only `begin` lets expire. `asyncio.timeout` distinguishes this
            # interruption, which becomes TimeoutError, from a cancellation of the caller.
            async with asyncio.timeout(None) as self._attempt:
                await work
        except TimeoutError:
            if self._task is None:
                raise
        finally:
            self._attempt = self._opener = None
            self._opened.set()
        if self._task is not None:
            raise ClientClosed(self._server_name)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Interrupt the opening, and then run *work*, which closes the connection, in a task."""
        self._task = asyncio.get_running_loop().create_task(self._run(work))
        if self._attempt is not None and not self._attempt.expired():
            self._attempt.reschedule(0)

    async def wait(self) -> None:
        """Wait until the connection is closed. Return at once if the closing waits for the caller.

        If the caller is cancelled, the closing continues.
        """
        caller = asyncio.current_task()
        if self._task is None or caller is None:
            return
        if caller not in (self._task, self._opener) and not self._is_own(caller):
            await asyncio.shield(self._task)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self._opened.wait()
        finally:
            await work  # in `finally`, since the end of the event loop cancels this task
