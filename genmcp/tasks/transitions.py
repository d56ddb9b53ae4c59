"""The next steps of tasks in the hands of an engine, and those that a dead process left."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec.structs import replace

from genmcp.core.task import Task, add_answers, lose_process, publish_task
from genmcp.core.waiting import Asking, ExternalJob, Finished, Following, Suspended, Work
from genmcp.errors import IllegalTransition, OverShare, StoreError, StoreUnavailable, TaskNotFound
from genmcp.stores.clocks import steady
from genmcp.tasks.attempt import outcome_rejected, result_rejected
from genmcp.tasks.engine import CONTINUATIONS, REFS, Engine, engine_queue
from genmcp.tasks.external import ExternalJobs
from genmcp.tasks.records import HeldTask, TaskRecords
from genmcp.tasks.retry import RetriedWrites
from genmcp.tasks.worker import Heartbeats

__all__ = ["TaskScheduler", "TaskWriter"]

logger = logging.getLogger("genmcp")


UNSERVED: Final = "Waiting for a worker"
"""The status message of a task whose queue is not served by any process."""

_WARN_AGAIN: Final = 60.0  # seconds between two warnings about one queue


class TaskScheduler:
    """Submits the next steps of tasks to *engine*, in queues whose names begin with *prefix*.

    A record is written before its step is submitted. Between the two the process may die, or the
    engine may refuse. Then the step is submitted by the next reader of the record (`recover`), or
    when the delivery before it is delivered again.
    """

    def __init__(
        self,
        records: TaskRecords,
        engine: Engine,
        heartbeats: Heartbeats,
        *,
        prefix: str = "",
        follows: bool = False,
    ) -> None:
        """*follows*: whether processes like this one follow jobs of other queues."""
        self.heartbeats = heartbeats
        self._records = records
        self._engine = engine
        self._prefix = prefix
        self._following = REFS if follows else CONTINUATIONS
        self._checks: dict[str, float] = {}  # when each queue is checked for a worker next

    async def submit(self, task: Task) -> None:
        """Have the task's next step delivered when it is due."""
        if task.bound_node is not None:
            if not task.private:
                await self.check_later(task, 0)
        elif task.needs_delivery:
            queue = CONTINUATIONS
            if (job := task.job) is not None:
                queue = job.queue
                if queue not in self.heartbeats.queues:
                    await self._check_served(queue)
            elif isinstance(task.work, Following) and not task.settled:
                queue = self._following
            await self._engine.submit(
                task.engine_id,
                queue=engine_queue(self._prefix, queue),
                delay=_delay(task, self._records.now()),
                owner=self._records.owner_of(task),
            )

    async def check_later(self, task: Task, liveness_checks: int, delay: float = 0.0) -> None:
        """Schedule a check whether the process of the task is alive, by default after one lease.

        The number of checks makes the id unique: an engine rejects the id that it delivers now.
        """
        await self._engine.submit(
            f"{task.engine_id}.{liveness_checks}",
            queue=engine_queue(self._prefix, CONTINUATIONS),
            delay=delay or self.heartbeats.lease,
            owner=self._records.owner_of(task),
        )

    async def cancel(self, task: Task) -> None:
        """Cancel the step that works on *task*; what it comes to is rejected in any case."""
        for delivery in {task.delivery_id, task.held_delivery} - {None}:
            try:
                await self._engine.cancel(f"{task.id}:{delivery}")
            except StoreError as error:
                logger.warning("a step of task %s was not cancelled: %s", task.id, error)

    async def recover(self, task: Task) -> Task:
        """Submit or abandon the step that a dead process left, if any; return the task then.

        The returned task has a status message if it waits for a worker and there is none.
        """
        if task.bound_node is not None and not await self.heartbeats.lives(task.bound_node):
            return await self.abandon(task)
        # The engine itself delivers again what is held.
        if task.needs_delivery and task.held_delivery is None:
            now, lease = self._records.now(), self.heartbeats.lease
            overdue = now - max(task.due, task.updated)
            was_set = now < task.updated - lease  # this clock or another was set
            if overdue > lease / 2 or was_set:
                await self.submit(task)
                if task.job is not None and not await self.heartbeats.serves(task.job.queue):
                    return replace(task, message=UNSERVED)
        return task

    async def abandon(self, task: Task) -> Task:
        """Continue a task whose process is gone, if it still lives there; return it then."""
        try:
            held = HeldTask(self._records, task.id, task.fencing_token)
            left = await held.change(lose_process)
        except IllegalTransition:
            stored = await self._records.find(task.id)
            return stored.task if stored else task
        await self.submit(left)
        return left

    async def _check_served(self, queue: str) -> None:
        """Log a warning if no process serves *queue*, at most once a minute."""
        now = steady()
        if now < self._checks.get(queue, now):
            return
        self._checks[queue] = now + _WARN_AGAIN
        try:
            if not await self.heartbeats.serves(queue):
                logger.warning(
                    "no process serves the queue %r, so that its jobs wait (JobOptions.queues)",
                    queue,
                )
        except StoreError as error:
            logger.debug("it is not known whether a process serves %r: %s", queue, error)


def _delay(task: Task, now: float) -> float:
    """Return the seconds until the next step of *task* is due.

    If the clock was set back, at most the delay that was intended at the last write.
    """
    return max(0.0, min(task.due - now, task.due - task.updated))


class TaskWriter:
    """Writes the steps of tasks, and has submitted what follows from them.

    Between a record and its submission comes nothing but the death of the process, or that the
    engine refuses: the cancellation of the caller does not (`RetriedWrites.uninterrupted`).
    """

    def __init__(
        self,
        records: TaskRecords,
        scheduler: TaskScheduler,
        refs: ExternalJobs,
        retry: RetriedWrites,
    ) -> None:
        self.records = records
        self.scheduler = scheduler
        self.refs = refs
        self.retry = retry

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task and submit its first step. False: there is one with its id."""

        async def create() -> bool:
            await self._enter(task.id, task.work)
            created = await self.records.create(task, call)
            if created:
                await self.scheduler.submit(task)
            return created

        return await self.retry.uninterrupted(create())

    def publishing(
        self, held: HeldTask, suspended: Suspended, call: bytes, ttl: float
    ) -> Callable[[], Awaitable[Task]]:
        """Return a function that publishes a private task, which then waits as in *suspended*.

        It may be called again if the store failed. It raises IllegalTransition if the task is over,
        or another call has its key.
        """
        step = held.step(lambda task, now: publish_task(task, suspended, now, ttl), call)

        async def publish() -> Task:
            await self._enter(held.id, suspended.work)
            task = await step()
            await self.scheduler.submit(task)
            return task

        return lambda: self.retry.uninterrupted(publish(), held.id)

    async def park(self, held: HeldTask, suspended: Suspended) -> Task:
        """Let the task wait again.

        Raises:
            IllegalTransition: it is over, or another process has taken it over.
        """
        step = held.step(lambda task, now: task.suspend(suspended, now))

        async def park() -> Task:
            await self._enter(held.id, suspended.work)
            task = await step()
            await self.records.touch(task)
            await self.scheduler.submit(task)
            return task

        return await self.retry.retry_until_written(lambda: self.retry.uninterrupted(park()))

    async def finish(self, held: HeldTask, ended: Finished) -> Task:
        """End the task; with an error, if the store has no room for *ended*.

        Raises:
            IllegalTransition: as for `park`.
        """

        def end(ended: Finished) -> Callable[[], Awaitable[Task]]:
            return held.step(lambda task, now: task.finish(ended, now))

        return await self.retry.retry_until_written(
            end(ended), lambda error: end(result_rejected(error))()
        )

    async def go_on(self, held: HeldTask, came: Suspended | Finished) -> None:
        """Park or end the task; end it with an error if the store has no room for either.

        Raises:
            IllegalTransition: as for `park`.
        """
        if isinstance(came, Suspended):
            try:
                await self.park(held, came)
            except OverShare as error:
                came = result_rejected(error)
            else:
                return
        await self.finish(held, came)

    async def answer(self, id: str, answers: Mapping[str, bytes]) -> Task:
        """Add answers to the questions of a task; after the last one it continues."""

        async def answer() -> Task:
            task = await self.records.change(id, lambda task, now: add_answers(task, answers, now))
            if isinstance(task.work, Asking):
                await self.records.touch(task)
                await self.scheduler.submit(task)
            return task

        return await self.retry.uninterrupted(answer())

    async def leave(self, held: HeldTask) -> Task:
        """Let the task go on without the process it lives in.

        Raises:
            IllegalTransition: as for `park`, or it does not live in a process.
        """
        step = held.step(lose_process)

        async def leave() -> Task:
            task = await step()
            await self.scheduler.submit(task)
            return task

        return await self.retry.retry_until_written(lambda: self.retry.uninterrupted(leave()))

    async def cancel(
        self, was: Task, unfollow: Callable[[ExternalJob], Awaitable[None]], *, patient: bool
    ) -> Task | None:
        """Cancel a task and its step; return it as it was until then, None if it was over.

        A write that failed is repeated, since it may have been carried out: the record shows no
        more what is to be stopped. *patient*: the caller waits for that. *unfollow* cancels the job
        of another queue.

        Raises:
            StoreUnavailable: it is written later.
        """

        def cancelled(task: Task, now: float) -> Task:
            nonlocal was
            if task.ended:
                return task
            was = task
            return task.cancel(now)

        async def cancel() -> Task | None:
            task = await self.records.change(was.id, cancelled)
            if task.end != "cancelled":
                return None
            # Also of one that was cancelled before: that process may have died before it did this.
            await self.scheduler.cancel(was)
            if isinstance(was.work, Following):
                await unfollow(was.work.ref)
            return None if was.ended else was

        if patient:
            return await self.retry.wait_for_write(self.retry.retry_until_written(cancel), was.id)
        try:
            return await cancel()
        except StoreUnavailable:
            self.retry.defer(was.id, cancel)
            raise

    async def settle(self, held: HeldTask, transition: Callable[[Task, float], Task]) -> Task:
        """Write the outcome of an attempt, or an error if the store has no room for the outcome."""

        async def lose(error: StoreUnavailable) -> Task:
            outcome = outcome_rejected(error)
            return await held.change(lambda task, now: task.settle(outcome, now))

        return await self.retry.retry_until_written(held.step(transition), lose)

    async def settle_ref(self, id: str, ref: ExternalJob, outcome: bytes) -> bool:
        """End a task's wait for *ref*; return whether it waited for that."""
        was: Task | None = None

        def settled(task: Task, now: float) -> Task:
            nonlocal was
            waits = task.work == Following(ref) and not task.settled
            was = task if waits else None
            return task.settle(outcome, now).take_over(now) if waits else task

        async def settle() -> None:
            task = await self.records.change(id, settled)
            if task.work == Following(ref):  # also again: the engine may have refused it before
                await self.scheduler.submit(task)

        try:
            await self.retry.uninterrupted(settle())
        except TaskNotFound:
            return False
        if was is not None:
            await self.scheduler.cancel(was)
        return was is not None

    async def _enter(self, id: str, work: Work | None) -> None:
        if isinstance(work, Following):
            await self.refs.enter(work.ref, id)
