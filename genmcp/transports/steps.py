"""Coroutines driven by hand, up to their first wait.

An asyncio.Task or a timer for each coroutine that nearly never waits would cost more than most of
its work. `work.send(None)` runs the first step in the current asyncio.Task: StopIteration carries
the result, and anything else is a wait, for which the rest is allocated then.
"""

import asyncio
import sys
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

__all__ = ["Deadline", "resume", "start"]

T = TypeVar("T")


@coroutine
def resume(work: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Continue *work*, whose first step has ended with the wait *waited*, as `await` would."""
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


if sys.version_info >= (3, 12):

    def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Return an asyncio.Task for *work* whose first step runs at once.

        This needs Python 3.12, and saves an iteration of the event loop.
        """
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Return an asyncio.Task for *work*."""
        return loop.create_task(work)


class Deadline:
    """A limit on the time that a coroutine may take, like `asyncio.timeout`.

    asyncio.timeout costs a tenth of a whole call; here there is no timer before the coroutine
    waits for something. A deadline can be brought forward.
    """

    __slots__ = ("_ends", "_handle", "_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False
        self._ends = 0
        self._task: asyncio.Task[Any] | None = None
        self._handle: asyncio.TimerHandle | None = None

    @coroutine
    def bound(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run *work* in the current asyncio.Task, and cancel it at the deadline.

        Raises:
            TimeoutError: it was cancelled by the deadline alone.
        """
        result: T
        try:
            waited = work.send(None)
        except StopIteration as done:
            result = done.value
        else:
            result = yield from self._waited(resume(work, waited))
        return result

    async def _waited(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._end)
        try:
            return await work
        except asyncio.CancelledError:
            if self._over and task.cancelling() - self._ends <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._handle.cancel()
            self._handle = None
            for _ in range(self._ends):
                task.uncancel()

    def hasten(self, seconds: float) -> None:
        """Move the deadline to *seconds* from now."""
        self._seconds = seconds
        if self._handle is not None:
            self._handle.cancel()
            self._handle = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        assert self._task is not None
        self._over = True
        self._ends += 1
        self._task.cancel()
