"""The time in a SQLite file, on a machine with a clock that is set."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from genmcp.stores import clocks
from genmcp.stores.sqlite import file
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Put

BOUND = 5.0
DAY = 86400.0

needs_steady_clock = pytest.mark.skipif(
    clocks.boot_id() is None, reason="the system has no clock that cannot be set"
)

SetClock = Callable[[float], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Callable[[], SQLiteStore]]:
    stores: list[SQLiteStore] = []

    def opened() -> SQLiteStore:
        stores.append(SQLiteStore(path))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Shift the time of day by a number of seconds."""
    unix = time.time
    return lambda by: monkeypatch.setattr(time, "time", lambda: unix() + by)


@needs_steady_clock
@pytest.mark.parametrize("by", [-3600.0, 2 * 3600.0, 8 * DAY])
async def test_setting_the_clock_keeps_queues_and_data(
    by: float, opened: Callable[[], SQLiteStore], set_clock: SetClock
) -> None:
    """Neither here nor in a process that opens the file later."""
    store = opened()
    deliveries = store.deliveries
    for id in ("waiting", "held"):
        await deliveries.put(id)
    await deliveries.claim(["default"], "n1", 30.0, 1)
    await store.apply(Put("result", b"1", ttl=3600.0), Append("result", b"1", ttl=3600.0))
    set_clock(by)

    other = opened()
    await other.apply(Put("another", b"2", ttl=60.0))  # and so it may sweep
    assert len(await other.deliveries.claim(["default"], "n2", 30.0, 9)) == 1
    for each in (store, other):
        assert None is not await each.get("result")
        assert len(await each.read("result")) == 1
        assert None is not await each.get("another")


@needs_steady_clock
async def test_clock_behind_after_boot_keeps_queues_running(
    opened: Callable[[], SQLiteStore], set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a battery boots in 1970; due deliveries stay due."""
    store = opened()
    await store.deliveries.put("waiting")
    await store.apply(Put("result", b"1", ttl=3600.0))
    monkeypatch.setattr(file, "boot_id", lambda: "the next boot")
    set_clock(-time.time())

    other = opened()
    assert [id for id, *_ in await other.deliveries.claim(["default"], "n", 9.0, 9)] == ["waiting"]
    assert None is not await other.get("result")


async def test_file_uses_unix_time_without_a_steady_clock(
    opened: Callable[[], SQLiteStore], set_clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS and Windows."""
    monkeypatch.setattr(file, "boot_id", lambda: None)
    set_clock(DAY)
    await opened().apply(Put("result", b"1", ttl=60.0))
    set_clock(0.0)

    with closing(sqlite3.connect(opened()._path)) as opened_file:
        (deadline,) = opened_file.execute("SELECT deadline FROM records").fetchone()
    assert abs(deadline - time.time() - DAY - 60.0) < BOUND


async def test_slow_claim_takes_over_nothing(path: Path) -> None:
    """It waited for a third of its lease. So did the holder, which could not renew."""
    now = 0.0
    store = SQLiteStore(path, clock=lambda: now)
    await store.deliveries.put("a")
    await store.deliveries.claim(["default"], "n1", 10.0, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as locking:
        locking.execute("BEGIN IMMEDIATE")
        now = 11.0
        claiming = asyncio.create_task(store.deliveries.claim(["default"], "n2", 0.3, 1))
        await asyncio.sleep(0.3)
        locking.execute("ROLLBACK")

    assert await claiming == []
    assert await store.deliveries.lost("n1", ["a"]) == []
    await store.aclose()
