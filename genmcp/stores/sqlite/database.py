"""A SQLite database as one process uses it: its transactions, and the threads of a file."""

import os
import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, TypeVar

from genmcp.errors import ConfigurationError, StoreError, StoreFull, StoreUnavailable
from genmcp.stores.accounts import Capacity
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages
from genmcp.stores.sqlite.file import code_of, connect, is_busy, prepare
from genmcp.stores.sqlite.tables import Transaction, sweep
from genmcp.stores.sqlite.threads import ConnectionThread
from genmcp.stores.waiters import ANY_QUEUE, Waiters, log_name, queue_name

T = TypeVar("T")

_POLL_INTERVAL: Final = 0.02  # seconds: PRAGMA data_version takes 3 us
_LONGEST_PAUSE: Final = 60.0  # seconds between two looks, after which a row may have been removed
_FREE_BYTES: Final = 1024 * 1024  # with less free space a disk is full for a database
_SWEEP_INTERVAL: Final = 1.0  # seconds
_SWEEP_WHILE_IDLE: Final = 10.0  # seconds
_SWEEP_WHILE_BEHIND: Final = 0.01  # seconds between two sweeps, so that other processes can write


class Database(ABC):
    """The transactions of a store. Owned by it.

    Attributes:
        waiters: those of this process.
        last_commit: the counter `event` before and after the last commit of this process.
        now: returns the time of the store.
    """

    def __init__(self, capacity: Capacity, now: Callable[[], float], *, limits_file: bool) -> None:
        self.waiters = Waiters()
        self.now = now
        self.capacity = capacity
        self.limits_file = limits_file
        self.last_commit = 0, 0
        self.is_behind = False  # whether the last sweep left expired entries
        self._next_sweep = -inf

    @abstractmethod
    async def read(self, query: Callable[[Connection, float], T]) -> T:
        """Return the result of *query*, which gets the time; it sees one state of the database.

        Raises:
            StoreError: *query* raised it, or the database could not be read (StoreUnavailable).
        """

    @abstractmethod
    async def write(self, change: Callable[[Transaction], T]) -> T:
        """Return the result of *change* once it is committed.

        *change* may be called in another thread, and a second time if the transaction failed.

        Raises:
            StoreError: *change* raised it, which undoes it, or the database could not be written
                (StoreUnavailable).
        """

    @abstractmethod
    def start_watching(self) -> None:
        """Notice changes of other processes, now that there are waiters."""

    @abstractmethod
    async def aclose(self) -> None:
        """Complete the operations that were requested, close the database, and wake all waiters."""

    def transact(self, connection: Connection, changes: Sequence[Callable[..., Any]]) -> list[Any]:
        """Perform *changes* in one transaction; return the result of each, or its StoreError."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            capacity, now = self.capacity, self.now()
            transaction = Transaction(connection, now, capacity, limits_file=self.limits_file)
            if now >= self._next_sweep:
                self._sweep(transaction)
            if len(changes) == 1:
                outcomes = [changes[0](transaction)]
            else:
                outcomes = [_separated(transaction, change) for change in changes]
            transaction.save()
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                connection.execute("ROLLBACK")
            if isinstance(error, StoreError):
                return [error]
            raise
        self.last_commit = transaction.counters[1], transaction.event
        if transaction.logs or transaction.queues:
            names = *map(log_name, transaction.logs), *map(queue_name, transaction.queues)
            self.waiters.wake((*names, ANY_QUEUE))
        return outcomes

    def _sweep(self, transaction: Transaction) -> None:
        # Set first: a sweep that fails (on a full disk) must not fail each write after it.
        self._next_sweep = transaction.now + _SWEEP_INTERVAL
        self.is_behind = sweep(transaction)
        transaction.save_accounts()
        if self.is_behind:
            self._next_sweep = transaction.now


def _separated(transaction: Transaction, change: Callable[[Transaction], Any]) -> Any:
    """Return the result of *change*, or its StoreError, which undoes nothing else."""
    transaction.execute("SAVEPOINT change")
    try:
        outcome = change(transaction)
    except StoreError as error:
        transaction.execute("ROLLBACK TO change")
        transaction.growth.clear()
        outcome = error
    transaction.execute("RELEASE change")
    return outcome


# By database that is in use: the process that uses it. No connection may be used, closed or opened
# in a child while its parent has one to the same file: SQLite counts the locks of a process in its
# memory ("How To Corrupt An SQLite Database File", 2.6), where the child would find those of its
# parent. In the child, this dictionary also keeps the connections of the parent from being closed.
_in_use: Final[dict["FileDatabase", int]] = {}


class FileDatabase(Database):
    """The database in a file: one thread writes, another one reads and watches for writes.

    Nothing stays open before the first request. SQLite allows one writer at a time, so all writes
    of a process go through one thread. Writes that wait together share one transaction: under load
    the cost of a commit is divided among them.

    A commit of this process wakes the waiters that it concerns. Commits of other processes are
    noticed by the reader's thread, which looks every 20 ms while there are waiters.

    Args:
        path: the file.
        capacity: that of the store.
        timeout: seconds to wait while other processes write.
        outages: those of the store.
        clock: replaces the clock of the file.

    Raises:
        ConfigurationError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        capacity: Capacity,
        timeout: float,
        outages: Outages,
        clock: Callable[[], float] | None,
    ) -> None:
        super().__init__(capacity, clock or time.time, limits_file=True)
        self.path = path
        self._timeout = timeout
        self._outages = outages
        self._clock = clock
        self._is_prepared = False
        self._version: int | None = None  # PRAGMA data_version at the last look
        self._seen: int | None = None  # the counter `event` at that time
        self._looked = 0.0
        self._reader = ConnectionThread(
            "genmcp-sqlite-read", self._connect_reader, self._read, self._poll_interval
        )
        connect_writer = partial(self._connect, capacity.size)
        self._writer = ConnectionThread(
            "genmcp-sqlite-write", connect_writer, self._write, self._sweep_interval
        )
        with suppress(StoreUnavailable):  # the file is locked: the first operation does this
            self._prepare()

    async def read(self, query: Callable[[Connection, float], T]) -> T:
        return await self._performed(self._reader, query, write=False)

    async def write(self, change: Callable[[Transaction], T]) -> T:
        return await self._performed(self._writer, change, write=True)

    async def _performed(
        self, thread: ConnectionThread, work: Callable[..., T], *, write: bool
    ) -> T:
        self._use()
        try:
            result: T = await thread.request(work)
        except Exception as error:
            self._outages.record(error, write=write)
            raise
        if self._outages.failing:
            self._outages.record(None, write=write)
        return result

    def start_watching(self) -> None:
        self._use()
        self._reader.wake()

    async def aclose(self) -> None:
        if _in_use.get(self) not in (None, os.getpid()):
            return
        await self._writer.aclose()
        await self._reader.aclose()
        _in_use.pop(self, None)
        self.waiters.wake_all()

    def _use(self) -> None:
        self._check_process()
        if not self._outages.closed:
            _in_use.setdefault(self, os.getpid())

    def _check_process(self) -> None:
        """Raise ConfigurationError if a process from which this one was forked uses the file."""
        for database, user in tuple(_in_use.items()):
            if user != os.getpid() and database.path == self.path:
                raise ConfigurationError(
                    f"the SQLite store at {str(self.path)!r} was opened before this process was "
                    "forked: fork before its first use, or start the process without a fork (spawn)"
                )

    def _prepare(self) -> None:
        """Create the file and its tables if they are missing, unless that was done.

        Raises:
            StoreUnavailable: another process has locked the file. A later call may succeed.
            ConfigurationError: the file cannot be used.
        """
        if not self._is_prepared:
            self._check_process()
            clock = prepare(self.path, timeout=self._timeout, max_bytes=self.capacity.size)
            self.now = self._clock or clock
            self._is_prepared = True

    # In the reader's thread.

    def _connect_reader(self) -> Connection:
        self._version = self._seen = None  # data_version counts from zero on each connection
        return self._connect(None)

    def _poll_interval(self) -> float | None:
        return _POLL_INTERVAL if self.waiters.signals else None

    def _read(self, connection: Connection, queries: Sequence[Callable[..., Any]]) -> list[Any]:
        outcomes: list[Any] = []
        for query in queries:
            try:
                connection.execute("BEGIN")
                try:
                    outcomes.append(query(connection, self.now()))
                finally:
                    connection.execute("ROLLBACK")
            except Exception as error:  # passed to the caller; the thread continues
                outcomes.append(self._translated(error))
        try:
            self._look(connection)
        except sqlite3.Error:
            self.waiters.wake_all()  # the waiters get the error from their own reads
        return outcomes

    def _look(self, connection: Connection) -> None:
        """Wake the waiters that commits of other processes since the last look concern."""
        if not self.waiters.signals:
            self._version = self._seen = None
            return
        looked, self._looked = self._looked, steady()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        self._version = version
        (event,) = connection.execute("SELECT event FROM counts").fetchone()
        seen, self._seen = self._seen, event
        if seen is None or self._looked - looked > _LONGEST_PAUSE:
            self.waiters.wake_all()
        elif seen != event:
            # Changes are counted over all logs and queues: two queries find all of them.
            logs = connection.execute(
                "SELECT name FROM logs WHERE number IN (SELECT log FROM events WHERE id > ?)",
                (seen,),
            ).fetchall()
            queues = connection.execute("SELECT queue FROM news WHERE event > ?", (seen,))
            names = [log_name(log) for (log,) in logs] + [queue_name(each) for (each,) in queues]
            self.waiters.wake([*names, ANY_QUEUE])

    # In the writer's thread.

    def _sweep_interval(self) -> float:
        return _SWEEP_WHILE_BEHIND if self.is_behind else _SWEEP_WHILE_IDLE

    def _write(self, connection: Connection, changes: Sequence[Callable[..., Any]]) -> list[Any]:
        if not changes:
            self.is_behind = False  # also if the sweep fails: the next write starts over
        try:
            outcomes = self.transact(connection, changes)
            # If another process has committed in between, `_look` finds both commits.
            before, after = self.last_commit
            if self._seen == before:
                self._seen = after
            return outcomes
        except Exception as error:
            if len(changes) > 1 and not is_busy(error):
                # One change must not fail because of another one: try them separately.
                return [each for change in changes for each in self._write(connection, [change])]
            return [self._translated(error) for _ in changes]

    # In both threads.

    def _connect(self, max_bytes: int | None) -> Connection:
        self._prepare()
        try:
            return connect(self.path, timeout=self._timeout, max_bytes=max_bytes)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        """Return the StoreError for an error of SQLite; other errors are returned as they are."""
        if not isinstance(error, sqlite3.Error):
            return error
        text = f"the SQLite store at {str(self.path)!r}: {error}"
        # SQLite has one code for a full disk and for `max_page_count`. A full disk is not caused by
        # the store's clients alone, and an operator can free it. So accepted work waits for it, as
        # it does for an unreachable store, and does not fail as it does when the store is full.
        if code_of(error) == sqlite3.SQLITE_FULL and not self._is_disk_full():
            return StoreFull(f"{text} (max_bytes={self.capacity.size})")
        return StoreUnavailable(text)

    def _is_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self.path.parent).free < _FREE_BYTES
        except OSError:
            return False
