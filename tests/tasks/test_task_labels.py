"""Tasks are found in their store by state, queue and owner."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from genmcp.core.waiting import Asking, Working
from genmcp.stores.store import Store
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.records import labels_of
from tests.tasks.bench import BOUND, STORES, Bench, ended, made, opened


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


class Gate:
    """Shows that the job runs, and ends it."""

    started: asyncio.Event
    release: asyncio.Event


@job(queue="slow")
async def labelled_job(run: Run) -> str:
    Gate.started.set()
    await Gate.release.wait()
    return "printed"


async def labels(store: Store) -> dict[str, list[str]]:
    """The keys under each label that has any."""
    values = {
        "state": ("queued", "working", "input_required", "completed", "failed", "cancelled"),
        "queued": ("slow",),
        "queue": ("default", "slow"),
        "owner": ("ann", "bob"),
    }
    found = {}
    for kind, each in values.items():
        for value in each:
            if page := await store.find(f"{kind}:{value}"):
                found[f"{kind}:{value}"] = [entry.key for entry in page]
    return found


async def test_labels_follow_the_task(bench: Bench) -> None:
    """A task is queued, working and completed, in its queue while its job waits or runs."""
    Gate.started, Gate.release = asyncio.Event(), asyncio.Event()
    server, worker = bench.jobs("n1", queues=["default"]), bench.jobs("n2", queues=["slow"])
    store = server.records.store
    task = made(Working(labelled_job.job()), owner="ann", ttl=60.0)
    await server.create(task, b"{}")
    mine = {"owner:ann": ["task:t1"]}
    waiting = {"state:queued": ["task:t1"], "queued:slow": ["task:t1"], **mine}
    assert await labels(store) == waiting

    async with asyncio.timeout(BOUND):
        await worker.start()
        await Gate.started.wait()
    running = {"state:working": ["task:t1"], "queue:slow": ["task:t1"], **mine}
    assert await labels(store) == running

    Gate.release.set()
    await ended(server, owner="ann")
    assert await labels(store) == {"state:completed": ["task:t1"], "owner:ann": ["task:t1"]}


async def test_cancelled_task_is_found_as_cancelled(bench: Bench) -> None:
    """Every writer of a record writes its labels, not only its worker."""
    server = bench.jobs(queues=["default"])
    await server.create(made(Working(labelled_job.job()), owner="bob", ttl=60.0), b"{}")
    await server.cancel("t1", "bob")

    expected = {"state:cancelled": ["task:t1"], "owner:bob": ["task:t1"]}
    assert await labels(server.records.store) == expected


def test_labels_are_within_the_namespace() -> None:
    """Several services share a store. A private task, which no client knows, has few."""
    task = made(Working(labelled_job.job()), owner="ann:b/c")

    assert labels_of(task, "shop/") == [
        "shop/queued:slow",
        "shop/state:queued",
        "shop/owner:ann:b/c",
    ]
    assert labels_of(made(Asking({"a": b"{}"})), "") == ["state:input_required"]
    assert labels_of(made(Working(labelled_job.job()), private=True), "") == ["queued:slow"]


async def test_services_and_their_processes_are_found(bench: Bench) -> None:
    """An operator finds the services of a store, their processes, and the served queues."""
    jobs = bench.jobs("n1", queues=["default", "slow"])
    await jobs.start()
    store = jobs.records.store

    assert [each.key for each in await store.find("genmcp:services")] == ["service"]
    assert [each.key for each in await store.find("nodes")] == ["node:n1"]
    assert {each.key for each in await store.find("served")} == {"served:default", "served:slow"}
    await jobs.aclose()
    assert await store.find("nodes") == []
