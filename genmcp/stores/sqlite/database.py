"""The file as one process uses it: one thread writes, another one reads and watches for writes."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from sqlite3 import Connection, Cursor
from typing import Any, Final, TypeVar

from msgspec import Struct

from genmcp.errors import ConfigurationError, OverShare, StoreError, StoreFull, StoreUnavailable
from genmcp.stores.accounts import Account, Capacity, Owner, Usage, names_of
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

_ROWS_PER_STATEMENT: Final = 100
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


def column_of(owner: Owner) -> str | None:
    """Return the account names of *owner* as the value of a column, one name per line."""
    return "\n".join(names_of(owner)) or None


class AccountTable:
    """The usage of accounts, and the free space of the file. Owned by one transaction.

    Usage is written in the same transaction as the entries that it counts, so that it stays exact
    when a process is killed. Expired entries count until they are removed.
    """

    __slots__ = ("_capacity", "_changes", "_execute", "_free", "_read")

    def __init__(self, execute: Callable[..., Cursor], capacity: Capacity) -> None:
        self._execute = execute
        self._capacity = capacity
        self._changes: dict[str, Usage] = {}
        self._read: dict[str, tuple[int, int]] = {}  # usage at the start of the transaction
        self._free: int | None = None  # free bytes without the reserve; None until read

    def add(self, accounts: str | None, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to each account of a column."""
        if accounts is None:
            return
        for name in accounts.split("\n"):
            had = self._changes.get(name, Usage())
            self._changes[name] = Usage(had.entries + entries, had.size + size)

    def load(self, names: Iterable[str]) -> None:
        """Read the usage of the accounts *names* in one query."""
        missing = [name for name in names if name not in self._read]
        if not missing:
            return
        self._read.update(dict.fromkeys(missing, (0, 0)))
        marks = ", ".join("?" * len(missing))
        rows = self._execute(f"SELECT * FROM accounts WHERE name IN ({marks})", missing)
        self._read.update({name: (entries, size) for name, entries, size in rows})

    def used(self, name: str) -> Usage:
        """Return the usage of the account *name*, including the changes of this transaction."""
        if name not in self._read:
            self.load((name,))
        entries, size = self._read[name]
        changed = self._changes.get(name, Usage())
        return Usage(entries + changed.entries, size + changed.size)

    def check(self, account: Account, growth: Usage, *, new: bool, dropped: Usage) -> None:
        """Check that *account* may grow by *growth* after *dropped* is removed from it.

        Raises:
            OverShare: it would exceed one of its limits.
        """
        self._capacity.check(account, self.used(account.name).minus(dropped), growth, new=new)

    def has_room(self, account: Account, growth: Usage, *, new: bool) -> bool:
        """Return whether *account* may grow by *growth* now."""
        try:
            self.check(account, growth, new=new, dropped=Usage())
        except OverShare:
            return False
        return True

    def check_file(self, size: int) -> None:
        """Check that the file has room for *size* bytes of new work, and count them.

        Raises:
            StoreFull: only the reserve is left.
        """
        if self._free is None:
            self._free = int(self._capacity.size_for(new=True)) - self.file_size()
        if size > self._free:
            raise StoreFull(
                f"the SQLite store is full: max_bytes={self._capacity.size}, of which "
                f"reserve={self._capacity.reserve} is not for new work"
            )
        self._free -= size

    def file_size(self) -> int:
        """Return the bytes of the file that are in use."""
        pages, unused, page = (
            self._pragma(name) for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - unused) * page

    def save(self) -> None:
        """Write the changed accounts."""
        changes = [(name, *change) for name, change in self._changes.items() if any(change)]
        for begin in range(0, len(changes), _ROWS_PER_STATEMENT):
            rows = changes[begin : begin + _ROWS_PER_STATEMENT]
            self._execute(
                f"INSERT INTO accounts VALUES {', '.join(['(?, ?, ?)'] * len(rows))}"
                " ON CONFLICT (name) DO UPDATE SET"
                " entries = entries + excluded.entries, size = size + excluded.size",
                tuple(chain(*rows)),
            )
        for name, entries, _ in changes:
            if entries < 0:
                self._execute("DELETE FROM accounts WHERE name = ? AND entries = 0", (name,))
        self._changes.clear()
        self._read.clear()

    def _pragma(self, name: str) -> int:
        value: Any = self._execute(f"PRAGMA {name}").fetchone()[0]
        return int(value)


class Transaction:
    """The context of a write. All changes in it are committed together, or none of them.

    Attributes:
        now: the time of the transaction.
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
        self.accounts = AccountTable(self.execute, capacity)
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

        A change that raises StoreError must do so before it writes anything: the transaction is
        shared with other writes, and is not rolled back.

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
