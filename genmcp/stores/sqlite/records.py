"""Records in SQLite: what is under a key."""

from collections.abc import Iterable
from math import inf
from sqlite3 import Connection
from typing import Final

from genmcp.errors import Conflict
from genmcp.stores.sqlite.database import Transaction
from genmcp.stores.store import Delete, Entry, Put

__all__ = ["find", "sweep", "touch", "write"]

_SWEPT_AT_ONCE: Final = 100


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


def write(transaction: Transaction, ops: Iterable[Put | Delete]) -> None:
    """Do all of *ops*, in order.

    Raises:
        Conflict: an `expect` did not hold; nothing was written.
    """
    states: dict[str, _State] = {}
    for op in ops:
        state = states.get(op.key) or _State(transaction, op.key)
        states[op.key] = state
        if op.expect is not None and op.expect != state.version:
            raise Conflict(
                f"{op.key!r}: version {op.expect} was expected, {state.version} is there"
            )
        state.take(op)
    for state in states.values():
        state.save()


def sweep(transaction: Transaction) -> bool:
    """Remove some of what ran out, and say whether there may be more."""
    gone = transaction.execute(
        "SELECT rowid, version FROM records WHERE deadline <= ? ORDER BY deadline LIMIT ?",
        (transaction.now, _SWEPT_AT_ONCE),
    ).fetchall()
    for number, version in gone:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        transaction.version = max(transaction.version, version)
    return len(gone) == _SWEPT_AT_ONCE


class _State:
    """What will be under a key.

    *version* is 0 where there is no record; *past* is at least that of any there was.
    """

    __slots__ = ("key", "past", "put", "transaction", "version")

    def __init__(self, transaction: Transaction, key: str) -> None:
        self.transaction = transaction
        self.key = key
        self.put: Put | None = None
        row = transaction.execute(
            "SELECT version, deadline FROM records WHERE key = ?", (key,)
        ).fetchone()
        self.past: int = row[0] if row else 0
        self.version = self.past if row and row[1] > transaction.now else 0

    def take(self, op: Put | Delete) -> None:
        if isinstance(op, Put):
            self.put = op
            self.version = (self.version or max(self.past, self.transaction.version)) + 1
            self.past = self.version
        else:
            self.put = None
            self.version = 0

    def save(self) -> None:
        if self.put is None:
            self.transaction.execute("DELETE FROM records WHERE key = ?", (self.key,))
            self.transaction.version = max(self.transaction.version, self.past)
            return
        ttl = self.put.ttl
        deadline = inf if ttl is None else self.transaction.now + ttl
        self.transaction.execute(
            "INSERT INTO records (key, value, version, deadline) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET"
            " value = excluded.value, version = excluded.version, deadline = excluded.deadline",
            (self.key, self.put.value, self.version, deadline),
        )
