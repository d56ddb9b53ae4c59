"""One attempt at a job, as its function sees it."""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import wait
from typing import Any, Protocol, TypeVar

import msgspec

__all__ = ["Reports", "Run"]

T = TypeVar("T")


class Reports(Protocol):
    """What takes the progress of an attempt."""

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Have it written, soon."""


class Run(msgspec.Struct, frozen=True, eq=False):
    """What a job has of the attempt that is made at it.

    id: of the job, the same for each attempt: a key by which what it does elsewhere can be done
    once. attempt: which one this is, counted from 1. assigns: of the call that waits for it.

    A `def` job is in a thread and cannot await; it says `run.in_loop(run.progress(1, 3))`.
    """

    id: str
    attempt: int
    assigns: Mapping[str, Any]
    _reports: Reports
    _loop: asyncio.AbstractEventLoop

    async def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report how far the work is, and let others run.

        Any number of reports costs little: ten a second are kept, the last one always.

        Raises:
            asyncio.CancelledError: the call was cancelled, or another attempt has taken over.
            TypeError, ValueError: one of the two is no number.
        """
        self._reports.report(done, total, message)
        await asyncio.sleep(0)

    def in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the worker's event loop and wait for it, from a `def` job's thread.

        Raises:
            RuntimeError: this is the event loop's own thread (`await` it), or the loop has ended.
        """
        if _running() is self._loop:
            work.close()
            raise RuntimeError("in_loop is for a `def` job: await it instead")
        if not self._loop.is_closed():
            done = asyncio.run_coroutine_threadsafe(work, self._loop)
            while not self._loop.is_closed():
                if wait([done], timeout=0.5).done:
                    return done.result()
        work.close()  # nobody will run it any more
        raise RuntimeError("the worker's event loop has ended")


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
