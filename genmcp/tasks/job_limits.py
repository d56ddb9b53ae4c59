"""Limits on how many jobs run at once in the whole deployment: per key, and per queue.

A limit has one record in the store, which names the attempts that hold its slots, and is changed by
compare-and-set. A job that finds no slot is delivered again after a pause, and then looks again:
there is no line, so that jobs may overtake each other.

A process may die before it releases a slot. A slot is therefore a lease: the process renews it
until the function of the job has ended, and it lapses without that. A `def` job that was cancelled
or has timed out still runs in its thread, and keeps its slots. A job that another process takes
over after a crash acquires slots of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from random import random
from typing import Any, Final, NamedTuple

import msgspec

from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Working
from genmcp.errors import Conflict, StoreError
from genmcp.stores.store import Delete, Op, Put
from genmcp.tasks.heartbeats import Presence
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import TaskRecords

# The pause before a job looks for a slot again is a quarter of the time that it has waited so far.
# Many waiting jobs then look as often as slots become free, however long the jobs run; and at most
# a fifth of the time of a slot is lost. The maximum bounds the wait of a single job.
_SHARE_OF_WAIT: Final = 0.25
_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """A slot in the stored record of a limit.

    run, token: the `run_id` of a job, and the fencing token of the attempt that holds the slot: a
    process that was suspended must not release the slot of the one that has taken its job over.
    until: when the slot lapses unless it is renewed, as Unix time.
    """

    run: str
    token: int
    until: float


class JobLimit(NamedTuple):
    """A limit: the key of its record, and the maximum number of jobs."""

    key: str
    most: int


class JobLimits:
    """The limits on the jobs of a service. Owned by a `JobRunner`.

    Args:
        records: the store, and the namespace of the service.
        presence: whether this process may consider slots of others lapsed.
        options: the limits of queues, the lease, and the retention of records.
    """

    def __init__(self, records: TaskRecords, presence: Presence, options: JobOptions) -> None:
        self._prefix = records.prefix
        self._store = records.store
        self._presence = presence
        self._options = options
        self._holding: set[asyncio.Task[None]] = set()

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
        return JobLimit(f"{self._prefix}slots:{digest}", most)

    async def acquire(self, task: Task) -> bool:
        """Take a slot of each limit for a claimed *task*; return whether there was one of each.

        A repetition renews the slots. If a slot is missing, none is kept.
        """
        for limit in self.of(task):
            if not await self._take(limit, task):
                await self._release(task)
                return False
        return True

    @asynccontextmanager
    async def held(self, task: Task) -> AsyncIterator[list["asyncio.Future[Any]"]]:
        """Hold the slots that *task* has acquired, during the block and until its function ends.

        The block adds the futures that are done when the function has ended to the list that it
        gets. If one of them is not done at the end of the block, the slots are released later.
        """
        running: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future()]
        if not self.of(task):
            yield running
            return
        holding = asyncio.create_task(self._hold(task, running), name="the slots of a job")
        self._holding.add(holding)
        holding.add_done_callback(self._holding.discard)
        try:
            yield running
        finally:
            running[0].set_result(None)
            if all(each.done() for each in running):
                await asyncio.wait({holding})

    async def _hold(self, task: Task, running: Sequence["asyncio.Future[Any]"]) -> None:
        """Renew the slots of *task* until all of *running* are done, and then release them."""
        # So that two renewals may fail.
        pause = min(self._options.lease, self._options.retention) / 3
        while not all(each.done() for each in running):
            _, pending = await asyncio.wait(running, timeout=pause)
            with suppress(StoreError):
                for limit in self.of(task) if pending else ():
                    await self._take(limit, task)
        with suppress(StoreError):  # the slots lapse
            await self._release(task)

    def close(self) -> None:
        """Stop renewing: slots of functions that still run lapse. Called from any loop."""
        for each in [*self._holding]:
            with suppress(RuntimeError):  # its loop was closed
                each.get_loop().call_soon_threadsafe(each.cancel)

    async def _release(self, task: Task) -> None:
        for limit in self.of(task):
            while True:
                slots, version = await self.slots(limit)
                others = [each for each in slots if not _is_of(task, each)]
                if slots == others or await self._write(limit, others, version):
                    break

    async def _take(self, limit: JobLimit, task: Task) -> bool:
        run = run_id(task)
        assert run is not None
        while True:
            slots, version = await self.slots(limit)
            others = [each for each in slots if not _is_of(task, each)]
            is_new, now = len(others) == len(slots), self._store.now()
            # The processes of an engine need not have heartbeats while they acquire slots.
            if task.engine_node is not None or not self._presence.is_unsure:
                others = [each for each in others if now < each.until]
            if is_new and len(others) >= limit.most:
                return False
            own = Slot(run, task.fencing_token, now + self._options.lease)
            if await self._write(limit, [*others, own], version):
                return True

    async def slots(self, limit: JobLimit) -> tuple[Sequence[Slot], int]:
        """Return the slots that are taken, and the version of their record; 0 if there is none."""
        entry = await self._store.get(limit.key)
        return ((), 0) if entry is None else (_decode(entry.value), entry.version)

    async def _write(self, limit: JobLimit, slots: Sequence[Slot], version: int) -> bool:
        """Replace the record that has this *version*; return False if it has changed."""
        op: Op = Delete(limit.key, expect=version)
        if slots:
            # It expires if its processes have died and no job needs it, as their tasks do. It
            # counts towards no client: one whose share is full would block the jobs of the others.
            op = Put(limit.key, _encode(slots), ttl=self._options.retention, expect=version)
        try:
            await self._store.apply(op)
        except Conflict:
            return False
        return True


def _is_of(task: Task, slot: Slot) -> bool:
    """Return whether *slot* is that of this attempt at the job of *task*."""
    return (slot.run, slot.token) == (run_id(task), task.fencing_token)


def pause_for_slot(waited: float) -> float:
    """Return the seconds before a job that has *waited* for a slot looks for one again.

    Varied by a quarter, so that jobs that began to wait together do not look together.
    """
    pause = min(max(_SHORTEST_PAUSE, waited * _SHARE_OF_WAIT), _LONGEST_PAUSE)
    return pause * (1.0 - 0.25 * random())


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Slot]).decode
