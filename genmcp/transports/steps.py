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
    """A limit on the time that a coroutine may take.

    It is asyncio.timeout from the first wait on; most coroutines end before, and cost nothing. A
    deadline can be brought forward.
    """

    __slots__ = ("_seconds", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    async def bound(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the current asyncio.Task, and cancel it at the deadline.

        Raises:
            TimeoutError: it was cancelled by the deadline alone.
        """
        try:
            waited = work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                return await resume(work, waited)
        finally:
            self._timeout = None

    def hasten(self, seconds: float) -> None:
        """Move the deadline to *seconds* from now."""
        self._seconds = seconds
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)
