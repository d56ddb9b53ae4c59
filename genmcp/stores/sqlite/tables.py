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
from collections.abc import Set
from itertools import chain
from math import inf
from sqlite3 import Connection
from typing import Final, NamedTuple

from msgspec import json

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.sqlite.database import Transaction
from genmcp.stores.store import Append, Delete, FoundEntry, LogEvent, Put, StoreEntry

_RECORDS_PER_SWEEP: Final = 500
_LOGS_PER_SWEEP: Final = 100
_EVENTS_PER_SWEEP: Final = 2000  # a sweep that has deleted more ends; the next one continues
_ROW_RETENTION: Final = 3600.0  # seconds for which the row of an expired log is retained
_ID: Final = re.compile("[0-7][0-9a-f]{15}")  # SQLite counts up to 2**63 - 1

_COLUMNS: Final = "number, floor, last, held, deadline, size, client"


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


def write_record(transaction: Transaction, op: Put | Delete) -> None:
    """Perform *op*.

    Raises:
        Conflict: its `expect` does not hold.
    """
    execute, accounts = transaction.execute, transaction.accounts
    row = execute(
        "SELECT version, deadline, client, size, labels FROM records WHERE key = ?", (op.key,)
    ).fetchone()
    # At least the version of any earlier record, also of one that has expired.
    last, deadline, client, size, column = row or (0, 0.0, "", 0, None)
    version = last if deadline > transaction.now else 0
    if op.expect is not None and op.expect != version:
        raise Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {version}")
    if row is not None:
        accounts.add(client, -1, -size)
    had = _labels(column)
    if isinstance(op, Delete):
        execute("DELETE FROM records WHERE key = ?", (op.key,))
        _remove_labels(transaction, op.key, had)
        transaction.version = max(transaction.version, last)
        return
    client, size = op.client or (client if version else ""), len(op.key) + len(op.value)
    accounts.add(client, 1, size)
    # A key that is created again continues above all removed versions: see StoreEntry.
    version = (version or max(last, transaction.version)) + 1
    deadline = inf if op.ttl is None else transaction.now + op.ttl
    column = json.encode(op.labels).decode() if op.labels else None
    execute(
        "INSERT INTO records (key, value, version, deadline, size, client, labels)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
        " value = excluded.value, version = excluded.version, deadline = excluded.deadline,"
        " size = excluded.size, client = excluded.client, labels = excluded.labels",
        (op.key, op.value, version, deadline, size, client, column),
    )
    labels = set(op.labels)
    _remove_labels(transaction, op.key, had - labels)
    if added := labels - had:
        marks = ", ".join(["(?, ?)"] * len(added))
        rows = chain.from_iterable((label, op.key) for label in added)
        execute(f"INSERT INTO labels VALUES {marks}", tuple(rows))


def sweep_records(transaction: Transaction) -> bool:
    """Remove some expired records; return whether there may be more."""
    expired = transaction.execute(
        "SELECT rowid, key, version, client, size, labels FROM records WHERE deadline <= ?"
        " ORDER BY deadline LIMIT ?",
        (transaction.now, _RECORDS_PER_SWEEP),
    ).fetchall()
    for number, key, version, client, size, labels in expired:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        _remove_labels(transaction, key, _labels(labels))
        transaction.version = max(transaction.version, version)
        transaction.accounts.add(client, -1, -size)
    return len(expired) == _RECORDS_PER_SWEEP


def _labels(column: str | None) -> Set[str]:
    return set() if column is None else set(json.decode(column))


def _remove_labels(transaction: Transaction, key: str, labels: Set[str]) -> None:
    if labels:
        marks = ", ".join("?" * len(labels))
        transaction.execute(
            f"DELETE FROM labels WHERE label IN ({marks}) AND key = ?", (*labels, key)
        )


class _Log(NamedTuple):
    """A row of the table `logs`; *held* is the number of retained events."""

    number: int
    floor: int
    last: int
    held: int
    deadline: float
    size: int
    client: str


def append_event(transaction: Transaction, op: Append) -> None:
    """Append the event to its log."""
    execute, accounts, now = transaction.execute, transaction.accounts, transaction.now
    transaction.event = id = transaction.event + 1
    transaction.written.add(op.log)
    log = _find_log(transaction, op.log)
    if log is None:
        log = _Log(0, transaction.forgotten, 0, 0, 0.0, 0, "")
        inserted = execute(
            "INSERT INTO logs (name, floor, last, held, deadline, size, client)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (op.log, *log[1:]),
        )
        log = log._replace(number=inserted.lastrowid or 0)
    elif log.deadline <= now and log.held:
        log = _delete_events(transaction, log)
    if op.client and not log.client:  # the first one counts for the events before it, too
        accounts.add("", -log.held, -log.size)
        accounts.add(op.client, log.held, log.size)
        log = log._replace(client=op.client)
    execute("INSERT INTO events VALUES (?, ?, ?)", (id, log.number, op.data))
    accounts.add(log.client, 1, len(op.data))
    log = log._replace(
        last=id, held=log.held + 1, size=log.size + len(op.data), deadline=now + op.ttl
    )
    most = inf if op.keep_bytes is None else op.keep_bytes
    while log.held > op.keep or (log.size > most and log.held > 1):
        log = _drop_oldest(transaction, log)
    _save_log(transaction, log)


def shorten_log(transaction: Transaction, name: str) -> bool:
    """Drop the oldest event of the log *name*; return False if that is its only event."""
    log = _find_log(transaction, name)
    if log is None or log.held < 2:
        return False
    _save_log(transaction, _drop_oldest(transaction, log))
    return True


def _drop_oldest(transaction: Transaction, log: _Log) -> _Log:
    id, size = transaction.execute(
        "SELECT id, length(data) FROM events WHERE log = ? ORDER BY id LIMIT 1", (log.number,)
    ).fetchone()
    _delete_up_to(transaction, log.number, id)
    transaction.accounts.add(log.client, -1, -size)
    return log._replace(floor=id, held=log.held - 1, size=log.size - size)


def _save_log(transaction: Transaction, log: _Log) -> None:
    number, *values = log
    transaction.execute(
        "UPDATE logs SET floor = ?, last = ?, held = ?, deadline = ?, size = ?, client = ?"
        " WHERE number = ?",
        (*values, number),
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
            emptied = _delete_events(transaction, log)
            _save_log(transaction, emptied._replace(deadline=now + _ROW_RETENTION))
        else:
            execute("DELETE FROM logs WHERE number = ?", (log.number,))
            transaction.forgotten = max(transaction.forgotten, log.last)
    return len(expired) == _LOGS_PER_SWEEP


def _find_log(source: Connection | Transaction, name: str) -> _Log | None:
    row = source.execute(f"SELECT {_COLUMNS} FROM logs WHERE name = ?", (name,)).fetchone()
    return _Log(*row) if row else None


def _floor(log: _Log, now: float) -> int:
    return log.last if log.deadline <= now else log.floor


def _delete_events(transaction: Transaction, log: _Log) -> _Log:
    """Delete the events of *log*, and return its row without them, which the caller saves."""
    _delete_up_to(transaction, log.number, log.last)
    transaction.accounts.add(log.client, -log.held, -log.size)
    return log._replace(floor=log.last, held=0, size=0, client="")


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
