"""Runs the jobs of claimed tasks: makes an attempt, and writes its outcome."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from random import random

from msgspec.structs import replace

from genmcp._core.job_transitions import defer, expired_outcome, park_job, retry_job, save_state
from genmcp._core.task import Task, run_id
from genmcp._core.waiting import Job, Working
from genmcp.errors import IllegalTransition, StoreError, StoreUnavailable
from genmcp.tasks.attempt import AbandonedThreads, AttemptResult, NotRunnableHere, attempt
from genmcp.tasks.job_limits import JobLimits, pause_for_slot
from genmcp.tasks.jobs import Run, SavedState
from genmcp.tasks.options import JobEnvironment, JobOptions, StepObserver
from genmcp.tasks.parts import TaskParts
from genmcp.tasks.progress import ProgressWriter, with_progress
from genmcp.tasks.records import HeldTask
from genmcp.tasks.schedules import ScheduledJobs
from genmcp.tasks.transitions import TaskWriter
from genmcp.tasks.values import Codec

logger = logging.getLogger("genmcp")


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
        self,
        writer: TaskWriter,
        parts: TaskParts,
        options: JobOptions,
        environment: JobEnvironment,
    ) -> None:
        self._writer = writer
        self._parts = parts
        self._options = options
        self._environment = environment
        self._threads = AbandonedThreads()
        self.limits = JobLimits(writer.records, writer.heartbeats, options)
        self.schedules = ScheduledJobs(writer, options.schedules)

    async def attempt(self, held: HeldTask, task: Task, job: Job) -> Task:
        """Make an attempt at a job; return the task settled, or waiting for another delivery."""
        if task.parent is not None:
            check = partial(self._parts.check_wanted, held, task.parent)
            await self._writer.retry.retry_until_written(check)
        if not self.limits.of(task):
            return await self._attempt(held, task, job)
        assert isinstance(task.work, Working)
        retry = self._writer.retry.retry_until_written
        if not await retry(partial(self.limits.acquire, task)):
            parking = partial(park_job, delay=pause_for_slot(task.work.waited))
            return await retry(partial(held.change, parking))
        try:
            after = await self._attempt(held, task, job)
        except BaseException:
            # If the store fails, the jobs that wait find out by themselves. The exception must
            # arrive as it is: it decides whether the step is handed over.
            with suppress(StoreError):
                await self.limits.release(task)
            raise
        if not after.settled:  # otherwise before the call continues
            await retry(partial(self.limits.release, task))
        return after

    async def _attempt(self, held: HeldTask, task: Task, job: Job) -> Task:
        assert isinstance(task.work, Working)
        if task.work.deadline is not None:
            left = task.work.deadline - self._writer.records.now()
            if left <= 0:
                outcome = expired_outcome(task.work)
                return await self._writer.settle(held, lambda task, now: task.settle(outcome, now))
            job = replace(job, timeout=min(job.timeout or inf, left))
        try:
            if task.schedule is not None:
                begin = partial(self.schedules.begin, held, task)
                await self._writer.retry.retry_until_written(begin)
            attempting = attempt(
                job,
                partial(self._run, held, task, job),
                write=self._parts.progress_of(held, task),
                environment=self._environment,
                threads=self._threads,
                has_retries=_has_retries(task),
            )
            result = await _observed(self._environment.observer, task, attempting)
        except NotRunnableHere as missing:
            if deferred := await self.defer(held, task, missing):
                return deferred
            outcome = missing.outcome(task.deferred_seconds)
            return await self._writer.settle(held, lambda task, now: task.settle(outcome, now))
        return await self._writer.settle(held, partial(_after_attempt, result))

    async def defer(self, held: HeldTask, task: Task, missing: NotRunnableHere) -> Task | None:
        """Resubmit the step for another process, and return the task.

        Return None if it was deferred for `unknown_timeout` already; nothing is written then.
        """
        # Without a shared store, no other process could have the code that this one lacks.
        can_wait = missing.temporary or self._writer.records.store.shared
        if not can_wait or task.deferred_seconds >= self._options.unknown_timeout:
            return None
        delay = missing.delay_after(task.deferred_seconds)
        logger.warning("task %s is deferred to another process: %s", task.id, missing)
        write = partial(held.change, lambda task, now: defer(task, now, delay))
        return await self._writer.retry.retry_until_written(write)

    def _run(
        self,
        held: HeldTask,
        task: Task,
        job: Job,
        progress: ProgressWriter,
        codec: Codec | None,
    ) -> Run:
        id, loop = run_id(task), asyncio.get_running_loop()
        assert isinstance(task.work, Working) and id is not None
        seconds = min(job.soft_timeout or inf, job.timeout or inf)
        return Run(
            id,
            task.work.attempt,
            self._environment.assigns(task),
            progress,
            loop,
            SavedState(
                task.work.saved, partial(self._save, held), self._options.max_saved_bytes, codec
            ),
            failures=task.work.failures,
            retries=job.retries,
            _ends=None if seconds == inf else loop.time() + seconds,
        )

    async def _save(self, held: HeldTask, state: bytes) -> None:
        write = partial(held.change, lambda task, now: save_state(task, state, now))
        await self._writer.retry.retry_until_written(write, _reject_state)


async def _observed(
    observer: StepObserver, task: Task, attempting: Awaitable[AttemptResult]
) -> AttemptResult:
    with observer.job_attempt(task) as report:
        result = await attempting
        report(result.outcome)
        return result


def _has_retries(task: Task) -> bool:
    return isinstance(task.work, Working) and task.work.failures < task.work.job.retries


def _after_attempt(result: AttemptResult, task: Task, now: float) -> Task:
    task = with_progress(result.progress, task, now)
    assert isinstance(task.work, Working)
    if result.may_retry and _has_retries(task):
        with suppress(IllegalTransition):  # the next attempt would begin after the deadline
            return retry_job(task, now, random())
    return task.settle(result.outcome, now)


def _reject_state(error: StoreUnavailable) -> Callable[[], Awaitable[Task]]:
    raise StoreError(f"run.save: the state was not stored: {error}") from error
