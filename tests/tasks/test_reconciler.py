"""Queued tasks whose submission was lost run although no client reads them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from genmcp.core.task import Task
from genmcp.core.waiting import Working
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.reconciler import TaskReconciler
from genmcp.tasks.service import TaskService
from tests.tasks.bench import BOUND, Bench, made, opened


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("sqlite", tmp_path) as bench:
        yield bench


@job(queue="forgotten")
async def forgotten(run: Run) -> str:
    return "done"


def task(id: str, age: float, now: float) -> Task:
    created = now - age
    waits = Working(forgotten.job())
    return made(waits, id=id, created=created, updated=created, due=created, ttl=600.0)


async def completed(jobs: TaskService, id: str) -> None:
    """Wait for the end of a task without reading it through the service, which repairs it."""
    async with asyncio.timeout(BOUND):
        while True:
            stored = await jobs.records.find(id)
            assert stored is not None
            if stored.task.end == "completed":
                return
            await asyncio.sleep(0.02)


async def test_task_that_was_written_and_not_submitted_runs(bench: Bench) -> None:
    """Its server died between the two writes, and its client waits for a notification."""
    jobs = bench.jobs(queues=["forgotten"], lease=0.4)
    await jobs.records.create(task("t1", 60, jobs.records.now()), b"{}")
    assert (await jobs.backlog("forgotten"))[:2] == (0, 0)
    await jobs.start()

    await completed(jobs, "t1")


async def test_task_whose_delivery_was_removed_runs(bench: Bench) -> None:
    """A queue that lost its ids, such as a Redis without persistence, gets them again."""
    jobs = bench.jobs(queues=["none"], lease=0.4)
    await jobs.create(task("t1", 60, jobs.records.now()), b"{}")
    deliveries = jobs.records.store.deliveries
    assert deliveries is not None
    await deliveries.cancel("t1:0")
    await deliveries.cancel("t1:1")
    await jobs.aclose()

    worker = bench.jobs("n2", queues=["forgotten"], lease=0.4)
    await worker.start()
    await completed(worker, "t1")


async def test_examination_is_bounded_and_continues_behind_the_last(bench: Bench) -> None:
    """A long queue is examined in parts; tasks that are not overdue are left alone."""
    jobs = bench.jobs(queues=["none"], lease=30.0)
    now = jobs.records.now()
    for number in range(5):
        await jobs.records.create(task(f"old{number}", 60, now), b"{}")
    await jobs.records.create(task("new", 0, now), b"{}")
    reconciler = TaskReconciler(jobs.writer, at_once=2)
    submitted = []
    for _ in range(4):
        await reconciler.check()
        submitted.append((await jobs.backlog("forgotten")).waiting)

    # The first page has "new" and one more; the fourth begins anew.
    assert submitted == [1, 3, 5, 5]
