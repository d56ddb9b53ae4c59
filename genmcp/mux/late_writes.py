"""Writes of keyed calls that continue after their calls have been answered."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from threading import Lock
from typing import Any, Final

__all__ = ["LateWrites"]

logger = logging.getLogger("genmcp")

_LAST: Final = 1.0  # seconds for pending writes when this process stops


class LateWrites:
    """The pending writes of one mux, each in an asyncio.Task of the loop of its call.

    most: the maximum number of bytes of results that wait in memory for the store.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._lock = Lock()  # calls may run on several event loops
        self._tasks: dict[asyncio.Task[None], str] = {}

    def begin(self, call: str, writing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *writing*, of the call named *call*, independent of the request of the call."""
        task = asyncio.create_task(writing)
        self._tasks[task] = call
        task.add_done_callback(self._ended)
        return task

    def has(self, call: str) -> bool:
        """Whether a write of *call* is pending; one whose event loop was closed never continues."""
        return any(
            name == call and not task.get_loop().is_closed()
            for task, name in [*self._tasks.items()]
        )

    def take(self, size: int) -> bool:
        """Reserve *size* bytes of memory for a result; False if that exceeds the bound."""
        with self._lock:
            fits = self._size + size <= self._most
            if fits:
                self._size += size
            return fits

    def give_back(self, size: int) -> None:
        """Release *size* bytes that were reserved with `take`."""
        with self._lock:
            self._size -= size

    async def aclose(self) -> None:
        """Cancel pending writes, those of the running loop after a second."""
        here = asyncio.get_running_loop()
        deadline = here.time() + _LAST
        # A write may begin another.
        while (own := self._of(here)) and (left := deadline - here.time()) > 0:
            await asyncio.wait(own, timeout=left)
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        for task in [*self._tasks]:
            # To await a task of another loop raises, and its loop may have stopped for good.
            with suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _of(self, loop: asyncio.AbstractEventLoop) -> "list[asyncio.Task[None]]":
        return [task for task in [*self._tasks] if task.get_loop() is loop]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the end of a call with an idempotency key is not kept", exc_info=error)
