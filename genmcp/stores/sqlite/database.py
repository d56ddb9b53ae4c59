"""The file as one process uses it: one thread writes, another one reads and watches for writes."""

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection, Cursor
from typing import Any, Final, TypeVar

from msgspec import Struct

from genmcp.errors import StoreError, StoreFull, StoreUnavailable
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
from genmcp.stores.sqlite.watch import InotifyWatch, Watch

T = TypeVar("T")

_NOTHING: Final = Usage()
_POLL_INTERVAL: Final = 0.02  # seconds: PRAGMA data_version takes 3 us
_POLL_INTERVAL_ARMED: Final = 1.0  # seconds, while inotify reports writes
_INOTIFY_PAUSE: Final = 0.005  # seconds between two reports of inotify
_FREE_BYTES: Final = 1024 * 1024  # with less free space a disk is full for a database
_SWEEP_INTERVAL: Final = 1.0  # seconds
_SWEEP_WHILE_IDLE: Final = 0.01  # seconds between two sweeps, so that other processes can write


class Settings(Struct):
    """The options of a `SQLiteStore`, and the clock of its file once `prepare` was called."""

    path: Path
    capacity: Capacity
    busy_timeout: float
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
        if not self.is_prepared:
            size = self.capacity.size
            clock = prepare(self.path, busy_timeout=self.busy_timeout, max_bytes=size)
            self.now = self.clock or clock
            self.is_prepared = True


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
        event: a counter of the file, the last id that was assigned to an event.
        forgotten: a counter of the file, at least the last event id of any removed log.
        written: the logs that were appended to. The change adds to this.
        news: whether a delivery may have become due, or was removed. The change sets this.
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

    _read: tuple[int, int, int, int]

    def __init__(self, connection: Connection, now: float, capacity: Capacity) -> None:
        self.execute = connection.execute
        self.now = now
        self.capacity = capacity
        self.accounts = AccountTable(self.execute)
        self.written: set[str] = set()
        self.news = False
        counters = self.execute("SELECT version, event, forgotten, news FROM counts").fetchone()
        self._read = counters
        self.version, self.event, self.forgotten, _ = counters

    @property
    def watched(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The counters (event, news) that other processes watch, before and after."""
        _, event, _, news = self._read
        return (event, news), (self.event, news + self.news)

    def save_counters(self) -> None:
        """Write the counters and accounts. Call it last, before the commit."""
        self.accounts.save()
        counters = (self.version, self.event, self.forgotten, self._read[3] + self.news)
        if counters != self._read:
            self.execute(
                "UPDATE counts SET version = ?, event = ?, forgotten = ?, news = ?", counters
            )


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
        self._inotify: InotifyWatch | None = None
        self._has_inotify = True  # until it turns out to be unavailable
        self._reader = ConnectionThread(
            "genmcp-sqlite-read", self._connect_reader, self._read, self._poll_interval
        )
        self._writer = ConnectionThread(
            "genmcp-sqlite-write", self._connect_writer, self._write, self._sweep_interval
        )

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
        """Complete the submitted requests, and close the file."""
        await self._writer.aclose()
        await self._reader.aclose()
        self._disarm()
        self.watch.wake_all()

    # In the reader's thread.

    def _connect_reader(self) -> Connection:
        self.watch.reset()  # data_version counts from zero on each connection
        self._has_inotify = True
        return self._connect(None)

    def _poll_interval(self) -> float | None:
        if not self.watch.has_waiters:
            return None
        armed = self._inotify is not None and self._inotify.armed
        return _POLL_INTERVAL_ARMED if armed else _POLL_INTERVAL

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
            if self._arm():  # a write may have happened before inotify was set up
                self.watch.look(connection)
        except sqlite3.Error:
            self.watch.wake_all()  # the waiters get the error from their own reads

    def _arm(self) -> bool:
        """Start inotify while `watch` has waiters, stop it otherwise; return whether it started.

        Without inotify the reader polls every 20 ms.
        """
        if not self.watch.has_waiters:
            self._disarm()
        elif self._has_inotify and (self._inotify is None or not self._inotify.armed):
            try:
                log = Path(f"{self._settings.path}-wal")  # each commit is written to it
                self._inotify = InotifyWatch(log, self._wake_reader, pause=_INOTIFY_PAUSE)
            except OSError:
                self._has_inotify = False
            else:
                return True
        return False

    def _disarm(self) -> None:
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            inotify.close()

    def _wake_reader(self) -> None:
        with suppress(StoreUnavailable):  # closed in the meantime
            self._reader.submit(None)

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
        self.watch.wake_for_commit(transaction.written, *transaction.watched)

    def _sweep_if_due(self, transaction: Transaction) -> None:
        if transaction.now >= self._next_sweep:
            # Set first: a sweep that fails (on a full disk) must not fail each write after it.
            self._next_sweep = transaction.now + _SWEEP_INTERVAL
            self._is_behind = self._sweep(transaction)
            if self._is_behind:
                self._next_sweep = transaction.now

    # In both threads.

    def _connect(self, max_bytes: int | None) -> Connection:
        path, busy_timeout = self._settings.path, self._settings.busy_timeout
        self._settings.prepare()
        try:
            return connect(path, busy_timeout=busy_timeout, max_bytes=max_bytes)
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
