"""The next steps of tasks in the hands of an engine, and those that a dead process left."""

import logging
from typing import Final

from msgspec.structs import replace

from genmcp.core.task import Task
from genmcp.core.waiting import Following
from genmcp.errors import IllegalTransition, StoreError
from genmcp.stores.clocks import steady
from genmcp.tasks.engine import Engine
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.records import HeldTask, TaskRecords

__all__ = ["CONTINUATIONS", "REFS", "StepScheduler", "engine_queue"]

logger = logging.getLogger("genmcp")

CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of every step that is not a job, so that none of them waits for long jobs."""

REFS: Final = "genmcp:refs"
"""The queue of steps that follow a job of another queue: each takes as long as that job."""


UNSERVED: Final = "Waiting for a worker"
"""The status message of a task whose queue is not served by any process."""

_WARN_AGAIN: Final = 60.0  # seconds between two warnings about one queue


class StepScheduler:
    """Submits the next steps of tasks to *engine*, in queues whose names begin with *prefix*.

    A record is written before its step is submitted. Between the two the process may die, or the
    engine may refuse. Then the step is submitted by the next reader of the record (`nudge`), or
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
        if task.lives_in is not None:
            if not task.private:
                await self.look_later(task, 0)
        elif task.delivered:
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

    async def look_later(self, task: Task, looks: int, delay: float = 0.0) -> None:
        """Schedule a check whether the process of the task is alive, by default after one lease.

        *looks* counts these checks: an engine does not accept the id that it is delivering.
        """
        await self._engine.submit(
            f"{task.engine_id}.{looks}",
            queue=engine_queue(self._prefix, CONTINUATIONS),
            delay=delay or self.heartbeats.lease,
            owner=self._records.owner_of(task),
        )

    async def cancel(self, task: Task) -> None:
        """Cancel the step that works on *task*; what it comes to is rejected in any case."""
        for delivery in {task.delivery, task.held} - {None}:
            try:
                await self._engine.cancel(f"{task.id}:{delivery}")
            except StoreError as error:
                logger.warning("a step of task %s was not cancelled: %s", task.id, error)

    async def nudge(self, task: Task) -> Task:
        """Submit or abandon the step that a dead process left, if any; return the task then.

        The returned task has a status message if it waits for a worker and there is none.
        """
        if task.lives_in is not None and not await self.heartbeats.lives(task.lives_in):
            return await self.abandon(task)
        # The engine itself delivers again what is held.
        if task.delivered and task.held is None:
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
            left = await held.change(Task.left)
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


def engine_queue(prefix: str, queue: str) -> str:
    """Return the name that an engine knows *queue* by.

    A "/" in the name of the queue is escaped: otherwise the queue "b/x" of the audience "a" would
    be the queue "x" of the audience "a/b", whose process does not know the task.
    """
    return prefix + queue.replace("%", "%25").replace("/", "%2F")


def _delay(task: Task, now: float) -> float:
    """Return the seconds until the next step of *task* is due.

    If the clock was set back, at most the delay that was intended at the last write.
    """
    return max(0.0, min(task.due - now, task.due - task.updated))
