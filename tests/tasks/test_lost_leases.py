"""Deliveries that another process takes while their holder is alive."""

import asyncio
from pathlib import Path

import pytest

from genmcp.core.outcome import Outcome
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Finished, OnLost, Working
from genmcp.errors import StoreUnavailable
from genmcp.stores.deliveries import Backlog
from genmcp.stores.memory import MemoryStore
from genmcp.tasks.jobs import Run, job
from tests.tasks.bench import BOUND, Bench, ended, made, opened

runs: asyncio.Queue[str]


@job(name="taken.work")
async def work(run: Run) -> str:
    runs.put_nowait(f"begun {run.attempt}")
    try:
        await asyncio.sleep(0 if run.attempt > 1 else BOUND)
    except asyncio.CancelledError:
        runs.put_nowait(f"cancelled {run.attempt}")
        raise
    return f"attempt {run.attempt}"


@job(name="taken.quick")
async def quick(run: Run) -> None:
    pass


@pytest.mark.parametrize(
    ("on_lost", "result"), [("fail", b'"WorkerLost"'), ("rerun", b'"attempt 2"')]
)
async def test_holder_cannot_release_a_lost_lease(
    on_lost: OnLost, result: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It was frozen past its lease. Its cancelled step leaves the record as it is: the process that
    has the delivery next sees that its holder was lost, and begins the job anew only if it may."""
    global runs
    runs = asyncio.Queue()
    caplog.set_level("INFO", "genmcp")
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    bench = Bench(lambda: store)
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(work.job()), on_lost=on_lost), b"")
    async with asyncio.timeout(BOUND):
        assert await runs.get() == "begun 1"
        now = 100.0
        (delivery,) = await store.deliveries.claim(["default"], "thief", 30.0, 1)
        await store.deliveries.put("news")
        assert await runs.get() == "cancelled 1"
        await store.deliveries.release("thief", delivery.id)
        assert result == (await ended(jobs)).result

    assert (1 if on_lost == "rerun" else 0) == runs.qsize()
    assert ("the job of t is lost" in caplog.text) is (on_lost == "fail")
    assert ("a step of t is taken over" in caplog.text) is (on_lost == "rerun")
    await bench.aclose()


async def test_job_waits_for_its_first_run_to_end() -> None:
    """However often the lease is lost while that cleans up: it never runs twice at once."""
    begun, cancelled, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @job(name="taken.cleans")
    async def cleans(run: Run) -> bool:
        attempts.append(run.attempt)
        begun.set()
        if run.attempt > 1:
            return cleaned.is_set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await cleaned.wait()
        return False

    @job(name="taken.other")
    async def other(run: Run) -> None: ...

    now = 0.0
    store = MemoryStore(clock=lambda: now)
    deliveries = store.deliveries
    bench = Bench(lambda: store)
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(cleans.job())), b"")

    async def one_is_held() -> None:
        while True:
            if await deliveries.backlog("default") == Backlog(0, 1, 0.0):
                return
            await asyncio.sleep(0.01)

    async with asyncio.timeout(BOUND):
        await begun.wait()
        for turn in range(2):
            now += 100.0
            (delivery,) = await deliveries.claim(["default"], "thief", 30.0, 1)
            await deliveries.put(f"news {turn}")
            await one_is_held()  # the process has seen that its lease is lost
            await cancelled.wait()
            await deliveries.release("thief", delivery.id)
            await one_is_held()  # and has it again
        await jobs.create(made(Working(other.job()), id="t2"), b"")
        await ended(jobs, "t2")
        assert attempts == [1]
        cleaned.set()
        assert (await ended(jobs)).result == b"true"
    await bench.aclose()


async def test_cancelled_job_ends_without_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task was cancelled, and its delivery could not be cancelled after that."""
    global runs
    runs = asyncio.Queue()

    async def cancel(id: str) -> None:
        raise StoreUnavailable("away")

    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(lease=1.0)
        monkeypatch.setattr(jobs.records.store.deliveries, "cancel", cancel)
        await jobs.create(made(Working(work.job())), b"")
        async with asyncio.timeout(BOUND):
            assert await runs.get() == "begun 1"
            await jobs.cancel("t1", None)
            assert await runs.get() == "cancelled 1"


async def test_tool_is_notified_of_a_step_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step returns after the task was cancelled, and before its worker learns of that."""
    notified = asyncio.Queue[Task]()

    async def resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
        await jobs.cancel("t1", None)
        return Finished(result=b'"too late"')

    async def lost(node: str, ids: object) -> list[str]:
        return []

    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(resume=resume, cancelled=notified.put)
        monkeypatch.setattr(jobs.records.store.deliveries, "lost", lost)
        await jobs.create(made(Working(quick.job()), step=1, continuation=b"step"), b"")
        async with asyncio.timeout(BOUND):
            task = await notified.get()

        assert (task.status, run_id(task), task.continuation) == ("cancelled", "t1.1", b"step")
        assert (await ended(jobs)).result is None


async def test_tool_is_not_notified_before_its_step_ends(tmp_path: Path) -> None:
    """Also if the step cleans up for longer than a lease; and it is notified once."""
    notified, continues, cleaned = asyncio.Queue[Task](), asyncio.Event(), asyncio.Event()

    async def resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
        continues.set()
        try:
            return await asyncio.Event().wait()  # type: ignore[return-value]
        finally:
            await cleaned.wait()

    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(resume=resume, cancelled=notified.put)
        await jobs.create(made(Working(quick.job()), step=1, continuation=b"step"), b"")
        async with asyncio.timeout(BOUND):
            await continues.wait()
            task = await jobs.records.get("t1")
            await jobs.cancel("t1", None)
            # What is delivered after a lease, in case that the process of the step has died.
            reminder = f"{task.queued_id}.0"
            await jobs.runner.handle(reminder)
            assert notified.empty()
            cleaned.set()
            while notified.empty():
                await asyncio.sleep(0)
                await jobs.runner.handle(reminder)
        await jobs.runner.handle(reminder)

        assert (await notified.get()).status == "cancelled"
        assert notified.empty()
