"""Progress reports of jobs. They are written at a limited rate; the last one always is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import isfinite
from typing import Final, TypeAlias

import msgspec

from genmcp.core.task import Task
from genmcp.core.task import progressed as task_progressed
from genmcp.errors import IllegalTransition, StoreError

__all__ = ["Progress", "Reporter", "progressed"]

logger = logging.getLogger("genmcp")

_PACE: Final = 0.1  # seconds between two writes
_RESPITE: Final = 1.0  # ... after one that failed


class Progress(msgspec.Struct, frozen=True):
    """How far work is; None says nothing new."""

    progress: float | None = None
    total: float | None = None
    message: str | None = None

    def then(self, newer: "Progress") -> "Progress":
        """Return both as one."""
        return Progress(
            self.progress if newer.progress is None else newer.progress,
            self.total if newer.total is None else newer.total,
            self.message if newer.message is None else newer.message,
        )


def progressed(progress: Progress, task: Task, now: float) -> Task:
    """Return *task* with the *progress* of its work."""
    done, total, message = progress.progress, progress.total, progress.message
    return task_progressed(task, now, done, total, message)


Write: TypeAlias = Callable[[Progress], Awaitable[object]]


def _nothing() -> None:
    pass


class Reporter:
    """Writes the newest progress, at most ten times a second; the work never waits for it.

    A write may be `refused`: what the work is for is over, or somebody else's. Then *stop* is
    called, once.
    """

    def __init__(self, write: Write, stop: Callable[[], object] = _nothing) -> None:
        self._write = write
        self._stop = stop
        self.refused = False
        self._open = True
        self._failing = False
        self._newest: Progress | None = None
        self._writing: asyncio.Task[None] | None = None

    def report(
        self, progress: float | None, total: float | None = None, message: str | None = None
    ) -> None:
        """Have it written. What is not finite is left out.

        Raises:
            asyncio.CancelledError: nothing is written any more.
            TypeError, ValueError: it is no number.
        """
        self._check_open()
        newest = Progress(_number(progress), _number(total), message and str(message))
        self._newest = newest if self._newest is None else self._newest.then(newest)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_newest())

    async def fenced(self, write: Callable[[], Awaitable[object]]) -> None:
        """Await a *write* that is fenced by the turn; a rejected one ends the work.

        Raises:
            asyncio.CancelledError: it was rejected, or the work was over before.
        """
        self._check_open()
        try:
            await write()
        except IllegalTransition as rejected:
            # Without `stop`: the exception ends the work already, and a second cancellation would
            # interrupt what it does for its end.
            self._open, self.refused = False, True
            raise asyncio.CancelledError("another attempt has taken over") from rejected

    def _check_open(self) -> None:
        if not self._open:
            raise asyncio.CancelledError("the work is over, or somebody else's")

    async def close(self) -> Progress:
        """Write nothing any more, and return what was not written yet."""
        self._open = False
        self._stop = _nothing  # it leads to the work, whose exception leads here: a cycle
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        return self._newest or Progress()

    async def _write_newest(self) -> None:
        while (newest := self._newest) is not None:
            pace = _PACE
            try:
                await self._write(newest)
            except IllegalTransition:
                self._open = False
                self.refused = True
                self._stop()
                return
            except StoreError as error:
                if not self._failing:  # log once: it is retried until the store accepts it
                    logger.warning("progress was not written: %s", error)
                self._failing, pace = True, _RESPITE
            else:
                self._failing = False
                if self._newest is newest:
                    self._newest = None
            await asyncio.sleep(pace)
        self._writing = None


def _number(value: float | None) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if isfinite(number) else None
