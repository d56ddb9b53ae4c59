"""Opening the file: its tables, its settings, and what is said when it cannot be used."""

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
from weakref import WeakSet

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import boot, steady

__all__ = ["Worker", "WorkerRequest", "connect", "file_clock", "prepare"]

logger = logging.getLogger("genmcp")

_APPLICATION: Final = 0x67656E6D  # "genm", in the file's header: SQLite, "PRAGMA application_id"
_LAYOUT: Final = 3  # incremented when a table or the form of its keys changes
_LOG_BYTES: Final = 4 * 1024**2

# A log that ran out stays without its events for a while; see logs.py.
# What is counted is in one row: how it is used stands at Transaction.
# `accounts` of a record or log names what it counts for, one name a line; see accounts.py.
_TABLES: Final = """
CREATE TABLE records (
    key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    deadline REAL NOT NULL, size INTEGER NOT NULL, accounts TEXT
);
CREATE INDEX records_by_deadline ON records (deadline);
CREATE TABLE logs (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, floor INTEGER NOT NULL,
    last INTEGER NOT NULL, held INTEGER NOT NULL, deadline REAL NOT NULL, size INTEGER NOT NULL,
    accounts TEXT
);
CREATE INDEX logs_by_deadline ON logs (deadline);
CREATE INDEX logs_by_accounts ON logs (accounts) WHERE accounts IS NOT NULL;
CREATE TABLE events (id INTEGER PRIMARY KEY, log INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX events_by_log ON events (log, id);
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL, node TEXT,
    due REAL NOT NULL, owner TEXT NOT NULL, turn INTEGER
);
CREATE INDEX deliveries_by_due ON deliveries (queue, due) WHERE turn IS NULL;
CREATE INDEX deliveries_by_turn ON deliveries (queue, turn, number) WHERE turn IS NOT NULL;
CREATE INDEX deliveries_by_owner ON deliveries (queue, owner, turn) WHERE turn IS NOT NULL;
CREATE TABLE accounts (
    name TEXT NOT NULL PRIMARY KEY, entries INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counts (
    version INTEGER NOT NULL, event INTEGER NOT NULL, forgotten INTEGER NOT NULL,
    news INTEGER NOT NULL
);
"""


def connect(path: Path, *, busy_timeout: float, max_bytes: int | None = None) -> Connection:
    """Open the file at *path*; with *max_bytes* to write, without to read.

    The connection may be handed from thread to thread, and begins no transaction by itself.
    """
    connection = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )
    try:
        # A killed process loses nothing; a power cut may lose what was committed last.
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


def prepare(path: Path, *, busy_timeout: float, max_bytes: int) -> Callable[[], float]:
    """Create the file and its tables if they are missing, and return its clock.

    No connection stays open.

    Raises:
        ConfigurationError: the folder or the file cannot be used, or the file is not a genmcp
            store.
    """
    try:
        # The file contains requests and results. SQLite gives the -wal and -shm files the same
        # mode.
        path.touch(mode=0o600)
        with closing(connect(path, busy_timeout=busy_timeout, max_bytes=max_bytes)) as connection:
            _write_ahead(connection, path, time.monotonic() + busy_timeout)
            connection.execute("BEGIN IMMEDIATE")
            _make_tables(connection, path)
            clock = file_clock(connection)
            connection.execute("COMMIT")
            _close_to_others(path)
            return clock
    except (OSError, ValueError, sqlite3.Error) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"the SQLite store at {str(path)!r}: {error}") from error


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
            logger.warning("any user can open %s, which has requests and results: %s", each, error)
        else:
            logger.warning(
                "any user could open %s (%s): it is its owner's only now", each, stat.filemode(mode)
            )


def _write_ahead(connection: Connection, path: Path, deadline: float) -> None:
    """Have readers and a writer not wait for each other, now and from now on."""
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError:
            # Here SQLite does not wait by itself for another process that does the same.
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise ConfigurationError(
                f"the SQLite store at {str(path)!r}: its file system has no shared memory "
                f"(journal_mode stays {mode!r}); it has to be a local disk"
            )
        return


def _make_tables(connection: Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, layout) == (_APPLICATION, _LAYOUT):
        return
    if tables:
        whose = "another version of genmcp" if application == _APPLICATION else "another program"
        raise ConfigurationError(f"the SQLite store at {str(path)!r}: the file is of {whose}")
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    # Ids begin where no earlier file under this name, counting from its own start, can have come.
    now = time.time_ns() // 1000
    connection.execute("INSERT INTO counts VALUES (0, ?, 0, 0)", (now,))
    connection.execute(f"PRAGMA application_id={_APPLICATION}")
    connection.execute(f"PRAGMA user_version={_LAYOUT}")


# `opened` is the time of the file when that boot was registered.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS clocks (
    boot TEXT NOT NULL PRIMARY KEY, ahead REAL NOT NULL, opened REAL NOT NULL
)
"""


def file_clock(connection: Connection) -> Callable[[], float]:
    """Return the clock of the file; register this boot if it is new. Call within a transaction."""
    name = boot()
    if name is None:
        return time.time
    connection.execute(_TABLE)
    row = connection.execute("SELECT ahead FROM clocks WHERE boot = ?", (name,)).fetchone()
    ahead: float = row[0] if row else _entered(connection, name)
    return lambda: steady() + ahead


def _entered(connection: Connection, name: str) -> float:
    now = time.time()
    (opened,) = connection.execute("SELECT max(opened) FROM clocks").fetchone()
    if opened is not None and now < opened:
        # The machine booted with a clock that is behind: waiting deliveries become due
        # nevertheless.
        due = "SELECT max(due) FROM deliveries WHERE node IS NULL"
        (latest,) = connection.execute(due).fetchone()
        now = max(opened, latest or opened)
    connection.execute("DELETE FROM clocks")
    ahead = now - steady()
    connection.execute("INSERT INTO clocks VALUES (?, ?, ?)", (name, ahead, now))
    return ahead


_AT_ONCE: Final = 256  # requests in one turn


class WorkerRequest:
    """Something that is asked for, and what came of it: *result*, or *error* if that is set."""

    __slots__ = ("_future", "error", "loop", "needed", "result", "work")

    def __init__(self, work: Callable[..., Any], needed: Callable[..., bool] | None = None) -> None:
        self.work = work
        self.needed = needed
        self.result: Any = None
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def answer(self) -> Any:
        """Return what came of it, or raise it."""
        return await self._future

    def done(self) -> None:
        """Let `answer` return. Only in the loop it was asked in."""
        if self._future.done():  # whoever asked was cancelled
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(self.error)


class Worker:
    """Does requests in the order in which they came, those that wait together in one *turn*.

    A turn says in each request what came of it, and raises nothing. Where *patience* seconds go by
    without a request it is given none. The thread begins with the first request.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        turn: Callable[[Connection, list[WorkerRequest]], None],
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._turn = turn
        self._patience = patience
        # None only ends the patience.
        self._asked: SimpleQueue[WorkerRequest | None] = SimpleQueue()
        self._entrance = Lock()  # held while something is asked: the end comes last
        self._thread: Thread | None = None
        self._end: WorkerRequest | None = None
        self._connection: Connection | None = None
        self._in_use = Lock()  # held while the connection is used
        with _forking:
            _workers.add(self)

    def ask(self, request: WorkerRequest | None) -> None:
        """Have *request* done; with None, have the patience asked for again.

        Raises:
            StoreUnavailable: the worker was closed.
        """
        with self._entrance:
            if self._end is not None:
                raise StoreUnavailable("the store is closed")
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._asked.put(request)

    async def aclose(self) -> None:
        """Have everything done that was asked for, and disconnect."""
        end = WorkerRequest(_nothing)
        with self._entrance:
            if self._end is not None:
                return
            self._end = end
            if self._thread is None:
                return
            self._asked.put(end)
        await end.answer()

    def pause(self) -> None:
        """Disconnect, and do nothing until `resume`."""
        self._in_use.acquire()
        self._disconnect()

    def resume(self) -> None:
        """Go on."""
        self._in_use.release()

    def _run(self) -> None:
        ended = False
        while not ended:
            requests = [request for request in self._next() if request is not None]
            ended = bool(requests) and requests[-1] is self._end
            with self._in_use:
                self._do(requests[:-1] if ended else requests)
                if ended:
                    self._disconnect()
            _tell(requests)

    def _next(self) -> list[WorkerRequest | None]:
        asked: list[WorkerRequest | None] = []
        with suppress(Empty):
            asked.append(self._asked.get(timeout=self._patience()))
            while len(asked) < _AT_ONCE:
                asked.append(self._asked.get_nowait())
        return asked

    def _do(self, requests: list[WorkerRequest]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
        except StoreUnavailable as error:
            for request in requests:
                request.error = StoreUnavailable(str(error))
        else:
            self._turn(self._connection, requests)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _nothing() -> None:
    """What is done at the end, and never called."""


def _tell(requests: Iterable[WorkerRequest]) -> None:
    """Let everybody know, each loop by one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WorkerRequest]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, asked_there in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and who asked went with it
            loop.call_soon_threadsafe(_done, asked_there)


def _done(requests: Iterable[WorkerRequest]) -> None:
    for request in requests:
        request.done()


# No connection may be open while the process forks, not even one the child never uses: SQLite
# ("How To Corrupt An SQLite Database File", 2.6) counts its locks in the process's memory, where
# the child would find locks that it does not have. The threads of the parent connect again when
# they are asked for something; the child has none, and makes a Database of its own.

_workers: WeakSet[Worker] = WeakSet()
_forking = Lock()  # held from before a fork until after it, and while a worker is added


def _before_fork() -> None:
    _forking.acquire()
    for worker in _workers:
        worker.pause()


def _after_fork_in_parent() -> None:
    for worker in _workers:
        worker.resume()
    _forking.release()


def _after_fork_in_child() -> None:
    _workers.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
