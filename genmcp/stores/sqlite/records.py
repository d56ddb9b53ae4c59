"""Records in SQLite: what is under a key."""

from collections.abc import Collection, Iterable
from math import inf
from sqlite3 import Connection
from typing import Final

from genmcp.errors import Conflict
from genmcp.stores.accounts import Usage
from genmcp.stores.sqlite.accounts import named
from genmcp.stores.sqlite.database import Transaction
from genmcp.stores.store import Delete, Entry, Put

__all__ = ["State", "find", "stage", "sweep", "touch"]

_SWEPT_AT_ONCE: Final = 500


def find(connection: Connection, now: float, key: str) -> Entry | None:
    """Return the record under *key*."""
    row = connection.execute(
        "SELECT value, version FROM records WHERE key = ? AND deadline > ?", (key, now)
    ).fetchone()
    return Entry(*row) if row else None


def touch(transaction: Transaction, key: str, ttl: float) -> bool:
    """Let the record under *key* live for *ttl* seconds; say whether there is one."""
    now = transaction.now
    touched = transaction.execute(
        "UPDATE records SET deadline = ? WHERE key = ? AND deadline > ?", (now + ttl, key, now)
    )
    return touched.rowcount > 0


def stage(transaction: Transaction, ops: Iterable[Put | Delete]) -> "Collection[State]":
    """Return the state that *ops* would leave under each key, without writing anything.

    Raises:
        Conflict: an `expect` did not hold.
    """
    states: dict[str, State] = {}
    for op in ops:
        state = states.get(op.key) or State(transaction, op.key)
        states[op.key] = state
        if op.expect is not None and op.expect != state.version:
            raise Conflict(
                f"{op.key!r}: version {op.expect} was expected, {state.version} is there"
            )
        state.take(op)
    return states.values()


def sweep(transaction: Transaction) -> bool:
    """Remove some expired records; return whether there may be more."""
    gone = transaction.execute(
        "SELECT rowid, version, accounts, size FROM records WHERE deadline <= ?"
        " ORDER BY deadline LIMIT ?",
        (transaction.now, _SWEPT_AT_ONCE),
    ).fetchall()
    for number, version, accounts, size in gone:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        transaction.version = max(transaction.version, version)
        transaction.books.add(accounts, -1, -size)
    return len(gone) == _SWEPT_AT_ONCE


class State:
    """The pending state of one key.

    *version* is 0 if there is no record; *past* is at least the version of any earlier record.
    """

    __slots__ = ("accounts", "had", "key", "past", "put", "transaction", "version")

    def __init__(self, transaction: Transaction, key: str) -> None:
        self.transaction = transaction
        self.key = key
        self.put: Put | None = None
        row = transaction.execute(
            "SELECT version, deadline, accounts, size FROM records WHERE key = ?", (key,)
        ).fetchone()
        self.past: int = row[0] if row else 0
        self.version = self.past if row and row[1] > transaction.now else 0
        self.had: tuple[str | None, int] | None = row[2:] if row else None
        self.accounts: str | None = row[2] if self.version else None

    @property
    def size(self) -> int:
        """The bytes of the pending record."""
        return 0 if self.put is None else len(self.key) + len(self.put.value)

    def growth_of(self, account: str) -> Usage:
        """Return how many entries and bytes the write adds to *account*."""
        entries = size = 0
        if self.had is not None and _counts_for(account, self.had[0]):
            entries, size = -1, -self.had[1]
        if self.put is not None and _counts_for(account, self.accounts):
            entries, size = entries + 1, size + self.size
        return Usage(entries, size)

    def take(self, op: Put | Delete) -> None:
        """Apply *op* to the pending state."""
        if isinstance(op, Put):
            self.put = op
            self.accounts = named(op.owner) or (self.accounts if self.version else None)
            self.version = (self.version or max(self.past, self.transaction.version)) + 1
            self.past = self.version
        else:
            self.put = None
            self.version = 0

    def save(self) -> None:
        """Write the pending state."""
        books = self.transaction.books
        if self.had is not None:
            books.add(self.had[0], -1, -self.had[1])
        if self.put is None:
            self.transaction.execute("DELETE FROM records WHERE key = ?", (self.key,))
            self.transaction.version = max(self.transaction.version, self.past)
            return
        ttl = self.put.ttl
        deadline = inf if ttl is None else self.transaction.now + ttl
        books.add(self.accounts, 1, self.size)
        self.transaction.execute(
            "INSERT INTO records (key, value, version, deadline, size, accounts)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            " value = excluded.value, version = excluded.version, deadline = excluded.deadline,"
            " size = excluded.size, accounts = excluded.accounts",
            (self.key, self.put.value, self.version, deadline, self.size, self.accounts),
        )


def _counts_for(account: str, accounts: str | None) -> bool:
    return accounts is not None and account in accounts.split("\n")
