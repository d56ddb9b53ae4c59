"""Properties of the store in memory only: it is bounded, and leaves nothing behind."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing

import pytest

from genmcp.errors import ConfigurationError, LogTruncated, StoreFull, StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, Delete, LogEvent, Put
from tests.support.clock import Clock

EMPTY = "<MemoryStore: 0 records, 0 events in 0 logs, 0 bytes>"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop beside the one of the test."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


async def logs_of(store: MemoryStore, names: Iterable[str]) -> list[list[bytes]]:
    return [[event.data for event in await store.read(name)] for name in names]


async def next_data(followed: AsyncGenerator[LogEvent, None]) -> bytes:
    async with asyncio.timeout(5):
        return (await anext(followed)).data


def test_memory_store_refuses_a_bound_of_nothing() -> None:
    """A store that can hold nothing is wrong at construction."""
    with pytest.raises(ConfigurationError, match="max_entries"):
        MemoryStore(max_entries=0)
    with pytest.raises(ConfigurationError, match="max_bytes"):
        MemoryStore(max_bytes=0)


async def test_memory_store_says_what_it_holds() -> None:
    """Its repr counts records, events, logs and bytes."""
    store = MemoryStore()
    await store.apply(Put("key", b"value"), Append("key", b"event", ttl=60))

    assert repr(store) == "<MemoryStore: 1 records, 1 events in 1 logs, 13 bytes>"


async def test_memory_store_drops_oldest_events_of_last_log() -> None:
    """The log that is being appended to loses no more than it must, and no other log does."""
    store = MemoryStore(max_entries=3)
    await store.apply(Append("b", b"1", ttl=60))
    for number in range(4):
        await store.apply(Append("a", b"%d" % number, ttl=60))
    assert await logs_of(store, "ab") == [[b"2", b"3"], [b"1"]]

    with pytest.raises(StoreFull):
        await store.apply(Append("c", b"1", ttl=60))
    await store.apply(Append("a", b"4", ttl=60), Append("a#b", b"5", ttl=60))
    assert await logs_of(store, ["a", "a#b", "b"]) == [[b"4"], [b"5"], [b"1"]]


async def test_memory_store_follower_gets_log_truncated() -> None:
    """A follower that had read all dropped events continues; another gets LogTruncated."""
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
async def test_memory_store_that_is_full_of_records_says_so(
    store: MemoryStore, setting: str
) -> None:
    """A write without room besides records is rejected, with the setting, and changes nothing."""
    await store.apply(Put("a", b"12"))
    await store.apply(Put("a#", b"3"))
    before = repr(store)
    for refused in (Put("a#c", b"1" * 600), Append("a#log", b"1" * 600, ttl=60)):
        with pytest.raises(StoreUnavailable, match=setting):
            await store.apply(Put("a", b"00"), refused)
    assert before == repr(store)

    await store.apply(Put("a", b"56"))
    await store.apply(Delete("a#"), Put("a#c", b""))
    entry = await store.get("a")
    assert entry
    assert entry.value == b"56"


async def test_full_memory_store_drops_expired_entries(clock: Clock) -> None:
    """Room is made of all that has run out before anything is refused."""
    store = MemoryStore(max_entries=1000, clock=clock)
    for number in range(1000):
        await store.apply(Put(f"{number}", b"", ttl=10))
    clock.now = 11
    await store.apply(*(Put(f"new#{number}", b"") for number in range(1000)))

    assert repr(store).startswith("<MemoryStore: 1000 records,")


async def test_memory_store_sweeps_a_little_at_each_apply(clock: Clock) -> None:
    """Entries that are never read again are removed too, and no call pays for all of them."""
    store = MemoryStore(clock=clock)
    for number in range(100):
        await store.apply(Put(f"{number}", b"", ttl=10), Append(f"{number}", b"", ttl=10))
    clock.now = 11
    await store.apply()
    assert repr(store)[:47] == "<MemoryStore: 36 records, 36 events in 36 logs,"

    await store.apply()
    assert repr(store) == EMPTY


async def test_memory_store_drops_superseded_deadlines(clock: Clock) -> None:
    """Records that are touched or replaced a thousand times weigh no more than others."""
    store = MemoryStore(clock=clock)
    for number in range(1000):
        await store.apply(Put("k", b"", ttl=1e6), Append("k", b"", ttl=1e6, keep=1))
        await store.touch("k", 1e6 + number)
        await store.apply(Put(f"{number}", b"", ttl=1e6), Delete(f"{number}"))
    for table in (store._records, store._logs):
        assert len(table.deadlines._heap) < 100

    clock.now = 3e6
    for _ in range(3):
        await store.apply()
    assert repr(store) == EMPTY


async def test_memory_store_keeps_no_trace_of_followers() -> None:
    """A log without events exists only while it is followed."""
    store = MemoryStore()
    async with aclosing(store.follow("log")) as followed:
        waiting = asyncio.ensure_future(next_data(followed))
        await asyncio.sleep(0)
        assert "in 1 logs" in repr(store)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert repr(store) == EMPTY

    with pytest.raises(LogTruncated):
        await next_data(store.follow("log", "nothing"))
    assert repr(store) == EMPTY


async def test_memory_store_lets_a_followed_log_run_out(clock: Clock) -> None:
    """Events go when their time has run out, the log when its last follower has left too."""
    store = MemoryStore(clock=clock)
    await store.apply(Append("log", b"1", ttl=10))
    async with aclosing(store.follow("log")) as followed:
        await next_data(followed)
        clock.now = 11
        await store.apply()
        assert repr(store) == "<MemoryStore: 0 records, 0 events in 1 logs, 0 bytes>"
    assert repr(store) == EMPTY


async def test_memory_store_ids_continue_after_a_restart() -> None:
    """A client with an id from before a restart gets LogTruncated, and no foreign events."""
    ids = []
    for _ in range(2):
        store = MemoryStore()
        await store.apply(*(Append("log", b"", ttl=60) for _ in range(3)))
        ids += [event.id for event in await store.read("log")]

    assert sorted(set(ids)) == ids
    with pytest.raises(LogTruncated):
        await store.read("log", ids[0])


async def test_memory_store_outlives_the_loop_of_a_follower(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """A loop that was closed around a follower delays no other, and the follower is removed."""
    store = MemoryStore()
    await store.apply(Append("log", b"1", ttl=60))
    followed = store.follow("log")

    def follow_and_close() -> None:
        loop.run_until_complete(anext(followed))
        loop.close()

    await asyncio.to_thread(follow_and_close)
    assert store._logs.held["log"].waiters
    await store.apply(Append("log", b"2", ttl=60))

    assert not store._logs.held["log"].waiters
    await followed.aclose()


async def test_waiter_is_woken_by_a_thread_without_a_loop() -> None:
    """A writer thread may wake it, once or often, and touches nothing of the loop's own."""
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


async def test_memory_deliveries_are_bounded() -> None:
    """Past max_entries a delivery is rejected; an existing one may be put again."""
    deliveries = MemoryStore(max_entries=2).deliveries
    await deliveries.put("a")
    await deliveries.put("b", "other")
    await deliveries.put("a")
    with pytest.raises(StoreUnavailable, match="max_entries=2"):
        await deliveries.put("c")

    assert repr(deliveries) == "<MemoryDeliveries: 2 in 2 queues>"
    await deliveries.cancel("a")
    await deliveries.put("c", "other")
    assert repr(deliveries) == "<MemoryDeliveries: 2 in 1 queues>"


async def test_memory_deliveries_drop_renewed_deadlines(clock: Clock) -> None:
    """A delivery that is renewed a thousand times weighs no more than another."""
    deliveries = MemoryStore(clock=clock).deliveries
    await deliveries.put("held")
    await deliveries.claim(["default"], "n1", 30, 1)
    await deliveries.put("due")
    for number in range(1000):
        await deliveries.renew("n1", ["held"], 1e6 + number)
    (queue,) = deliveries._queues.values()

    assert len(queue._deadlines._heap) < 100
    assert await deliveries.next_due(["default"]) == 0
    await deliveries.cancel("due")
    assert await deliveries.next_due(["default"]) == 1e6 + 999
    await deliveries.renew("n1", ["held"], 2e6)
    assert await deliveries.next_due(["default"]) == 2e6


async def test_news_in_memory_is_of_the_queues_of_interest() -> None:
    """Workers of other queues are not woken."""
    deliveries = MemoryStore().deliveries
    with deliveries.news(["here"]) as news, deliveries.news() as of_all:
        await deliveries.put("a", "elsewhere")
        await deliveries.cancel("a")
        await of_all.wait()
        waiting = asyncio.ensure_future(news.wait())
        await asyncio.sleep(0)
        assert not waiting.done()

        await deliveries.put("b", "here")
        await asyncio.wait_for(waiting, 5)
