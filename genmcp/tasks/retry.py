"""Writes that must not be lost: each is completed, and repeated while the store fails.

A failing store affects thousands of tasks at once, so the log messages about it are throttled.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from genmcp.errors import OverShare, StoreError, StoreFull, StoreUnavailable

__all__ = ["LogThrottle", "RetriedWrites"]

logger = logging.getLogger("genmcp")


class LogThrottle:
    """Logs at most one message in *every* seconds, and the number of those suppressed before it."""

    def __init__(
        self,
        logger: logging.Logger,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        self._next = 0.0
        self._left_out = 0

    def log(self, level: int, message: str, *arguments: Any, exc_info: Any = None) -> None:
        """Log *message*, or count it as suppressed."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        if self._left_out:
            message, arguments = f"{message} (and %d more like this)", (*arguments, self._left_out)
        self._next, self._left_out = now + self._every, 0
        self._logger.log(level, message, *arguments, exc_info=exc_info)


T = TypeVar("T")


_PAUSES: Final = (0.1, 0.5, 2.0)  # seconds between attempts at a write that must not be lost
_LAST: Final = 1.0  # seconds for pending writes when this process stops


class RetriedWrites:
    """The writes of one process that are repeated until the store accepts them.

    patience: for how many seconds a request waits for a store that accepts no write. late_bytes:
    the maximum size of results that wait in memory for the store, of calls that were answered
    already. ending: returns whether this process has stopped working, so that others find what it
    has not written.
    """

    def __init__(self, *, patience: float, late_bytes: int, ending: Callable[[], bool]) -> None:
        self.ending = ending
        self._patience = patience
        self._late_bytes = late_bytes
        self._complaints = LogThrottle(logger)
        self._pending: dict[asyncio.Task[Any], str] = {}  # the task that each write is about

    async def retry_until_written(
        self,
        write: Callable[[], Awaitable[T]],
        instead: Callable[[StoreUnavailable], Awaitable[T]] | None = None,
        refusals: tuple[type[StoreUnavailable], ...] = (OverShare,),
    ) -> T:
        """Write the result of long work, and retry for as long as the store does not accept it.

        Giving up would look as if this process had died. If *instead* is given, it is written when
        the client has used its share of the store, or when the store is still full after `patience`
        seconds: the client would otherwise wait for room that may never come.

        Raises:
            StoreUnavailable: this process stops working.
            OverShare, or other *refusals*: there is no *instead*, or no room for it either.
        """
        pauses = iter(_PAUSES)
        begun: float | None = None
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                if self.ending():
                    raise
                now = time.monotonic()
                begun = now if begun is None else begun
                full = isinstance(error, StoreFull) and now - begun >= self._patience
                if instead is not None and (full or isinstance(error, OverShare)):
                    logger.warning("the result of a task has no room in the store: %s", error)
                    write, instead = partial(instead, error), None
                    continue
                if isinstance(error, refusals):
                    raise
                self._complaints.log(
                    logging.WARNING, "a step of a task is written again: %s", error
                )
            await asyncio.sleep(next(pauses, _PAUSES[-1]))

    async def wait_for_write(self, write: Coroutine[Any, Any, T], id: str = "") -> T:
        """Wait up to `patience` seconds for *write*, which continues after that.

        Raises:
            StoreUnavailable: it is not written yet.
        """
        writing = self._begin(write, id)
        await asyncio.wait({writing}, timeout=self._patience)
        if not writing.done():
            raise StoreUnavailable("the store accepts no write: a step of a task is written later")
        return _result(writing)

    async def uninterrupted(self, writes: Coroutine[Any, Any, T], id: str = "") -> T:
        """Complete *writes*, also if the caller is cancelled meanwhile."""
        writing = self._begin(writes, id)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            cut = writing.cancelled()  # by `aclose`, and not the caller
            await asyncio.wait({writing})
            if cut:
                _result(writing)
            raise

    async def write_or_defer(
        self,
        id: str,
        write: Callable[[], Awaitable[object]],
        instead: Callable[[StoreUnavailable], Awaitable[object]] | None = None,
        size: int = 0,
    ) -> None:
        """Write the end of a call whose client does not wait for a store that fails.

        After a first attempt that failed, or was cancelled, it is written in the background: as
        *instead*, if there is one and *size* bytes more of results would wait in memory than may.

        Raises:
            IllegalTransition, TaskNotFound: see *write*; only of the first attempt.
        """
        try:
            await write()
        except (StoreError, asyncio.CancelledError) as error:
            if isinstance(error, StoreError):
                logger.warning("the end of a call with an idempotency key is not kept: %s", error)
            if instead is not None and size > self._late_bytes:
                write, instead, size = partial(instead, StoreFull("too many results wait")), None, 0
            self.defer(id, write, instead, size)
            if isinstance(error, asyncio.CancelledError):
                raise

    def defer(
        self,
        id: str,
        write: Callable[[], Awaitable[object]],
        instead: Callable[[StoreUnavailable], Awaitable[object]] | None = None,
        size: int = 0,
    ) -> None:
        """Write in the background, as `retry_until_written` does."""
        self._late_bytes -= size
        writing = self._begin(self.retry_until_written(write, instead), id)
        writing.add_done_callback(partial(self._give_back, size))

    def _give_back(self, size: int, _: object) -> None:
        self._late_bytes += size

    def is_pending(self, id: str) -> bool:
        """Return whether a write of the task *id* is pending.

        One whose event loop was closed never continues.
        """
        return any(
            each == id and not writing.get_loop().is_closed()
            for writing, each in [*self._pending.items()]
        )

    async def aclose(self) -> None:
        """Cancel the pending writes, those of the running loop after a second."""
        here = asyncio.get_running_loop()
        own = [each for each in [*self._pending] if each.get_loop() is here]
        if own:
            await asyncio.wait(own, timeout=_LAST)
            for each in own:
                each.cancel()
            await asyncio.gather(*own, return_exceptions=True)
        for each in [*self._pending]:
            # Another loop's task cannot be awaited here, and its loop may have stopped for good.
            with suppress(RuntimeError):
                each.get_loop().call_soon_threadsafe(each.cancel)

    def _begin(self, write: Coroutine[Any, Any, T], id: str) -> "asyncio.Task[T]":
        writing = asyncio.create_task(write)
        self._pending[writing] = id
        writing.add_done_callback(self._ended)
        return writing

    def _ended(self, writing: "asyncio.Task[Any]") -> None:
        self._pending.pop(writing, None)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            logger.debug("a write of a task ended with %r", error)  # its caller has it


def _result(writing: "asyncio.Task[T]") -> T:
    """Return the result of a write that has ended.

    Raises:
        StoreUnavailable: `RetriedWrites.aclose` has cancelled it. A CancelledError would look to
            the caller as if its own request had been cancelled.
    """
    if writing.cancelled():
        raise StoreUnavailable("this process stops: a step of a task is not written")
    return writing.result()
