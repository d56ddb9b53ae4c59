"""One attempt at a job: runs its function, and returns the outcome.

The threads of `def` jobs cannot be stopped from outside.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import partial
from secrets import token_hex
from threading import Lock
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.waiting import Finished, Job
from genmcp.errors import (
    ContractError,
    IllegalTransition,
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
from genmcp.tasks.jobs import JobFunction, JobProgress, ProgressWriter, Reports, Run, Write, find
from genmcp.wire.jsonrpc import ErrorBody

__all__ = [
    "AbandonedThreads",
    "AttemptResult",
    "NotRunnableHere",
    "StillRuns",
    "ThreadCall",
    "attempt",
    "finished_with_error",
    "outcome_rejected",
    "pack_failure",
    "pack_result",
    "pass_on_delay",
    "result_rejected",
    "wait_error_of",
]

logger = logging.getLogger("genmcp")


class StillRuns(asyncio.CancelledError):
    """A `def` job was cancelled, and its thread continues."""


class ThreadCall:
    """One call of a `def` job in a thread. Created on the event loop that waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._begun = self._given_up = False
        self._ended = asyncio.Event()

    def __call__(self) -> Any:
        """Make the call, in the thread, unless it was given up."""
        with self._lock:
            if self._given_up:
                return None
            self._begun = True
        try:
            return self._call()
        finally:
            with suppress(RuntimeError):  # the loop was closed: there is no waiter
                self._loop.call_soon_threadsafe(self._ended.set)

    @property
    def runs(self) -> bool:
        """Whether the call is running in a thread."""
        return self._begun and not self._ended.is_set()

    async def ends(self, within: float) -> bool:
        """Wait up to *within* seconds for the thread to end; return whether it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                if self.runs:
                    await self._ended.wait()
        return not self.runs

    async def ended_soon(self, within: float) -> bool:
        """Give up the call; return whether it is not running *within* seconds from now.

        A cancellation in the meantime only ends the wait: the caller is being cancelled already.
        """
        with self._lock:
            self._given_up = True
        with suppress(asyncio.CancelledError):
            await self.ends(within)
        return not self.runs


class AbandonedThreads:
    """The calls of `def` jobs that were given up while their threads continue. One per process."""

    def __init__(self) -> None:
        self._left: dict[str, ThreadCall] = {}

    def leave(self, id: str, call: ThreadCall) -> None:
        """Register that the *call* for the job *id* continues."""
        self._left = {each: left for each, left in self._left.items() if left.runs}
        self._left[id] = call

    async def end(self, id: str, within: float) -> bool:
        """Wait up to *within* seconds for a call left by job *id*; return whether it ended."""
        left = self._left.get(id)
        return left is None or await left.ends(within)


_GRACE: Final = 5.0  # seconds that a function has for its end when it is cancelled
_THREAD_GRACE: Final = 1.0  # seconds that a cancelled thread has to reach its next report

InThread: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class Escaped(Exception):
    """Carries an exception that would end the process, and not only its job, such as `SystemExit`.

    It is the cause of this.
    """


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt.

    outcome: packed. again: whether a retry may succeed. progress: what is not written yet.
    """

    outcome: bytes
    again: bool
    progress: JobProgress = JobProgress()


async def attempt(
    job: Job,
    begin: Callable[[Reports], Run],
    *,
    write: Write,
    in_thread: InThread,
    threads: AbandonedThreads,
    linger: float | None,
) -> AttemptResult:
    """Run the function of *job* with the Run that *begin* makes, and return its outcome.

    *write* stores its progress; *in_thread* runs it if it blocks. A thread cannot be stopped:
    *linger* is for how many seconds a retry waits for its end, None if there is no further attempt.
    *threads* holds the threads of attempts that were given up.

    Raises:
        NotRunnableHere: this process has no such function, or none that takes these arguments, or
            the thread of an earlier attempt still runs here.
        IllegalTransition: its progress was rejected: the task has ended, or was taken over.
        StillRuns: this was cancelled, and the thread of the function continues.
        asyncio.CancelledError: this was cancelled, and so is the function.
    """
    name = f"job {job.name}"
    function = _found(job)
    reporter = ProgressWriter(write, lambda: working.cancel())
    run = begin(reporter)
    if not await threads.end(run.id, linger or 0.0):
        raise NotRunnableHere(
            f"the thread of an earlier attempt at {name} still runs here",
            "An earlier attempt at the job has not ended",
        )
    call = partial(function, run, **job.arguments)
    blocking = None if function.is_async else ThreadCall(partial(_blocking, call))
    work = _awaited(call) if blocking is None else in_thread(blocking)
    working = asyncio.create_task(work, name=name)
    try:
        tried = await _tried(working, job.timeout)
        unwritten = await reporter.close()  # from now on the next report ends the thread
        if blocking is not None and tried.again and linger is not None:
            tried = await _lingered(tried, blocking, name, linger)
    except asyncio.CancelledError as error:
        await reporter.close()
        if blocking is not None and not await blocking.ended_soon(_THREAD_GRACE):
            raise StillRuns from error
        raise
    finally:
        if blocking is not None and blocking.runs:
            logger.warning("%s goes on in its thread, until it reports or returns", name)
            threads.leave(run.id, blocking)
    if reporter.refused:
        raise IllegalTransition("progress", "over, or somebody else's")
    return replace(tried, progress=unwritten)


def _found(job: Job) -> JobFunction[..., Any]:
    function = find(job.name)
    if function is None:
        raise NotRunnableHere(
            f"no function under @job is called {job.name!r} here: a worker imports its module",
            "The job is not known to any worker",
        )
    try:
        function.check(job.arguments)
    except TypeError as error:
        raise NotRunnableHere(
            f"job {job.name} has other parameters here: {error}",
            "The job does not take its arguments any more",
        ) from error
    return function


async def _lingered(
    tried: AttemptResult, call: ThreadCall, name: str, linger: float
) -> AttemptResult:
    """Wait for the thread of a failed attempt, so that the next attempt does not overlap with it.

    Without further attempts if the thread has not ended after *linger* seconds.
    """
    if await call.ends(0.0):
        return tried
    logger.warning("%s goes on in its thread: the next attempt waits for that", name)
    if await call.ends(linger):
        return tried
    logger.error(
        "%s fails: its thread has not ended in %g seconds (JobOptions.linger)", name, linger
    )
    return replace(tried, again=False)


async def _awaited(call: Callable[[], Awaitable[Any]]) -> Any:
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


async def _tried(working: "asyncio.Task[Any]", timeout: float | None) -> AttemptResult:
    try:
        await asyncio.wait({working}, timeout=timeout)
    except asyncio.CancelledError:
        await _cancel(working)
        raise
    if not working.done():
        await _cancel(working)
        return AttemptResult(pack(Failed(WaitTimedOut())), again=True)
    if working.cancelled():
        return AttemptResult(pack(Failed(WaitCancelled())), again=False)
    name = working.get_name()
    if (error := working.exception()) is not None:
        cause = error.__cause__ if isinstance(error, Escaped) else None
        return AttemptResult(pack_failure(name, cause or error), again=True)
    try:
        return AttemptResult(pack_result(name, working.result()), again=False)
    except ContractError as wrong:
        return AttemptResult(pack_failure(name, wrong), again=False)


async def _cancel(working: "asyncio.Task[Any]") -> None:
    """Cancel the work, and wait a while for its end: it may have something to put in order."""
    working.cancel()
    await asyncio.wait({working}, timeout=_GRACE)
    if not working.done():
        logger.error("%s goes on although it was cancelled", working.get_name())
    elif not working.cancelled() and (error := working.exception()) is not None:
        logger.warning("%s raised when it was cancelled", working.get_name(), exc_info=error)


def pack_result(work: str, value: Any) -> bytes:
    """Return the outcome of *work* that gave *value*, which is JSON.

    Raises:
        ContractError: it is not.
    """
    try:
        return pack(Done(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ContractError(f"{work} gave what is not JSON: {error}") from error


def finished_with_error(error: McpError, *, raised: bool = True) -> Finished:
    """Return the end of a task that failed with *error*; *raised*: its hook has raised it."""
    body = ErrorBody(error.code, error.message, error.data)
    return Finished(error=msgspec.json.encode(body), raised=raised)


def result_rejected(error: StoreUnavailable) -> Finished:
    """Return the end of a task whose result does not fit into the store."""
    message = f"The result could not be kept: {_reason(error)}"
    return finished_with_error(InternalError(message), raised=False)


def outcome_rejected(error: StoreUnavailable) -> bytes:
    """Return the packed outcome of work whose own outcome does not fit into the store."""
    message = f"its outcome could not be kept: {_reason(error)}"
    return pack(Failed(WorkRaised(token_hex(6), type(error).__name__, message)))


def _reason(error: StoreUnavailable) -> str:
    return str(error) if isinstance(error, OverShare) else "the store is full"


def wait_error_of(work: str, error: BaseException) -> WaitError:
    """Return why *work* brought nothing that has raised *error*.

    Its text is shown only if it was raised to be shown; for any other the log has it, under the
    reference that the failure has.
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
        shown = isinstance(error, ToolError | McpError) and not isinstance(error, InternalError)
        failure = WorkRaised(reference, type(error).__name__, str(error) if shown else None)
    failure.__cause__ = error
    return failure


def pack_failure(work: str, error: BaseException) -> bytes:
    """Return the outcome of *work* that raised *error*, packed."""
    return pack(Failed(wait_error_of(work, error)))


_FIRST = 0.5
_LONGEST = 30.0


class NotRunnableHere(Exception):
    """A step that this process cannot take. The text names what is unknown, for the log.

    Args:
        unknown: what is unknown in this process.
        told: the text for the client, if no process takes the step in time.
    """

    def __init__(self, unknown: str, told: str) -> None:
        super().__init__(unknown)
        self.told = told

    def outcome(self, seconds: float) -> bytes:
        """Return the packed outcome of a job that no process has taken for *seconds*."""
        reference = self._log(seconds)
        return pack(Failed(WorkRaised(reference, "UnknownJob", self.told)))

    def ended(self, seconds: float) -> Finished:
        """Return the end of a task that no process has continued for *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.told} (reference {reference})", reference=reference)
        return finished_with_error(error)

    def _log(self, seconds: float) -> str:
        reference = token_hex(6)
        logger.error(
            "%s [%s]: no process has taken it for %g seconds (JobOptions.unknown_timeout)",
            self,
            reference,
            seconds,
        )
        return reference


def pass_on_delay(passed: float) -> float:
    """Return the seconds before the next delivery of a step that was *passed* on for so long.

    Each pause equals the sum of those before it, up to 30 seconds: a process of the other release
    is found soon if there is one, and a backlog that no process can work on costs little.
    """
    return min(max(_FIRST, passed), _LONGEST)
