"""Records and logs in the tables of a SQLite file.

**Logs.** The `floor` of a log is an id: all events with a later id are present. `last` is the id of
the newest event that the log ever had. When a log expires, its events are deleted, but its row
stays for an hour, with the last id as its floor. When the row is deleted too, the counter
`forgotten` of the file replaces the row: `forgotten` is the floor of each log without a row, and of
each log that is created again. A follower with a position below the floor has missed events, and
gets LogTruncated.

Event ids are counted over all logs. A follower that has read up to the end of its log therefore
advances to the current counter, which is later than its last event.
"""

import re
from collections.abc import Callable, Collection, Iterable, Set
from itertools import chain
from math import inf
from sqlite3 import Connection
from typing import Final, NamedTuple

from msgspec import json

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.accounts import Usage
from genmcp.stores.sqlite.database import Transaction, column_of
from genmcp.stores.store import Append, Delete, FoundEntry, LogEvent, Put, StoreEntry

_RECORDS_PER_SWEEP: Final = 500
_LOGS_PER_SWEEP: Final = 100
_EVENTS_PER_SWEEP: Final = 2000  # a sweep that has deleted more ends; the next one continues
_ROW_RETENTION: Final = 3600.0  # seconds for which the row of an expired log is retained
_ID: Final = re.compile("[0-7][0-9a-f]{15}")  # SQLite counts up to 2**63 - 1

_COLUMNS: Final = "number, floor, last, held, deadline, size, accounts"
_COUNTED: Final = "held > 0 AND (accounts = ? OR (accounts > ? AND accounts < ?))"


def find_record(connection: Connection, now: float, key: str) -> StoreEntry | None:
    """Return the record under *key*."""
    row = connection.execute(
        "SELECT value, version FROM records WHERE key = ? AND deadline > ?", (key, now)
    ).fetchone()
    return StoreEntry(*row) if row else None


def find_labelled(
    connection: Connection, now: float, label: str, after: str | None, limit: int
) -> list[FoundEntry]:
    """Return at most *limit* records with *label* after the key *after*, in order."""
    # CROSS JOIN: SQLite keeps the order of the tables, and so reads the keys from the index.
    rows = connection.execute(
        "SELECT key, value, version FROM labels CROSS JOIN records USING (key) WHERE label = ?"
        f"{'' if after is None else ' AND labels.key > ?'} AND deadline > ?"
        " ORDER BY labels.key LIMIT ?",
        (label, now, limit) if after is None else (label, after, now, limit),
    )
    return [FoundEntry(*row) for row in rows]


def count_labelled(connection: Connection, now: float, label: str) -> int:
    """Return the number of records with *label*."""
    (count,) = connection.execute(
        "SELECT count(*) FROM labels CROSS JOIN records USING (key)"
        " WHERE label = ? AND deadline > ?",
        (label, now),
    ).fetchone()
    return int(count)


def touch_record(transaction: Transaction, key: str, ttl: float) -> bool:
    """Make the record under *key* expire in *ttl* seconds; return whether it exists."""
    now = transaction.now
    touched = transaction.execute(
        "UPDATE records SET deadline = ? WHERE key = ? AND deadline > ?", (now + ttl, key, now)
    )
    return touched.rowcount > 0


def stage_records(
    transaction: Transaction, ops: Iterable[Put | Delete]
) -> "Collection[PendingRecord]":
    """Check *ops*, and return the state of each key after them. Write nothing.

    Raises:
        Conflict: an `expect` did not hold.
    """
    pending: dict[str, PendingRecord] = {}
    for op in ops:
        record = pending.get(op.key) or PendingRecord(transaction, op.key)
        pending[op.key] = record
        if op.expect is not None and op.expect != record.version:
            raise Conflict(
                f"{op.key!r}: version {op.expect} was expected, but it is {record.version}"
            )
        record.stage(op)
    return pending.values()


def sweep_records(transaction: Transaction) -> bool:
    """Remove some expired records; return whether there may be more."""
    expired = transaction.execute(
        "SELECT rowid, key, version, accounts, size, labels FROM records WHERE deadline <= ?"
        " ORDER BY deadline LIMIT ?",
        (transaction.now, _RECORDS_PER_SWEEP),
    ).fetchall()
    for number, key, version, accounts, size, labels in expired:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        _remove_labels(transaction, key, _labels(labels))
        transaction.version = max(transaction.version, version)
        transaction.accounts.add(accounts, -1, -size)
    return len(expired) == _RECORDS_PER_SWEEP


class PendingRecord:
    """The state of one key after the operations that were staged, not written yet.

    Attributes:
        version: the version after the staged operations; 0: there is no record.
    """

    __slots__ = (
        "_accounts",
        "_labels",
        "_last_version",
        "_put",
        "_replaced",
        "_transaction",
        "key",
        "version",
    )

    def __init__(self, transaction: Transaction, key: str) -> None:
        self._transaction = transaction
        self.key = key
        self._put: Put | None = None
        row = transaction.execute(
            "SELECT version, deadline, accounts, size, labels FROM records WHERE key = ?", (key,)
        ).fetchone()
        # At least the version of any earlier record, also of one that has expired.
        self._last_version: int = row[0] if row else 0
        self.version = self._last_version if row and row[1] > transaction.now else 0
        # The accounts and the size of the row that will be replaced; an expired one still counts.
        self._replaced: tuple[str | None, int] | None = row[2:4] if row else None
        self._labels: str | None = row[4] if row else None  # of the row that will be replaced
        self._accounts: str | None = row[2] if self.version else None

    @property
    def growth(self) -> int:
        """The bytes by which the write makes the file larger; negative if it removes more."""
        return self._size - (self._replaced[1] if self._replaced else 0)

    def growth_of(self, account: str) -> Usage:
        """Return how many entries and bytes the write adds to *account*."""
        entries = size = 0
        if self._replaced is not None and _includes(self._replaced[0], account):
            entries, size = -1, -self._replaced[1]
        if self._put is not None and _includes(self._accounts, account):
            entries, size = entries + 1, size + self._size
        return Usage(entries, size)

    def stage(self, op: Put | Delete) -> None:
        """Apply *op* to the pending state."""
        if isinstance(op, Put):
            self._put = op
            self._accounts = column_of(op.owner) or (self._accounts if self.version else None)
            # A key that is created again continues above all removed versions: see StoreEntry.
            last = self.version or max(self._last_version, self._transaction.version)
            self.version = self._last_version = last + 1
        else:
            self._put = None
            self.version = 0

    def save(self) -> None:
        """Write the pending state."""
        accounts = self._transaction.accounts
        if self._replaced is not None:
            accounts.add(self._replaced[0], -1, -self._replaced[1])
        if self._put is None:
            self._transaction.execute("DELETE FROM records WHERE key = ?", (self.key,))
            _remove_labels(self._transaction, self.key, _labels(self._labels))
            self._transaction.version = max(self._transaction.version, self._last_version)
            return
        ttl = self._put.ttl
        deadline = inf if ttl is None else self._transaction.now + ttl
        accounts.add(self._accounts, 1, self._size)
        self._transaction.execute(
            "INSERT INTO records (key, value, version, deadline, size, accounts, labels)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            " value = excluded.value, version = excluded.version, deadline = excluded.deadline,"
            " size = excluded.size, accounts = excluded.accounts, labels = excluded.labels",
            (
                self.key,
                self._put.value,
                self.version,
                deadline,
                self._size,
                self._accounts,
                json.encode(self._put.labels).decode() if self._put.labels else None,
            ),
        )
        if self._labels is not None or self._put.labels:
            self._save_labels(set(self._put.labels))

    def _save_labels(self, labels: Set[str]) -> None:
        had = _labels(self._labels)
        _remove_labels(self._transaction, self.key, had - labels)
        if added := labels - had:
            marks = ", ".join(["(?, ?)"] * len(added))
            rows = chain.from_iterable((label, self.key) for label in added)
            self._transaction.execute(f"INSERT INTO labels VALUES {marks}", tuple(rows))

    @property
    def _size(self) -> int:
        return 0 if self._put is None else len(self.key) + len(self._put.value)


def _labels(column: str | None) -> Set[str]:
    return set() if column is None else set(json.decode(column))


def _remove_labels(transaction: Transaction, key: str, labels: Set[str]) -> None:
    if labels:
        marks = ", ".join("?" * len(labels))
        transaction.execute(
            f"DELETE FROM labels WHERE label IN ({marks}) AND key = ?", (*labels, key)
        )


def _includes(accounts: str | None, account: str) -> bool:
    return accounts is not None and account in accounts.split("\n")


class _Log(NamedTuple):
    """A row of the table `logs`; *held* is the number of retained events."""

    number: int
    floor: int
    last: int
    held: int
    deadline: float
    size: int
    accounts: str | None


def append_event(transaction: Transaction, op: Append) -> None:
    """Append the event to its log."""
    execute, now = transaction.execute, transaction.now
    transaction.event = id = transaction.event + 1
    transaction.written.add(op.log)
    log = _find_log(transaction, op.log)
    added = len(op.data)
    if log is None:
        accounts = column_of(op.owner)
        number = execute(
            "INSERT INTO logs (name, floor, last, held, deadline, size, accounts)"
            " VALUES (?, ?, ?, 1, ?, ?, ?)",
            (op.log, transaction.forgotten, id, now + op.ttl, added, accounts),
        ).lastrowid
        execute("INSERT INTO events VALUES (?, ?, ?)", (id, number, op.data))
        transaction.accounts.add(accounts, 1, added)
        return
    if log.deadline <= now and log.held:
        _delete_events(transaction, log)
        execute("UPDATE logs SET accounts = NULL WHERE number = ?", (log.number,))
        log = log._replace(floor=log.last, held=0, size=0, accounts=None)
    number, floor, _, held, _, size, accounts = log
    execute("INSERT INTO events VALUES (?, ?, ?)", (id, number, op.data))
    held, size = held + 1, size + added
    if accounts is None and (accounts := column_of(op.owner)) is not None:
        transaction.accounts.add(accounts, held, size)
    else:
        transaction.accounts.add(accounts, 1, added)
    excess = held - op.keep
    if op.keep_bytes is not None and size > op.keep_bytes:
        excess = max(excess, _count_oldest(transaction, number, held, size - op.keep_bytes))
    if excess > 0:
        floor, dropped = execute(
            "SELECT max(id), sum(length(data)) FROM"
            " (SELECT id, data FROM events WHERE log = ? ORDER BY id LIMIT ?)",
            (number, excess),
        ).fetchone()
        _delete_up_to(transaction, number, floor)
        held, size = held - excess, size - dropped
        transaction.accounts.add(accounts, -excess, -dropped)
    execute(
        "UPDATE logs SET floor = ?, last = ?, held = ?, deadline = ?, size = ? WHERE number = ?",
        (floor, id, held, now + op.ttl, size, number),
    )
    if accounts != log.accounts:  # separate: SQLite updates an index only if its column is set
        execute("UPDATE logs SET accounts = ? WHERE number = ?", (accounts, number))


def usage_of_logs(transaction: Transaction, accounts: str) -> Usage:
    """Return the usage of all logs that count towards the last of *accounts*.

    *accounts* is the beginning of a column: logs with further accounts after it are included.
    """
    held, size = transaction.execute(
        f"SELECT total(held), total(size) FROM logs WHERE {_COUNTED}", _column_range(accounts)
    ).fetchone()
    return Usage(int(held), int(size))


def drop_logs(transaction: Transaction, accounts: str, has_room: Callable[[], bool]) -> None:
    """Drop logs that count towards the last of *accounts* until *has_room* returns True.

    The log that has been idle for longest comes first. The caller has checked that there is room
    once all of them are dropped.
    """
    while not has_room():
        row = transaction.execute(
            f"SELECT {_COLUMNS} FROM logs WHERE {_COUNTED} ORDER BY last LIMIT 1",
            _column_range(accounts),
        ).fetchone()
        log = _Log(*row)
        _delete_events(transaction, log)
        transaction.execute(
            "UPDATE logs SET floor = last, held = 0, size = 0, accounts = NULL WHERE number = ?",
            (log.number,),
        )


def position_of(connection: Connection, now: float, name: str, after: str | None) -> int:
    """Return the position to read from; for None, the one before the oldest retained event.

    Raises:
        LogTruncated: events after *after* were dropped, or it is not an id of this log.
    """
    log = _find_log(connection, name)
    if after is None:
        return _floor(log, now) if log else _counter(connection, "event")
    if log and _ID.fullmatch(after):
        id, floor = int(after, 16), _floor(log, now)
        if id == floor or (id > floor and _has_event(connection, log.number, id)):
            return id
    raise LogTruncated(name, after)


def events_after(
    connection: Connection, now: float, name: str, position: int, limit: int
) -> tuple[int, list[LogEvent]]:
    """Return at most *limit* events after *position*, and the position to continue from.

    Raises:
        LogTruncated: events after *position* were dropped.
    """
    log = _find_log(connection, name)
    floor = _floor(log, now) if log else _counter(connection, "forgotten")
    if floor > position:
        raise LogTruncated(name, _text(position))
    rows = connection.execute(
        "SELECT id, data FROM events WHERE log = ? AND id > ? ORDER BY id LIMIT ?",
        (log.number if log else None, position, limit),
    ).fetchall()
    if not rows:
        return max(position, _counter(connection, "event")), []
    return rows[-1][0], [LogEvent(_text(id), data) for id, data in rows]


def sweep_logs(transaction: Transaction) -> bool:
    """Remove some expired logs; return whether there may be more."""
    execute, now = transaction.execute, transaction.now
    expired = execute(
        f"SELECT {_COLUMNS} FROM logs WHERE deadline <= ? ORDER BY deadline LIMIT ?",
        (now, _LOGS_PER_SWEEP),
    ).fetchall()
    events = 0
    for log in map(_Log._make, expired):
        if events >= _EVENTS_PER_SWEEP:
            return True
        if log.held:
            events += log.held
            _delete_events(transaction, log)
            execute(
                "UPDATE logs SET floor = last, held = 0, size = 0, accounts = NULL, deadline = ?"
                " WHERE number = ?",
                (now + _ROW_RETENTION, log.number),
            )
        else:
            execute("DELETE FROM logs WHERE number = ?", (log.number,))
            transaction.forgotten = max(transaction.forgotten, log.last)
    return len(expired) == _LOGS_PER_SWEEP


def _column_range(accounts: str) -> tuple[str, str, str]:
    """Return the parameters of `_COUNTED`; the last two match columns with further accounts."""
    return accounts, f"{accounts}\n", f"{accounts}\v"


def _count_oldest(transaction: Transaction, number: int, held: int, size: int) -> int:
    """Return how many of a log's oldest events to drop to free at least *size* bytes.

    The newest event is never counted, so that fewer bytes may be freed. *held*: the number of
    events in the log.
    """
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


def _delete_events(transaction: Transaction, log: _Log) -> None:
    """Delete the events of *log*; the caller updates its row."""
    _delete_up_to(transaction, log.number, log.last)
    transaction.accounts.add(log.accounts, -log.held, -log.size)


def _delete_up_to(transaction: Transaction, number: int, id: int) -> None:
    transaction.execute("DELETE FROM events WHERE log = ? AND id <= ?", (number, id))


def _has_event(connection: Connection, number: int, id: int) -> bool:
    row = connection.execute("SELECT 1 FROM events WHERE log = ? AND id = ?", (number, id))
    return row.fetchone() is not None


def _counter(connection: Connection, name: str) -> int:
    (count,) = connection.execute(f"SELECT {name} FROM counts").fetchone()
    return int(count)


def _text(id: int) -> str:
    return f"{id:016x}"  # fixed width, so that ids sort like their numbers
