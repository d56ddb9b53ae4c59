"""Followers of a log, across failures of its store and events that were dropped."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from genmcp.errors import LogTruncated, StoreUnavailable
from genmcp.stores import open_store
from genmcp.stores.following import Followed, follow, retry_read
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, LogEvent, Store
from tests.support.asgi import PATIENCE
from tests.support.stores import KINDS, shared_store

LOG = "task:1"


async def append(store: Store, *data: bytes, keep: int = 1000) -> None:
    for each in data:
        await store.apply(Append(LOG, each, ttl=60, keep=keep))


async def opened(stack: AsyncExitStack, kind: str, folder: Path) -> Any:
    store: Any = MemoryStore()
    if kind != "memory":
        shared = await stack.enter_async_context(shared_store(kind, folder))
        store = open_store(shared.url)
    return await stack.enter_async_context(aclosing(store))


async def texts(items: AsyncGenerator[Followed, None], count: int) -> list[Any]:
    """Return the next *count* items: the data of events, the types of errors, None."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        for _ in range(count):
            item = await anext(items)
            found.append(item.data if isinstance(item, LogEvent) else item and type(item))
    return found


def fail_after_each_event(store: Any) -> None:
    """Let followers of *store* fail after each event, as if its server was restarted."""
    plain = store.follow

    async def follow(log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        async with aclosing(plain(log, after)) as events:
            yield await anext(events)
        raise StoreUnavailable("it is restarted")

    store.follow = follow


@pytest.mark.parametrize("kind", ["memory", *KINDS])
async def test_follower_gets_each_event_once_across_failures(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues after the last event that it was given, also with those stored meanwhile."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0)
    async with AsyncExitStack() as stack:
        store = await opened(stack, kind, tmp_path)
        fail_after_each_event(store)
        async with aclosing(follow(store, LOG)) as items:
            await append(store, b"1")
            found = await texts(items, 2)
            await append(store, b"2", b"3")
            found += await texts(items, 3)
            await append(store, b"4")
            found += await texts(items, 1)

    assert found == [b"1", StoreUnavailable, b"2", b"3", None, b"4"]


@pytest.mark.parametrize("kind", ["memory", *KINDS])
async def test_slow_follower_continues_with_retained_events(kind: str, tmp_path: Path) -> None:
    """None follows the retained events: the follower may read its state then."""
    async with AsyncExitStack() as stack:
        store = await opened(stack, kind, tmp_path)
        async with aclosing(follow(store, LOG)) as items:
            await append(store, b"1", keep=2)
            found = await texts(items, 1)
            await append(store, b"2", b"3", b"4", b"5", keep=2)
            found += await texts(items, 4)
            await append(store, b"6", keep=2)
            found += await texts(items, 1)

    assert found == [b"1", LogTruncated, b"4", b"5", None, b"6"]


async def test_stored_events_end_with_none_on_request() -> None:
    """The mark comes once, also for an empty log; new events follow."""
    store = MemoryStore()
    async with aclosing(follow(store, LOG, catch_up=True)) as items:
        assert await texts(items, 1) == [None]
    await append(store, *(b"%d" % number for number in range(1000)))
    async with aclosing(follow(store, LOG, catch_up=True)) as items:
        found = await texts(items, 1001)
        await append(store, b"new")
        assert await texts(items, 1) == [b"new"]

    assert found == [*(b"%d" % number for number in range(1000)), None]


async def test_follower_that_waits_for_its_store_is_cancelled_at_once() -> None:
    """Also during the delay before the next attempt."""
    store: Any = MemoryStore()
    fail_after_each_event(store)
    failed = asyncio.Event()

    async def wait() -> None:
        async with aclosing(follow(store, LOG)) as items:
            async for item in items:
                if isinstance(item, StoreUnavailable):
                    failed.set()

    waiting = asyncio.create_task(wait())
    await append(store, b"1")
    await asyncio.wait_for(failed.wait(), PATIENCE)
    waiting.cancel()
    for _ in range(5):
        await asyncio.sleep(0)

    assert waiting.cancelled()


async def test_follower_ends_with_its_store() -> None:
    """A closed store is never available again."""
    store = MemoryStore()
    async with aclosing(follow(store, LOG)) as items:
        coming = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await asyncio.wait_for(coming, PATIENCE)
    with pytest.raises(StoreUnavailable, match="closed"):
        await retry_read(store, lambda: store.get("task:1"))


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), LogTruncated(LOG, "1")])
async def test_read_is_repeated_until_the_store_responds(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was away, or has dropped events meanwhile."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0)
    errors = [error, error]

    async def read() -> str:
        if errors:
            raise errors.pop()
        return "read"

    assert await retry_read(MemoryStore(), read) == "read"
    assert errors == []
