"""When a process over a SQLite file looks for writes of others, and the waiters that it wakes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from genmcp.stores.clocks import WakeSignal, steady
from genmcp.stores.following import ROW_RETENTION
from genmcp.stores.sqlite import database
from genmcp.stores.sqlite.database import FileDatabase
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append
from tests.support.clock import Clock

BOUND = 5.0  # seconds for a wake-up
NEVER = 3600.0  # seconds between two looks, where a test must not depend on them

Opened = Callable[[], SQLiteStore]


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def opened(tmp_path: Path, clock: Clock) -> AsyncIterator[Opened]:
    """Open the store; two of these are to each other like the stores of two processes."""
    stores: list[SQLiteStore] = []

    def opened() -> SQLiteStore:
        stores.append(SQLiteStore(tmp_path / "store.db", clock=clock))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each look at the file, with whether there are waiters."""
    looks: list[bool] = []
    look = FileDatabase._look

    def counted(self: FileDatabase, *arguments: object) -> None:
        looks.append(bool(self.waiters.signals))
        look(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FileDatabase, "_look", counted)
    return looks


async def woken(signal: WakeSignal) -> None:
    """Wait until *signal* is set, and clear it."""
    async with asyncio.timeout(BOUND):
        await signal.wait()
    signal.clear()


async def read(store: SQLiteStore) -> None:
    """Let the store look at the file once, and wait until that has woken the waiters."""
    await store.deliveries.lost("", ())
    await store.deliveries.lost("", ())  # the look follows the response to the first read


async def test_process_without_waiters_does_not_look_at_the_file(
    opened: Opened, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle process uses no CPU: only its own reads look."""
    monkeypatch.setattr(database, "_POLL_INTERVAL", 0.0)
    store = opened()
    with store.deliveries.news():
        await read(store)
        async with asyncio.timeout(BOUND):
            while len(looks) < 100:
                await read(store)
    await read(store)
    looks.clear()
    for _ in range(20):
        await read(store)

    assert 40 <= len(looks) <= 41
    assert not any(looks)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_put_wakes_only_workers_of_its_queue(elsewhere: bool, opened: Opened) -> None:
    """As do a release and a cancellation, of this process or another one."""
    here = opened()
    deliveries = (opened() if elsewhere else here).deliveries
    with (
        here.deliveries.news(["fast", "slow"]) as mine,
        here.deliveries.news(["other"]) as others,
        here.deliveries.news() as of_all,
    ):
        await read(here)
        for signal in (mine, others, of_all):
            signal.clear()
        for change in (
            deliveries.put("a", "slow"),
            deliveries.release("node", "a"),
            deliveries.cancel("a"),
        ):
            await deliveries.claim(["slow"], "node", 30.0, 1)
            await change
            for signal in (mine, of_all):
                await woken(signal)
        waiting = asyncio.ensure_future(others.wait())
        await read(here)
        assert not waiting.done()
        await deliveries.put("b", "other")
        async with asyncio.timeout(BOUND):
            await waiting


async def test_waiters_of_the_same_process_are_woken_at_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait until the process looks at the file."""
    monkeypatch.setattr(database, "_POLL_INTERVAL", NEVER)
    store = opened()
    followed = store.follow("log")
    event = asyncio.ensure_future(anext(followed))
    with store.deliveries.news(["q"]) as news:
        await read(store)
        news.clear()
        await store.deliveries.put("a", "q")
        await woken(news)
        await store.apply(Append("log", b"1", ttl=60.0))
        async with asyncio.timeout(BOUND):
            assert (await event).data == b"1"
    await followed.aclose()


async def test_worker_that_was_suspended_is_woken(
    opened: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the counter of its queue may have been removed."""
    monkeypatch.setattr(database, "_POLL_INTERVAL", NEVER)
    here, there = opened(), opened()
    with here.deliveries.news(["q"]) as news:
        await read(here)
        news.clear()
        await there.deliveries.put("a", "q")
        clock.now += 2 * ROW_RETENTION
        await there.deliveries.put("b", "other")
        looked = steady()
        monkeypatch.setattr(database, "steady", lambda: looked + 2 * ROW_RETENTION)
        await read(here)
        await woken(news)


async def test_waiter_of_a_closed_loop_is_forgotten(opened: Opened, looks: list[bool]) -> None:
    """A test or a TestClient may close its event loop without leaving; nothing looks after that."""
    store = opened()

    async def leave() -> None:
        signal = store.deliveries.news(["q"])
        signal.__enter__()
        left.append(signal)

    left: list[object] = []
    await asyncio.to_thread(asyncio.run, leave())
    await store.deliveries.put("a", "q")
    await read(store)
    looks.clear()
    await read(store)

    assert not any(looks)
