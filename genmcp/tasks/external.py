"""Jobs of external queues (Celery, Temporal, ...): how calls wait for them."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from random import uniform

from genmcp.cancellation import cancel_and_wait, run_to_completion
from genmcp.core.job_transitions import record_submission
from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Task
from genmcp.core.waiting import ExternalCall, ExternalJob, Following
from genmcp.errors import ConfigurationError, ContractError, IllegalTransition, WaitCancelled
from genmcp.tasks.attempt import pack_failure, pack_result
from genmcp.tasks.options import JobBounds, JobOptions
from genmcp.tasks.parts import TaskParts
from genmcp.tasks.progress import ProgressWriter, Write
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.records import HeldTask
from genmcp.tasks.transitions import TaskWriter

logger = logging.getLogger("genmcp")


class ExternalJobFailed(Exception):
    """A job of an external queue failed; the text is for the log."""


def pack_status(ref: ExternalJob, status: ExternalStatus) -> bytes:
    """Return the packed outcome of a job that has ended."""
    work = f"{ref.scheme} job {ref.ref!r}"
    try:
        if status.phase == "completed":
            return pack_result(work, status.result)
        if status.phase == "cancelled":
            return pack(Failed(WaitCancelled()))
        raise ExternalJobFailed(status.error)
    except (ContractError, ExternalJobFailed) as error:
        return pack_failure(work, error)


class ExternalFollower:
    """Follows the jobs of external *queues*. Owned by the `TaskRunner` of a process.

    At most `JobBounds.refs` jobs are followed at once. While so many are followed, each of them is
    interrupted after about `JobBounds.watch` seconds, and submitted again behind the waiting jobs:
    all jobs are followed in rotation.
    """

    def __init__(
        self,
        writer: TaskWriter,
        parts: TaskParts,
        queues: Sequence[ExternalQueue],
        options: JobOptions,
        bounds: JobBounds,
    ) -> None:
        self._writer = writer
        self._retry = writer.retry.retry_until_written
        self._parts = parts
        self._queues = {each.scheme: each for each in queues}
        self._lease = options.lease
        self._bounds = bounds
        self._followed = 0

    async def follow(self, held: HeldTask, task: Task, ref: ExternalJob) -> Task:
        """Follow an external job for a while; return the task.

        It is settled if the job has ended. Otherwise it waits for the next delivery.
        """
        external, outcome, pause = self._writer.external, None, self._lease
        started: ExternalJob | None = ref
        if ref.call is not None:
            # Not interrupted: whether it was submitted would be unknown.
            started = await run_to_completion(self._start(held, ref, ref.call))
        if started is not None:
            outcome = await self._retry(partial(external.outcome, started))
            if outcome is None:
                progress = self._parts.progress_of(held, task)
                outcome, pause = await self._follow(started, progress)

        def after(task: Task, now: float) -> Task:
            return task.resubmit(now, pause) if outcome is None else task.settle(outcome, now)

        task = await self._writer.settle(held, after)
        if task.settled and isinstance(task.work, Following) and task.work.submitted:
            await self._retry(partial(external.forget, task.work.ref))
        return task

    async def _start(
        self, held: HeldTask, ref: ExternalJob, call: ExternalCall
    ) -> ExternalJob | None:
        """Submit a job that `ExternalQueue.job` has made, and record that.

        Return it with its name in the queue; None if the submission failed, which is logged.

        Raises:
            IllegalTransition: the task was cancelled in the meantime, and so is the job; or another
                process has the task.
        """
        queue, external = self._queues.get(ref.scheme), self._writer.external
        try:  # `_follow` reports a missing queue
            name = ref.ref if queue is None else await queue.start(ref.ref, call)
        except Exception as error:
            work = f"{ref.scheme} job {call.name}"
            logger.error("%s is submitted again later: %s", work, error, exc_info=error)
            return None
        started = ExternalJob(ref.scheme, name)
        await self._retry(partial(external.add_task, started, held.id))
        try:
            await self._retry(partial(held.change, partial(record_submission, ref=started)))
        except IllegalTransition:
            stored = await self._writer.records.find(held.id)
            if stored is None or stored.task.ended:
                await self.cancel(started)
                await external.forget(started)
            raise
        return started

    async def cancel(self, ref: ExternalJob) -> None:
        """Cancel a job of an external queue; an error is only logged."""
        if queue := self._queues.get(ref.scheme):
            try:
                await queue.cancel(ref.ref)
            except Exception as error:
                logger.error("%s was not cancelled: %s", ref, error, exc_info=error)

    async def _follow(self, ref: ExternalJob, write: Write) -> tuple[bytes | None, float]:
        """Follow a job to its end, or until it is interrupted for others; see the class.

        Return its packed outcome; or None, and the seconds until it is followed again.

        Raises:
            IllegalTransition: the write of progress was rejected: the call has ended, or another
                process follows the job.
        """
        queue = self._queues.get(ref.scheme)
        if queue is None:
            missing = ConfigurationError(f"no ExternalQueue was given for scheme {ref.scheme!r}")
            return pack_failure(f"following {ref.ref!r}", missing), 0.0
        progress = ProgressWriter(write, interval=self._bounds.progress_interval)
        place = asyncio.timeout(None)
        interrupting = asyncio.create_task(self._interrupt(place))
        self._followed += 1
        try:
            async with place:
                return await self._watch(queue, ref, progress), self._lease
        except IllegalTransition:
            raise
        except Exception as error:
            if place.expired():
                return None, 0.0
            logger.error("%s is followed again later: %s", ref, error, exc_info=error)
            return None, self._lease
        finally:
            self._followed -= 1
            await cancel_and_wait(interrupting)
            await progress.close()

    async def _interrupt(self, place: asyncio.Timeout) -> None:
        """Let *place* expire when others have waited for it for `JobBounds.watch` seconds."""
        while True:
            # Varied, so that not all jobs are interrupted at once.
            await asyncio.sleep(self._bounds.watch * uniform(0.75, 1.25))
            if self._followed >= self._bounds.refs:
                place.reschedule(asyncio.get_running_loop().time())
                return

    async def _watch(
        self, queue: ExternalQueue, ref: ExternalJob, progress: ProgressWriter
    ) -> bytes | None:
        clock = asyncio.get_running_loop().time
        reported: ExternalStatus | None = None
        due = 0.0
        async with aclosing(queue.watch(ref.ref)) as statuses:
            async for status in statuses:
                if status.over:
                    return pack_status(ref, status)
                if progress.rejected:
                    raise IllegalTransition("progress", "ended, or taken over by another process")
                # A queue that polls mostly yields the same status again, which needs no write. The
                # status is written at intervals nevertheless: if the write is rejected, the task
                # was cancelled, and the cancellation did not reach this process.
                if status != reported or clock() >= due:
                    reported, due = status, clock() + self._lease / 3
                    progress.report(status.progress, status.total, status.message)
        return None
