"""Opening the file: its tables, its settings, and what is said when it cannot be used."""

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from genmcp.errors import ConfigurationError
from genmcp.stores.sqlite.file_clock import file_clock

__all__ = ["connect", "prepare"]

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
