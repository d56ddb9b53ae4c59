"""`def` jobs have threads of their own, beside those of `def` hooks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from genmcp import Client, Continue, JobOptions, Limits, Mux, Run, Suite, job, tool
from genmcp.testing import connect
from tests.support.asgi import until

BOUND = 10.0

go = threading.Event()
begun: list[str] = []


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    go.clear()
    begun.clear()
    yield
    go.set()


@job
def blocks(run: Run, name: str) -> str:
    begun.append(name)
    go.wait(BOUND)
    return name


@job(timeout=0.01)
def hangs(run: Run, name: str) -> str:
    return blocks(run, name)


@tool
async def work(name: str) -> Continue:
    """Runs a job, which has no time if its name is "late"."""
    return (hangs if name == "late" else blocks).job(name).then(worked)


@work.step
async def worked(name: str) -> str:
    return name


@tool
def add(one: int, other: int) -> int:
    """Adds two numbers."""
    return one + other


@asynccontextmanager
async def connected(**limits: int) -> AsyncIterator[Client]:
    suite = Suite(name="test", version="1", tools=[work, add])
    mux = Mux(suite, limits=Limits(**limits), jobs=JobOptions(concurrency=4))
    async with connect(mux) as client:
        yield client
    await mux.aclose()


async def test_def_hook_runs_beside_more_def_jobs() -> None:
    """Jobs may take hours: as many as may run at once leave the threads of hooks free."""
    async with connected(max_threads=1) as client:
        names = ["a", "b", "c"]
        works = [asyncio.create_task(client.call("work", {"name": each})) for each in names]
        await until(lambda: len(begun) == 3, pause=0.01, bound=BOUND)
        async with asyncio.timeout(BOUND):
            added = await client.call("add", {"one": 1, "other": 2})
        go.set()
        results = await asyncio.gather(*works)

    assert added.text == "3"
    assert [each.text for each in results] == names


async def test_job_that_waits_for_a_thread_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads of jobs that have timed out cannot be stopped, and may take all of them."""
    monkeypatch.setattr("genmcp._mux.tasks._JOB_THREADS", 1)
    async with connected() as client:
        hanging = await client.call("work", {"name": "late"})
        working = asyncio.create_task(client.call("work", {"name": "b"}))
        await until(lambda: "a job waits for a thread: all 1 are taken" in caplog.text)
        go.set()
        result = await working

    assert hanging.is_error
    assert (result.text, begun) == ("b", ["late", "b"])
