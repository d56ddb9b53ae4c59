"""A SQLite database: its tables, and the file with its permissions and its clock."""

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

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import boot_id, steady

logger = logging.getLogger("genmcp")

_APPLICATION: Final = 0x67656E6D  # "genm", in the file's header: SQLite, "PRAGMA application_id"
_LAYOUT: Final = 6  # incremented when a table or the form of its keys changes
_LOG_BYTES: Final = 4 * 1024**2
_SCHEMA: Final = Path(__file__).with_name("schema.sql")


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
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(path.parent)!r}")
        # The file contains requests and results. SQLite gives the -wal and -shm files the same
        # mode.
        path.touch(mode=0o600)
        with closing(connect(path, timeout=timeout, max_bytes=max_bytes)) as connection:
            _write_ahead(connection, path, time.monotonic() + timeout)
            connection.execute("BEGIN IMMEDIATE")
            _prepare_tables(connection, path)
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


def create_tables(connection: Connection) -> None:
    """Create the tables of an empty database."""
    for statement in _SCHEMA.read_text(encoding="utf-8").split(";\n"):
        connection.execute(statement)
    # Event ids must be above those of any earlier database of this name: a client may still have
    # such an id, and would otherwise skip events. The time in microseconds grows faster than any
    # log.
    connection.execute("INSERT INTO counts VALUES (0, ?, 0)", (time.time_ns() // 1000,))


def _prepare_tables(connection: Connection, path: Path) -> None:
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
    create_tables(connection)
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
