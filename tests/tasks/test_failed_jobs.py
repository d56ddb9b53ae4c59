"""Tasks that have failed after a job: how long they are kept, and what an operator sees."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.task import Task, record_ttl
from genmcp.core.waiting import Finished, Working
from genmcp.errors import Conflict, ContractError
from genmcp.tasks.cron import Schedule
from genmcp.tasks.inspection import TaskInspector, TaskSummary
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.service import TaskService
from tests.tasks.bench import ALL_STORES, BOUND, Bench, ended, made, opened


@pytest.fixture(params=ALL_STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


@job(retries=1, backoff=0.01)
async def fragile(run: Run, part: str) -> str:
    raise OSError(f"no {part}")


async def failed(bench: Bench, jobs: TaskService, *, raised: bool = True) -> Task:
    """Return the task of a call that has ended after the failure of its job."""
    bench.resumed.gives = [Finished(result=b'{"isError":true}', raised=raised)]
    work = Working(fragile.job("wheel"))
    await jobs.create(made(work, step=1, continuation=b"c", ttl=60.0), b"call")
    return await ended(jobs)


async def test_failure_that_ends_a_call_is_retained(bench: Bench) -> None:
    """With the job, its arguments and the reason, although its client got a result."""
    jobs = bench.jobs()

    task = await failed(bench, jobs)

    found = [each async for each in TaskInspector(jobs).tasks(["failed"])]
    summary = TaskSummary.of(task, "")
    assert [each.id for each in found] == ["t1"]
    assert task.failed is not None
    assert task.failed.job == fragile.job("wheel")
    assert summary.reason is not None
    assert summary.reason.startswith("OSError: it failed unexpectedly (reference ")
    assert record_ttl(task, 0.0, 3600.0) == 3600.0
    assert record_ttl(task, 0.0, 0.0) == 60.0
    assert await jobs.records.call("t1") == b"call"


async def test_handled_failure_is_not_retained(bench: Bench) -> None:
    """The call has got the outcome, and returned a result: nothing is left to do."""
    jobs = bench.jobs()

    task = await failed(bench, jobs, raised=False)

    assert [each async for each in TaskInspector(jobs).tasks(["failed"])] == []
    assert record_ttl(task, 0.0, 3600.0) == 60.0
    with pytest.raises(ContractError, match="only tasks that failed"):
        await TaskInspector(jobs).retry("t1")


async def test_record_that_was_written_meanwhile_is_not_deleted(bench: Bench) -> None:
    """With an idempotency key, it may be that of the next call, which runs."""
    jobs = bench.jobs()
    await failed(bench, jobs)
    stored = await jobs.records.find("t1")
    assert stored is not None
    await jobs.records.write(stored.task, stored.version, stored.task)

    with pytest.raises(Conflict):
        await jobs.records.discard("t1", stored.version)

    assert await jobs.records.find("t1")


async def test_occurrences_of_schedules_are_listed(bench: Bench) -> None:
    """The pending one, and one that has failed; they end with their schedule."""
    schedule = Schedule(fragile.job("wheel"), every=0.3)
    jobs = bench.jobs(schedules=[schedule])
    await jobs.start()
    inspector = TaskInspector(jobs)
    found: list[Any] = []
    async with asyncio.timeout(BOUND):
        while not found:
            found = [each async for each in inspector.tasks(["failed"])]
            await asyncio.sleep(0.01)
    pending = [each async for each in inspector.tasks(["queued", "working"])]

    summary = TaskSummary.of(await inspector.get(found[0].id), "")

    assert summary.reason is not None
    assert summary.reason.startswith("it failed unexpectedly (reference ")
    assert summary.owner is None
    assert pending
