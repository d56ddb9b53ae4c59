"""After everything has expired, nothing is left in a store: rows, keys, channels and waiters."""

import asyncio
from contextlib import aclosing

import pytest

from genmcp import Client, Continue, Mux, Run, Suite, job, tool
from genmcp.client.options import ClientOptions
from genmcp.core.client_key import client_of
from genmcp.stores import connections
from genmcp.stores.accounts import EVERYTHING
from genmcp.stores.sqlite import database
from genmcp.stores.store import Append, Delete, Put, Store
from tests.contracts.bench import BOUND, take
from tests.stores.benches import (
    CountingBench,
    MemoryBench,
    PostgresBench,
    RedisBench,
    SQLiteBench,
)

ANN = client_of("ann", "10.0.0.1")
ANONYMOUS = client_of(None, "10.0.0.1")
HOUR = 3600.0


@job
async def add_one(run: Run, number: int) -> int:
    return number + 1


@tool
async def add(number: int) -> Continue:
    """Adds one to a number, in a job."""
    return add_one.job(number).then(added)


@add.step
async def added(total: int) -> str:
    return f"{total}"


@tool
async def count() -> str:
    """Returns a text of two chunks."""
    return "\n".join(map(str, range(50_000)))


class ExpiryOfEverything(CountingBench):
    """The behaviour of a store when its whole content expires."""

    async def test_nothing_is_left_after_everything_has_expired(self, store: Store) -> None:
        """Records, labels, logs, accounts, deliveries; neither followers nor workers."""
        for number in range(30):
            client = ANN if number % 2 else ANONYMOUS
            labels = ("all", f"number:{number}")
            await store.apply(
                Put(f"task:{number}", b"1", ttl=60, client=client, labels=labels),
                Put(f"task:{number}#call", b"1", ttl=60, client=client),
                *(Append(f"task:{number}", b"%d" % n, ttl=60, client=client) for n in range(5)),
            )
        await store.apply(Put("deleted", b"1", client=ANN, labels=("all",)), Delete("deleted"))
        await store.touch("task:0", 120)
        deliveries = store.deliveries
        assert deliveries is not None
        with deliveries.news(["default"]), deliveries.news():
            for number in range(10):
                await deliveries.put(f"{number}", owner="ann", delay=number % 2)
            await self.advance(2)
            for claimed in await deliveries.claim(["default"], "node", 30, 8):
                await deliveries.drop("node", claimed.id)
            for number in range(10):
                await deliveries.cancel(f"{number}")
            async with aclosing(store.follow("task:1")) as followed:
                assert await take(followed, 5) == [b"%d" % number for number in range(5)]
        assert await self.contents(store)

        await self.advance(121)
        await self._sweep(store)
        await self.advance(HOUR + 1)  # the rows of expired logs, and news of queues
        await self._until_empty(store)

    async def _sweep(self, store: Store) -> None:
        """Let the store remove expired entries, as it does in the course of time."""
        await store.apply(Put("sweep", b""), Delete("sweep"))
        await store.usage(ANN)

    async def _until_empty(self, store: Store) -> None:
        async with asyncio.timeout(BOUND):
            while left := await self.contents(store):
                await self._sweep(store)
                await asyncio.sleep(0.01)
        assert not left


class ExpiryOfCalls(ExpiryOfEverything):
    """The same for the data of calls, which outlives its process."""

    async def test_idle_store_removes_expired_data(
        self, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a write, and without a read."""
        monkeypatch.setattr(connections, "UPKEEP_INTERVAL", 0.05)
        monkeypatch.setattr(database, "_SWEEP_WHILE_IDLE", 0.05)
        await store.apply(Put("k", b"1", ttl=60, client=ANN, labels=("all",)))
        assert await self.contents(other)
        await self.advance(61)

        async with asyncio.timeout(BOUND):
            while await self.contents(other):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def test_nothing_is_left_of_calls_and_sessions(self, store: Store, other: Store) -> None:
        """Tasks, jobs, sessions and heartbeats, a month after the process has ended."""
        mux = Mux(Suite(name="test", version="1", tools=[add]), store=store, secret="s" * 16)
        for revision in ("2026-07-28", "2025-11-25"):
            async with Client(mux, options=ClientOptions(revision=revision)) as client:
                for number in range(3):
                    assert (await client.call("add", {"number": number})).text == f"{number + 1}"
        assert await self.contents(other)
        await mux.aclose()

        await self.advance(30 * 24 * HOUR)
        await self._sweep(other)
        await self.advance(HOUR + 1)
        await self._until_empty(other)

    async def test_nothing_is_left_of_kept_results(self, store: Store, other: Store) -> None:
        """They can be read until they expire."""
        mux = Mux(Suite("test", tools=[count], overflow=1000), store=store, secret="s" * 16)
        async with Client(mux) as client:
            uri = (await client.call("count")).content[2].uri  # type: ignore[union-attr]
            (contents,) = (await client.read(uri + "?from=288878")).contents
        assert contents.text == "49998\n49999"
        assert await self.contents(other)
        await mux.aclose()

        await self.advance(HOUR + 61)
        async with asyncio.timeout(BOUND):
            while (await other.usage(EVERYTHING)).entries > 1:  # the heartbeat of the process
                await self._sweep(other)
        await self.advance(30 * 24 * HOUR)
        await self._until_empty(other)


class TestMemory(MemoryBench, ExpiryOfEverything):
    """The store in memory."""


class TestSQLite(SQLiteBench, ExpiryOfCalls):
    """The store in a file."""


class TestPostgres(PostgresBench, ExpiryOfCalls):
    """The store in a PostgreSQL database."""


class TestRedis(RedisBench, ExpiryOfCalls):
    """The store in a Redis or Valkey server."""
