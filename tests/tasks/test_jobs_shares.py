"""A client cannot use up the resources of others: records, room in the store, and workers."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.client_key import client_of
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.task import Task
from genmcp.core.waiting import Asking, Job, Running, Suspended, Working
from genmcp.errors import ConfigurationError, OverShare, StoreFull
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Put, Store
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.progress import JobProgress
from tests.tasks.bench import BOUND, STORES, Bench, ended, made

RAN: list[str] = []


@job(name="shares.give")
async def give(run: Run, who: str = "", size: int = 0, padding: str = "") -> str:
    RAN.append(who)
    return "x" * size


@job(name="shares.hold")
async def hold(run: Run, who: str = "") -> str:
    """Runs until it is cancelled."""
    RAN.append(who)
    await asyncio.Event().wait()
    return who


def waiting(owner: str, id: str, **arguments: Any) -> Task:
    arguments = {"who": owner, **arguments}
    return made(Working(Job(name="shares.give", arguments=arguments)), id=id, owner=owner, ttl=60.0)


@pytest.fixture(autouse=True)
def _none_ran() -> None:
    RAN.clear()


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench with a store of 1.5 MB."""
    memory = MemoryStore(max_bytes=1_500_000)

    def opened() -> Store:
        if request.param == "memory":
            return memory
        return SQLiteStore(tmp_path / "jobs.db", max_bytes=1_500_000)

    bench = Bench(opened)
    yield bench
    await bench.aclose()


def test_bound_of_open_tasks_is_positive() -> None:
    """A wrong bound fails at construction and is named."""
    with pytest.raises(ConfigurationError, match=r"JobOptions\.tasks_of_client"):
        JobOptions(tasks_of_client=0)


async def test_open_tasks_of_a_client_are_bounded(bench: Bench) -> None:
    """The error names the setting; other clients continue; an ended task is not open."""
    jobs = bench.jobs(tasks_of_client=2, queues=("unserved",))
    for id in ("m1", "m2"):
        await jobs.create(waiting("mallory", id), b"call")
    assert (await jobs.create(waiting("mallory", "m2"), b"call")).id == "m2"  # sent again
    with pytest.raises(OverShare, match=r"2 entries.*JobOptions\.tasks_of_client"):
        await jobs.create(waiting("mallory", "m3"), b"call")
    await jobs.create(waiting("bob", "b1"), b"call")

    await jobs.cancel("m1", "mallory")
    await jobs.create(waiting("mallory", "m3"), b"call")
    assert await jobs.records.call("m1") == b"call"  # for its tool, which may be notified


async def test_full_store_finishes_what_it_accepted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """New tasks are refused while steps of the others still have room, so that all of them end."""
    server = bench.jobs(queues=("unserved",))
    created = []
    with pytest.raises(StoreFull, match=r"max_bytes=1500000.*0\.1 is reserved"):
        for number in range(200):
            task = waiting(f"c{number % 10}", f"t{number}", padding="x" * 20_000)
            created.append(await server.create(task, b"call" * 50))
    assert len(created) > 40
    await server.aclose()
    caplog.clear()  # of the warning that no process serves the queue yet

    worker = bench.jobs("n2")
    await worker.start()
    async with asyncio.timeout(BOUND):
        ends = [(await ended(worker, task.id, task.owner)).end for task in created]

    assert ["completed"] * len(created) == ends
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_result_above_the_client_share_is_an_error(bench: Bench) -> None:
    """The task ends with an error; other tasks of the client and of other clients continue."""
    jobs = bench.jobs()
    await jobs.create(waiting("mallory", "large", size=400_000), b"call")
    await jobs.create(waiting("mallory", "small", size=3), b"call")
    await jobs.create(waiting("bob", "other", size=300_000), b"call")

    large = await ended(jobs, "large", "mallory")
    assert (
        json.loads(large.result or b"") == "WorkRaised"
    )  # the result that `continue_` made of the outcome
    failed = next(each for each in bench.resumed.outcomes if isinstance(each, Failed))
    assert "share of the store, 0.25 of it" in str(failed.error)
    assert (await ended(jobs, "small", "mallory")).result == b'"xxx"'
    assert (await ended(jobs, "other", "bob")).end == "completed"


async def test_client_at_its_share_still_ends_its_tasks(bench: Bench) -> None:
    """However full its share is, the few bytes of each step have room."""
    server = bench.jobs(queues=("unserved",))
    created = []
    with pytest.raises(OverShare, match="share of the store"):
        for number in range(200):
            task = waiting("mallory", f"t{number}", padding="x" * 5_000)
            created.append(await server.create(task, b"call"))
    await server.aclose()
    store = bench.store()
    filler = Put("filler", b"x" * 37_000, client=client_of("mallory", None))
    await store.apply(filler)  # to the brim

    worker = bench.jobs(
        "n2",
    )
    await worker.start()
    ends = [(await ended(worker, task.id, "mallory")).end for task in created]
    assert set(ends) == {"completed"}


async def test_client_without_room_for_entries_still_ends_its_tasks() -> None:
    """The event of the end takes the room of an earlier event, and followers get it."""
    store = MemoryStore(max_entries=400)
    bench = Bench(lambda: store)
    server = bench.jobs(queues=("unserved",))
    created = []
    with pytest.raises(OverShare, match="share of the store"):
        for number in range(100):
            task = waiting("mallory", f"t{number}")
            created.append(await server.create(task, b"call"))
    await server.aclose()
    with pytest.raises(OverShare):
        for number in range(100):
            await store.apply(Put(f"{number}", b"", client=client_of("mallory", None)))

    worker = bench.jobs("n2")
    await worker.start()
    assert len(created) >= 29
    assert {(await ended(worker, task.id, "mallory")).end for task in created} == {"completed"}
    await bench.aclose()


async def test_client_without_room_for_events_changes_its_tasks() -> None:
    """It cancels and answers them, they wait again, and their followers get that."""
    store = MemoryStore(max_entries=400)
    bench = Bench(lambda: store)
    jobs = bench.jobs(queues=("unserved",))
    of_mallory = client_of("mallory", None)
    await jobs.create(waiting("mallory", "cancelled"), b"call")
    await jobs.create(made(Asking({"a": b"{}"}), id="asks", owner="mallory"), b"call")
    await jobs.create(made(Running("n1"), id="runs", owner="mallory"), b"call")
    with pytest.raises(OverShare):
        for number in range(100):
            await store.apply(Put(f"{number}", b"", client=of_mallory))
    follower = asyncio.create_task(ended(jobs, "cancelled", "mallory"))

    assert await jobs.cancel("cancelled", "mallory")
    answered = await jobs.answer("asks", "mallory", {"a": pack(Done("yes"))})
    held = Working(Job(name="shares.hold", arguments={}))
    suspended = await jobs.suspend("runs", Suspended(1, b"c", held), fencing_token=0)

    assert (await follower).end == "cancelled"
    assert answered.settled
    assert suspended.status == "working"
    assert (await ended(jobs, "asks", "mallory")).end == "completed"
    # Each task exceeds the share by its latest event only, however often it changes.
    for done in range(20):
        report = JobProgress(float(done))
        await jobs.progress("runs", report, fencing_token=suspended.fencing_token)
    assert (await store.usage(of_mallory)).entries <= 100 + 3
    with pytest.raises(OverShare):
        await jobs.create(waiting("mallory", "more"), b"call")
    await bench.aclose()


async def test_jobs_of_clients_take_turns(bench: Bench) -> None:
    """A job does not wait behind all that another client has queued before it."""
    server = bench.jobs(queues=("unserved",))
    for number in range(30):
        await server.create(waiting("mallory", f"m{number}"), b"call")
    await server.create(waiting("bob", "b1"), b"call")
    await server.aclose()

    worker = bench.jobs("n2", concurrency=1)
    await worker.start()
    await ended(worker, "b1", "bob")
    for number in range(30):
        await ended(worker, f"m{number}", "mallory")

    assert len(RAN) == 31
    assert RAN.index("bob") <= 2


async def test_long_jobs_of_one_client_leave_room_for_others(bench: Bench) -> None:
    """One client's jobs take at most four fifths of the slots, however long they run."""
    worker = bench.jobs("n1", concurrency=5)
    for number in range(6):
        held = Working(Job(name="shares.hold", arguments={"who": "mallory"}))
        await worker.create(made(held, id=f"m{number}", owner="mallory", ttl=60.0), b"call")
    await worker.start()
    await worker.create(waiting("bob", "b1"), b"call")
    await ended(worker, "b1", "bob")

    assert RAN.count("mallory") == 4
