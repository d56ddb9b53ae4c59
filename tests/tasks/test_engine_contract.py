"""The contract of engines, on `LocalEngine` over the deliveries of each store."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path

import pytest

from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.tasks.engine import Engine, LocalEngine
from tests.tasks.engine_contract import EngineContract
from tests.tasks.shared_engine_contract import EngineProcess, SharedEngineContract


@asynccontextmanager
async def sqlite_engine(path: str) -> AsyncIterator[Engine]:
    async with aclosing(SQLiteStore(path)) as store:
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


def _is_unlocked(path: str) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=0.2)) as connection:
            connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True
