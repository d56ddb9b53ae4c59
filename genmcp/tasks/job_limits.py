"""Limits on how many jobs run at once in the whole deployment: per key, and per queue.

A limit has one record in the store, which names the jobs that hold its slots, and one record for
each job that waits. Both have one subject, so that a slot is released and given to the next job by
one write, conditional on the version of the first record. Nothing polls: a job that finds no slot
is parked, which means that its next delivery is far away, and the process that releases a slot
gives the parked job a delivery that is due now.

A process may die between any two of these writes. A parked job therefore checks again by itself:
after a lease or, far back in the line, after a few. It then also takes the slots of jobs that have
ended without releasing them. If the step that released a slot is repeated, so is the release, which
wakes the jobs that got a slot and were not woken.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from genmcp._core.job_transitions import park_job, wake_job
from genmcp._core.task import Task, run_id
from genmcp._core.waiting import Working
from genmcp.errors import Conflict, IllegalTransition, StoreError, TaskNotFound
from genmcp.stores.store import Delete, Op, Put
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import HeldTask
from genmcp.tasks.transitions import TaskWriter

_LONGEST_PARKING: Final = 20  # leases


class LimitHolders(msgspec.Struct, frozen=True, array_like=True):
    """The stored record of a limit: its name, and the `run_id` of each job that has a slot."""

    name: str
    holders: tuple[str, ...] = ()


class JobLimit(NamedTuple):
    """A limit: its name, the key of its record, and the maximum number of jobs."""

    name: str
    key: str
    most: int


class _Slots(NamedTuple):
    """The record of a limit as it was read, and its version."""

    record: LimitHolders
    version: int


class JobLimits:
    """The limits on the jobs of a service. Owned by a `JobRunner`.

    Args:
        writer: writes the tasks.
        options: the limits of queues, and the lease.
    """

    def __init__(self, writer: TaskWriter, options: JobOptions) -> None:
        self._writer = writer
        self._records = writer.records
        self._store = writer.records.store
        self._options = options

    def of(self, task: Task) -> Sequence[JobLimit]:
        """Return the limits that the job of *task* needs slots of, in the order of acquisition."""
        if not isinstance(task.work, Working):
            return ()
        job, limits = task.work.job, []
        if job.limit:
            limits.append(self._limit(f"job {job.name} {job.limit_key}".rstrip(), job.limit))
        if (most := self._options.queue_limits.get(job.queue)) is not None:
            limits.append(self._limit(f"queue {job.queue}", most))
        return limits

    def _limit(self, name: str, most: int) -> JobLimit:
        # A digest, since names may contain any character and have any length.
        digest = sha256(name.encode()).hexdigest()[:32]
        return JobLimit(name, f"{self._records.prefix}limit:{digest}", most)

    @asynccontextmanager
    async def slots(self, task: Task) -> AsyncIterator[None]:
        """Release the slots of a claimed *task* if it is found to have ended while this runs.

        A cancelled job keeps its slots until its function has ended.
        """
        try:
            yield
        except BaseException:
            # If the store fails, the jobs that wait find out by themselves. The exception must
            # arrive as it is: it decides whether the step is handed over.
            with suppress(StoreError):
                for limit in self.of(task):
                    stored = await self._records.find(task.id)
                    if stored is None or stored.task.ended:
                        await self._release(limit, task, run_id(task) or "")
            raise

    async def acquire(self, held: HeldTask, task: Task) -> Task | None:
        """Take a slot of each limit for a claimed *task*; return None if it may run.

        Otherwise park the task, and return it.
        """
        retry = self._writer.retry.retry_until_written
        for limit in self.of(task):
            pause = await retry(partial(self._take, limit, task))
            if pause is None:
                continue
            parked = await retry(partial(held.change, partial(park_job, delay=pause)))
            # A slot may have been released after it was refused here, and before the task could be
            # woken.
            slots = await retry(partial(self._read, limit))
            if run_id(task) in slots.record.holders:
                parked = await retry(partial(self._records.change, task.id, wake_job))
            return parked
        return None

    async def release(self, task: Task) -> None:
        """Release the slots of the job of *task*, or its place in the line, and wake the next."""
        run = run_id(task)
        for limit in self.of(task):
            assert run is not None
            write = partial(self._release, limit, task, run)
            await self._writer.retry.retry_until_written(write)

    async def _take(self, limit: JobLimit, task: Task) -> float | None:
        """Take a slot, or join the line; return the seconds after which to check again."""
        run, place = run_id(task), _place(limit, task)
        assert run is not None
        waited = False
        while True:
            slots = await self._read(limit)
            if run in slots.record.holders:
                return None
            holders = slots.record.holders
            if len(holders) >= limit.most:
                waited = waited or await self._store.get(place) is not None
                holders = await self._alive(holders) if waited else holders
            line = await self._store.find(limit.key, limit=1)
            try:
                if len(holders) < limit.most and (not line or line[0].key == place):
                    await self._write(limit, slots, (*holders, run), Delete(place))
                    return None
                joins = Put(place, run.encode(), ttl=self._retention(task), labels=[limit.key])
                await self._write(limit, slots, holders, joins)
            except Conflict:
                continue
            if len(holders) < limit.most:  # the first in the line was not woken
                await self._promote(limit)
                continue
            ahead = await self._store.count(limit.key)
            return self._options.lease * min(max(1, ahead // limit.most), _LONGEST_PARKING)

    async def _release(self, limit: JobLimit, task: Task, run: str) -> None:
        while True:
            slots = await self._read(limit)
            holders = tuple(each for each in slots.record.holders if each != run)
            try:
                if slots.version:
                    await self._write(limit, slots, holders, Delete(_place(limit, task)))
                break
            except Conflict:
                continue
        await self._promote(limit)
        if run not in slots.record.holders:  # this is a repetition: see the docstring of the module
            for each in slots.record.holders:
                await self._wake(each)

    async def _promote(self, limit: JobLimit) -> None:
        """Give free slots to the first jobs in the line, and wake these."""
        while True:
            slots = await self._read(limit)
            line = await self._store.find(limit.key, limit=1)
            if not line or len(slots.record.holders) >= limit.most:
                return
            run = line[0].value.decode()
            promoted = await self._alive([run])
            try:
                holders = (*slots.record.holders, *promoted)
                await self._write(limit, slots, holders, Delete(line[0].key))
            except Conflict:
                continue
            if promoted:
                await self._wake(run)

    async def _wake(self, run: str) -> None:
        """Give a parked job a delivery that is due now, if it is still parked."""
        id = run.rpartition(".")[0]
        try:
            stored = await self._records.find(id)
            task = await self._records.change(id, wake_job)
        except (TaskNotFound, IllegalTransition):
            return
        if stored is not None and task.delivery_id != stored.task.delivery_id:
            await self._writer.scheduler.cancel(stored.task)
        if not task.ended and task.held_delivery is None:
            await self._writer.scheduler.submit(task)

    async def _alive(self, holders: Sequence[str]) -> tuple[str, ...]:
        """Return those of *holders* whose jobs have not ended."""
        alive = []
        for run in holders:
            stored = await self._records.find(run.rpartition(".")[0])
            if stored is not None and stored.task.job is not None and run_id(stored.task) == run:
                alive.append(run)
        return tuple(alive)

    async def _read(self, limit: JobLimit) -> _Slots:
        entry = await self._store.get(limit.key)
        if entry is None:
            return _Slots(LimitHolders(limit.name), 0)
        return _Slots(_decode(entry.value), entry.version)

    async def _write(
        self, limit: JobLimit, slots: _Slots, holders: tuple[str, ...], op: Op
    ) -> None:
        """Write *holders* and *op*, unless the record has changed since *slots* was read.

        Raises:
            Conflict: it has.
        """
        record = replace(slots.record, holders=holders)
        put: Op = Put(limit.key, _encode(record), expect=slots.version)
        # The record stays while jobs wait: they write it to detect that a slot was released.
        if not holders and isinstance(op, Delete) and slots.version:
            put = Delete(limit.key, expect=slots.version)
        await self._store.apply(put, op)

    def _retention(self, task: Task) -> float:
        return self._options.retention + max(0.0, task.due - task.updated)


def _place(limit: JobLimit, task: Task) -> str:
    """Return the key of the place of *task* in the line; the call that was made first is first."""
    return f"{limit.key}#{task.created:017.6f} {run_id(task)}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LimitHolders).decode
