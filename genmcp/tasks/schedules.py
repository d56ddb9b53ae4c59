"""Jobs that run periodically, for the server itself.

Each occurrence is a task without a call, whose id is derived from its time: it is created once,
whichever processes try. Each process creates the next occurrence when the one before is due, so
that it waits in the queue of the store: if no process serves at its time, it runs late. Of several
occurrences that have waited, only the last one runs.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Final

from genmcp.core.outcome import Failed, unpack
from genmcp.core.task import Task
from genmcp.core.waiting import Finished, Working, scheduled
from genmcp.errors import ConfigurationError, IllegalTransition
from genmcp.tasks.cron import Schedule
from genmcp.tasks.outcomes import NotRunnableHere
from genmcp.tasks.records import HeldTask
from genmcp.tasks.writer import TaskWriter

logger = logging.getLogger("genmcp")

_LONGEST_SLEEP: Final = 3600.0  # seconds
_ENDED_TTL: Final = 86400.0  # seconds for which the record of an occurrence is retained


class ScheduledJobs:
    """The periodic jobs of a service. Owned by a `JobRunner`.

    Args:
        writer: writes the tasks.
        schedules: the schedules that this process knows.

    Raises:
        ConfigurationError: two schedules have one name.
    """

    def __init__(self, writer: TaskWriter, schedules: Sequence[Schedule]) -> None:
        self._writer = writer
        self._schedules = {each.id: each for each in schedules}
        if len(self._schedules) < len(schedules):
            raise ConfigurationError("JobOptions.schedules: two schedules have the same name")

    async def run(self) -> None:
        """Create the occurrences in time, until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            for schedule in self._schedules.values():
                group.create_task(self._create_all(schedule))

    async def _create_all(self, schedule: Schedule) -> None:
        while True:
            occurrence = schedule.after(time.time())
            create = partial(self.create, schedule, occurrence)
            try:
                await self._writer.retry.retry_until_written(create)
            except Exception as error:  # such as a record of another release under this id
                # The next occurrence has another id, and other schedules are not concerned.
                where = f"the occurrence of {schedule.id} at {occurrence:.0f}"
                logger.error("%s cannot be created: %s", where, error, exc_info=error)
            # Not all at once: the clock of the machine may be set, or the machine suspended.
            await asyncio.sleep(min(max(0.0, occurrence - time.time()), _LONGEST_SLEEP))

    async def create(self, schedule: Schedule, occurrence: float) -> Task:
        """Create and submit the task of an occurrence, unless it exists; return it."""
        now = self._writer.records.now()
        # The difference to the time of this machine: the clock of the store may be another one.
        waits_for, due = scheduled(Working(schedule.job), now + occurrence - time.time())
        task = Task(
            id=occurrence_id(schedule, occurrence),
            tool=f"schedule {schedule.id}",
            node=self._writer.heartbeats.own,
            created=now,
            updated=now,
            due=due,
            ttl=_ENDED_TTL,
            work=waits_for,
            private=True,
            schedule=f"{schedule.id} {occurrence:.3f}",
        )
        return await self._writer.create_once(task)

    async def check_due(self, held: HeldTask, task: Task) -> None:
        """Check that the occurrence *task*, which a worker has claimed, is to run.

        Raises:
            NotRunnableHere: this process does not know the schedule, or with other times.
            IllegalTransition: the next one is due as well; this one is cancelled.
            StoreError: the store failed.
        """
        name, _, moment = (task.schedule or "").rpartition(" ")
        schedule, occurrence = self._schedules.get(name), float(moment)
        if schedule is None or schedule.after(occurrence - 0.001) != occurrence:
            raise NotRunnableHere(
                f"there is no schedule {name!r} here that has this time", "No such schedule"
            )
        following = schedule.after(occurrence)
        if not isinstance(task.work, Working) or task.work.attempt > 1 or following > time.time():
            return
        if await self._writer.records.find(occurrence_id(schedule, following)) is not None:
            await held.change(Task.cancel)
            raise IllegalTransition(f"occurrence {task.schedule}", "followed by the next one")

    async def end(self, held: HeldTask, task: Task) -> None:
        """End the settled *task* of an occurrence. A failure is logged."""
        assert task.outcome is not None
        outcome = unpack(task.outcome)
        finished = Finished(result=task.outcome)
        if isinstance(outcome, Failed):
            logger.error("scheduled job %s has failed: %s", task.schedule, outcome.error)
            finished = Finished(error=task.outcome)
        await self._writer.finish(held, finished)


def occurrence_id(schedule: Schedule, occurrence: float) -> str:
    """Return the id of the task of an occurrence."""
    return f"{sha256(schedule.id.encode()).hexdigest()[:32]}.{occurrence:.3f}"
