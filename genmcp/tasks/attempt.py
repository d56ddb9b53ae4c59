"""What a job's function does in an attempt, and the outcomes of work as they are stored."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent import futures
from contextlib import suppress
from secrets import token_hex
from threading import Lock
from typing import Any, Final

import msgspec

from genmcp.binding import GetOwner
from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.waiting import Finished, Job
from genmcp.errors import (
    InternalError,
    McpError,
    OverShare,
    StoreUnavailable,
    ToolError,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkRaised,
)
from genmcp.tasks.jobs import JobFunction, find_job
from genmcp.tasks.progress import JobProgress
from genmcp.tasks.values import ANY_TYPE, Codec, Unstorable, to_json
from genmcp.wire.jsonrpc import ErrorBody

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
    """One call of a `def` job in a thread. Created on the event loop that waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._started = self._cancelled = False
        self._ended = asyncio.Event()

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
                self._loop.call_soon_threadsafe(self._ended.set)

    @property
    def runs(self) -> bool:
        """Whether the call is running in a thread."""
        return self._started and not self._ended.is_set()

    async def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds for the thread to end; return whether it has ended."""
        if self.runs:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ended.wait()
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


# Outcomes of work, as they are stored.


def pack_result(work: str, value: Any, codec: Codec | None = None) -> bytes:
    """Return the packed outcome of *work* that returned *value*.

    It is a failure if the value has no JSON form, or does not fit the type with this *codec*.
    """
    if codec is None:
        with suppress(TypeError, ValueError, OverflowError, RecursionError):
            return pack(Done(value))
    where = f"the result of {work}"
    try:
        return pack(Done(to_json(where, value, codec or ANY_TYPE)))
    except Unstorable as error:
        return pack_failure(work, error)
    except (ValueError, OverflowError) as error:  # one half of a surrogate pair, 2**64
        return pack_failure(work, Unstorable(f"{where} cannot be stored: {error}"))


def pack_failure(work: str, error: BaseException) -> bytes:
    """Return the packed outcome of *work* that raised *error*."""
    return pack(Failed(wait_error_of(work, error)))


def wait_error_of(work: str, error: BaseException) -> WaitError:
    """Return the WaitError for *work* that raised *error*, and log the error.

    The result contains the text of a `ToolError`, `McpError` or `Unstorable`, which is meant for
    clients. The text of any other error may contain secrets: it is logged, with the reference in
    the result.
    """
    if isinstance(error, WaitError):
        return error
    failure: WaitError
    if isinstance(error, asyncio.CancelledError | futures.CancelledError):
        failure = WaitCancelled()
    elif isinstance(error, TimeoutError):
        failure = WaitTimedOut()
    else:
        reference = token_hex(6)
        if isinstance(error, Exception) and is_expected(error):
            logger.info("%s failed [%s]: %s", work, reference, error)
        else:
            logger.error("%s failed [%s]", work, reference, exc_info=error)
        shown = isinstance(error, ToolError | McpError | Unstorable)
        shown &= not isinstance(error, InternalError)
        failure = WorkRaised(reference, type(error).__name__, str(error) if shown else None)
    failure.__cause__ = error
    return failure


def finished_with_error(error: McpError, *, raised: bool = True) -> Finished:
    """Return the end of a task that failed with *error*; *raised*: whether its hook raised it."""
    body = ErrorBody(error.code, error.message, error.data)
    return Finished(error=msgspec.json.encode(body), raised=raised)


def result_rejected(error: StoreUnavailable) -> Finished:
    """Return the end of a task whose result does not fit into the store."""
    message = f"The result could not be stored: {_reason(error)}"
    return finished_with_error(InternalError(message), raised=False)


def outcome_rejected(error: StoreUnavailable) -> bytes:
    """Return the packed outcome of work whose own outcome does not fit into the store."""
    message = f"its outcome could not be stored: {_reason(error)}"
    return pack(Failed(WorkRaised(token_hex(6), type(error).__name__, message)))


def _reason(error: StoreUnavailable) -> str:
    return str(error) if isinstance(error, OverShare) else "the store is full"


class NotRunnableHere(Exception):
    """Raised if this process cannot run a step, because it lacks the code.

    Args:
        reason: for the log.
        message: for the client, if no other process runs the step in time.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason)
        self.message = message

    def outcome(self, seconds: float) -> bytes:
        """Return the packed outcome of a job that no process has run in *seconds*."""
        return pack(Failed(WorkRaised(self._log(seconds), "UnknownJob", self.message)))

    def finished(self, seconds: float) -> Finished:
        """Return the end of a task that no process has continued in *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.message} (reference {reference})", reference=reference)
        return finished_with_error(error)

    def _log(self, seconds: float) -> str:
        reference = token_hex(6)
        logger.error(
            "%s [%s]: no process has run it in %g seconds (JobOptions.unknown_timeout)",
            self,
            reference,
            seconds,
        )
        return reference
