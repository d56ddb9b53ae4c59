"""State that a job saves, with which its next attempt continues."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.outcome import Done
from genmcp.core.waiting import Suspended, Working
from genmcp.errors import ContractError, OverShare, StoreFull, StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, Put
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.service import TaskChange
from tests.tasks.bench import BOUND, STORES, Bench, ended, followed, made, opened


class Stage:
    """Records what the jobs of a test did, and blocks them."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.reached: asyncio.Queue[int] = asyncio.Queue()
        self.go = asyncio.Event()
        self.rejected = asyncio.Event()
        self.unfit: Any = None

    async def attempt(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.reached.get()


stage: Stage


@pytest.fixture(autouse=True)
async def _stage() -> None:
    global stage
    stage = Stage()


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


@job(retries=2, backoff=0.0)
async def reads(run: Run[int]) -> int:
    """Reads six pages; every second one makes an attempt fail."""
    for page in range(run.saved or 0, 6):
        stage.did.append(page)
        await run.save(page + 1)
        if page % 2 and page < 5:
            raise OSError("the line broke")
    assert run.attempt == 3
    return run.saved or 0


@job(retries=1, backoff=0.0)
def reads_in_thread(run: Run) -> Any:
    stage.did.append(run.saved)
    run.in_loop(run.save({"pages": (1, 2)}))
    if run.attempt == 1:
        raise OSError("the line broke")
    return run.saved


@job
async def held(run: Run[list[str]]) -> Any:
    stage.did.append(run.saved)
    if run.saved is None:
        await run.save(["begun"])
    stage.reached.put_nowait(run.attempt)
    try:
        await stage.go.wait()
    except asyncio.CancelledError:
        await run.save([*(run.saved or ()), "stopped"])
        raise
    return run.saved


async def test_retry_continues_from_the_saved_state(bench: Bench) -> None:
    """No page is read twice, and each attempt begins behind the last one that was saved."""
    jobs = bench.jobs()
    await jobs.create(made(Working(reads.job())), b"")

    assert (await ended(jobs)).result == b"6"
    assert stage.did == [0, 1, 2, 3, 4, 5]


async def test_job_in_a_thread_saves_state(bench: Bench) -> None:
    """Through `in_loop`. The state is read as JSON gives it back: a tuple is a list."""
    jobs = bench.jobs()
    await jobs.create(made(Working(reads_in_thread.job())), b"")

    assert (await ended(jobs)).result == b'{"pages":[1,2]}'
    assert stage.did == [None, {"pages": [1, 2]}]


async def test_state_is_handed_over_at_shutdown(bench: Bench) -> None:
    """Another process continues from it, also if it was saved during the shutdown."""
    here, there = bench.jobs("n1", lease=600.0), bench.jobs("n2", lease=600.0)
    await here.create(made(Working(held.job())), b"")
    assert await stage.attempt() == 1

    await there.start()
    await here.aclose()

    assert await stage.attempt() == 2
    stage.go.set()
    assert (await ended(there)).result == b'["begun","stopped"]'


async def test_next_job_of_a_call_starts_without_state(bench: Bench) -> None:
    """The state of one job is not visible to another one."""
    bench.resumed.gives = [Suspended(2, b"c2", Working(held.job()))]
    jobs = bench.jobs()
    stage.go.set()

    await jobs.create(made(Working(held.job()), step=1, continuation=b"c1"), b"")

    await ended(jobs)
    assert stage.did == [None, None]
    assert bench.resumed.outcomes == [Done(["begun"])] * 2


async def test_stale_holder_does_not_overwrite_state(bench: Bench) -> None:
    """Its save is rejected and ends it, as progress does: another attempt has the job."""
    here, there = bench.jobs("n1"), bench.jobs("n2")
    await here.create(made(Working(stale.job())), b"")
    assert await stage.attempt() == 1

    await there.runner.handle("t1:0")  # as when the lease had run out

    assert await stage.attempt() == 2
    assert (await ended(here)).result == b'"of attempt 2"'


@job
async def stale(run: Run) -> Any:
    if run.attempt == 2:
        await run.save("of attempt 2")
        stage.go.set()
        await stage.rejected.wait()
        stage.reached.put_nowait(2)
        return run.saved
    stage.reached.put_nowait(1)
    await stage.go.wait()
    try:
        await run.save("of attempt 1")
    finally:
        stage.rejected.set()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"at": [object()]}, r"run.save: state.at\[0\] is object, which is not JSON"),
        (float("nan"), "which JSON does not have"),
        ("\ud800", "the state cannot be stored"),
        ("x" * 99, "101 bytes as JSON, but the maximum is 100 .JobOptions.max_saved_bytes."),
    ],
)
async def test_state_that_cannot_be_stored_is_rejected(
    bench: Bench, state: Any, message: str
) -> None:
    """The error gives the reason, and the earlier state is retained."""
    stage.unfit = state
    jobs = bench.jobs(max_saved_bytes=100)
    await jobs.create(made(Working(unfit.job())), b"")

    assert (await ended(jobs)).result == b'"first"'
    (error,) = stage.did
    assert re.search(message, str(error))


@job
async def unfit(run: Run) -> Any:
    await run.save("first")
    try:
        await run.save(stage.unfit)
    except ContractError as error:
        stage.did.append(error)
    return run.saved


class Failing(MemoryStore):
    """A store that rejects a task that was saved, as often as it has errors to raise."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def apply(self, *ops: Op) -> None:
        saved = any(isinstance(op, Put) and b"to be saved" in op.value for op in ops)
        if saved and self.errors:
            raise self.errors.pop(0)
        await super().apply(*ops)


@job
async def catches(run: Run) -> str:
    try:
        await run.save("to be saved")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(run.saved)


@pytest.mark.parametrize(
    ("errors", "result"),
    [
        ([StoreUnavailable("locked"), StoreUnavailable("locked")], b'"to be saved"'),
        (
            [OverShare("the share is used up")],
            b'"StoreError: run.save: the state was not stored: the share is used up"',
        ),
        (
            [StoreFull("no room")] * 2,
            b'"StoreError: run.save: the state was not stored: no room"',
        ),
    ],
)
async def test_save_waits_for_a_store_but_not_for_room(
    errors: list[Exception], result: bytes
) -> None:
    """An outage does not fail the job; a store that stays full is an error it may handle."""
    bench = Bench(lambda: store)
    store = Failing(*errors)
    jobs = bench.jobs(store=store, lease=0.005)
    await jobs.create(made(Working(catches.job())), b"")

    assert result == (await ended(jobs)).result
    await bench.aclose()


async def test_followers_are_not_notified_of_saved_state(bench: Bench) -> None:
    """A state that is saved often would push their messages out of the log of the task."""
    jobs = bench.jobs(max_events=10)
    await jobs.create(made(Working(busy.job())), b"")
    assert await stage.attempt() == 1
    await jobs.records.log_message("t1", b"a message")
    stage.go.set()

    await ended(jobs)

    items = await followed(jobs)
    assert b"a message" in [each.data for each in items if not isinstance(each, TaskChange)]


@job
async def busy(run: Run) -> None:
    stage.reached.put_nowait(1)
    await stage.go.wait()
    for number in range(50):
        await run.save(number)


async def test_job_that_saves_nothing_costs_no_write() -> None:
    """Its record is written as before: created, claimed, settled, ended."""
    bench = Bench(lambda: store)
    store = Counting()
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(nothing.job())), b"")
    await ended(jobs)

    assert store.writes == 4
    await bench.aclose()


@job
async def nothing(run: Run) -> None:
    assert run.saved is None


class Counting(MemoryStore):
    """A store that counts how often the record of the task is written."""

    writes = 0

    async def apply(self, *ops: Op) -> None:
        self.writes += any(isinstance(op, Put) and op.key == "task:t1" for op in ops)
        await super().apply(*ops)
