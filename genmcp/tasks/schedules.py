"""Jobs that run periodically, for the server itself.

Each occurrence is a task without a call, whose id is derived from its time: it is created once,
whichever processes try. The record of a schedule names the occurrence that is pending, and the one
before it. When an occurrence begins, the next one is created first, so that the chain does not
break if the job or its process fails. After a downtime, the pending occurrence runs late, and the
next one is in the future: missed occurrences run once.
"""

import logging
import time
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec

from genmcp.core.outcome import Failed, unpack
from genmcp.core.task import Task
from genmcp.core.waiting import Finished, Working, scheduled
from genmcp.errors import ConfigurationError, IllegalTransition
from genmcp.tasks.attempt import NotRunnableHere
from genmcp.tasks.cron import Schedule
from genmcp.tasks.records import HeldTask
from genmcp.tasks.shared_records import SharedRecords
from genmcp.tasks.transitions import TaskWriter

logger = logging.getLogger("genmcp")

_ENDED_TTL: Final = 86400.0  # seconds for which the record of an occurrence is retained


class ScheduleState(msgspec.Struct, frozen=True, array_like=True):
    """The stored record of a schedule.

    times: `Schedule.times`. pending: the next occurrence, Unix time. begun: the occurrence before
    it, once that has begun.
    """

    times: str
    pending: float
    begun: float | None = None


class ScheduledJobs:
    """The periodic jobs of a service. Owned by a `TaskRunner`.

    Args:
        writer: writes the tasks.
        schedules: the schedules that this process knows.

    Attributes:
        states: the records of the schedules.

    Raises:
        ConfigurationError: two schedules have one name.
    """

    def __init__(self, writer: TaskWriter, schedules: Sequence[Schedule]) -> None:
        self._writer = writer
        self._records = records = writer.records
        self.states = SharedRecords[ScheduleState | None](records.store, ScheduleState, None)
        self._schedules = {each.id: each for each in schedules}
        if len(self._schedules) < len(schedules):
            raise ConfigurationError("JobOptions.schedules: two schedules have the same name")

    async def prepare(self) -> None:
        """Create the pending occurrence of each schedule, unless another process has done so.

        Raises:
            StoreError: the store failed.
        """
        for schedule in self._schedules.values():
            while True:
                state, version = await self.states.read(key := self.key(schedule))
                # An occurrence that is pending in other times than those of this release would
                # run once more: it is replaced, and cancelled when it begins.
                if state is None or state.times != schedule.times:
                    state = ScheduleState(schedule.times, schedule.after(time.time()))
                    if not await self.states.write(key, state, version):
                        continue
                pending = await self.create(schedule, state.pending)
                if pending.ended:  # cancelled by a process that could not create the next one
                    await self.advance(pending)
                break

    async def begin(self, held: HeldTask, task: Task) -> None:
        """Create the occurrence after *task*, which a worker has claimed.

        Raises:
            NotRunnableHere: as for `advance`.
            IllegalTransition: *task* was replaced, and is cancelled.
            StoreError: the store failed.
        """
        if not await self.advance(task):
            await held.change(Task.cancel)
            raise IllegalTransition(f"occurrence {task.schedule}", "replaced")

    async def advance(self, task: Task) -> bool:
        """Create the occurrence after *task*; return False if *task* was replaced.

        Raises:
            NotRunnableHere: this process does not know the schedule, or another release of it.
            StoreError: the store failed.
        """
        name, _, moment = (task.schedule or "").rpartition(" ")
        schedule, occurrence = self._schedules.get(name), float(moment)
        if schedule is None:
            raise NotRunnableHere(f"there is no schedule {name!r} here", "No such schedule")
        while True:
            state, version = await self.states.read(key := self.key(schedule))
            if state is not None and state.pending == occurrence:
                if state.times != schedule.times:
                    text = f"schedule {name!r} has other times in this release"
                    raise NotRunnableHere(text, "Other times")
                following = schedule.after(max(occurrence, time.time()))
                state = ScheduleState(state.times, following, occurrence)
                if not await self.states.write(key, state, version):
                    continue
            if state is None or state.begun != occurrence:
                return False
            # Also if this is a repetition: the process that wrote the state may have died since.
            await self.create(schedule, state.pending)
            return True

    async def end(self, held: HeldTask, task: Task) -> None:
        """End the settled *task* of an occurrence. A failure is logged."""
        assert task.outcome is not None
        outcome = unpack(task.outcome)
        finished = Finished(result=task.outcome)
        if isinstance(outcome, Failed):
            logger.error("scheduled job %s has failed: %s", task.schedule, outcome.error)
            finished = Finished(error=task.outcome)
            # It may have expired before it began.
            advance = partial(self.advance_anyway, task)
            await self._writer.retry.retry_until_written(advance)
        await self._writer.finish(held, finished)

    async def advance_anyway(self, task: Task) -> None:
        """Create the occurrence after *task*, which has ended or was cancelled, if possible."""
        try:
            await self.advance(task)
        except NotRunnableHere as missing:
            logger.warning("no occurrence follows %s: %s", task.schedule, missing)

    async def create(self, schedule: Schedule, occurrence: float) -> Task:
        """Create and submit the task of an occurrence, unless it exists; return it."""
        now = self._records.now()
        # The difference to the time of this machine: the clock of the store may be another one.
        waits_for, due = scheduled(Working(schedule.job), now + occurrence - time.time())
        task = Task(
            id=self.occurrence_id(schedule, occurrence),
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

    def occurrence_id(self, schedule: Schedule, occurrence: float) -> str:
        """Return the id of the task of an occurrence."""
        return f"{self._digest(schedule)}.{occurrence:.3f}"

    def key(self, schedule: Schedule) -> str:
        """Return the key of the record of *schedule*."""
        return f"{self._records.prefix}schedule:{self._digest(schedule)}"

    def _digest(self, schedule: Schedule) -> str:
        return sha256(schedule.id.encode()).hexdigest()[:32]
