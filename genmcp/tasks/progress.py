"""The progress of work: its values, and their writes at a limited rate."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import isfinite
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from genmcp.core.task import Task, add_progress
from genmcp.errors import IllegalTransition, StoreError

logger = logging.getLogger("genmcp")


class JobProgress(msgspec.Struct, frozen=True):
    """The progress of work. None leaves an earlier value."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None

    def merge(self, newer: "JobProgress") -> "JobProgress":
        """Return the values of *newer*; where *newer* has None, the value of this progress."""
        given = {name: each for name, each in asdict(newer).items() if each is not None}
        return replace(self, **given)


def with_progress(progress: JobProgress, task: Task, now: float) -> Task:
    """Return *task* with the *progress* of its work."""
    return add_progress(task, now, progress.progress, progress.total, progress.message)


Write: TypeAlias = Callable[[JobProgress], Awaitable[object]]

_INTERVAL: Final = 0.1  # seconds: a reader notices no more, and a job may report in a tight loop
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
        self, write: Write, stop: Callable[[], object] = lambda: None, interval: float = _INTERVAL
    ) -> None:
        self._write = write
        self._stop = stop
        self._interval = interval
        self.rejected = False
        self._open = True
        self._failing = False
        self._latest: JobProgress | None = None  # None: all progress is written
        self._writing: asyncio.Task[None] | None = None

    def write_soon(
        self, progress: float | None, total: float | None = None, message: str | None = None
    ) -> None:
        """Schedule a write of this progress. Infinite numbers and NaN are ignored.

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

    async def close(self) -> JobProgress | None:
        """Stop writing, and return the progress that is not written yet; None if there is none."""
        self._open = False
        self._stop = lambda: None  # breaks a cycle: `_stop` and the work refer to each other
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        return self._latest

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
