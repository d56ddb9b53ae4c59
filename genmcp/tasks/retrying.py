"""The writes that must not be lost: each is repeated until the store accepts or rejects it.

A process that has done work is the only one that knows its result. If it gave up a write because
the store is away, the work would be done again. It therefore repeats the write for as long as it
works: a step is delivered again only after its process has died or stopped. A response follows its
write, so that nothing else waits in memory beside the store.

The attempts of one write may overlap in the store, because an attempt that has failed may take
effect late. `HeldTask.change` recognises its own writes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from genmcp.errors import OverShare, StoreFull, StoreUnavailable
from genmcp.log_throttle import LogThrottle

logger = logging.getLogger("genmcp")

T = TypeVar("T")

# Seconds between attempts; the last one is repeated.
_DELAYS: Final[Sequence[float]] = (0.1, 0.5, 2.0)
# Writes that may wait in the background for the store. Those of work that was done are not refused,
# since their number is that of the calls that were accepted before the store failed.
_MAX_PENDING: Final = 1_000
_CLOSE_TIMEOUT: Final = 1.0  # seconds for pending writes when this process stops


class ProcessStops(StoreUnavailable):
    """A write is given up, because this process stops working."""


class RetriedWrites:
    """The writes of one process that are repeated until the store accepts them.

    Args:
        timeout: seconds for which a request waits for a store that accepts no write.
        is_stopping: returns whether this process has stopped working. Writes are then given up, and
            other processes do the unwritten work again.
    """

    def __init__(self, *, timeout: float, is_stopping: Callable[[], bool]) -> None:
        self.is_stopping = is_stopping
        self._timeout = timeout
        self._warnings = LogThrottle(logger)
        self._pending: set[asyncio.Task[Any]] = set()

    def check(self) -> None:
        """Check, before work that may leave a pending write, that not too many are pending.

        Raises:
            StoreUnavailable: too many are.
        """
        if len(self._pending) >= _MAX_PENDING:
            raise StoreUnavailable(f"{_MAX_PENDING} writes of task records wait for the store")

    async def retry_until_written(
        self,
        write: Callable[[], Awaitable[T]],
        fallback: Callable[[StoreUnavailable], Callable[[], Awaitable[T]]] | None = None,
    ) -> T:
        """Write, or read what work needs, for as long as the store does not respond.

        Args:
            write: may be called repeatedly.
            fallback: returns what is written in its place if the client has used its share of the
                store, or if the store is still full after *timeout* seconds: the client would
                otherwise wait for room that may never become free.

        Raises:
            OverShare: there is no *fallback*, or no room for it either.
            ProcessStops: this process stops working.
        """
        delays = iter(_DELAYS)
        started: float | None = None
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                if self.is_stopping():
                    raise ProcessStops(str(error)) from error
                now = time.monotonic()
                started = now if started is None else started
                # A full store may have room again within a lease, because data expires all the
                # time. A client's share is less likely to: the fallback is then written at once.
                full = isinstance(error, StoreFull) and now - started >= self._timeout
                if fallback is not None and (full or isinstance(error, OverShare)):
                    logger.warning("the store has no room for the result of a task: %s", error)
                    write, fallback = fallback(error), None
                    continue
                if isinstance(error, OverShare):
                    raise
                self._warnings.log(
                    logging.WARNING, "a write to a task record is repeated: %s", error
                )
            await asyncio.sleep(next(delays, _DELAYS[-1]))

    async def wait_for_write(self, write: Coroutine[Any, Any, T]) -> T:
        """Wait for *write*, but at most *timeout* seconds; it continues in the background.

        Raises:
            StoreUnavailable: it is not written yet.
        """
        writing = self._start(write)
        try:
            await asyncio.wait({writing}, timeout=self._timeout)
            if not writing.done():
                raise StoreUnavailable(
                    "the store does not respond: the task record is written later"
                )
            if writing.cancelled():  # by `aclose`: the request of the caller was not cancelled
                raise ProcessStops("this process is stopping: the task record is not written")
            return writing.result()
        finally:
            # Its error has this frame in its traceback. The cycle would keep the whole request in
            # memory until the next collection of garbage.
            del writing

    def defer(self, write: Callable[[], Awaitable[object]]) -> None:
        """Write in the background, as `retry_until_written` does."""
        self._start(self.retry_until_written(write))

    async def aclose(self) -> None:
        """Cancel the pending writes; those of the running loop have one more second."""
        here = asyncio.get_running_loop()
        own = [each for each in [*self._pending] if each.get_loop() is here]
        if own:
            await asyncio.wait(own, timeout=_CLOSE_TIMEOUT)
            for each in own:
                each.cancel()
            await asyncio.gather(*own, return_exceptions=True)
        for each in [*self._pending]:
            # A write on another event loop cannot be awaited: that loop may never run again.
            with suppress(RuntimeError):
                each.get_loop().call_soon_threadsafe(each.cancel)

    def _start(self, write: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        writing = asyncio.create_task(write)
        self._pending.add(writing)
        writing.add_done_callback(self._completed)
        return writing

    def _completed(self, writing: "asyncio.Task[Any]") -> None:
        self._pending.discard(writing)
        # Retrieve the exception: asyncio would log it if the caller has left.
        if not writing.cancelled() and (error := writing.exception()) is not None:
            logger.debug("a write to a task record failed with %r", error)
