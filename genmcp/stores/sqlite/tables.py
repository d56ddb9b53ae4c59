"""Records in SQLite: what is under a key."""

import re
from collections.abc import Callable, Collection, Iterable
from math import inf
from sqlite3 import Connection
from typing import Final, NamedTuple

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.accounts import Usage
from genmcp.stores.sqlite.database import Transaction, named
from genmcp.stores.store import Append, Delete, Entry, Event, Put

__all__ = [
    "REFRESH_AFTER",
    "PendingRecord",
    "append_event",
    "drop_logs",
    "events_after",
    "find_record",
    "position_of",
    "stage_records",
    "sweep_logs",
    "sweep_records",
    "touch_record",
    "usage_of_logs",
]

_RECORDS_PER_SWEEP: Final = 500


def find_record(connection: Connection, now: float, key: str) -> Entry | None:
    """Return the record under *key*."""
    row = connection.execute(
        "SELECT value, version FROM records WHERE key = ? AND deadline > ?", (key, now)
    ).fetchone()
    return Entry(*row) if row else None


def touch_record(transaction: Transaction, key: str, ttl: float) -> bool:
    """Let the record under *key* live for *ttl* seconds; say whether there is one."""
    now = transaction.now
    touched = transaction.execute(
        "UPDATE records SET deadline = ? WHERE key = ? AND deadline > ?", (now + ttl, key, now)
    )
    return touched.rowcount > 0


def stage_records(
    transaction: Transaction, ops: Iterable[Put | Delete]
) -> "Collection[PendingRecord]":
    """Return the state that *ops* would leave under each key, without writing anything.

    Raises:
        Conflict: an `expect` did not hold.
    """
    states: dict[str, PendingRecord] = {}
    for op in ops:
        state = states.get(op.key) or PendingRecord(transaction, op.key)
        states[op.key] = state
        if op.expect is not None and op.expect != state.version:
            raise Conflict(
                f"{op.key!r}: version {op.expect} was expected, {state.version} is there"
            )
        state.take(op)
    return states.values()


def sweep_records(transaction: Transaction) -> bool:
    """Remove some expired records; return whether there may be more."""
    gone = transaction.execute(
        "SELECT rowid, version, accounts, size FROM records WHERE deadline <= ?"
        " ORDER BY deadline LIMIT ?",
        (transaction.now, _RECORDS_PER_SWEEP),
    ).fetchall()
    for number, version, accounts, size in gone:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        transaction.version = max(transaction.version, version)
        transaction.books.add(accounts, -1, -size)
    return len(gone) == _RECORDS_PER_SWEEP


class PendingRecord:
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


REFRESH_AFTER: Final = 600.0
"""Seconds after which a follower looks though nothing was appended.

So its place stays newer than any log that is forgotten meanwhile.
"""

_FORGOTTEN_AFTER: Final = 3600.0  # seconds after a log ran out
_LOGS_PER_SWEEP: Final = 100
_EVENTS_PER_SWEEP: Final = 2000  # then the sweep ends: the next write continues
_ID: Final = re.compile("[0-7][0-9a-f]{15}")  # as many as SQLite can count


_COLUMNS: Final = "number, floor, last, held, deadline, size, accounts"
_COUNTED: Final = "held > 0 AND (accounts = ? OR (accounts > ? AND accounts < ?))"


class _Log(NamedTuple):
    number: int
    floor: int
    last: int
    held: int
    deadline: float
    size: int
    accounts: str | None


def append_event(transaction: Transaction, op: Append) -> None:
    """Add the event to the end of its log."""
    execute, now = transaction.execute, transaction.now
    transaction.event = id = transaction.event + 1
    transaction.written.add(op.log)
    log = _find_log(transaction, op.log)
    added = len(op.data)
    if log is None:
        accounts = named(op.owner)
        number = execute(
            "INSERT INTO logs (name, floor, last, held, deadline, size, accounts)"
            " VALUES (?, ?, ?, 1, ?, ?, ?)",
            (op.log, transaction.forgotten, id, now + op.ttl, added, accounts),
        ).lastrowid
        execute("INSERT INTO events VALUES (?, ?, ?)", (id, number, op.data))
        transaction.books.add(accounts, 1, added)
        return
    if log.deadline <= now and log.held:
        _empty(transaction, log)
        execute("UPDATE logs SET accounts = NULL WHERE number = ?", (log.number,))
        log = log._replace(floor=log.last, held=0, size=0, accounts=None)
    number, floor, _, held, _, size, accounts = log
    execute("INSERT INTO events VALUES (?, ?, ?)", (id, number, op.data))
    held, size = held + 1, size + added
    if accounts is None and (accounts := named(op.owner)) is not None:
        transaction.books.add(accounts, held, size)
    else:
        transaction.books.add(accounts, 1, added)
    excess = held - op.keep
    if op.keep_bytes is not None and size > op.keep_bytes:
        excess = max(excess, _count_oldest(transaction, number, held, size - op.keep_bytes))
    if excess > 0:
        floor, dropped = execute(
            "SELECT max(id), sum(length(data)) FROM"
            " (SELECT id, data FROM events WHERE log = ? ORDER BY id LIMIT ?)",
            (number, excess),
        ).fetchone()
        _drop(transaction, number, floor)
        held, size = held - excess, size - dropped
        transaction.books.add(accounts, -excess, -dropped)
    execute(
        "UPDATE logs SET floor = ?, last = ?, held = ?, deadline = ?, size = ? WHERE number = ?",
        (floor, id, held, now + op.ttl, size, number),
    )
    if accounts != log.accounts:  # separate: SQLite updates an index only if its column is set
        execute("UPDATE logs SET accounts = ? WHERE number = ?", (accounts, number))


def usage_of_logs(transaction: Transaction, accounts: str) -> Usage:
    """Return the usage of all logs that count towards the last of *accounts*.

    *accounts* is the beginning of a column: accounts that follow the last one are included.
    """
    held, size = transaction.execute(
        f"SELECT total(held), total(size) FROM logs WHERE {_COUNTED}", _within(accounts)
    ).fetchone()
    return Usage(int(held), int(size))


def drop_logs(transaction: Transaction, accounts: str, fits: Callable[[Usage], bool]) -> None:
    """Drop logs that count towards the last of *accounts*, until *fits* accepts the amount.

    The log without an append for longest is dropped first. *fits* must accept the `usage` of all of
    them.
    """
    dropped = Usage()
    while not fits(dropped):
        row = transaction.execute(
            f"SELECT {_COLUMNS} FROM logs WHERE {_COUNTED} ORDER BY last LIMIT 1",
            _within(accounts),
        ).fetchone()
        log = _Log(*row)
        _empty(transaction, log)
        transaction.execute(
            "UPDATE logs SET floor = last, held = 0, size = 0, accounts = NULL WHERE number = ?",
            (log.number,),
        )
        dropped = Usage(dropped.entries + log.held, dropped.size + log.size)


def position_of(connection: Connection, now: float, name: str, after: str | None) -> int:
    """Return the id to read on from; for None, the one before the oldest event there is.

    Raises:
        LogTruncated: something after *after* is gone, or it is no id of this log.
    """
    log = _find_log(connection, name)
    if after is None:
        return _floor(log, now) if log else _count(connection, "event")
    if log and _ID.fullmatch(after):
        id, floor = int(after, 16), _floor(log, now)
        if id == floor or (id > floor and _is_there(connection, log.number, id)):
            return id
    raise LogTruncated(name, after)


def events_after(
    connection: Connection, now: float, name: str, place: int, limit: int
) -> tuple[int, list[Event]]:
    """Return at most *limit* events after *place*, and the place to read on from.

    Raises:
        LogTruncated: something after *place* is gone.
    """
    log = _find_log(connection, name)
    floor = _floor(log, now) if log else _count(connection, "forgotten")
    if floor > place:
        raise LogTruncated(name, _text(place))
    rows = connection.execute(
        "SELECT id, data FROM events WHERE log = ? AND id > ? ORDER BY id LIMIT ?",
        (log.number if log else None, place, limit),
    ).fetchall()
    if not rows:
        return max(place, _count(connection, "event")), []
    return rows[-1][0], [Event(_text(id), data) for id, data in rows]


def sweep_logs(transaction: Transaction) -> bool:
    """Remove some expired logs; return whether there may be more."""
    execute, now = transaction.execute, transaction.now
    gone = execute(
        f"SELECT {_COLUMNS} FROM logs WHERE deadline <= ? ORDER BY deadline LIMIT ?",
        (now, _LOGS_PER_SWEEP),
    ).fetchall()
    events = 0
    for log in map(_Log._make, gone):
        if events >= _EVENTS_PER_SWEEP:
            return True
        if log.held:
            events += log.held
            _empty(transaction, log)
            execute(
                "UPDATE logs SET floor = last, held = 0, size = 0, accounts = NULL, deadline = ?"
                " WHERE number = ?",
                (now + _FORGOTTEN_AFTER, log.number),
            )
        else:
            execute("DELETE FROM logs WHERE number = ?", (log.number,))
            transaction.forgotten = max(transaction.forgotten, log.last)
    return len(gone) == _LOGS_PER_SWEEP


def _within(accounts: str) -> tuple[str, str, str]:
    """Return the parameters of `_COUNTED`; the last two match columns with further accounts."""
    return accounts, f"{accounts}\n", f"{accounts}\v"


def _count_oldest(transaction: Transaction, number: int, held: int, size: int) -> int:
    """Return how many of a log's oldest events have *size* bytes; the newest is not counted."""
    count = 0
    for (length,) in transaction.execute(
        "SELECT length(data) FROM events WHERE log = ? ORDER BY id LIMIT ?", (number, held - 1)
    ):
        if size <= 0:
            break
        size, count = size - length, count + 1
    return count


def _find_log(source: Connection | Transaction, name: str) -> _Log | None:
    row = source.execute(f"SELECT {_COLUMNS} FROM logs WHERE name = ?", (name,)).fetchone()
    return _Log(*row) if row else None


def _floor(log: _Log, now: float) -> int:
    return log.last if log.deadline <= now else log.floor


def _empty(transaction: Transaction, log: _Log) -> None:
    """Delete the events of *log*; the caller updates its row."""
    _drop(transaction, log.number, log.last)
    transaction.books.add(log.accounts, -log.held, -log.size)


def _drop(transaction: Transaction, number: int, up_to: int) -> None:
    transaction.execute("DELETE FROM events WHERE log = ? AND id <= ?", (number, up_to))


def _is_there(connection: Connection, number: int, id: int) -> bool:
    found = connection.execute("SELECT 1 FROM events WHERE log = ? AND id = ?", (number, id))
    return found.fetchone() is not None


def _count(connection: Connection, name: str) -> int:
    (count,) = connection.execute(f"SELECT {name} FROM counts").fetchone()
    return int(count)


def _text(id: int) -> str:
    return f"{id:016x}"  # of one width: the order of the texts is that of the numbers
