"""Limits on how many jobs run at once in the whole deployment: per key, and per queue.

A limit has one record in the store, which names the jobs that hold its slots and the processes that
run them, and is changed by compare-and-set. A job that finds no slot is delivered again after a
pause, and then looks again: there is no line, so that jobs may overtake each other.

A process may die before it releases a slot. A slot therefore counts only while its process renews
its heartbeat and the record of its task shows that the job runs: the next job that needs a slot
takes any other. A job that another process takes over after a crash acquires its slots again.
"""

from collections.abc import Sequence
from hashlib import sha256
from random import random
from typing import Final, NamedTuple

import msgspec

from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Working
from genmcp.errors import Conflict
from genmcp.stores.store import Delete, Op, Put
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import TaskRecords

# The pause before a job looks for a slot again is a quarter of the time that it has waited so far.
# Many waiting jobs then look as often as slots become free, however long the jobs run; and at most
# a fifth of the time of a slot is lost. The maximum bounds the wait of a single job.
_SHARE_OF_WAIT: Final = 0.25
_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """A slot in the stored record of a limit: the `run_id` of the job, and its process."""

    run: str
    node: str


class JobLimit(NamedTuple):
    """A limit: the key of its record, and the maximum number of jobs."""

    key: str
    most: int


class JobLimits:
    """The limits on the jobs of a service. Owned by a `JobRunner`.

    Args:
        records: reads the tasks that hold slots.
        heartbeats: which processes are alive.
        options: the limits of queues, and the lease.
    """

    def __init__(self, records: TaskRecords, heartbeats: Heartbeats, options: JobOptions) -> None:
        self._records = records
        self._store = records.store
        self._heartbeats = heartbeats
        self._options = options

    def of(self, task: Task) -> Sequence[JobLimit]:
        """Return the limits that the job of *task* needs slots of, in the order of acquisition."""
        if not isinstance(task.work, Working):
            return ()
        job, limits = task.work.job, []
        if job.limit:
            limits.append(self._limit(job.limit, "job", job.name, job.limit_key))
        if (most := self._options.queue_limits.get(job.queue)) is not None:
            limits.append(self._limit(most, "queue", job.queue))
        return limits

    def _limit(self, most: int, *name: str) -> JobLimit:
        # A digest, since names have any length; of their encoding, which separates them.
        digest = sha256(_encode(name)).hexdigest()[:32]
        return JobLimit(f"{self._records.prefix}slots:{digest}", most)

    async def acquire(self, task: Task) -> bool:
        """Take a slot of each limit for a claimed *task*; return whether there was one of each.

        A repetition changes nothing. If a slot is missing, none is kept.
        """
        for limit in self.of(task):
            if not await self._take(limit, task):
                await self.release(task)
                return False
        return True

    async def release(self, task: Task) -> None:
        """Release the slots of the job of *task*, if it has any."""
        run = run_id(task)
        for limit in self.of(task):
            while True:
                slots, version = await self.slots(limit)
                others = [each for each in slots if each.run != run]
                if slots == others or await self._write(limit, others, version):
                    break

    async def _take(self, limit: JobLimit, task: Task) -> bool:
        run = run_id(task)
        assert run is not None
        while True:
            slots, version = await self.slots(limit)
            others = [each for each in slots if each.run != run]
            if len(others) >= limit.most:
                others = [each for each in others if await self._is_held(each)]
            if len(others) >= limit.most:
                return False
            # A process of an engine has a heartbeat of its own.
            slots = [*others, Slot(run, task.holder or self._heartbeats.own)]
            if await self._write(limit, slots, version):
                return True

    async def slots(self, limit: JobLimit) -> tuple[Sequence[Slot], int]:
        """Return the slots that are taken, and the version of their record; 0 if there is none."""
        entry = await self._store.get(limit.key)
        return ((), 0) if entry is None else (_decode(entry.value), entry.version)

    async def _write(self, limit: JobLimit, slots: Sequence[Slot], version: int) -> bool:
        """Replace the record that has this *version*; return False if it has changed."""
        op: Op = Delete(limit.key, expect=version)
        if slots:
            op = Put(limit.key, _encode(slots), expect=version)
        try:
            await self._store.apply(op)
        except Conflict:
            return False
        return True

    async def _is_held(self, slot: Slot) -> bool:
        """Return whether the job of *slot* still runs."""
        stored = await self._records.find(slot.run.rpartition(".")[0])
        if stored is None or not await self._heartbeats.is_alive(slot.node):
            return False
        task = stored.task
        if task.ended:  # if it was cancelled, its function may still end
            return self._records.now() - task.updated < self._options.lease
        return task.job is not None and task.held_delivery is not None and run_id(task) == slot.run


def pause_for_slot(waited: float) -> float:
    """Return the seconds before a job that has *waited* for a slot looks for one again.

    Varied by a quarter, so that jobs that began to wait together do not look together.
    """
    pause = min(max(_SHORTEST_PAUSE, waited * _SHARE_OF_WAIT), _LONGEST_PAUSE)
    return pause * (1.0 - 0.25 * random())


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Slot]).decode
