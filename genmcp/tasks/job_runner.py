"""Runs the jobs of claimed tasks: makes an attempt, and writes its outcome."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from random import random
from typing import Any, Final

from msgspec.structs import replace

from genmcp.core.job_transitions import expired_outcome, park_job, retry_job, save_state
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Job, Working
from genmcp.errors import IllegalTransition, StoreError, StoreUnavailable
from genmcp.tasks.attempt import (
    THREAD_GRACE,
    AttemptResult,
    StillRuns,
    ThreadCall,
    awaited,
    function_of,
    result_of,
)
from genmcp.tasks.gathering import TaskParts
from genmcp.tasks.job_limits import JobLimits, pause_for_slot
from genmcp.tasks.jobs import Run, SavedState
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.progress import ProgressWriter, with_progress
from genmcp.tasks.records import HeldTask
from genmcp.tasks.schedules import ScheduledJobs
from genmcp.tasks.values import Codec
from genmcp.tasks.writer import TaskWriter, settlement

logger = logging.getLogger("genmcp")

# Seconds for which a retry of a `def` job waits for the thread of the attempt before, which cannot
# be stopped; after that the job fails, so that two attempts never overlap.
_LINGER: Final = 60.0


class JobRunner:
    """Makes attempts at jobs. Owned by a `TaskRunner`.

    Args:
        writer: writes the tasks.
        parts: the jobs that are part of a wait for several jobs.
        options: how this process works on jobs.
        environment: the parts of the mux that jobs use.

    Attributes:
        limits: how many jobs may run at once in all processes.
        schedules: the jobs that run periodically.
    """

    def __init__(
        self, writer: TaskWriter, parts: TaskParts, options: JobOptions, environment: JobEnvironment
    ) -> None:
        self._writer = writer
        self._parts = parts
        self._options = options
        self._environment = environment
        self._retry = writer.retry.retry_until_written
        self.limits = JobLimits(writer.records, writer.heartbeats.presence, options)
        self.schedules = ScheduledJobs(writer, options.schedules)

    async def attempt(self, held: HeldTask, task: Task, job: Job) -> Task:
        """Make an attempt at a job; return the task settled, or waiting for another delivery."""
        if task.parent is not None:
            await self._retry(partial(self._parts.check_wanted, held, task.parent))
        work = task.work
        assert isinstance(work, Working)
        if not await self._retry(partial(self.limits.acquire, task)):
            parking = partial(park_job, delay=pause_for_slot(work.waited))
            return await self._retry(partial(held.change, parking))
        async with self.limits.held(task) as running:
            if work.deadline is not None:
                left = work.deadline - self._writer.records.now()
                if left <= 0:
                    return await self._writer.settle(held, settlement(expired_outcome(work)))
                job = replace(job, timeout=min(job.timeout or inf, left))
            if task.schedule is not None:
                await self._retry(partial(self.schedules.check_due, held, task))
            with self._environment.observer.job_attempt(task) as on_end:
                result = await self._run(held, task, job, running)
                on_end(result.outcome)
            return await self._writer.settle(held, partial(_after_attempt, result))

    async def _run(
        self, held: HeldTask, task: Task, job: Job, running: list["asyncio.Future[Any]"]
    ) -> AttemptResult:
        """Run the function of *job*, and return its outcome; add to *running* what still runs.

        Raises:
            NotRunnableHere: this process has no such function, or none that takes these arguments.
            IllegalTransition: a write of progress was rejected: the task has ended, or was taken
                over.
            StillRuns: the attempt was cancelled, and the thread of the function continues.
            asyncio.CancelledError: the attempt was cancelled, and so is the function.
        """
        name, work = f"job {job.name}", task.work
        assert isinstance(work, Working)
        function, arguments = function_of(job, partial(self._environment.owner, task))
        progress = ProgressWriter(held.write_progress, lambda: working.cancel())
        run = self._run_of(held, task, job, progress, function.state_codec)
        call = partial(function, run, **arguments)
        thread = None if function.is_async else ThreadCall(call)
        run_function = call if thread is None else partial(self._environment.in_thread, thread)
        working = asyncio.create_task(awaited(run_function), name=name)
        try:
            result = await result_of(working, job.timeout, function)
            unwritten = await progress.close()  # from now on the next report ends the thread
            if thread is not None and result.may_retry and work.failures < job.retries:
                result = await self._wait_for_thread(thread, result, name)
        except asyncio.CancelledError as error:
            await progress.close()
            if thread is not None and not await thread.cancel(THREAD_GRACE):
                raise StillRuns from error
            raise
        finally:
            running.append(working)  # one that ignores its cancellation still runs
            if thread is not None and thread.runs:
                running.append(thread.ended)
                logger.warning("%s continues in its thread until it reports or returns", name)
        if progress.rejected:
            raise IllegalTransition("progress", "ended, or taken over by another process")
        return replace(result, progress=unwritten)

    async def _wait_for_thread(
        self, thread: ThreadCall, result: AttemptResult, name: str
    ) -> AttemptResult:
        """Wait for the thread of a failed attempt before the next one; if it does not end, fail."""
        if thread.runs:
            logger.warning("%s continues in its thread: the next attempt waits for it", name)
        if await thread.wait(_LINGER):
            return result
        logger.error("%s fails: its thread has not ended in %g seconds", name, _LINGER)
        return replace(result, may_retry=False)

    def _run_of(
        self, held: HeldTask, task: Task, job: Job, progress: ProgressWriter, codec: Codec | None
    ) -> Run:
        id, loop, work = run_id(task), asyncio.get_running_loop(), task.work
        assert isinstance(work, Working) and id is not None
        save, limit = partial(self._save, held), self._options.max_saved_bytes
        return Run(
            id,
            work.attempt,
            self._environment.assigns(task),
            progress,
            loop,
            SavedState(work.saved, save, limit, codec),
            failures=work.failures,
            retries=job.retries,
            _ends=None if job.timeout is None else loop.time() + job.timeout,
            owner=partial(self._environment.owner, task),
            _in_thread=self._environment.in_thread,
        )

    async def _save(self, held: HeldTask, state: bytes) -> None:
        write = partial(held.change, lambda task, now: save_state(task, state, now))
        await self._retry(write, _reject_state)


def _after_attempt(result: AttemptResult, task: Task, now: float) -> Task:
    if result.progress is not None:
        task = with_progress(result.progress, task, now)
    if result.may_retry:
        with suppress(IllegalTransition):  # there is no attempt left, or none before its deadline
            return retry_job(task, now, random())
    return task.settle(result.outcome, now)


def _reject_state(error: StoreUnavailable) -> Callable[[], Awaitable[Task]]:
    raise StoreError(f"run.save: the state was not stored: {error}") from error
