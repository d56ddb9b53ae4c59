"""Writes the transitions of tasks, and submits the next step after each.

The transitions themselves are in `core/task.py`, `core/job_transitions.py` and `core/gathering.py`.
Each is one conditional write of the record, followed by at most one submission to
`Store.deliveries`. The order matters. The record is written first: a step that is delivered before
its record would find nothing to do and be acknowledged. If the process dies between the two, or the
submission fails, the record waits without a delivery. The next reader of the record then submits
the step (`TaskWriter.recover`), and so do the handler, if the delivery of the previous step is
repeated, and the `TaskReconciler` of a process.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from genmcp.cancellation import run_to_completion
from genmcp.core.client_key import client_of
from genmcp.core.job_transitions import (
    UNSERVED,
    expire_job,
    submission_pause,
    submit_again,
    untaken,
)
from genmcp.core.task import Task, add_answers, lose_engine_node, lose_process
from genmcp.core.waiting import Asking, Finished, Following, Suspended, Working
from genmcp.errors import IllegalTransition, OverShare, StoreError, StoreUnavailable
from genmcp.log_throttle import LogThrottle
from genmcp.stores.clocks import steady
from genmcp.stores.deliveries import Deliveries
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.options import JobOptions, StepObserver
from genmcp.tasks.outcomes import outcome_rejected, result_rejected
from genmcp.tasks.records import HeldTask, Stored, TaskRecords, Transition
from genmcp.tasks.retrying import RetriedWrites

logger = logging.getLogger("genmcp")

CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of all steps that are not jobs, so that none of them waits for long jobs."""

EXTERNAL: Final = "genmcp:refs"
"""The queue of steps that follow a job of an external queue: each takes as long as that job."""


def delivery_queue(prefix: str, queue: str) -> str:
    """Return the name of *queue* in `Store.deliveries`.

    A "/" in the name is escaped: otherwise the queue "b/x" of the audience "a" would be the queue
    "x" of the audience "a/b", and its processes do not have the task.
    """
    return prefix + queue.replace("%", "%25").replace("/", "%2F")


_WARNING_INTERVAL: Final = 60.0  # seconds between two warnings about one queue


class TaskWriter:
    """Makes the transitions of tasks, and submits the next steps. Owned by a `TaskService`.

    If the caller is cancelled, both the write of a record and the submission of its next step are
    completed: a record whose step is not submitted would wait until it is read again. Only the
    death of the process may come between the two.

    Writes of work that was done are repeated until the store accepts or rejects them, by `retry`.

    Args:
        records: the tasks.
        deliveries: the queues of the store.
        heartbeats: which processes are alive.
        retry: repeats writes.
        options: how this process works on jobs.
        observer: is notified of lost processes of an engine.
    """

    def __init__(
        self,
        records: TaskRecords,
        deliveries: Deliveries,
        heartbeats: Heartbeats,
        retry: RetriedWrites,
        options: JobOptions,
        observer: StepObserver,
    ) -> None:
        self.records = records
        self.heartbeats = heartbeats
        self.retry = retry
        self._deliveries = deliveries
        self._max_crashes = options.max_crashes
        self._engines = options.engines
        self._observer = observer
        self._checks: dict[str, float] = {}  # by queue: the time of the next check for a worker
        self._untaken = LogThrottle(logger, _WARNING_INTERVAL)

    # The delivery of steps.

    async def submit(self, task: Task, *, at_once: bool = False) -> None:
        """Schedule the delivery of the next step of *task*, or a liveness check of its process.

        *at_once*: not when the step is due, but now.
        """
        work, queue = task.work, CONTINUATIONS
        if task.outcome is None:
            if isinstance(work, Working):
                queue = work.job.queue
                if queue not in self.heartbeats.queues:
                    await self._warn_if_unserved(queue)
            elif isinstance(work, Following):
                queue = EXTERNAL
            elif task.bound_node is not None:
                await self.check_later(task, 0)
                return
            elif not task.needs_delivery:
                return
        # If the clock was set back since the last write, as long as was intended then.
        delay = min(task.due - self.records.now(), task.due - task.updated)
        await self._put(task, task.queued_id, queue, 0.0 if at_once else max(0.0, delay))

    async def deliver_later(self, task: Task) -> None:
        """Submit the next step of a *task* that was just written, and extend the expiry of both.

        The request must live as long as the record.
        """
        await self.records.touch(task)
        await self.submit(task)

    async def check_later(self, task: Task, liveness_checks: int, delay: float = 0.0) -> None:
        """Schedule a check whether the process of the task is alive, by default after one lease.

        The number of checks makes the id unique: the id that is delivered now is not put again.
        """
        id = f"{task.queued_id}.{liveness_checks}"
        await self._put(task, id, CONTINUATIONS, delay or self.heartbeats.lease)

    async def _put(self, task: Task, id: str, queue: str, delay: float) -> None:
        owner = client_of(task.owner, task.address)
        name = delivery_queue(self.records.prefix, queue)
        await self._deliveries.put(id, name, delay, owner=owner)

    async def cancel_step(self, task: Task) -> None:
        """Cancel the step of *task*, best effort: its result is rejected in any case."""
        for delivery in {task.delivery_id, task.held_delivery} - {None}:
            try:
                await self._deliveries.cancel(f"{task.id}:{delivery}")
            except StoreError as error:
                logger.warning("a step of task %s was not cancelled: %s", task.id, error)

    # Repairs.

    async def recover(self, task: Task) -> Task:
        """Repair a task that a dead process has left without a next step; return the task.

        `TaskService.get` calls this, so that reads repair the state. If the task is bound to a dead
        process, or held by a dead process of an engine, it is taken from it (a write). If its job
        has passed its deadline in the queue, it fails. If its next step is overdue, the step is
        submitted again. If no process serves its queue, or no worker of an engine has taken its
        job, the returned task has a status message. Otherwise *task* is returned unchanged.
        """
        node = task.bound_node or task.engine_node
        if node is not None and not await self.heartbeats.is_alive(node):
            return await self.take_from_dead(task)
        # A held delivery is delivered again when its lease expires.
        if task.needs_delivery and task.held_delivery is None:
            now, lease = self.records.now(), self.heartbeats.lease
            if _is_late(task, now, lease) and (expired := await self._change(task, expire_job)):
                await self.cancel_step(task)
                await self.submit(expired)
                return expired
            overdue = now - max(task.due, task.updated) - submission_pause(task, lease)
            was_set = now < task.updated - lease  # this clock or that of the writer was set
            if overdue > lease / 2 or was_set:
                task = await self._submit_again(task)
                if task.job is not None and not await self.heartbeats.is_served(task.job.queue):
                    return replace(task, message=UNSERVED)
            if (message := untaken(task)) is not None:
                return replace(task, message=message)
        return task

    async def _submit_again(self, task: Task) -> Task:
        # `Store.deliveries` ignores an id that it still has. An engine would get it once more.
        if task.job is None or task.job.queue not in self._engines:
            await self.submit(task)
            return task
        again = await self._change(task, partial(submit_again, submissions=task.submissions))
        if again is None:
            return task
        if again.submissions == 1:
            self._untaken.log(
                logging.WARNING,
                "no worker of %r has taken the job %s of task %s yet, which is submitted again: "
                "do its workers run, with the same broker, and have they imported this server?",
                self._engines[task.job.queue],
                task.job.name,
                task.id,
            )
        await self.submit(again, at_once=True)
        return again

    async def take_from_dead(self, task: Task) -> Task:
        """Give up the call, awaitable or job that the dead process of *task* was running.

        The task fails, or its wait ends with WorkerLost, or its job runs again (`lose_process`,
        `lose_engine_node`), and its next step is submitted. Return the task after that. If another
        process has changed the task first, write nothing and return the task as it is in the store.
        """
        lose: Transition = lose_process
        if task.bound_node is None:
            lose = partial(lose_engine_node, max_crashes=self._max_crashes)
        lost = await self._change(task, lose)
        if lost is None:
            stored = await self.records.find(task.id)
            return stored.task if stored else task
        if task.engine_node is not None:
            self._observer.lease_lost(task)
            logger.warning(
                "the process %s has died with the job of task %s", task.engine_node, task.id
            )
        await self.submit(lost)
        return lost

    async def _change(self, task: Task, transition: Transition) -> Task | None:
        """Write *task* after *transition*; return None if another process has changed it first."""
        try:
            return await HeldTask(self.records, task.id, task.fencing_token).change(transition)
        except IllegalTransition:
            return None

    async def _warn_if_unserved(self, queue: str) -> None:
        """Log a warning if no process serves *queue*, at most once a minute."""
        now = steady()
        if now < self._checks.get(queue, now):
            return
        self._checks[queue] = now + _WARNING_INTERVAL
        try:
            if not await self.heartbeats.is_served(queue):
                logger.warning(
                    "no process serves the queue %r, so that its jobs wait (JobOptions.queues)",
                    queue,
                )
        except StoreError as error:
            logger.debug("it is unknown whether a process serves %r: %s", queue, error)

    # Transitions.

    async def create(
        self, task: Task, call: bytes | None, *, replaces: Stored | None = None
    ) -> bool:
        """Write a new task and submit its first step. Return False if the id exists.

        *replaces* is as for `TaskRecords.create`. The caller must not be cancelled in between: see
        `run_to_completion`, or repeat the submission.
        """
        created = await self.records.create(task, call, replaces=replaces)
        if created:
            await self.submit(task)
        return created

    async def create_once(self, task: Task) -> Task:
        """Create a task without a call, or submit its next step if it exists; return it.

        It exists if this is repeated, and may not have been submitted then.
        """
        if await self.create(task, None):
            return task
        stored = await self.records.find(task.id)
        if stored is None:
            return task
        if not stored.task.ended:
            await self.submit(stored.task)
        return stored.task

    async def suspend(self, held: HeldTask, suspended: Suspended) -> Task:
        """Write that the task waits again, and submit its work.

        Raises:
            IllegalTransition: it has ended, or another process has taken it over.
        """
        return await self._move(held, lambda task, now: task.suspend(suspended, now))

    async def abandon(self, held: HeldTask) -> Task:
        """Give up the call or awaitable that runs in the process that the task is bound to.

        The task fails, or its wait ends with WorkerLost (`lose_process`).

        Raises:
            IllegalTransition: as for `suspend`, or it is not bound to a process.
        """
        return await self._move(held, lose_process)

    async def _move(self, held: HeldTask, transition: Transition) -> Task:
        async def move() -> Task:
            task = await held.change(transition)
            await self.deliver_later(task)
            return task

        return await self.retry.retry_until_written(lambda: run_to_completion(move()))

    async def finish(self, held: HeldTask, finished: Finished) -> Task:
        """End the task with *finished*, or with an error if the store has no room for *finished*.

        Raises:
            IllegalTransition: as for `suspend`.
        """

        def write(finished: Finished) -> Callable[[], Awaitable[Task]]:
            return partial(held.change, lambda task, now: task.finish(finished, now))

        retry = self.retry.retry_until_written
        return await retry(write(finished), lambda error: write(result_rejected(error)))

    async def advance(self, held: HeldTask, result: Suspended | Finished) -> None:
        """Suspend the task, or end it, as *result* states.

        If the store has no room for *result*, the task ends with an error.

        Raises:
            IllegalTransition: as for `suspend`.
        """
        if isinstance(result, Suspended):
            try:
                await self.suspend(held, result)
                return
            except OverShare as error:
                result = result_rejected(error)
        await self.finish(held, result)

    async def answer(self, id: str, answers: Mapping[str, bytes]) -> Task:
        """Add answers to the questions of a task; after the last one it continues."""

        async def answer() -> Task:
            task = await self.records.change(id, lambda task, now: add_answers(task, answers, now))
            if isinstance(task.work, Asking):
                await self.deliver_later(task)
            return task

        return await run_to_completion(answer())

    async def cancel(
        self, before: Task, cancel_work: Callable[[Task], Awaitable[None]], *, wait: bool
    ) -> Task | None:
        """Cancel a task and its step; return it as it was before, None if it had ended.

        A write that failed is repeated, because it may have taken effect. The record then does not
        name the work that is to be stopped any more, and only this process knows it.

        Args:
            before: the task as it was read.
            cancel_work: cancels work that is not a step of the task, such as an external job.
            wait: whether the caller waits while the write is repeated. It does not wait for work
                that takes long to cancel.

        Raises:
            StoreUnavailable: it is written later, unless too many writes are pending already.
        """
        self.retry.check()
        written = False

        def cancelled(task: Task, now: float) -> Task:
            nonlocal before
            # A repetition may find the next call with the idempotency key, which has the same id.
            if task.ended or task.created != before.created:
                return task
            before = task
            return task.cancel(now)

        async def cancel() -> Task | None:
            nonlocal written
            task = await self.records.change(before.id, cancelled)
            written = True
            if task.created != before.created:
                # Parts and request are those of the next call, but not the step and the hook.
                await self.cancel_step(before)
                return before if before.bound_node else None
            if task.end != "cancelled":
                return None
            # Also if the task was cancelled before: by a process that has died before this.
            await self.cancel_step(before)
            await cancel_work(before)
            if before.resumes:
                # The process of the step notifies the tool, once the step has ended. This delivery
                # reminds another one of that, in case that the process has died.
                await self.check_later(before, 0)
            return None if before.ended else before

        if wait:
            repeated = self.retry.retry_until_written(cancel)
            try:
                return await self.retry.wait_for_write(repeated)
            except StoreUnavailable:
                if not written:
                    raise
                return None if before.ended else before
        try:
            return await cancel()
        except StoreUnavailable:
            self.retry.defer(cancel)
            raise

    async def settle(self, held: HeldTask, transition: Transition) -> Task:
        """Write the outcome of an attempt, or an error if the store has no room for the outcome."""

        def reject(error: StoreUnavailable) -> Callable[[], Awaitable[Task]]:
            return partial(held.change, settlement(outcome_rejected(error)))

        return await self.retry.retry_until_written(partial(held.change, transition), reject)


def _is_late(task: Task, now: float, lease: float) -> bool:
    """Return whether any process may end the wait of *task*, because its deadline has passed."""
    work = task.work
    if task.settled or not isinstance(work, Working | Following) or work.deadline is None:
        return False
    # A process that has the queue of an external job also cancels the job there.
    return work.deadline + (lease if isinstance(work, Following) else 0.0) <= now


def settlement(outcome: bytes) -> Transition:
    """Return the transition that ends a wait with the packed *outcome*."""
    return lambda task, now: task.settle(outcome, now)
