"""The SQLite file: its tables, its clock, and the threads that have a connection to it."""

import asyncio
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from threading import Lock, Thread
from typing import Any, Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import boot_id, steady

logger = logging.getLogger("genmcp")

_APPLICATION: Final = 0x67656E6D  # "genm", in the file's header: SQLite, "PRAGMA application_id"
_LAYOUT: Final = 5  # incremented when a table or the form of its keys changes
_LOG_BYTES: Final = 4 * 1024**2

# The row of an expired log stays for a while (see tables.py); `counts` has one row (`Transaction`).
# `news` has the number of the last change of each queue; `event` in `counts` counts these, too.
# `clocks` has one row: the boot of the machine, and when the file was first opened after it.
# The column `labels` has the labels of a record as JSON, null if it has none: they are the rows of
# the table `labels` to delete with the record.
_TABLES: Final = """
CREATE TABLE records (
    key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    deadline REAL NOT NULL, size INTEGER NOT NULL, client TEXT NOT NULL,
    labels TEXT
);
CREATE INDEX records_by_deadline ON records (deadline);
CREATE TABLE labels (
    label TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (label, key)
) WITHOUT ROWID;
CREATE TABLE logs (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, floor INTEGER NOT NULL,
    last INTEGER NOT NULL, held INTEGER NOT NULL, deadline REAL NOT NULL, size INTEGER NOT NULL,
    client TEXT NOT NULL
);
CREATE INDEX logs_by_deadline ON logs (deadline);
CREATE TABLE events (id INTEGER PRIMARY KEY, log INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX events_by_log ON events (log, id);
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL, node TEXT,
    due REAL NOT NULL, owner TEXT NOT NULL, turn INTEGER
);
CREATE INDEX deliveries_by_due ON deliveries (queue, due) WHERE turn IS NULL;
CREATE INDEX deliveries_by_turn ON deliveries (queue, turn, number)
    WHERE turn IS NOT NULL;
CREATE INDEX deliveries_by_owner ON deliveries (queue, owner, turn)
    WHERE turn IS NOT NULL;
CREATE TABLE accounts (
    name TEXT NOT NULL PRIMARY KEY, entries INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counts (
    version INTEGER NOT NULL, event INTEGER NOT NULL, forgotten INTEGER NOT NULL
);
CREATE TABLE news (
    queue TEXT NOT NULL PRIMARY KEY, event INTEGER NOT NULL, deadline REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE clocks (
    boot TEXT NOT NULL PRIMARY KEY, ahead REAL NOT NULL, opened REAL NOT NULL
)
"""


def connect(path: Path, *, timeout: float, max_bytes: int | None = None) -> Connection:
    """Open the file at *path*, for writing if *max_bytes* is given, otherwise for reading.

    The connection may be used in any thread, but only in one at a time. It begins no transaction by
    itself.
    """
    connection = sqlite3.connect(
        path, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    try:
        # A killed process loses nothing; a power failure may lose the last commits. FULL would cost
        # an fsync for each commit.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA temp_store=MEMORY")
        # A burst of writes during reads makes the -wal file long; it is truncated when it restarts.
        connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        if max_bytes is None:
            connection.execute("PRAGMA query_only=ON")
        else:
            (page,) = connection.execute("PRAGMA page_size").fetchone()
            connection.execute(f"PRAGMA max_page_count={max(1, max_bytes // page)}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: Path, *, timeout: float, max_bytes: int) -> Callable[[], float]:
    """Create the file and its tables if they are missing, and return its clock.

    No connection stays open.

    Raises:
        StoreUnavailable: another process has locked the file for longer than *timeout*.
        ConfigurationError: the folder or the file cannot be used, or the file is not a genmcp
            store.
    """
    try:
        # The file contains requests and results. SQLite gives the -wal and -shm files the same
        # mode.
        path.touch(mode=0o600)
        with closing(connect(path, timeout=timeout, max_bytes=max_bytes)) as connection:
            _write_ahead(connection, path, time.monotonic() + timeout)
            connection.execute("BEGIN IMMEDIATE")
            _make_tables(connection, path)
            clock = file_clock(connection)
            connection.execute("COMMIT")
            _close_to_others(path)
            return clock
    except (OSError, ValueError, sqlite3.Error) as error:
        if isinstance(error, ConfigurationError):
            raise
        kind = StoreUnavailable if is_busy(error) else ConfigurationError
        raise kind(f"the SQLite store at {str(path)!r}: {error}") from error


def is_busy(error: Exception) -> bool:
    """Return whether another process held the lock for too long: a retry would only add to it."""
    return code_of(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def code_of(error: Exception) -> int | None:
    """Return the primary result code of SQLite, None if *error* has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _close_to_others(path: Path) -> None:
    """Restrict a file that any user may open, and its -wal and -shm, to its owner.

    A world-accessible mode is what the umask leaves if another program created the file. A file
    that only a group may open was given that mode on purpose, and keeps it.
    """
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            continue
        if os.name != "posix" or not mode & stat.S_IRWXO:
            continue
        try:
            each.chmod(0o600)
        except OSError as error:
            logger.warning(
                "any user can open %s, which contains requests and results: %s", each, error
            )
        else:
            logger.warning(
                "any user could open %s (%s): it is now restricted to its owner",
                each,
                stat.filemode(mode),
            )


def _write_ahead(connection: Connection, path: Path, deadline: float) -> None:
    """Switch the file to WAL mode, in which readers and a writer do not block each other."""
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError:
            # SQLite does not apply the busy timeout here, if another process does the same.
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise ConfigurationError(
                f"the SQLite store at {str(path)!r}: its file system has no shared memory "
                f"(journal_mode stays {mode!r}); it must be on a local disk"
            )
        return


def _make_tables(connection: Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, layout) == (_APPLICATION, _LAYOUT):
        return
    if tables:
        author = "another version of genmcp" if application == _APPLICATION else "another program"
        raise ConfigurationError(
            f"the SQLite store at {str(path)!r}: the file was written by {author}"
        )
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    # Event ids must be above those of any earlier file of this name: a client may still have such
    # an id, and would otherwise skip events. The time in microseconds grows faster than any log.
    connection.execute("INSERT INTO counts VALUES (0, ?, 0)", (time.time_ns() // 1000,))
    connection.execute(f"PRAGMA application_id={_APPLICATION}")
    connection.execute(f"PRAGMA user_version={_LAYOUT}")


def file_clock(connection: Connection) -> Callable[[], float]:
    """Return the clock of the file; register this boot if it is new. Call within a transaction.

    It is the machine's steady clock plus an offset, which makes it Unix time when the file is first
    opened after a boot. Setting the system time therefore moves no deadline, lease or delay while
    the machine runs. A system without an identifier of its boots (macOS, Windows) cannot tell
    whether its steady clock was restarted: there it is the system time.
    """
    boot = boot_id()
    if boot is None:
        return time.time
    row = connection.execute("SELECT boot, ahead, opened FROM clocks").fetchone()
    if row is None or row[0] != boot:
        # A machine may boot with a clock that is behind: the file's time does not go back.
        now = max(time.time(), row[2] if row else 0.0)
        row = (boot, now - steady(), now)
        connection.execute("DELETE FROM clocks")
        connection.execute("INSERT INTO clocks VALUES (?, ?, ?)", row)
    ahead: float = row[1]
    return lambda: steady() + ahead


_MAX_BATCH: Final = 256  # requests that are performed together


class ThreadRequest:
    """A request to a `ConnectionThread`. The thread sets *result*, or *error* if it failed."""

    __slots__ = ("_future", "error", "loop", "needed", "result", "work")

    def __init__(self, work: Callable[..., Any], needed: Callable[..., bool] | None = None) -> None:
        self.work = work
        self.needed = needed
        self.result: Any = None
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def wait(self) -> Any:
        """Return the result, or raise the error."""
        return await self._future

    def complete(self) -> None:
        """Make `wait` return. Called on the event loop that created the request."""
        if self._future.done():  # the caller was cancelled
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(self.error)


class ConnectionThread:
    """A thread with a connection of its own, which performs requests in order. Owned by a Database.

    Args:
        name: the name of the thread, which starts with the first request.
        connect: opens the connection, in the thread.
        perform: performs the requests that wait together. It sets the result or error of each, and
            raises nothing.
        idle_after: returns the seconds without a request after which *perform* is called with an
            empty list; None: never.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        perform: Callable[[Connection, list[ThreadRequest]], None],
        idle_after: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._perform = perform
        self._idle_after = idle_after
        # None only wakes the thread, so that it calls `idle_after` again.
        self._requests: SimpleQueue[ThreadRequest | None] = SimpleQueue()
        self._submitting = Lock()  # no request may be queued after `_last`
        self._thread: Thread | None = None
        self._last: ThreadRequest | None = None
        self._connection: Connection | None = None

    def submit(self, request: ThreadRequest | None) -> None:
        """Queue *request*; None wakes the thread.

        Raises:
            StoreUnavailable: the thread was closed.
        """
        with self._submitting:
            if self._last is not None:
                raise StoreUnavailable("the store is closed")
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._requests.put(request)

    async def aclose(self) -> None:
        """Perform all queued requests, then disconnect and end the thread."""
        last = ThreadRequest(lambda: None)
        with self._submitting:
            if self._last is not None:
                return
            self._last = last
            if self._thread is None:
                return
            self._requests.put(last)
        await last.wait()

    def _run(self) -> None:
        ended = False
        while not ended:
            requests = [request for request in self._next_batch() if request is not None]
            ended = bool(requests) and requests[-1] is self._last
            self._perform_batch(requests[:-1] if ended else requests)
            if ended and self._connection is not None:
                self._connection.close()
            _complete(requests)

    def _next_batch(self) -> list[ThreadRequest | None]:
        batch: list[ThreadRequest | None] = []
        with suppress(Empty):
            batch.append(self._requests.get(timeout=self._idle_after()))
            while len(batch) < _MAX_BATCH:
                batch.append(self._requests.get_nowait())
        return batch

    def _perform_batch(self, requests: list[ThreadRequest]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
        except (StoreUnavailable, ConfigurationError) as error:
            for request in requests:
                request.error = type(error)(str(error))
        else:
            self._perform(self._connection, requests)


def _complete(requests: Iterable[ThreadRequest]) -> None:
    """Complete *requests*. Each event loop is woken once, because that costs a system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[ThreadRequest]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, completed in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and the callers with it
            loop.call_soon_threadsafe(_complete_all, completed)


def _complete_all(requests: Iterable[ThreadRequest]) -> None:
    for request in requests:
        request.complete()
