"""The store in the memory of this process: the default."""

import sqlite3
from collections.abc import Callable
from sqlite3 import Connection
from threading import Lock
from typing import TypeVar
from weakref import finalize

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage
from genmcp.stores.clocks import unix_clock
from genmcp.stores.lanes import CLOSED
from genmcp.stores.outages import Outages
from genmcp.stores.sqlite.database import Database
from genmcp.stores.sqlite.file import create_tables
from genmcp.stores.sqlite.store import DatabaseStore
from genmcp.stores.sqlite.tables import Transaction, usage_of

T = TypeVar("T")


class MemoryStore(DatabaseStore):
    """A store in the memory of this process: a SQLite database without a file.

    Expired entries are removed at writes. There is no background task and no timer.

    Args:
        max_entries: the maximum number of records and events. Default 100,000.
        max_bytes: the maximum number of bytes in keys, values and event data. Default 64 MiB.
        clock: returns Unix time. Default: a clock that setting the system time does not affect.

    Raises:
        ConfigurationError: one of them is out of range.
    """

    shared = False
    durable = False

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries must be at least 1, not {max_entries}")
        capacity = Capacity(max_bytes, max_entries)
        database = MemoryDatabase(capacity, clock or unix_clock(), self.outages)
        super().__init__(database)
        self.now = database.now  # type: ignore[method-assign]  # needs no frame of its own
        self._counts = database.counts

    def __repr__(self) -> str:
        records, logs, used = self._counts()
        return (
            f"<MemoryStore: {records} records, {used.entries - records} events in {logs} logs, "
            f"{used.size} bytes>"
        )


class MemoryDatabase(Database):
    """The database of a MemoryStore. Its operations never block: they need no thread.

    It is created by the first operation: many servers need none.
    """

    def __init__(self, capacity: Capacity, now: Callable[[], float], outages: Outages) -> None:
        super().__init__(capacity, now, limits_file=False)
        self._outages = outages
        self._lock = Lock()  # event loops of several threads may use it
        self._connection: Connection | None = None

    async def read(self, query: Callable[[Connection, float], T]) -> T:
        with self._lock:
            return query(self._connection or self._opened(), self.now())

    async def write(self, change: Callable[[Transaction], T]) -> T:
        with self._lock:
            (outcome,) = self.transact(self._connection or self._opened(), [change])
        try:
            if isinstance(outcome, StoreError):
                self._outages.record(outcome)
                raise outcome
            result: T = outcome
            return result
        finally:
            del outcome  # its traceback has this frame: a reference cycle

    def counts(self) -> tuple[int, int, Usage]:
        """Return the number of records and of logs, and their size. Expired entries count."""
        with self._lock:
            if self._connection is None:
                return 0, 0, Usage(0, 0)
            query = "SELECT (SELECT count(*) FROM records), count(*) FROM logs WHERE held > 0"
            records, logs = self._connection.execute(query).fetchone()
            return records, logs, usage_of(self._connection, EVERYTHING, limits_file=False)

    def start_watching(self) -> None:
        """Do nothing: there are no other processes."""

    async def aclose(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        self.waiters.wake_all()

    def _opened(self) -> Connection:
        if self._outages.closed:
            raise StoreUnavailable(CLOSED)
        if self._connection is None:
            self._connection = sqlite3.connect(
                ":memory:", isolation_level=None, check_same_thread=False
            )
            create_tables(self._connection)
            # A store need not be closed, but sqlite3 warns of an open connection.
            finalize(self, self._connection.close)
        return self._connection
