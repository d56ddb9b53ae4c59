"""Jobs of external queues (Celery, Temporal, ...): how calls wait for them.

A process asks the queue for the status of a job again and again, and writes its progress and its
end to the task. A webhook may report the end earlier (`settle`). It finds the tasks that wait for
the job by a label, and stores the outcome for those that are about to: a task is written before its
first step reads that outcome, and the outcome is written before the tasks are looked for, so that
each task gets it one way or the other.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

from genmcp.cancellation import run_to_completion
from genmcp.core.job_transitions import expired_outcome, record_submission
from genmcp.core.outcome import Failed, pack
from genmcp.core.task import Task
from genmcp.core.waiting import ExternalCall, ExternalJob, Following
from genmcp.errors import (
    Conflict,
    ContractError,
    IllegalTransition,
    TaskNotFound,
    UnknownFormat,
    WaitCancelled,
)
from genmcp.stores.store import Put
from genmcp.tasks.options import JobOptions
from genmcp.tasks.outcomes import NotRunnableHere, pack_failure, pack_result
from genmcp.tasks.progress import ProgressWriter
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.records import HeldTask, external_label
from genmcp.tasks.writer import TaskWriter, settlement

logger = logging.getLogger("genmcp")

_REPORTED_TTL: Final = 86400.0
"""Seconds for which a reported outcome is retained: a later call may wait for the same job, and a
second report of its end must not change the outcome."""
_TURN: Final = 60.0  # seconds for which a job is followed, until others that wait are
_QUEUE_TIMEOUT: Final = 30.0  # seconds for a queue to accept a job, or to cancel one
_PAGE: Final = 100  # tasks that wait for one job, in one query


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


class ExternalJobs:
    """The jobs of external *queues* that calls wait for. Owned by the `TaskRunner` of a process.

    A process follows a number of jobs at once. Each is submitted again behind the waiting ones
    after a turn, so that all are followed.
    """

    def __init__(
        self,
        writer: TaskWriter,
        queues: Sequence[ExternalQueue],
        options: JobOptions,
    ) -> None:
        self._writer = writer
        self._records = writer.records
        self._retry = writer.retry.retry_until_written
        self._queues = {each.scheme: each for each in queues}
        self._lease = options.lease

    async def follow(self, held: HeldTask, task: Task, ref: ExternalJob) -> Task:
        """Follow an external job for a while; return the task.

        It is settled if the job has ended. Otherwise it waits for the next delivery.

        Raises:
            NotRunnableHere: this process does not have the queue.
        """
        queue = self._queues.get(ref.scheme)
        if queue is None:
            raise NotRunnableHere(
                f"no ExternalQueue was given for scheme {ref.scheme!r}", "The queue is not known"
            )
        outcome, pause = None, self._lease
        started: ExternalJob | None = ref
        assert isinstance(task.work, Following)
        deadline = inf if task.work.deadline is None else task.work.deadline
        left = deadline - self._records.now()
        if left <= 0:
            expired = settlement(expired_outcome(task.work))
            if ref.call is None:
                await self.cancel(ref)
            return await self._writer.settle(held, expired)
        if ref.call is not None:
            # Not interrupted by a cancellation: whether it was submitted would be unknown.
            started = await run_to_completion(self._start(held, queue, ref, ref.call))
        if started is not None:
            outcome = await self._retry(partial(self._reported, started))
            if outcome is None:
                outcome, pause = await self._poll(held, queue, started, min(left, _TURN))
        pause = max(0.0, min(pause, deadline - self._records.now()))

        def after(task: Task, now: float) -> Task:
            return task.resubmit(now, pause) if outcome is None else task.settle(outcome, now)

        return await self._writer.settle(held, after)

    async def _start(
        self, held: HeldTask, queue: ExternalQueue, ref: ExternalJob, call: ExternalCall
    ) -> ExternalJob | None:
        """Submit a job that `ExternalQueue.job` has made, and record that.

        Return it with its name in the queue; None if the submission failed, which is logged. If it
        took too long, the job may run, and nothing follows it: a queue that recognizes the random
        name returns the same job to the next submission, and one that does not runs it twice.

        Raises:
            IllegalTransition: the task was cancelled in the meantime, and so is the job; or another
                process has the task.
        """
        try:
            async with asyncio.timeout(_QUEUE_TIMEOUT):
                started = ExternalJob(ref.scheme, await queue.start(ref.ref, call))
        except Exception as error:
            work = f"{ref.scheme} job {call.name}"
            logger.error("%s is submitted again later: %r", work, error, exc_info=error)
            return None
        try:
            await self._retry(partial(held.change, partial(record_submission, ref=started)))
        except IllegalTransition:
            stored = await self._records.find(held.id)
            if stored is None or stored.task.ended:
                await self.cancel(started)
            raise
        return started

    async def _poll(
        self, held: HeldTask, queue: ExternalQueue, ref: ExternalJob, seconds: float
    ) -> tuple[bytes | None, float]:
        """Follow a job to its end, or for a turn of some *seconds*.

        Return its outcome, None if it has not ended, and the seconds until it is followed again.

        Raises:
            IllegalTransition: a write of progress was rejected: the call has ended, or another
                process follows the job.
        """
        reported: ExternalStatus | None = None
        progress = ProgressWriter(held.write_progress)
        turn = asyncio.timeout(seconds)
        try:
            async with turn:
                while not (status := await queue.snapshot(ref.ref)).over:
                    if progress.rejected:
                        raise IllegalTransition("progress", "ended, or taken over")
                    if status != reported:
                        reported = status
                        progress.write_soon(status.progress, status.total, status.message)
                    await asyncio.sleep(queue.poll_interval)
                return pack_status(ref, status), 0.0
        except IllegalTransition:
            raise
        except Exception as error:
            if turn.expired():
                return None, 0.0
            logger.error("%s is followed again later: %s", ref, error, exc_info=error)
            return None, self._lease
        finally:
            await progress.close()

    async def cancel(self, ref: ExternalJob) -> None:
        """Cancel a job of an external queue; an error is only logged."""
        if queue := self._queues.get(ref.scheme):
            try:
                async with asyncio.timeout(_QUEUE_TIMEOUT):
                    await queue.cancel(ref.ref)
            except Exception as error:
                logger.error("%s was not cancelled: %r", ref, error, exc_info=error)

    async def settle(self, ref: ExternalJob, status: ExternalStatus) -> bool:
        """Record the end of a job, and end the wait of the tasks that wait for it.

        Return whether there were any.

        The first outcome counts, be it of a report or read from the queue.

        Raises:
            ValueError: *status* is not that of a job that has ended.
            StoreError: the store failed; the call may be repeated.
        """
        if not status.over:
            raise ValueError(f"{ref} cannot be settled: its phase is {status.phase}")
        outcome = pack_status(ref, status)
        try:
            put = Put(self._key(ref), outcome, ttl=_REPORTED_TTL, expect=0)
            await self._records.store.apply(put)
        except Conflict:
            outcome = await self._reported(ref) or outcome
        label, after, has_waited = external_label(self._records.prefix, ref), None, False
        while found := await self._records.store.find(label, after, _PAGE):
            for each in found:
                with suppress(UnknownFormat):  # of another release, whose process reads the outcome
                    has_waited |= await self._settle(Task.unpack(each.value).id, ref, outcome)
            after = found[-1].key
        return has_waited

    async def _settle(self, id: str, ref: ExternalJob, outcome: bytes) -> bool:
        """End a task's wait for *ref*; return whether it waited for that."""
        before: Task | None = None

        def settled(task: Task, now: float) -> Task:
            nonlocal before
            waits = _follows(task, ref) and not task.settled
            before = task if waits else None
            # The token is taken from the process that follows the job, which would otherwise write
            # an outcome as well.
            return task.settle(outcome, now).take_over(now) if waits else task

        async def settle() -> None:
            task = await self._records.change(id, settled)
            # Also if the outcome was written before: the submission may have failed.
            if _follows(task, ref):
                await self._writer.submit(task)

        try:
            await run_to_completion(settle())
        except TaskNotFound:
            return False
        if before is not None:
            await self._writer.cancel_step(before)
        return before is not None

    async def _reported(self, ref: ExternalJob) -> bytes | None:
        """Return the outcome of a job, None if it was not reported."""
        entry = await self._records.store.get(self._key(ref))
        return None if entry is None else entry.value

    def _key(self, ref: ExternalJob) -> str:
        return f"{self._records.prefix}ref:{ref.scheme}:{ref.ref}"


def _follows(task: Task, ref: ExternalJob) -> bool:
    return isinstance(task.work, Following) and task.work.ref == ref
