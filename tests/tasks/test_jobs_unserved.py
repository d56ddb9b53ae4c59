"""TaskService in a queue that no process serves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from genmcp.core.waiting import Working
from genmcp.errors import StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import StoreEntry
from genmcp.tasks.jobs import Run, job
from tests.tasks.bench import BOUND, STORES, Bench, ended, made, opened


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


@job(queue="heavy")
async def heavy(run: Run) -> int:
    return 1


async def test_unserved_queue_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """By the log, once, and by the status of a task that is overdue; until a worker is there."""
    server = bench.jobs("server", lease=0.4)
    for id in ("t1", "t2"):
        await server.create(made(Working(heavy.job()), id=id), b"")
    assert caplog.text.count("no process serves the queue 'heavy'") == 1
    assert (await server.get("t1", None)).message == "Waiting for a worker"

    worker = bench.jobs("worker", queues=["heavy"], lease=0.4)
    await worker.start()
    assert ((task := await ended(server)).result, task.message) == (b"1", None)


async def test_queue_served_elsewhere_is_not_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process shows which queues it serves, as it shows that it is alive."""
    worker = bench.jobs("worker", queues=["heavy"], lease=0.4)
    await worker.start()
    server = bench.jobs("server", lease=0.4)
    await asyncio.sleep(0.5)  # the worker shows it again and again
    await server.create(made(Working(heavy.job())), b"")

    assert (await ended(server)).result == b"1"
    assert "no process serves" not in caplog.text


async def test_job_is_submitted_if_the_queue_check_fails(bench: Bench) -> None:
    """It is a warning that is missed, and no job."""

    class Blind(MemoryStore):
        async def get(self, key: str) -> StoreEntry | None:
            if key.startswith("served:"):
                raise StoreUnavailable("the store is away")
            return await super().get(key)

    store = Blind()
    server = bench.jobs("server", store=store)
    await server.create(made(Working(heavy.job())), b"")
    worker = bench.jobs("worker", store=store, queues=["heavy"])
    async with asyncio.timeout(BOUND):
        await worker.start()
        assert (await ended(worker)).result == b"1"
