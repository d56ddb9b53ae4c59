"""A bound on a wait that nearly never has to be kept."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from genmcp.transports.steps import resume

__all__ = ["Deadline"]

T = TypeVar("T")


class Deadline:
    """Bounds how long one piece of work may take, like `asyncio.timeout`.

    That one takes a tenth of the time of a whole call; here there is no timer before the work
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
        """Run *work* in this asyncio.Task, and cancel it when its time is over.

        Raises:
            TimeoutError: it was cancelled, and nobody else asked for that.
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
        """Give no more than *seconds* from now on."""
        self._seconds = seconds
        if self._handle is not None:
            self._handle.cancel()
            self._handle = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        assert self._task is not None
        self._over = True
        self._ends += 1
        self._task.cancel()
