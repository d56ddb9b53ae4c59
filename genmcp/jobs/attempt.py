"""One attempt at a job: its function is run, and how that ended is told."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Job
from genmcp.errors import Cancelled, ContractError, OutOfTurn, TimedOut
from genmcp.jobs.elsewhere import Elsewhere
from genmcp.jobs.job import JobFunction, find
from genmcp.jobs.outcomes import done, raised
from genmcp.jobs.progress import Progress, Reporter, Write
from genmcp.jobs.run import Reports, Run

__all__ = ["Tried", "attempt"]

logger = logging.getLogger("genmcp")

_GRACE: Final = 5.0  # seconds that a function has for its end when it is cancelled

InThread: TypeAlias = Callable[..., Awaitable[Any]]


class Escaped(Exception):
    """Carries what would end the process, and not only the job that raised it: `SystemExit`, say.

    It is the cause of this.
    """


class Tried(msgspec.Struct, frozen=True):
    """What came of an attempt.

    outcome: packed. again: whether another one may do better. progress: what was not written yet.
    """

    outcome: bytes
    again: bool
    progress: Progress = Progress()


async def attempt(
    job: Job, begin: Callable[[Reports], Run], *, write: Write, in_thread: InThread
) -> Tried:
    """Run the function of *job*, with the Run that *begin* makes, and return what came of it.

    *write* keeps its progress; *in_thread* runs it if it blocks.

    Raises:
        Elsewhere: no such function is here, or none that takes these arguments.
        OutOfTurn: its progress was refused: the task is over, or somebody else's.
        asyncio.CancelledError: this was cancelled, and so is the function.
    """
    name = f"job {job.name}"
    function = find(job.name)
    if function is None:
        raise Elsewhere(
            f"no function under @job is called {job.name!r} here: a worker imports its module",
            "The job is not known to any worker",
        )
    try:
        function.check(job.arguments)
    except TypeError as error:
        raise Elsewhere(
            f"job {job.name} has other parameters here: {error}",
            "The job does not take its arguments any more",
        ) from error
    reporter = Reporter(write, lambda: working.cancel())
    working = asyncio.create_task(_called(function, job, begin, reporter, in_thread), name=name)
    try:
        tried = await _tried(working, job.timeout)
    finally:
        unwritten = await reporter.close()
    if reporter.refused:
        raise OutOfTurn("progress", "over, or somebody else's")
    return replace(tried, progress=unwritten)


async def _called(
    function: JobFunction[..., Any],
    job: Job,
    begin: Callable[[Reports], Run],
    reports: Reports,
    in_thread: InThread,
) -> Any:
    call = partial(function, begin(reports), **job.arguments)
    if not function.is_async:
        return await in_thread(_blocking, call)
    with _contained():
        return await call()


def _blocking(call: Callable[[], Any]) -> Any:
    try:
        with _contained():
            return call()
    except StopIteration as error:
        # No future can carry it: whoever waits for this one would wait for ever.
        raise RuntimeError("StopIteration left a job that ran in a thread") from error


@contextmanager
def _contained() -> Iterator[None]:
    try:
        yield
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise Escaped from error


async def _tried(working: "asyncio.Task[Any]", timeout: float | None) -> Tried:
    try:
        await asyncio.wait({working}, timeout=timeout)
    except asyncio.CancelledError:
        await _cancel(working)
        raise
    if not working.done():
        await _cancel(working)
        return Tried(pack(Failed(TimedOut())), again=True)
    if working.cancelled():
        return Tried(pack(Failed(Cancelled())), again=False)
    name = working.get_name()
    if (error := working.exception()) is not None:
        cause = error.__cause__ if isinstance(error, Escaped) else None
        return Tried(raised(name, cause or error), again=True)
    try:
        return Tried(done(name, working.result()), again=False)
    except ContractError as wrong:
        return Tried(raised(name, wrong), again=False)


async def _cancel(working: "asyncio.Task[Any]") -> None:
    """Cancel the work, and wait a while for its end: it may have something to put in order."""
    working.cancel()
    await asyncio.wait({working}, timeout=_GRACE)
    if not working.done():
        logger.error("%s goes on although it was cancelled", working.get_name())
    elif not working.cancelled() and (error := working.exception()) is not None:
        logger.warning("%s raised when it was cancelled", working.get_name(), exc_info=error)
