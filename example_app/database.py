"""The database: one SQLite file, and a connection for each piece of work."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

__all__ = ["Database"]

SCHEMA = """
CREATE TABLE parts (
    number TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    category TEXT NOT NULL,
    shelf TEXT NOT NULL,
    price INTEGER NOT NULL,
    stock INTEGER NOT NULL CHECK (stock >= 0),
    minimum INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE repairs (
    id INTEGER PRIMARY KEY,
    bicycle TEXT NOT NULL,
    customer TEXT NOT NULL,
    checklist TEXT NOT NULL,
    opened TEXT NOT NULL,
    closed TEXT
);

CREATE TABLE movements (
    id INTEGER PRIMARY KEY,
    part TEXT NOT NULL REFERENCES parts,
    change INTEGER NOT NULL,
    repair INTEGER REFERENCES repairs,
    supplier TEXT,
    user TEXT NOT NULL,
    day TEXT NOT NULL
);

CREATE INDEX movements_of_part ON movements (part, day);
CREATE INDEX movements_of_repair ON movements (repair);
"""

LOCK_TIMEOUT = 10.0  # seconds to wait for another writer


class Database:
    """The database file at *path*. Connections are short-lived, so any thread can open one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, fill: Callable[[sqlite3.Connection], None]) -> None:
        """Create the tables and *fill* them, unless they exist.

        If several processes start at once, one does this and the others wait.
        """
        self.path.touch(mode=0o600)  # customer data; SQLite gives its other files the same mode
        with closing(self._connect()) as connection:
            _write_ahead(connection)
        with self.writing() as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
                fill(connection)
                connection.execute("PRAGMA user_version = 1")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that reads a consistent snapshot."""
        with closing(self._connect()) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the only writing connection; its transaction is rolled back on an exception."""
        with closing(self._connect()) as connection, connection:
            # Not upgraded from a read transaction, so that rows that were read cannot have changed.
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, so that readers and the writer do not block.

    SQLite ignores the timeout if another process does the same at this moment.
    """
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
