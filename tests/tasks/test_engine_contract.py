"""The contract of the worker's queues, over the deliveries of each store."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from genmcp.stores.memory import MemoryStore
from genmcp.stores.postgres import PostgresStore
from genmcp.stores.redis import RedisStore
from genmcp.stores.sqlite.store import SQLiteStore
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.tasks.engine_contract import BOUND, SHORT_LEASE, EngineContract
from tests.tasks.engine_processes import (
    BrokerEngineContract,
    EngineBroker,
    EngineProcess,
    SharedEngineContract,
)
from tests.tasks.engine_worker import Engine


@asynccontextmanager
async def sqlite_engine(path: str) -> AsyncIterator[Engine]:
    async with aclosing(SQLiteStore(path)) as store:
        yield Engine(store)


@asynccontextmanager
async def postgres_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(PostgresStore(url, timeout=2)) as store:
        yield Engine(store)


@asynccontextmanager
async def redis_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(RedisStore(url, timeout=2)) as store:
        yield Engine(store)


class ShortLeases(EngineContract):
    """The leases of one store are real. A busy machine may delay the takeover of shorter ones."""

    lease = SHORT_LEASE
    takeover = BOUND


class TestMemory(ShortLeases):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        async with aclosing(MemoryStore()) as store:
            yield Engine(store)


async def test_deliveries_go_on_after_a_defect_of_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process would otherwise appear to serve, and run no jobs any more."""
    handled: asyncio.Queue[str] = asyncio.Queue()
    async with aclosing(MemoryStore()) as store:
        claim, failures = store.deliveries.claim, [RuntimeError("a defect")]

        async def fail_once(*args: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await claim(*args, **options)

        monkeypatch.setattr(store.deliveries, "claim", fail_once)
        engine = Engine(store)
        await engine.submit("a")
        async with (
            engine.serve(handled.put, queues=["default"], concurrency=1, lease=5),
            asyncio.timeout(BOUND),
        ):
            assert await handled.get() == "a"
    assert "jobs cannot be fetched: a defect" in caplog.text


class TestSQLite(SharedEngineContract):
    factory = "tests.tasks.test_engine_contract:sqlite_engine"

    @pytest.fixture
    async def target(self, tmp_path: Path) -> str:
        return str(tmp_path / "engine.db")

    def freeze(self, process: EngineProcess, target: str) -> None:
        """Not within a transaction: it would hold SQLite's write lock."""
        process.freeze(lambda: _is_unlocked(target))


class TestRedis(ShortLeases, BrokerEngineContract):
    factory = "tests.tasks.test_engine_contract:redis_engine"

    @pytest.fixture
    async def broker(self) -> AsyncIterator[EngineBroker]:
        async with RedisServer() as server:
            yield server


class TestPostgres(ShortLeases, BrokerEngineContract):
    factory = "tests.tasks.test_engine_contract:postgres_engine"

    @pytest.fixture
    async def broker(self) -> AsyncIterator[EngineBroker]:
        async with PostgresServer() as server:
            async with aclosing(PostgresStore(server.url)) as store:
                await store.migrate()
            yield server


def _is_unlocked(path: str) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=0.2)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True
