"""A process that was suspended presumes no other dead until a lease has passed."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from genmcp.core.waiting import Running, Working
from genmcp.stores.memory import MemoryStore
from genmcp.tasks.heartbeats import Heartbeats, Presence
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import TaskRecords
from tests.tasks.bench import Bench, ended, made, opened, until


class Clocks:
    """A clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall = 1000.0
        self.steady = 0.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def presence(self, lease: float = 9.0) -> Presence:
        """Return the presence of a process that has worked for some time."""
        presence = self.new_presence(lease)
        presence.record_beat()
        self.pass_time(lease / 3)
        presence.record_beat()
        return presence

    def new_presence(self, lease: float = 9.0) -> Presence:
        return Presence(lease, lambda: self.wall, lambda: self.steady)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_process_with_heartbeats_is_sure(clocks: Clocks) -> None:
    """Each third of a lease is enough."""
    presence = clocks.presence()
    for _ in range(9):
        clocks.pass_time(3.0)
        assert not presence.is_unsure
        presence.record_beat()
    assert not presence.is_unsure


def test_suspended_process_is_unsure_for_a_lease(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """From the moment on that it is back; it is logged."""
    presence = clocks.presence()
    clocks.pass_time(3.1)
    assert presence.is_unsure
    clocks.pass_time(40.0)
    presence.record_beat()
    for _ in range(8):
        clocks.pass_time(1.0)
        presence.record_beat()
        assert presence.is_unsure
    clocks.pass_time(1.0)
    assert not presence.is_unsure
    assert "was suspended for 43.1 seconds" in caplog.text


@pytest.mark.parametrize("seconds", [40.0, -3600.0])
def test_set_clock_makes_a_process_unsure(clocks: Clocks, seconds: float) -> None:
    """Where leases are measured by it, all of them seem to have run out."""
    presence = clocks.presence()
    clocks.wall += seconds
    assert presence.is_unsure
    presence.record_beat()
    clocks.pass_time(2.9)
    assert presence.is_unsure
    for _ in range(3):
        presence.record_beat()
        clocks.pass_time(2.1)
    assert not presence.is_unsure


def test_new_process_is_unsure_for_a_third_of_a_lease(clocks: Clocks) -> None:
    """It cannot know whether the others were all prevented from giving signs of life."""
    presence = clocks.new_presence()
    assert presence.is_unsure
    clocks.pass_time(100.0)
    presence.record_beat()
    assert presence.takeover_delay == 3.0
    clocks.pass_time(2.0)
    presence.record_beat()
    assert presence.takeover_delay == 1.0
    clocks.pass_time(1.0)
    assert not presence.is_unsure


def test_process_that_works_again_is_like_a_new_one(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """It was not away: while it did not work, no signs of life were due."""
    presence = clocks.presence()
    presence.reset()
    clocks.pass_time(100.0)
    presence.record_beat()
    assert presence.takeover_delay == 3.0
    assert "was away" not in caplog.text


async def test_common_suspension_loses_no_call(clocks: Clocks) -> None:
    """A process with an expired record stays alive for others until it had time to renew it."""
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    here, there = (
        Heartbeats(store, partial(str, name), 9.0, presence=clocks.presence())
        for name in ("here", "there")
    )
    for node in (here, there):
        await node.beat()
    now = 40.0
    clocks.pass_time(40.0)

    await here.beat()
    assert await here.is_alive("there")
    for _ in range(4):
        clocks.pass_time(2.5)
        await here.beat()
    assert not await here.is_alive("there")
    await there.beat()
    assert await here.is_alive("there")


async def test_new_process_after_suspension_loses_no_call(clocks: Clocks) -> None:
    """A third of a lease suffices for the others to renew their records; the rest are dead."""
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    frozen, dead, new = (
        Heartbeats(store, partial(str, name), 9.0, presence=clocks.new_presence())
        for name in ("frozen", "dead", "new")
    )
    for each in (frozen, dead):
        await each.beat()
    now = 40.0
    clocks.pass_time(40.0)

    assert await new.is_alive("frozen")
    await new.beat()
    assert await new.is_alive("frozen")
    await frozen.beat()
    clocks.pass_time(3.0)
    assert await new.is_alive("frozen")
    assert not await new.is_alive("dead")


async def test_new_process_detects_an_unserved_queue(clocks: Clocks) -> None:
    """The warning for it costs nothing, and is due with the first job that is submitted."""
    nodes = Heartbeats(MemoryStore(), lambda: "new", 9.0, presence=clocks.new_presence())
    await nodes.beat()
    assert not await nodes.is_served("heavy")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("sqlite", tmp_path) as bench:
        yield bench


@job(name="presence.work")
async def work(run: Run, end: str) -> int:
    while not is_there(end):
        await run.progress(1)
        await asyncio.sleep(0.01)
    return run.attempt


def is_there(file: str) -> bool:
    return Path(file).exists()


async def test_job_outlives_a_lock_of_its_file(bench: Bench, tmp_path: Path) -> None:
    """A backup locks the file for longer than a lease: no process could renew, and none is dead."""
    holder, other = bench.jobs("holder", lease=0.9), bench.jobs("other", lease=0.9)
    await holder.create(made(Working(work.job(str(tmp_path / "end"))), on_lost="fail"), b"")
    await holder.create(made(Running("holder"), id="t2"), b"")
    await until(holder, lambda task: task.held_delivery is not None)
    await other.start()

    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as locking:
        locking.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(1.8)
        locking.execute("ROLLBACK")
    (tmp_path / "end").touch()

    assert (await ended(other)).result == b"1"
    assert (await other.get("t2", None)).status == "working"


async def test_task_is_taken_up_after_the_clock_was_put_back(bench: Bench) -> None:
    """Its step was never submitted: a reader submits it, whichever way the clock was set."""
    store = bench.store()
    now = store.now() + 3600.0
    records = TaskRecords(store, JobOptions())
    await records.create(made(Working(work.job("/")), created=now, updated=now, due=now), b"")
    jobs = bench.jobs(store=store)
    await jobs.get("t1", None)

    assert (await ended(jobs)).result == b"1"
