"""A process that holds a task, after a write of unknown outcome."""

import asyncio
from functools import partial

import pytest

from genmcp import MemoryStore
from genmcp.core.job_transitions import retry_job
from genmcp.core.task import Task
from genmcp.core.waiting import Job, Working
from genmcp.errors import IllegalTransition, StoreUnavailable
from genmcp.stores.store import Op, StoreEntry
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import HeldTask, TaskRecords
from genmcp.tasks.retrying import RetriedWrites
from tests.support.asgi import until


class Yielding(MemoryStore):
    """Lets other callers read the same version of a record."""

    async def get(self, key: str) -> StoreEntry | None:
        entry = await super().get(key)
        await asyncio.sleep(0)
        return entry


class Late(MemoryStore):
    """The next write fails; it is carried out together with the one after it, or never."""

    fails = False
    pending: tuple[Op, ...] | None = None

    async def apply(self, *ops: Op) -> None:
        if self.fails:
            self.fails, self.pending = False, ops
            raise StoreUnavailable("timed out")
        if self.pending is not None:
            late, self.pending = self.pending, None
            await super().apply(*late)
        await super().apply(*ops)


async def made(store: MemoryStore, *, retries: int = 0) -> TaskRecords:
    """Return the records of *store* with the task "a", which waits for a job."""
    records = TaskRecords(store, JobOptions())
    job = Job(name="j", arguments={}, retries=retries)
    now = store.now()
    task = Task(id="a", tool="t", node="n", created=now, updated=now, work=Working(job))
    assert await records.create(task, b"call")
    return records


async def test_two_claims_in_one_instant_have_one_winner() -> None:
    """Of equal records each process would take the other's write for its own."""
    records = await made(Yielding(clock=lambda: 1000.0))

    claims = await asyncio.gather(
        *(HeldTask(records, "a", 0).claim(3) for _ in range(2)), return_exceptions=True
    )

    assert sum(isinstance(each, Task) for each in claims) == 1
    assert sum(isinstance(each, IllegalTransition) for each in claims) == 1


async def test_equal_steps_in_one_instant_have_one_winner() -> None:
    """A conflict means that the record found is the work of another, however equal it is."""
    records = await made(Yielding(clock=lambda: 1000.0))
    claim = partial(Task.claim, max_crashes=3)

    claims = await asyncio.gather(
        *(HeldTask(records, "a", 0).change(claim) for _ in range(2)), return_exceptions=True
    )

    assert sum(isinstance(each, Task) for each in claims) == 1


async def test_write_that_lands_late_is_applied_once() -> None:
    """A failure that is counted twice would cost a retry of the job."""
    records = await made(store := Late(), retries=3)
    held = HeldTask(records, "a", 0)
    await held.claim(3)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await held.change(retry_job)

    task = await held.change(retry_job)

    assert isinstance(task.work, Working)
    assert (task.work.failures, task.delivery_id) == (1, 1)


async def test_claim_that_lands_late_is_released() -> None:
    """Its worker has it, though it never got the answer of the store."""
    records = await made(store := Late())
    held = HeldTask(records, "a", 0)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await held.claim(3)

    released = await held.change(Task.release)

    assert (released.fencing_token, released.held_delivery) == (1, None)


async def test_claim_of_another_worker_is_not_released() -> None:
    """Of a claim that failed and was not carried out, no token is taken over."""
    records = await made(store := Late())
    held = HeldTask(records, "a", 0)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await held.claim(3)
    store.pending = None
    await HeldTask(records, "a", 0).claim(3)

    with pytest.raises(IllegalTransition):
        await held.change(Task.release)


async def test_check_notices_a_cancellation() -> None:
    """It reads the record: the version that the holder knows does not show other writes."""
    records = await made(MemoryStore())
    held = HeldTask(records, "a", 0)
    await held.claim(3)
    await records.change("a", Task.cancel)

    with pytest.raises(IllegalTransition):
        await held.check()


async def test_write_cut_off_at_shutdown_is_unavailable() -> None:
    """A CancelledError would look as if the waiting request had been cancelled."""
    retry = RetriedWrites(timeout=30.0, is_stopping=lambda: False)
    begun = asyncio.Event()

    async def write() -> None:
        begun.set()
        await asyncio.Event().wait()

    request = asyncio.create_task(retry.wait_for_write(write()))
    await until(begun.is_set)
    await retry.aclose()

    with pytest.raises(StoreUnavailable):
        await request
