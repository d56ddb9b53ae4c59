"""The file as one process uses it: one thread writes, another one reads and watches for writes."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection, Cursor
from typing import Any, Final, TypeVar

from msgspec import Struct

from genmcp.errors import ConfigurationError, StoreError, StoreFull, StoreUnavailable
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage, accounts_of
from genmcp.stores.outages import Outages
from genmcp.stores.sqlite.connection import (
    ConnectionThread,
    ThreadRequest,
    code_of,
    connect,
    is_busy,
    prepare,
)
from genmcp.stores.sqlite.watch import NEWS_RETENTION, Watch

T = TypeVar("T")

_NOTHING: Final = Usage()
_POLL_INTERVAL: Final = 0.02  # seconds: PRAGMA data_version takes 3 us
_FREE_BYTES: Final = 1024 * 1024  # with less free space a disk is full for a database
_SWEEP_INTERVAL: Final = 1.0  # seconds
_SWEEP_WHILE_IDLE: Final = 0.01  # seconds between two sweeps, so that other processes can write


class Settings(Struct):
    """The options of a `SQLiteStore`, and the clock of its file once `prepare` was called."""

    path: Path
    capacity: Capacity
    timeout: float
    outages: Outages
    clock: Callable[[], float] | None
    now: Callable[[], float] = time.time
    is_prepared: bool = False

    def prepare(self) -> None:
        """Create the file and its tables if they are missing, unless that was done.

        Raises:
            StoreUnavailable: another process has locked the file. A later call may succeed.
            ConfigurationError: the file cannot be used.
        """
        check_process(self.path)
        if not self.is_prepared:
            size = self.capacity.size
            clock = prepare(self.path, timeout=self.timeout, max_bytes=size)
            self.now = self.clock or clock
            self.is_prepared = True


# By database that is in use: the process that uses it. No connection may be used, closed or opened
# in a child while its parent has one to the same file: SQLite counts the locks of a process in its
# memory ("How To Corrupt An SQLite Database File", 2.6), where the child would find those of its
# parent. In the child, this dictionary also keeps the connections of the parent from being closed.
_in_use: Final[dict["Database", int]] = {}


def check_process(path: Path) -> None:
    """Check that *path* is not in use by a process from which this one was forked.

    Raises:
        ConfigurationError: it is.
    """
    process = os.getpid()
    for database, user in tuple(_in_use.items()):
        if user != process and database.path == path:
            raise ConfigurationError(
                f"the SQLite store at {str(path)!r} was opened before this process was forked: "
                f"fork before its first use, or start the process without a fork (spawn)"
            )


class AccountTable:
    """The usage of accounts. Owned by one transaction.

    Usage is written in the same transaction as the entries that it counts, so that it stays exact
    when a process is killed. Expired entries count until they are removed. The account of
    everything has the size of the file instead.

    Attributes:
        growth: by account, what the present write has added to it. `save` begins another write.
    """

    __slots__ = ("_execute", "growth")

    def __init__(self, execute: Callable[..., Cursor]) -> None:
        self._execute = execute
        self.growth: dict[str, Usage] = {}

    def add(self, client: str, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to the accounts of *client*."""
        for name in accounts_of(client):
            had = self.growth.get(name, _NOTHING)
            self.growth[name] = Usage(had.entries + entries, had.size + size)

    def before(self, name: str) -> Usage:
        """Return the usage of the account *name* before the present write."""
        if name == EVERYTHING:  # the file is as it is after the write
            return Usage(0, self.file_size()).minus(self.growth.get(name, _NOTHING))
        row = self._execute("SELECT entries, size FROM accounts WHERE name = ?", (name,)).fetchone()
        return Usage(*row) if row else _NOTHING

    def file_size(self) -> int:
        """Return the bytes of the file that are in use."""
        (size,) = self._execute(
            "SELECT (page_count - freelist_count) * page_size"
            " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        ).fetchone()
        return int(size)

    def save(self) -> None:
        """Write the growth of all accounts."""
        self.growth.pop(EVERYTHING, None)
        for name, (entries, size) in self.growth.items():
            if entries or size:
                self._execute(
                    "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                    " entries = entries + excluded.entries, size = size + excluded.size",
                    (name, entries, size),
                )
            if entries < 0:
                self._execute("DELETE FROM accounts WHERE name = ? AND entries = 0", (name,))
        self.growth = {}


class Transaction:
    """The context of a write. All changes in it are committed together, or none of them.

    Attributes:
        now: the time of the transaction.
        capacity: that of the store.
        accounts: the usage of each account.
        version: a counter of the file, at least the version of any removed record.
        event: a counter of the file, the last id that was assigned to an event. It also counts
            transactions with `news`.
        forgotten: a counter of the file, at least the last event id of any removed log.
        written: the logs that were appended to. The change adds to this.
        news: the queues in which a delivery may have become due, or was removed. The change adds to
            this.
    """

    __slots__ = (
        "_read",
        "accounts",
        "capacity",
        "event",
        "execute",
        "forgotten",
        "news",
        "now",
        "version",
        "written",
    )

    _read: tuple[int, int, int]

    def __init__(self, connection: Connection, now: float, capacity: Capacity) -> None:
        self.execute = connection.execute
        self.now = now
        self.capacity = capacity
        self.accounts = AccountTable(self.execute)
        self.written: set[str] = set()
        self.news: set[str] = set()
        counters = self.execute("SELECT version, event, forgotten FROM counts").fetchone()
        self._read = counters
        self.version, self.event, self.forgotten = counters

    def save_counters(self) -> None:
        """Write the counters and accounts. Call it last, before the commit."""
        self.accounts.save()
        self.event += bool(self.news)
        for queue in self.news:
            self.execute(
                "INSERT INTO news VALUES (?, ?, ?) ON CONFLICT (queue) DO UPDATE SET"
                " event = excluded.event, deadline = excluded.deadline",
                (queue, self.event, self.now + NEWS_RETENTION),
            )
        counters = (self.version, self.event, self.forgotten)
        if counters != self._read:
            self.execute("UPDATE counts SET version = ?, event = ?, forgotten = ?", counters)

    def wake(self, watch: Watch) -> None:
        """Wake the waiters of this process that the transaction concerns, once it is committed."""
        watch.wake_for_commit(self.written, self.news, self._read[1], self.event)


class Database:
    """Reads and writes in its own threads, and wakes followers. Owned by one process.

    Nothing is opened before the first request. SQLite allows one writer at a time, so all writes
    of a process go through one thread. Writes that wait together share one transaction: under load
    the cost of a commit is divided among them.
    """

    def __init__(self, settings: Settings, sweep: Callable[[Transaction], bool]) -> None:
        """*sweep* removes some expired entries, and returns whether there may be more."""
        self.watch = Watch()
        self._settings = settings
        self._sweep = sweep
        self._next_sweep = 0.0
        self._is_behind = False  # whether the last sweep left expired entries
        self._reader = ConnectionThread(
            "genmcp-sqlite-read", self._connect_reader, self._read, self._poll_interval
        )
        self._writer = ConnectionThread(
            "genmcp-sqlite-write", self._connect_writer, self._write, self._sweep_interval
        )

    @property
    def path(self) -> Path:
        """The file."""
        return self._settings.path

    def check_process(self) -> None:
        """Check that this process may use the file; see `check_process`."""
        check_process(self.path)
        if not self._settings.outages.closed:
            _in_use.setdefault(self, os.getpid())

    async def read(self, query: Callable[[Connection, float], T]) -> T:
        """Return the result of *query*, which gets the time; it sees one state of the file.

        Raises:
            StoreError: *query* raised it, or the file could not be read (StoreUnavailable).
        """
        result: T = await self._performed(self._reader, ThreadRequest(query), write=False)
        return result

    async def write(
        self,
        change: Callable[[Transaction], T],
        needed: Callable[[Connection, float], bool] | None = None,
    ) -> T | None:
        """Return the result of *change* once it is committed.

        A change that raises StoreError must have undone its own writes: the transaction is shared
        with other writes, and is committed.

        Args:
            change: called in the writer's thread; it may be called a second time if the transaction
                failed.
            needed: called before *change*, without a transaction. If it returns False, *change* is
                not called, and None is returned.

        Raises:
            StoreError: *change* raised it, or the file could not be written (StoreUnavailable).
        """
        request = ThreadRequest(change, needed)
        result: T | None = await self._performed(self._writer, request, write=True)
        return result

    async def _performed(
        self, thread: ConnectionThread, request: ThreadRequest, *, write: bool
    ) -> Any:
        outages = self._settings.outages
        thread.submit(request)
        try:
            result = await request.wait()
        except Exception as error:
            outages.record(error, write=write)
            raise
        if outages.failing:
            outages.record(None, write=write)
        return result

    def start_watching(self) -> None:
        """Make the reader look for writes of other processes, now that `watch` has waiters."""
        self._reader.submit(None)

    async def aclose(self) -> None:
        """Complete the submitted requests, and close the file. Do nothing in a forked child."""
        if _in_use.get(self) not in (None, os.getpid()):
            return
        await self._writer.aclose()
        await self._reader.aclose()
        _in_use.pop(self, None)
        self.watch.wake_all()

    # In the reader's thread.

    def _connect_reader(self) -> Connection:
        self.watch.reset()  # data_version counts from zero on each connection
        return self._connect(None)

    def _poll_interval(self) -> float | None:
        return _POLL_INTERVAL if self.watch.has_waiters else None

    def _read(self, connection: Connection, requests: list[ThreadRequest]) -> None:
        for request in requests:
            try:
                connection.execute("BEGIN")
                try:
                    request.result = request.work(connection, self._settings.now())
                finally:
                    connection.execute("ROLLBACK")
            except Exception as error:  # passed to the caller; the thread continues
                request.error = self._translated(error)
        try:
            self.watch.look(connection)
        except sqlite3.Error:
            self.watch.wake_all()  # the waiters get the error from their own reads

    # In the writer's thread.

    def _connect_writer(self) -> Connection:
        return self._connect(self._settings.capacity.size)

    def _sweep_interval(self) -> float | None:
        return _SWEEP_WHILE_IDLE if self._is_behind else None

    def _write(self, connection: Connection, requests: list[ThreadRequest]) -> None:
        if not requests:
            self._is_behind = False  # also if the sweep fails: the next write starts over
            with suppress(sqlite3.Error):
                self._transact(connection, [])
            return
        try:
            now = self._settings.now()
            needed = [r for r in requests if r.needed is None or r.needed(connection, now)]
            if needed:
                self._transact(connection, needed)
        except Exception as error:
            if len(requests) == 1 or is_busy(error):
                for request in requests:
                    request.error = self._translated(error)
            else:  # one request must not fail because of another request: try them separately
                for request in requests:
                    self._write(connection, [request])

    def _transact(self, connection: Connection, requests: list[ThreadRequest]) -> None:
        """Perform *requests* in one transaction; one that raises StoreError has no part in it."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            settings = self._settings
            transaction = Transaction(connection, settings.now(), settings.capacity)
            self._sweep_if_due(transaction)
            for request in requests:
                request.error = None
                try:
                    request.result = request.work(transaction)
                except StoreError as error:
                    request.error = error
            transaction.save_counters()
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                connection.execute("ROLLBACK")
            raise
        transaction.wake(self.watch)

    def _sweep_if_due(self, transaction: Transaction) -> None:
        if transaction.now >= self._next_sweep:
            # Set first: a sweep that fails (on a full disk) must not fail each write after it.
            self._next_sweep = transaction.now + _SWEEP_INTERVAL
            self._is_behind = self._sweep(transaction)
            if self._is_behind:
                self._next_sweep = transaction.now

    # In both threads.

    def _connect(self, max_bytes: int | None) -> Connection:
        settings = self._settings
        settings.prepare()
        try:
            return connect(settings.path, timeout=settings.timeout, max_bytes=max_bytes)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        """Return the StoreError for an error of SQLite; other errors are returned as they are."""
        if not isinstance(error, sqlite3.Error):
            return error
        text = f"the SQLite store at {str(self._settings.path)!r}: {error}"
        # SQLite has one code for a full disk and for `max_page_count`. A full disk is not caused by
        # the store's clients alone, and an operator can free it. So accepted work waits for it, as
        # it does for an unreachable store, and does not fail as it does when the store is full.
        if code_of(error) == sqlite3.SQLITE_FULL and not self._is_disk_full():
            return StoreFull(f"{text} (max_bytes={self._settings.capacity.size})")
        return StoreUnavailable(text)

    def _is_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self._settings.path.parent).free < _FREE_BYTES
        except OSError:
            return False
