"""The contract of engines, on `LocalEngine` over the deliveries of each store."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path

import pytest

from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.postgres import PostgresStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.tasks.engine import Engine, LocalEngine
from tests.support.postgres_server import fresh_schema, shared_postgres
from tests.tasks.engine_contract import EngineContract
from tests.tasks.shared_engine_contract import EngineProcess, SharedEngineContract


@asynccontextmanager
async def sqlite_engine(path: str) -> AsyncIterator[Engine]:
    async with aclosing(SQLiteStore(path)) as store:
        yield LocalEngine(store.deliveries, retry_delay=0.1)


@asynccontextmanager
async def postgres_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(open_store(url)) as store:
        assert store.deliveries
        yield LocalEngine(store.deliveries, retry_delay=0.1)


class TestMemory(EngineContract):
    promises = LocalEngine.promises

    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        async with aclosing(MemoryStore()) as store:
            yield LocalEngine(store.deliveries)


class TestSQLite(SharedEngineContract):
    promises = LocalEngine.promises
    factory = "tests.tasks.test_engine_contract:sqlite_engine"

    @pytest.fixture
    async def target(self, tmp_path: Path) -> str:
        return str(tmp_path / "engine.db")

    def freeze(self, process: EngineProcess, target: str) -> None:
        """Not within a transaction: it would hold SQLite's write lock."""
        process.freeze(lambda: _is_unlocked(target))


class TestPostgres(SharedEngineContract):
    promises = LocalEngine.promises
    factory = "tests.tasks.test_engine_contract:postgres_engine"

    @pytest.fixture
    async def target(self) -> str:
        url, schema = shared_postgres(), fresh_schema()
        async with aclosing(PostgresStore(url, schema=schema)) as store:
            await store.migrate()
        return f"{url}?schema={schema}"


def _is_unlocked(path: str) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=0.2)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True
