"""Outages of a store: each failed operation is counted, and the log has one line at each end."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from genmcp import Store
from genmcp.errors import StoreFull, StoreUnavailable
from genmcp.stores import Append, Put, open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from tests.support.asgi import PATIENCE
from tests.support.stores import shared_store


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock for writes of the file at *path*, as another process that writes does."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


async def followed(store: Store) -> None:
    async with aclosing(store.follow("log")) as events:
        await anext(events)


async def succeeds(store: Store) -> None:
    """Repeat a write and a read until both succeed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreUnavailable):
                await store.apply(Put("key", b""))
                await store.get("key")
                return


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each for each in map(str, caplog.messages) if text in each]


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_failed_operations_count_and_log_one_line(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also claims and renewals of workers, and reads of followers."""
    async with shared_store(kind, tmp_path, own_server=True) as (url, server):
        store, errors = open_store(url), list[Any]()
        store.outages.listeners.add(errors.append)
        assert server is not None
        assert store.deliveries is not None
        await succeeds(store)
        assert not errors

        ended: Any = server.kill()  # a coroutine of PostgreSQL's
        if ended is not None:
            await ended
        outcomes = await asyncio.gather(
            store.get("key"),
            store.apply(Append("log", b"", ttl=60)),
            store.touch("key", 60),
            store.deliveries.claim(["default"], "node", 60, 1),
            store.deliveries.next_due(["default"]),
            followed(store),
            return_exceptions=True,
        )
        assert {type(each) for each in outcomes} == {StoreUnavailable}
        assert len(errors) >= len(outcomes)
        assert store.outages.failing
        assert len(lines(caplog, "is unavailable: ")) == 1
        assert {each.name for each in caplog.records} <= {"genmcp", "asyncio"}  # no library's

        await server.start()
        await succeeds(store)
        assert not store.outages.failing
        (line,) = lines(caplog, "is available again, after ")
        assert line.startswith(repr(store))
        await store.aclose()
        with pytest.raises(StoreUnavailable):  # which is no outage
            await store.get("key")
        assert not store.outages.failing


async def test_locked_file_stays_unavailable_while_reads_succeed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer does not block readers: they would otherwise end and begin the outage in turn."""
    path = tmp_path / "test.db"
    store, errors = SQLiteStore(path, timeout=0.01), list[Any]()
    store.outages.listeners.add(errors.append)
    async with locked(path):
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.touch("key", 60)
            assert await store.get("key") is None
        assert (len(errors), store.outages.failing) == (3, True)
    await succeeds(store)

    assert not store.outages.failing
    assert len(lines(caplog, "is unavailable: ")) == 1
    assert len(lines(caplog, "is available again, after ")) == 1
    await store.aclose()


async def test_locked_file_can_be_opened_and_is_used_when_it_is_free(tmp_path: Path) -> None:
    """A process that starts meanwhile waits, as it does for a server that is away."""
    path = tmp_path / "test.db"
    async with locked(path):
        store = SQLiteStore(path, timeout=0.01)
        for operation in (store.get("key"), store.apply(Put("key", b"value"))):
            with pytest.raises(StoreUnavailable):
                await operation
    await store.apply(Put("key", b"value", ttl=60))

    found = await store.get("key")
    assert found is not None
    assert found.value == b"value"
    await store.aclose()


async def test_full_store_is_counted_and_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """It responds: deletions and updates succeed."""
    store, errors = MemoryStore(max_bytes=10), list[Any]()
    store.outages.listeners.add(errors.append)
    with pytest.raises(StoreFull):
        await store.apply(Put("key", b"x" * 20, new=True))

    assert [type(each) for each in errors] == [StoreFull]
    assert not store.outages.failing
    assert not lines(caplog, "is unavailable")
