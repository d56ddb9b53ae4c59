"""Accounts in SQLite, updated in the same transaction as the entries that they count.

They stay exact when a process is killed. Expired entries count until they are removed.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from sqlite3 import Connection, Cursor
from typing import Any, Final, TypeVar

from msgspec import Struct

from genmcp.errors import OverShare, StoreError, StoreFull, StoreUnavailable
from genmcp.stores.accounts import Account, Bounds, Owner, Usage, names_of
from genmcp.stores.sqlite.connection import Worker, WorkerRequest, connect
from genmcp.stores.sqlite.watch import Alarm, Watch

__all__ = ["Books", "Database", "Settings", "Transaction", "named"]

_ROWS_AT_ONCE: Final = 100
_NOTHING: Final = Usage()


def named(owner: Owner) -> str | None:
    """Return the account names of *owner* as the value of a column, one name a line."""
    return "\n".join(names_of(owner)) or None


class Books:
    """The usage of accounts and the free space of the file. Owned by one transaction."""

    __slots__ = ("_bounds", "_changes", "_execute", "_free", "_read")

    def __init__(self, execute: Callable[..., Cursor], bounds: Bounds) -> None:
        self._execute = execute
        self._bounds = bounds
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
        read = self._read[name]
        changed = self._changes.get(name)
        if changed is None:
            return Usage(*read)
        return Usage(read[0] + changed.entries, read[1] + changed.size)

    def check(
        self, account: Account, growth: Usage, *, new: bool, dropped: Usage = _NOTHING
    ) -> None:
        """Check that *account* may grow by *growth* once *dropped* was removed from it.

        Raises:
            OverShare: it would exceed one of its bounds.
        """
        used = self.used(account.name)
        left = Usage(used.entries - dropped.entries, used.size - dropped.size)
        self._bounds.check(account, left, growth, new=new)

    def room(self, account: Account, growth: Usage, *, new: bool) -> Callable[[Usage], bool]:
        """Return a predicate that takes an amount to drop.

        It tells whether *account* may then grow by *growth*.
        """
        used = self.used(account.name)

        def fits(dropped: Usage) -> bool:
            left = Usage(used.entries - dropped.entries, used.size - dropped.size)
            try:
                self._bounds.check(account, left, growth, new=new)
            except OverShare:
                return False
            return True

        return fits

    def check_file(self, size: int) -> None:
        """Check that the file has room for *size* bytes of new work, and count them.

        Raises:
            StoreFull: only the reserve is left.
        """
        if self._free is None:
            pages, unused, page = (
                self._pragma(name) for name in ("page_count", "freelist_count", "page_size")
            )
            self._free = int(self._bounds.size_for(new=True)) - (pages - unused) * page
        if size > self._free:
            raise StoreFull(
                f"the SQLite store is full: max_bytes={self._bounds.size}, of which "
                f"reserve={self._bounds.reserve} is not for new work"
            )
        self._free -= size

    def save(self) -> None:
        """Write the changed accounts."""
        changes = [(name, *change) for name, change in self._changes.items() if any(change)]
        for begin in range(0, len(changes), _ROWS_AT_ONCE):
            rows = changes[begin : begin + _ROWS_AT_ONCE]
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


T = TypeVar("T")

_WATCH_EVERY: Final = 0.02  # seconds: PRAGMA data_version takes 3 us
_WATCH_ANYWAY: Final = 1.0  # seconds, while an Alarm reports writes
_ALARM_EVERY: Final = 0.005  # seconds between two reports of an Alarm
_FREE: Final = 1024 * 1024  # bytes: with less free space a disk is full for a database
_SWEEP_EVERY: Final = 1.0  # seconds
_SWEEP_WHILE_IDLE: Final = 0.01  # seconds between two sweeps, so that other processes can write


class Settings(Struct, frozen=True):
    """The file of a store, its bounds, timeout and clock."""

    path: Path
    bounds: Bounds
    busy_timeout: float
    clock: Callable[[], float]


class Transaction:
    """The context of a write. All changes in it are committed together, or none.

    The counts are those of the file: *version* is at least the version of any removed record,
    *event* the last id assigned to an event, *forgotten* at least the last id of any removed log. A
    change adds the logs it appended to to *written*, and sets *news* if a delivery may have become
    due or was removed. *now* is the time of the transaction, *books* the usage of each account.
    """

    __slots__ = (
        "_read",
        "books",
        "event",
        "execute",
        "forgotten",
        "news",
        "now",
        "version",
        "written",
    )

    _read: tuple[int, int, int, int]

    def __init__(self, connection: Connection, now: float, bounds: Bounds) -> None:
        self.execute = connection.execute
        self.now = now
        self.books = Books(self.execute, bounds)
        self.written: set[str] = set()
        self.news = False
        counts = self.execute("SELECT version, event, forgotten, news FROM counts").fetchone()
        self._read = counts
        self.version, self.event, self.forgotten, _ = counts

    @property
    def seen(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The counts that are watched, before and after."""
        _, event, _, news = self._read
        return (event, news), (self.event, news + self.news)

    def save_counts(self) -> None:
        """Write the counts and accounts. Call it last, before the commit."""
        self.books.save()
        counts = (self.version, self.event, self.forgotten, self._read[3] + self.news)
        if counts != self._read:
            self.execute(
                "UPDATE counts SET version = ?, event = ?, forgotten = ?, news = ?", counts
            )


class Database:
    """Reads and writes in its own threads, and wakes who follows.

    Nothing is opened before the first request. Belongs to the process that made it.
    """

    def __init__(self, settings: Settings, sweep: Callable[[Transaction], bool]) -> None:
        """*sweep* removes some of what ran out, and says whether there may be more."""
        self.watch = Watch()
        self._settings = settings
        self._sweep = sweep
        self._next_sweep = 0.0
        self._is_behind = False  # whether the last sweep left expired entries
        self._alarm: Alarm | None = None
        self._can_be_told = True  # until inotify turns out to be unavailable
        self._reader = Worker("genmcp-sqlite-read", self._to_read, self._read, self._patience)
        self._writer = Worker("genmcp-sqlite-write", self._to_write, self._write, self._pause)

    async def read(self, ask: Callable[[Connection, float], T]) -> T:
        """Return what *ask* finds, given the time; it sees one state of the file.

        Raises:
            StoreError: *ask* did, or the file could not be read (StoreUnavailable).
        """
        request = WorkerRequest(ask)
        self._reader.ask(request)
        found: T = await request.answer()
        return found

    async def write(
        self,
        change: Callable[[Transaction], T],
        needed: Callable[[Connection, float], bool] | None = None,
    ) -> T | None:
        """Return what *change* did, once it is kept.

        Where *needed* says, without a transaction, that there is nothing to do, None. A change that
        raises StoreError does so before it writes anything.

        Raises:
            StoreError: *change* did, or the file could not be written (StoreUnavailable).
        """
        request = WorkerRequest(change, needed)
        self._writer.ask(request)
        done: T | None = await request.answer()
        return done

    def begin_to_watch(self) -> None:
        """Have the reader look for what others write, now that somebody is in `watch`."""
        self._reader.ask(None)

    async def aclose(self) -> None:
        """Finish what was asked for, and close the file."""
        await self._writer.aclose()
        await self._reader.aclose()
        self._disarm()
        self.watch.wake_all()

    # In the reader's thread

    def _to_read(self) -> Connection:
        self.watch.forget()  # each connection counts the file's versions for itself
        self._can_be_told = True
        return self._connect(None)

    def _patience(self) -> float | None:
        if not self.watch.wanted:
            return None
        return _WATCH_EVERY if self._alarm is None or not self._alarm.armed else _WATCH_ANYWAY

    def _read(self, connection: Connection, requests: list[WorkerRequest]) -> None:
        for request in requests:
            try:
                connection.execute("BEGIN")
                try:
                    request.result = request.work(connection, self._settings.clock())
                finally:
                    connection.execute("ROLLBACK")
            except Exception as error:  # the thread goes on; it is for whoever asked
                request.error = self._explained(error)
        try:
            self.watch.look(connection)
            if self._arm():  # a write may have come before the Alarm
                self.watch.look(connection)
        except sqlite3.Error:
            self.watch.wake_all()  # they will see for themselves

    def _arm(self) -> bool:
        """Start the Alarm while there are waiters for writes, and stop it otherwise.

        Return whether it was started now. Without an Alarm the reader polls every 20 ms.
        """
        if not self.watch.wanted:
            self._disarm()
        elif self._can_be_told and (self._alarm is None or not self._alarm.armed):
            try:
                log = Path(f"{self._settings.path}-wal")  # each commit is written to it
                self._alarm = Alarm(log, self._look, pause=_ALARM_EVERY)
            except OSError:
                self._can_be_told = False
            else:
                return True
        return False

    def _disarm(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.close()

    def _look(self) -> None:
        with suppress(StoreUnavailable):  # closed in the meantime
            self._reader.ask(None)

    # In the writer's thread

    def _to_write(self) -> Connection:
        return self._connect(self._settings.bounds.size)

    def _pause(self) -> float | None:
        return _SWEEP_WHILE_IDLE if self._is_behind else None

    def _write(self, connection: Connection, requests: list[WorkerRequest]) -> None:
        if not requests:
            self._catch_up(connection)
            return
        try:
            now = self._settings.clock()
            needed = [r for r in requests if r.needed is None or r.needed(connection, now)]
            if needed:
                self._transact(connection, needed)
        except Exception as error:
            if len(requests) == 1 or _is_busy(error):
                for request in requests:
                    request.error = self._explained(error)
            else:  # whichever it was, it is no fault of the others
                for request in requests:
                    self._write(connection, [request])

    def _transact(self, connection: Connection, requests: list[WorkerRequest]) -> None:
        """Do all of *requests* in one transaction; one that raises StoreError has no part in it."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            settings = self._settings
            transaction = Transaction(connection, settings.clock(), settings.bounds)
            self._sweep_sometimes(transaction)
            for request in requests:
                request.error = None
                try:
                    request.result = request.work(transaction)
                except StoreError as error:
                    request.error = error
            transaction.save_counts()
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                connection.execute("ROLLBACK")
            raise
        self.watch.wrote(transaction.written, *transaction.seen)

    def _sweep_sometimes(self, transaction: Transaction) -> None:
        if transaction.now >= self._next_sweep:
            self._next_sweep = transaction.now + _SWEEP_EVERY
            self._is_behind = self._sweep(transaction)
            if self._is_behind:
                self._next_sweep = transaction.now

    def _catch_up(self, connection: Connection) -> None:
        """Sweep once more while no writes are queued."""
        self._is_behind = False  # also if it fails: the next write starts over
        with suppress(sqlite3.Error):
            self._transact(connection, [])

    def _connect(self, max_bytes: int | None) -> Connection:
        path, busy_timeout = self._settings.path, self._settings.busy_timeout
        try:
            return connect(path, busy_timeout=busy_timeout, max_bytes=max_bytes)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error):
            return error
        text = f"the SQLite store at {str(self._settings.path)!r}: {error}"
        if _code(error) == sqlite3.SQLITE_FULL and not self._is_disk_full():
            return StoreFull(f"{text} (max_bytes={self._settings.bounds.size})")
        return StoreUnavailable(text)

    def _is_disk_full(self) -> bool:
        """Return whether SQLITE_FULL means a full disk, rather than the bound of the store.

        SQLite has one error code for both. A full disk is not caused by the store's clients alone,
        and an operator can free it: work that was accepted waits, as it does for an unreachable
        store.
        """
        try:
            return shutil.disk_usage(self._settings.path.parent).free < _FREE
        except OSError:
            return False


def _is_busy(error: Exception) -> bool:
    """Whether it was another process that did not finish in time: trying again only adds to it."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _code(error: Exception) -> int | None:
    """Return the primary result code of SQLite, None if *error* has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
