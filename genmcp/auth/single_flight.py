"""Work that several tasks need at the same time, and that runs once for all of them."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from genmcp.cancellation import shielded

T = TypeVar("T")


class _Flight(Generic[T]):
    """Work that is under way, and the number of tasks that wait for it."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[T]):
    """Runs one piece of work for a key at a time, and gives its result to all that wait.

    The work runs in a task of its own, so that a waiting task that is cancelled does not end the
    work that others wait for. It is cancelled with the last of them, which does not wait for its
    end: work may have a part that is not cancelled.
    """

    def __init__(self) -> None:
        # By event loop as well, since a task belongs to one.
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._ending: set[asyncio.Task[T]] = set()  # were cancelled, and still run

    def running(self, key: Hashable) -> bool:
        """Return whether work for *key* is under way in this event loop."""
        return (asyncio.get_running_loop(), key) in self._flights

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work for *key* that is under way, or else of *work*."""
        loop = asyncio.get_running_loop()
        key = (loop, key)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(loop.create_task(work()))
        flight.waiting += 1
        try:
            return await shielded(flight.task)
        finally:
            flight.waiting -= 1
            # Once it is done, or has no more use: a task that comes now begins anew.
            unused = not flight.waiting
            if (unused or flight.task.done()) and self._flights.get(key) is flight:
                del self._flights[key]
            if unused and not flight.task.done():
                self._ending.add(flight.task)
                flight.task.add_done_callback(self._ended)
                flight.task.cancel()
            del flight  # its task refers to its error, and that to this frame: a reference cycle

    async def ended(self, timeout: float) -> None:
        """Wait for the end of cancelled work in this event loop, for *timeout* seconds at most."""
        loop = asyncio.get_running_loop()
        if here := [task for task in self._ending if task.get_loop() is loop]:
            await asyncio.wait(here, timeout=timeout)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs "exception was never retrieved"
