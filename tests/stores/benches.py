"""The stores under test in tests/stores/test_contracts.py. Each bench is one of them.

A bench provides the fixture `store` and, if the store is shared, `other` on the same data, and lets
their time pass: see `tests.contracts.bench.StoreBench`. `contents` counts the stored data, by the
names of tables or keys.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg
import pytest

from genmcp.stores.memory import MemoryStore
from genmcp.stores.postgres import PostgresStore
from genmcp.stores.redis import RedisStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from tests.contracts.bench import CAPACITY, StoreBench
from tests.support.clock import Clock
from tests.support.postgres_server import fresh_schema, in_schema, shared_postgres


class CountingBench(StoreBench, ABC):
    """A bench that counts the data in its store."""

    @abstractmethod
    async def contents(self, store: Any) -> dict[str, int]:
        """Return the number of rows or keys by table; without the counters of the whole store."""


class ClockBench(CountingBench):
    """A bench with a clock that stands still until a test moves it."""

    @pytest.fixture(autouse=True)
    def clock(self) -> Clock:
        """Return the clock of every instance in the test."""
        self._clock = Clock()
        return self._clock

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)


def rows_of(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the number of rows of each table with data."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    counts = {
        table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for (table,) in tables
        if table not in ("counts", "clocks")
    }
    return {table: count for table, count in counts.items() if count}


class MemoryBench(ClockBench):
    async def contents(self, store: MemoryStore) -> dict[str, int]:
        return rows_of(store._database._opened())  # type: ignore[attr-defined]

    @pytest.fixture
    async def store(self, clock: Clock) -> AsyncIterator[Store]:
        async with aclosing(MemoryStore(max_bytes=CAPACITY, clock=clock)) as store:
            yield store


class SQLiteBench(ClockBench):
    async def contents(self, store: SQLiteStore) -> dict[str, int]:
        with closing(sqlite3.connect(store._path)) as connection:
            return rows_of(connection)

    @pytest.fixture
    async def store(self, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
        path = tmp_path / "store.db"
        async with aclosing(SQLiteStore(path, max_bytes=CAPACITY, clock=clock)) as store:
            yield store

    @pytest.fixture
    async def other(self, store: Store, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
        path = tmp_path / "store.db"
        async with aclosing(SQLiteStore(path, max_bytes=CAPACITY, clock=clock)) as other:
            yield other


class PostgresBench(ClockBench):
    async def contents(self, store: PostgresStore) -> dict[str, int]:
        counts = {}
        async with await psycopg.AsyncConnection.connect(shared_postgres()) as connection:
            for table in ("records", "labels", "logs", "events", "accounts", "deliveries"):
                # The counters of everything are merged into a few rows, which stay.
                clients = " WHERE name <> ''" if table == "accounts" else ""
                sql = f"SELECT count(*) FROM {self._schema}.{table}{clients}"
                (count,) = await (await connection.execute(sql.encode())).fetchone() or (0,)
                counts[table] = count
        return {table: count for table, count in counts.items() if count}

    @pytest.fixture
    async def store(self, clock: Clock) -> AsyncIterator[Store]:
        self._schema = fresh_schema()
        async with aclosing(self._open(clock)) as store:
            await store.migrate()
            yield store

    @pytest.fixture
    async def other(self, store: Store, clock: Clock) -> AsyncIterator[Store]:
        async with aclosing(self._open(clock)) as other:
            yield other

    def _open(self, clock: Clock) -> PostgresStore:
        url = in_schema(shared_postgres(), self._schema)
        return PostgresStore(url, max_bytes=CAPACITY, clock=clock)


class RedisBench(CountingBench):
    """A bench on a real server; the stores see its time shifted."""

    async def contents(self, store: RedisStore) -> dict[str, int]:
        """Count keys, and channels that have subscribers."""
        prefix = store._server.prefix
        ask = store._connections.here().ask
        keys = [each.decode().removeprefix(prefix) for each in await ask("KEYS", f"*{prefix}*")]
        channels = await ask("PUBSUB CHANNELS", f"*{prefix}*")
        counts = Counter(key.partition(":")[0] for key in keys if key not in ("meta", "number"))
        return dict(counts) | ({"channels": len(channels)} if channels else {})

    @pytest.fixture
    def prefix(self) -> str:
        """Return the prefix of this test's keys: all tests share a server."""
        self._stores: list[RedisStore] = []
        return f"test-{token_hex(8)}"

    @pytest.fixture
    async def store(self, redis_url: str, prefix: str) -> AsyncIterator[Store]:
        async with aclosing(self._made(redis_url, prefix)) as store:
            yield store

    @pytest.fixture
    async def other(self, store: Store, redis_url: str, prefix: str) -> AsyncIterator[Store]:
        async with aclosing(self._made(redis_url, prefix)) as other:
            yield other

    def _made(self, url: str, prefix: str) -> RedisStore:
        store = RedisStore(url, prefix=prefix, max_bytes=CAPACITY)
        self._stores.append(store)
        return store

    async def advance(self, seconds: float) -> None:
        for store in self._stores:
            store._server.clock.skew += seconds
