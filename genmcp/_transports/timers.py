"""Time in transports: coroutines driven to their first wait, timeouts, deadlines and rate limits.

Most coroutines here never wait, and an asyncio.Task or a timer for each would cost more than its
work. Therefore `work.send(None)` runs the first step in the current asyncio.Task. If it raises
StopIteration, that carries the result. Otherwise the coroutine waits, and only then are timers and
tasks made.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from math import inf
from types import coroutine
from typing import Any, Final, Protocol, TypeVar

import msgspec

from genmcp.core.request import Request

TICK: Final = 0.05
"""Seconds for which a call is pending before it is opened, and its client watched."""


class Timed(Protocol):
    """Something with a deadline.

    An object and not a callable: a bound method for each pending call would be another allocation.
    """

    def expire(self) -> None:
        """Handle the deadline; called on the loop, once for each `add`."""


class TimerTable:
    """The deadlines of one event loop: of pending calls, heartbeats and promotions.

    A call nearly always ends before its deadlines, so that adding and discarding must be cheap. An
    asyncio.TimerHandle for each deadline would be too expensive. Deadlines of equal duration are in
    one dict, whose insertion order is the order of the deadlines. So a tick reads the entries that
    are due, and one more, of each dict. There are few durations: the tick, the heartbeat of an
    endpoint, the settings of tools.
    """

    __slots__ = ("_due", "_loop", "_tables", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tables: dict[float, dict[Timed, tuple[float, Context]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> "TimerTable":
        """Return the table of *loop*, the running one."""
        table = _of_loops.get(loop)
        if table is None:
            for closed in [each for each in list(_of_loops) if each.is_closed()]:
                _of_loops.pop(closed, None)
            table = _of_loops[loop] = TimerTable(loop)
        return table

    def add(self, item: Timed, seconds: float) -> None:
        """Expire *item* in *seconds*, unless it is discarded before.

        It expires in the context of the caller: tasks that an open call starts then run with the
        context variables of its own request, not of the one that started the timer.
        """
        deadline = self._loop.time() + seconds
        table = self._tables.get(seconds)
        if table is None:
            table = self._tables[seconds] = {}
        table[item] = deadline, copy_context()
        if deadline < self._due:
            self._arm(deadline)

    def discard(self, item: Timed, seconds: float) -> None:
        """Remove *item*, which was added with *seconds*, if it has not expired."""
        table = self._tables.get(seconds)
        if table is None:
            return
        table.pop(item, None)
        # After short waits the timer is left to fire, which is cheaper than to cancel it each time.
        if not table and seconds > TICK and self._timer and not any(self._tables.values()):
            self._timer.cancel()
            self._timer, self._due = None, inf

    def expire_all(self, seconds: float) -> None:
        """Expire everything that was added with *seconds* now."""
        for item, (_, context) in self._tables.pop(seconds, {}).items():
            self._expire(item, context)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._loop.call_at(deadline, self._tick, context=Context())

    def _tick(self) -> None:
        self._timer, self._due = None, inf
        now, following = self._loop.time(), inf
        due: list[tuple[Timed, float, Context]] = []
        for seconds, table in list(self._tables.items()):
            for item, (deadline, context) in table.items():
                if deadline > now:
                    following = min(following, deadline)
                    break
                due.append((item, seconds, context))
            if not table:
                del self._tables[seconds]
        if following < inf:
            self._arm(following)
        for item, seconds, context in due:
            # An item that expires may discard others.
            if self._tables.get(seconds, {}).pop(item, None) is not None:
                self._expire(item, context)

    def _expire(self, item: Timed, context: Context) -> None:
        try:
            context.run(item.expire)
        except Exception as error:  # the other deadlines are kept
            self._loop.call_exception_handler(
                {"message": f"{item!r} failed at its deadline", "exception": error}
            )


_of_loops: Final[dict[asyncio.AbstractEventLoop, TimerTable]] = {}


class RateLimiter(msgspec.Struct):
    """Spreads events evenly: at most *rate* of them in a second."""

    rate: float
    _next: float = -inf

    def turn(self) -> float:
        """Reserve a time for one event; return the seconds until then."""
        now = time.monotonic()
        at = now if now > self._next else self._next
        self._next = at + 1 / self.rate
        return at - now

    async def wait(self) -> None:
        """Wait until the rate permits another event."""
        if wait := self.turn():
            await asyncio.sleep(wait)


class LatestProgress(msgspec.Struct):
    """The latest progress of each request that cannot be sent now; earlier progress is dropped.

    limiter: limits how many notifications are sent. put: sends one; None after `close`.
    """

    _limiter: RateLimiter
    _put: Callable[[bytes], None] | None
    _latest: dict[Request, bytes] = {}
    _timer: asyncio.TimerHandle | None = None

    def offer(self, request: Request, message: bytes, *, room: bool) -> None:
        """Send *message* as soon as the rate permits it and there is *room*.

        Until then, *message* replaces an earlier one of the same *request*.
        """
        self._latest[request] = message
        if room:
            self.flush()

    def flush(self) -> None:
        """Send the kept progress, since there is room again, or as soon as the rate permits it."""
        if self._latest and self._timer is None:
            if wait := self._limiter.turn():
                self._timer = asyncio.get_running_loop().call_later(wait, self._put_latest)
            else:
                self._put_latest()

    def finish(self, request: Request) -> None:
        """Send the kept progress of *request*, since its response is sent next."""
        if self._put is not None and request in self._latest:
            self._put(self._latest.pop(request))

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._put = None

    def _put_latest(self) -> None:
        self._timer = None
        if self._put is not None:
            for message in self._latest.values():
                self._put(message)
        self._latest.clear()


T = TypeVar("T")


@coroutine
def drive(work: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Continue *work* after its first step, which has yielded *waited*, as `await` would."""
    try:
        while True:
            try:
                sent = yield waited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # thrown in by the asyncio.Task: a cancellation
                waited = work.throw(error)
            else:
                waited = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        # An error that it has raised has this frame in its traceback. The cycle would keep the
        # whole request in memory until the next collection of garbage.
        del waited


def run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*, which does not wait.

    Raises:
        RuntimeError: it waits, which is a defect; it is closed.
    """
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError(f"{work!r} waits")
