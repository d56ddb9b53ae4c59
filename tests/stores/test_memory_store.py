"""Properties of the store in memory: its bounds, and the memory that it leaves free."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import pytest

from genmcp.errors import ConfigurationError, LogTruncated, StoreFull, StoreUnavailable
from genmcp.stores.accounts import EVERYTHING, Usage
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, Delete, LogEvent, Put
from tests.support.clock import Clock


async def logs_of(store: MemoryStore, names: Iterable[str]) -> list[list[bytes]]:
    return [[event.data for event in await store.read(name)] for name in names]


async def next_data(followed: AsyncGenerator[LogEvent, None]) -> bytes:
    async with asyncio.timeout(5):
        return (await anext(followed)).data


@pytest.mark.parametrize("option", ["max_entries", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_bound_out_of_range_is_rejected(option: str, value: int) -> None:
    """A store without room fails at construction, and the option is named."""
    with pytest.raises(ConfigurationError, match=option):
        MemoryStore(**{option: value})  # type: ignore[arg-type]


async def test_full_store_drops_events_of_the_appended_log() -> None:
    """As few as possible. Other logs lose nothing."""
    store = MemoryStore(max_entries=3)
    await store.apply(Append("b", b"1", ttl=60))
    for number in range(4):
        await store.apply(Append("a", b"%d" % number, ttl=60))
    assert await logs_of(store, "ab") == [[b"2", b"3"], [b"1"]]

    with pytest.raises(StoreFull):
        await store.apply(Append("c", b"1", ttl=60))
    await store.apply(Append("a", b"4", ttl=60), Append("a#b", b"5", ttl=60))
    assert await logs_of(store, ["a", "a#b", "b"]) == [[b"4"], [b"5"], [b"1"]]


async def test_follower_behind_dropped_events_is_truncated() -> None:
    """A follower that had read all dropped events continues."""
    store = MemoryStore(max_entries=2)
    await store.apply(Append("a", b"1", ttl=60))
    async with aclosing(store.follow("a")) as ahead, aclosing(store.follow("a")) as behind:
        assert [await next_data(ahead), await next_data(behind)] == [b"1", b"1"]
        await store.apply(Append("a", b"2", ttl=60))
        assert await next_data(ahead) == b"2"
        await store.apply(Append("a", b"3", ttl=60), Append("a", b"4", ttl=60))

        assert await next_data(ahead) == b"3"
        with pytest.raises(LogTruncated):
            await next_data(behind)


@pytest.mark.parametrize(
    ("store", "setting"),
    [(MemoryStore(max_entries=2), "max_entries=2"), (MemoryStore(max_bytes=600), "max_bytes=600")],
)
async def test_store_full_of_records_rejects_a_write(store: MemoryStore, setting: str) -> None:
    """The error names the setting, and nothing is changed."""
    await store.apply(Put("a", b"12"))
    await store.apply(Put("a#", b"3"))
    before = await store.usage(EVERYTHING)
    for rejected in (Put("a#c", b"1" * 600), Append("a#log", b"1" * 600, ttl=60)):
        with pytest.raises(StoreUnavailable, match=setting):
            await store.apply(Put("a", b"00"), rejected)
    assert before == await store.usage(EVERYTHING)

    await store.apply(Put("a", b"56"))
    await store.apply(Delete("a#"), Put("a#c", b""))
    entry = await store.get("a")
    assert entry
    assert entry.value == b"56"


async def test_full_store_removes_expired_entries_first() -> None:
    """A write is rejected only if all expired entries are removed."""
    clock = Clock()
    store = MemoryStore(max_entries=1000, clock=clock)
    for number in range(1000):
        await store.apply(Put(f"{number}", b"", ttl=10))
    clock.now = 11
    await store.apply(*(Put(f"new#{number}", b"") for number in range(1000)))

    assert (await store.usage(EVERYTHING)).entries == 1000


async def test_ids_continue_after_a_restart() -> None:
    """A client with an id from before a restart gets LogTruncated, and no foreign events."""
    ids = []
    for _ in range(2):
        store = MemoryStore()
        await store.apply(*(Append("log", b"", ttl=60) for _ in range(3)))
        ids += [event.id for event in await store.read("log")]

    assert sorted(set(ids)) == ids
    with pytest.raises(LogTruncated):
        await store.read("log", ids[0])


async def test_followers_leave_no_memory_in_use() -> None:
    """Those of a log that does not exist, and those with an unknown position."""
    store = MemoryStore()
    async with aclosing(store.follow("log")) as followed:
        waiting = asyncio.ensure_future(next_data(followed))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    with pytest.raises(LogTruncated):
        await next_data(store.follow("log", "nothing"))

    assert not store._database.waiters.signals
    assert await store.usage(EVERYTHING) == Usage()


async def test_follower_of_a_closed_loop_is_forgotten() -> None:
    """It delays no other follower."""
    store = MemoryStore()
    await store.apply(Append("log", b"1", ttl=60))
    loop, followed = asyncio.new_event_loop(), store.follow("log")

    def follow_and_close() -> None:
        loop.run_until_complete(anext(followed))
        loop.close()

    await asyncio.to_thread(follow_and_close)
    assert store._database.waiters.signals
    await store.apply(Append("log", b"2", ttl=60))

    assert not store._database.waiters.signals
    await followed.aclose()


async def test_waiter_is_woken_by_a_thread_without_a_loop() -> None:
    """A writer's thread may wake it, once or often."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)  # rejects calls from other threads than the loop's own
    waiter = WakeSignal()
    waits = threading.Event()

    def write() -> None:
        waits.wait(5)
        waiter.wake()
        waiter.wake()

    loop.call_soon(waits.set)
    async with asyncio.timeout(5):
        writing = asyncio.ensure_future(asyncio.to_thread(write))
        await waiter.wait()
        await writing
    assert waiter.wake()


async def test_store_that_is_not_closed_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    """A mux closes no store that it has made itself."""
    store = MemoryStore()
    await store.apply(Put("k", b""))
    del store

    assert not recwarn.list
