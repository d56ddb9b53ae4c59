"""One attempt at a job: its function is run, and how that ended is told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Job
from genmcp.errors import Cancelled, ContractError, OutOfTurn, TimedOut
from genmcp.jobs.job import JobFunction, find
from genmcp.jobs.outcomes import done, raised
from genmcp.jobs.progress import Progress, Reporter, Write
from genmcp.jobs.run import Run

__all__ = ["Attempt", "Tried"]

logger = logging.getLogger("genmcp")

_GRACE: Final = 5.0  # seconds that a function has for its end when it is cancelled


class Tried(msgspec.Struct, frozen=True):
    """What came of an attempt.

    outcome: packed. again: whether another one may do better. progress: what was not written yet.
    """

    outcome: bytes
    again: bool
    progress: Progress = Progress()


class Attempt:
    """An attempt at *job*; *write* keeps its progress, *in_thread* runs what blocks."""

    def __init__(self, job: Job, write: Write, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._job = job
        self._in_thread = in_thread
        self._reporter = Reporter(write, self._stop)
        self._working: asyncio.Task[Any] | None = None
        self._stopped = False

    async def make(self, begin: Callable[[Reporter], Run]) -> Tried:
        """Run the function, with the Run that *begin* makes, and return what came of it.

        Raises:
            OutOfTurn: its progress was refused: the task is over, or somebody else's.
            asyncio.CancelledError: this was cancelled, and so is the function.
        """
        name = self._job.name
        function = find(name)
        if function is None:
            missing = LookupError(
                f"no function under @job is called {name!r} here: a worker imports the module, "
                f"and a function of a script (`__main__`) needs a name"
            )
            return Tried(raised(f"job {name}", missing), again=False)
        try:
            tried = await self._tried(self._call(function, begin))
        finally:
            unwritten = await self._reporter.close()
        if self._stopped:
            raise OutOfTurn("progress", "over, or somebody else's")
        return msgspec.structs.replace(tried, progress=unwritten)

    async def _call(self, function: JobFunction[..., Any], begin: Callable[[Reporter], Run]) -> Any:
        run = begin(self._reporter)
        if function.is_async:
            return await function(run, **self._job.arguments)
        return await self._in_thread(partial(_blocking, function, run, self._job))

    async def _tried(self, call: Any) -> Tried:
        work = f"job {self._job.name}"
        self._working = working = asyncio.create_task(call, name=work)
        try:
            await asyncio.wait({working}, timeout=self._job.timeout)
            if not working.done():
                await _cancel(working)
                return Tried(pack(Failed(TimedOut())), again=True)
        except asyncio.CancelledError:
            await _cancel(working)
            raise
        if working.cancelled():
            return Tried(pack(Failed(Cancelled())), again=False)
        error = working.exception()
        if error is None:
            try:
                return Tried(done(work, working.result()), again=False)
            except ContractError as wrong:
                return Tried(raised(work, wrong), again=False)
        if not isinstance(error, Exception):
            raise error
        return Tried(raised(work, error), again=True)

    def _stop(self) -> None:
        self._stopped = True
        if self._working is not None:
            self._working.cancel()


def _blocking(function: JobFunction[..., Any], run: Run, job: Job) -> Any:
    try:
        return function(run, **job.arguments)
    except StopIteration as error:
        # No future can carry it: whoever waits for this one would wait for ever.
        raise RuntimeError("StopIteration left a job that ran in a thread") from error


async def _cancel(working: "asyncio.Task[Any]") -> None:
    """Cancel the work, and wait a while for its end: it may have something to put in order."""
    working.cancel()
    await asyncio.wait({working}, timeout=_GRACE)
    if not working.done():
        logger.error("%s goes on although it was cancelled", working.get_name())
    elif not working.cancelled() and (error := working.exception()) is not None:
        logger.warning("%s raised when it was cancelled", working.get_name(), exc_info=error)
