"""What a server does wrong without a request failing by it, as the log tells of it."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeAlias

import msgspec

from genmcp.cancellation import CancelScope
from genmcp.client.errors import ClientClosed, ClientError, ProcessExited, RequestTimeout, said
from genmcp.client.transports.base import Transport
from genmcp.core.client import events
from genmcp.core.client.events import LateAnswer, Send
from genmcp.wire.jsonrpc import RequestId

__all__ = [
    "BackgroundSender",
    "DeadlineTimer",
    "Outcome",
    "PendingResponse",
    "PendingResponses",
    "Report",
    "WarningThrottle",
]

logger = logging.getLogger("genmcp.client")


class WarningThrottle:
    """Warns of the first fault of a kind, and at the end of how many followed.

    A server that writes something else than messages does so line by line.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._kinds: set[type[Exception]] = set()
        self._more = 0

    def add(self, fault: Exception, text: str) -> None:
        """Tell of *fault*, as *text* does."""
        first = type(fault) not in self._kinds
        self._kinds.add(type(fault))
        self._more += not first
        level = logging.WARNING if first else logging.DEBUG
        logger.log(level, "%s", text)

    def close(self) -> None:
        """Tell how many there were that nobody was warned of."""
        if self._more:
            logger.warning("%s: %d more of such faults (at DEBUG)", self._where, self._more)
            self._more = 0


#: What a server may have questions about.
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
#: How many that were left are remembered; few servers answer them.
_MOST: Final = 1000

Outcome: TypeAlias = events.Answered | events.InputNeeded | events.TaskCreated
"""What a server answers, other than with an error."""

Report: TypeAlias = Callable[[float, float | None, str | None], None]
"""Is told how far a request is: the progress, the total if it is known, a message."""


class PendingResponse:
    """Who waits for the answer to one request: its future, and the scope of its `send`."""

    __slots__ = ("future", "method", "report", "scope")

    def __init__(self, loop: asyncio.AbstractEventLoop, method: str, report: Report | None) -> None:
        self.future: asyncio.Future[Outcome] = loop.create_future()
        self.method = method
        self.report = report
        self.scope: CancelScope | None = None

    def settle(self, outcome: Outcome | ClientError) -> None:
        """Give the answer, or the error that is raised in its place; the first one counts."""
        if self.future.done():
            return
        if isinstance(outcome, ClientError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def hang_up(self) -> None:
        """End the response at once; whoever waits for it gets what was settled."""
        scope = self.scope
        if scope is not None:
            scope.cancel()

    def leave(self) -> bool:
        """Wait no more; return whether nobody has learned what becomes of it.

        It was cancelled, or took too long.
        """
        future = self.future
        if not future.done() or future.cancelled():
            return True
        return isinstance(future.exception(), RequestTimeout)  # nobody need be told of it any more


class PendingResponses:
    """Those of one connection, by the ids of their requests.

    `left`: calls that nobody waits for any more, and that the server has not answered: for all
    that is known, it works on them still.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._by_id: dict[RequestId, PendingResponse] = {}
        self.left: set[RequestId | None] = set()

    def add(self, id: RequestId, waiter: PendingResponse) -> None:
        """Let *waiter* learn what becomes of request *id*."""
        self._by_id[id] = waiter

    def remove(self, id: RequestId) -> None:
        """Forget the one that waits for request *id*."""
        waiter = self._by_id.pop(id)
        if waiter.leave() and waiter.method in _CALLS and len(self.left) < _MOST:
            self.left.add(id)

    def take(self, event: Any) -> bool:
        """Tell the one it concerns; return whether it is an event of a request at all."""
        match event:
            case events.Answered() | events.InputNeeded() | events.TaskCreated():
                self._settle(event.id, event)
            case events.RequestRejected():
                refused = self._said(event.id, event.error)
                refused.__cause__ = event.cause
                self._settle(event.id, refused)
            case events.RequestFailed():
                self._settle(event.id, self._said(event.id, event.error, event.may_have_run))
            case events.RequestTimedOut():
                seconds, silent = event.seconds, event.silent
                self._settle(
                    event.id, RequestTimeout(event.method, self._where, seconds, silent=silent)
                )
                self.hang_up(event.id)  # a server that does not read keeps it from being sent
            case events.SubscriptionEnded():
                self._settle(event.id, events.Answered(event.id, None, msgspec.Raw()))
            case events.CloseResponse():
                self.hang_up(event.id)
            case events.ProgressReceived():
                waiter = self._by_id.get(event.id)
                if waiter is not None and waiter.report is not None:
                    waiter.report(event.progress, event.total, event.message)
            case events.MessageDropped() if (
                event.id in self.left
            ):  # it has crossed with the giving up
                if isinstance(event.fault, LateAnswer):
                    self.left.discard(event.id)
            case events.SessionReset():
                self.left.clear()  # with the session they were of
                return False
            case _:
                return False
        return True

    def _settle(self, id: RequestId, outcome: Outcome | ClientError) -> None:
        if (waiter := self._by_id.get(id)) is not None:
            waiter.settle(outcome)

    def hang_up(self, id: RequestId) -> None:
        """End the response to request *id*, which nobody needs any more."""
        if (waiter := self._by_id.get(id)) is not None:
            waiter.hang_up()

    def _said(
        self, id: RequestId, error: Exception | None, may_have_run: bool = False
    ) -> ClientError:
        waiter = self._by_id.get(id)
        what = waiter.method if waiter else "a request"
        return said(error, what, self._where, may_have_run)


_GREETING = 5.0  # seconds in which a server has to accept `notifications/initialized`


class DeadlineTimer:
    """Calls *ring* at a time of the event loop, or somewhat before; `due` is when, if it is set."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.due: float | None = None
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due: float | None) -> None:
        """Ring at *due*, if it is not to ring before that anyway."""
        if due is None or (self.due is not None and self.due <= due):
            return
        self.stop()
        self.due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._go_off)

    def stop(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self.due = self._timer = None

    def _go_off(self) -> None:
        self.due = self._timer = None
        self._ring()


class BackgroundSender:
    """Sends what no caller waits for, each message in an asyncio.Task of its own.

    What comes in response is nobody's either: it must not be taken, by the context variables, for
    that of the caller in whose time it was sent.
    """

    def __init__(self, transport: Transport, complaints: WarningThrottle) -> None:
        self._complaints = complaints
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: asyncio.Task[None] | None = None

    def send(self, message: Send) -> None:
        """Send *message*, and return at once."""
        task = asyncio.get_running_loop().create_task(self._send(message), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if message.method == "notifications/initialized":
            self._greeting = task

    @property
    def is_greeting(self) -> bool:
        """Whether `notifications/initialized` is under way."""
        return self._greeting is not None and not self._greeting.done()

    async def greeted(self) -> None:
        """Wait until it is not, or has taken so long that it is not waited for any more."""
        greeting = self._greeting
        if greeting is not None:
            await asyncio.wait((greeting,), timeout=_GREETING)
            if self._greeting is greeting:
                self._greeting = None

    async def end(self) -> None:
        """Send no more of what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, message: Send) -> None:
        try:
            await self._transport.send(message)
        except (ClientClosed, ProcessExited) as error:  # who uses the connection learns of it
            logger.debug("%s was not sent: %s", message.method or "an answer", error)
        except ClientError as error:
            what = message.method or "an answer"
            self._complaints.add(error, f"{what} could not be sent: {error}")
