"""The stores under test in tests/stores/test_contracts.py. Each bench is one of them.

A bench provides the fixture `store` and, if the store is shared, `other` on the same data, and says
how their time passes: see `tests.contracts.bench.StoreBench`.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from secrets import token_hex

import pytest

from genmcp.stores.memory import MemoryStore
from genmcp.stores.postgres import PostgresStore
from genmcp.stores.redis import RedisStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from tests.contracts.bench import CAPACITY, StoreBench
from tests.support.clock import Clock
from tests.support.postgres_server import fresh_schema, in_schema, shared_postgres


class ClockBench(StoreBench):
    """A bench whose time is a clock that stands still until a test moves it."""

    @pytest.fixture(autouse=True)
    def clock(self) -> Clock:
        """Return the clock of every instance in the test."""
        self._clock = Clock()
        return self._clock

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)


class MemoryBench(ClockBench):
    @pytest.fixture
    async def store(self, clock: Clock) -> AsyncIterator[Store]:
        async with aclosing(MemoryStore(max_bytes=CAPACITY, clock=clock)) as store:
            yield store


class SQLiteBench(ClockBench):
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


class RedisBench(StoreBench):
    """A bench on a real server, whose time the store can be made to see shifted."""

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
