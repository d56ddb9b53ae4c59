"""Writes that are repeated or limited in rate: task records, progress, and log messages."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from genmcp._core.task import Task, add_progress
from genmcp.errors import IllegalTransition, OverShare, StoreError, StoreFull, StoreUnavailable

logger = logging.getLogger("genmcp")

T = TypeVar("T")


class LogThrottle:
    """Logs at most one message in *interval* seconds, with the number of suppressed messages.

    A store that fails affects thousands of tasks at once.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._next = 0.0
        self._suppressed = 0

    def log(self, level: int, message: str, *arguments: Any, exc_info: Any = None) -> None:
        """Log *message*, or count it as suppressed."""
        now = self._clock()
        if now < self._next:
            self._suppressed += 1
            return
        if self._suppressed:
            message = f"{message} (and %d more like this)"
            arguments = (*arguments, self._suppressed)
        self._next, self._suppressed = now + self._interval, 0
        self._logger.log(level, message, *arguments, exc_info=exc_info)


_CLOSE_TIMEOUT: Final = 1.0  # seconds for pending writes when this process stops


class RetriedWrites:
    """The writes of one process that are repeated until the store accepts them.

    Args:
        delays: seconds between attempts; the last one is repeated.
        timeout: seconds for which a request waits for a store that accepts no write.
        is_stopping: returns whether this process has stopped working. Writes are then given up, and
            other processes do the unwritten work again.
    """

    def __init__(
        self,
        *,
        delays: Sequence[float],
        timeout: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.is_stopping = is_stopping
        self._delays = delays
        self._timeout = timeout
        self._warnings = LogThrottle(logger)
        self._pending: set[asyncio.Task[Any]] = set()

    async def retry_until_written(
        self,
        write: Callable[[], Awaitable[T]],
        fallback: Callable[[StoreUnavailable], Awaitable[T]] | None = None,
        refusals: tuple[type[StoreUnavailable], ...] = (OverShare,),
    ) -> T:
        """Write the result of long work; retry for as long as the store does not accept it.

        If this gave up, other processes would consider this process dead, and repeat the work.

        Args:
            write: may be called repeatedly.
            fallback: written in its place if the client has used its share of the store, or if the
                store is still full after *timeout* seconds: the client would otherwise wait for
                room that may never become free.
            refusals: errors that are raised if there is no *fallback*, or no room for it either.

        Raises:
            StoreUnavailable: this process stops working; or one of *refusals*.
        """
        delays = iter(self._delays)
        started: float | None = None
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                if self.is_stopping():
                    raise
                now = time.monotonic()
                started = now if started is None else started
                # A full store may have room again within a lease, because data expires all the
                # time. A client's share is less likely to: the fallback is then written at once.
                full = isinstance(error, StoreFull) and now - started >= self._timeout
                if fallback is not None and (full or isinstance(error, OverShare)):
                    logger.warning("the store has no room for the result of a task: %s", error)
                    write, fallback = partial(fallback, error), None
                    continue
                if isinstance(error, refusals):
                    raise
                self._warnings.log(
                    logging.WARNING, "a write to a task record is repeated: %s", error
                )
            await asyncio.sleep(next(delays, self._delays[-1]))

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
            return _result(writing)
        finally:
            del writing  # as in `uninterrupted`

    async def uninterrupted(self, writes: Coroutine[Any, Any, T]) -> T:
        """Complete *writes*, also if the caller is cancelled meanwhile.

        A record that is written, without its next step being submitted, would wait until it is read
        again. Only the death of the process may come between the two.
        """
        writing = self._start(writes)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            cancelled = writing.cancelled()  # by `aclose`: the caller was not cancelled
            await asyncio.wait({writing})
            if cancelled:
                _result(writing)
            raise
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


def _result(writing: "asyncio.Task[T]") -> T:
    """Return the result of a write that has ended.

    Raises:
        StoreUnavailable: `RetriedWrites.aclose` has cancelled it. A CancelledError would look to
            the caller as if its own request had been cancelled.
    """
    if writing.cancelled():
        raise StoreUnavailable("this process is stopping: the task record is not written")
    return writing.result()


class JobProgress(msgspec.Struct, frozen=True):
    """The progress of work. None leaves an earlier value."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None

    def merge(self, newer: "JobProgress") -> "JobProgress":
        """Return the values of *newer*; where *newer* has None, the value of this progress."""
        return JobProgress(
            self.progress if newer.progress is None else newer.progress,
            self.total if newer.total is None else newer.total,
            self.message if newer.message is None else newer.message,
        )


def with_progress(progress: JobProgress, task: Task, now: float) -> Task:
    """Return *task* with the *progress* of its work."""
    return add_progress(task, now, progress.progress, progress.total, progress.message)


Write: TypeAlias = Callable[[JobProgress], Awaitable[object]]

_RETRY_DELAY: Final = 1.0  # seconds after a write of progress that failed


class ProgressWriter:
    """Writes the latest progress at a limited rate. Owned by one attempt, which never waits for it.

    Reports between two writes are merged. The last report is always written. If a write is
    rejected, the task has ended or was taken over, and the work is stopped.

    Args:
        write: stores progress. It raises IllegalTransition if the fencing token is stale.
        stop: called once if a write is rejected.
        interval: the minimum number of seconds between two writes.

    Attributes:
        rejected: whether a write was rejected.
    """

    def __init__(
        self,
        write: Write,
        stop: Callable[[], object] = lambda: None,
        *,
        interval: float = 0.1,
    ) -> None:
        self._write = write
        self._stop = stop
        self._interval = interval
        self.rejected = False
        self._open = True
        self._failing = False
        self._latest: JobProgress | None = None  # None: all progress is written
        self._writing: asyncio.Task[None] | None = None

    def report(
        self, progress: float | None, total: float | None = None, message: str | None = None
    ) -> None:
        """Schedule a write. Infinite numbers and NaN are ignored.

        Raises:
            asyncio.CancelledError: the writer was closed.
            TypeError, ValueError: a value is not a number.
        """
        self._check_open()
        latest = JobProgress(_finite(progress), _finite(total), message and str(message))
        self._latest = latest if self._latest is None else self._latest.merge(latest)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_latest())

    async def fenced(self, write: Callable[[], Awaitable[object]]) -> None:
        """Await *write*, another write under the fencing token. If it is rejected, end the work.

        Raises:
            asyncio.CancelledError: *write* was rejected, or the work had ended before.
        """
        self._check_open()
        try:
            await write()
        except IllegalTransition as rejected:
            # `stop` is not called: the exception ends the work already, and a second cancellation
            # would interrupt the cleanup of the job function.
            self._open, self.rejected = False, True
            raise asyncio.CancelledError("another attempt has taken over") from rejected

    def _check_open(self) -> None:
        if not self._open:
            raise asyncio.CancelledError("the job has ended, or another attempt has taken over")

    async def close(self) -> JobProgress:
        """Stop writing, and return the progress that is not written yet."""
        self._open = False
        self._stop = lambda: None  # breaks a cycle: `_stop` and the work refer to each other
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        return self._latest or JobProgress()

    async def _write_latest(self) -> None:
        while (latest := self._latest) is not None:
            pause = self._interval
            try:
                await self._write(latest)
            except IllegalTransition:
                self._open = False
                self.rejected = True
                self._stop()
                return
            except StoreError as error:
                if not self._failing:  # log once: it is retried until the store accepts it
                    logger.warning("progress was not written: %s", error)
                self._failing, pause = True, _RETRY_DELAY
            else:
                self._failing = False
                if self._latest is latest:
                    self._latest = None
            await asyncio.sleep(pause)
        self._writing = None


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if isfinite(number) else None
