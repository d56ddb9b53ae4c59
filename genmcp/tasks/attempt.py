"""One attempt at a job: its function runs in the event loop or a thread, and may be cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final

import msgspec

from genmcp.binding import GetOwner
from genmcp.core.outcome import Failed, pack
from genmcp.core.waiting import Job
from genmcp.errors import WaitCancelled, WaitTimedOut
from genmcp.tasks.jobs import JobFunction, find_job
from genmcp.tasks.outcomes import NotRunnableHere, pack_failure, pack_result
from genmcp.tasks.progress import JobProgress

logger = logging.getLogger("genmcp")


# A thread cannot be stopped from outside. A `def` job that was cancelled or has timed out therefore
# continues until it reports progress (which raises in it) or returns. A retry must not overlap with
# it: two runs of one job at once could do the same work twice.

_CANCEL_GRACE: Final = 5.0  # seconds that a cancelled function has for its cleanup

THREAD_GRACE: Final = 1.0
"""Seconds that a cancelled thread has to reach its next report."""


class StillRuns(asyncio.CancelledError):
    """A `def` job was cancelled, and its thread continues."""


class ThreadCall:
    """One call of a `def` job in a thread. Created on the event loop that waits for it.

    Attributes:
        ended: done when the call has ended, if it was made.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._started = self._cancelled = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def __call__(self) -> Any:
        """Make the call, in the thread, unless it was cancelled before."""
        with self._lock:
            if self._cancelled:
                return None
            self._started = True
        try:
            return self._call()
        except StopIteration as error:
            # A future cannot hold a StopIteration: the caller would never be resumed.
            raise RuntimeError("StopIteration was raised by a job that ran in a thread") from error
        finally:
            with suppress(RuntimeError):  # the loop was closed, and has no waiter any more
                self._loop.call_soon_threadsafe(self.ended.set_result, None)

    @property
    def runs(self) -> bool:
        """Whether the call is running in a thread."""
        return self._started and not self.ended.done()

    async def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds for the thread to end; return whether it has ended."""
        if self.runs:
            await asyncio.wait({self.ended}, timeout=timeout)
        return not self.runs

    async def cancel(self, timeout: float) -> bool:
        """Prevent the start of the call, or wait for its end for *timeout* seconds.

        Return True if the call does not run. If the caller is cancelled meanwhile, only the wait
        ends, and no CancelledError is raised: the caller is handling a cancellation already.
        """
        with self._lock:
            self._cancelled = True
        with suppress(asyncio.CancelledError):
            await self.wait(timeout)
        return not self.runs


class ExitRequested(Exception):
    """Wraps an exception that would end the process, such as `SystemExit`, as its `__cause__`.

    Unwrapped, the exception would pass through asyncio.Task and stop the event loop, with all other
    jobs.
    """


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt.

    outcome: the packed outcome. may_retry: whether another attempt may succeed. progress: the
    progress that is not written yet.
    """

    outcome: bytes
    may_retry: bool
    progress: JobProgress | None = None


def function_of(job: Job, owner: GetOwner) -> tuple[JobFunction[..., Any], Mapping[str, Any]]:
    """Return the function of *job*, and its arguments; *owner* is that of bound values.

    Raises:
        NotRunnableHere: this process has no such function, or none that takes these arguments.
    """
    function = find_job(job.name)
    if function is None:
        raise NotRunnableHere(
            f"no function with @job has the name {job.name!r} here: a worker must import its "
            f"module",
            "The job is not known to any worker",
        )
    try:
        return function, function.arguments_of(job.arguments, owner)
    except (TypeError, ValueError) as error:
        raise NotRunnableHere(
            f"job {job.name} has other parameters here: {error}",
            "The job does not take its arguments any more",
        ) from error


_PASSED_ON: Final = (Exception, asyncio.CancelledError, GeneratorExit)


async def awaited(call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of *call*, which runs the function of a job.

    Raises:
        ExitRequested: it has raised an exception that would end the process.
    """
    try:
        return await call()
    except _PASSED_ON:
        raise
    except BaseException as error:
        raise ExitRequested from error


async def result_of(
    working: "asyncio.Task[Any]",
    timeout: float | None,
    function: JobFunction[..., Any],
) -> AttemptResult:
    """Return the result of an attempt at *function* by the task *working*.

    After *timeout* seconds, or if the caller is cancelled, the function is cancelled, and has some
    seconds for its cleanup.
    """
    try:
        await asyncio.wait({working}, timeout=timeout)
    except asyncio.CancelledError:
        await _cancel(working)
        raise
    if not working.done():
        await _cancel(working)
        may_retry = function.retries_on(TimeoutError())
        return AttemptResult(pack(Failed(WaitTimedOut())), may_retry)
    if working.cancelled():
        return AttemptResult(pack(Failed(WaitCancelled())), may_retry=False)
    name = working.get_name()
    if (error := working.exception()) is not None:
        cause = (error.__cause__ if isinstance(error, ExitRequested) else None) or error
        return AttemptResult(pack_failure(name, cause), may_retry=function.retries_on(cause))
    outcome = pack_result(name, working.result(), function.result_codec)
    return AttemptResult(outcome, may_retry=False)


async def _cancel(working: "asyncio.Task[Any]") -> None:
    """Cancel the function, and wait for its cleanup."""
    working.cancel()
    await asyncio.wait({working}, timeout=_CANCEL_GRACE)
    if not working.done():
        logger.error("%s continues although it was cancelled", working.get_name())
    elif not working.cancelled() and (error := working.exception()) is not None:
        logger.warning("%s raised when it was cancelled", working.get_name(), exc_info=error)
