"""Records, logs and accounts in the tables of a SQLite database.

**Logs.** The `floor` of a log is an id: all events with a later id are present. `last` is the id of
the newest event that the log ever had. When a log expires, its events are deleted, but its row
stays for an hour, with the last id as its floor. When the row is deleted too, the counter
`forgotten` of the database replaces the row: `forgotten` is the floor of each log without a row,
and of each log that is created again. A follower with a position below the floor has missed
events, and gets LogTruncated.

Event ids are counted over all logs. A follower that has read up to the end of its log therefore
advances to the current counter, which is later than its last event.
"""

from collections.abc import Sequence
from math import inf
from sqlite3 import Connection
from typing import Final, NamedTuple, TypeAlias

from msgspec import json

from genmcp.errors import Conflict, LogTruncated, StoreError
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage, accounts_of
from genmcp.stores.following import ROW_RETENTION, Position
from genmcp.stores.store import (
    Append,
    Delete,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    StoreEntry,
    event_id,
    event_number,
    room_of,
)

_RECORDS_PER_SWEEP: Final = 200
_LOGS_PER_SWEEP: Final = 100
_EVENTS_PER_SWEEP: Final = 2000  # a sweep that has deleted more ends; the next one continues
_MAX_SWEEPS: Final = 10  # sweeps before a write is rejected because of a share
_NOTHING: Final = Usage()
_COLUMNS: Final = "number, floor, last, held, deadline, size, client"
_USAGE: Final = "SELECT entries, size FROM accounts WHERE name = ?"
_UNLABEL: Final = "DELETE FROM labels WHERE label = ? AND key = ?"
_FILE_SIZE: Final = (
    "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)


class Transaction:
    """The context of a write. All changes in it are committed together, or none of them.

    Attributes:
        execute: executes a statement.
        now: the time of the transaction.
        capacity: that of the store.
        limits_file: whether the size of the file is limited, not that of the data.
        version: a counter of the database, at least the version of any removed record.
        event: a counter, the last id that was assigned to an event. It also counts transactions
            with `queues`.
        forgotten: a counter, at least the last event id of any removed log.
        logs: those that were appended to.
        queues: those in which a delivery may have become due, or was removed.
        counters: the three as they were read.
        growth: by account, the entries and bytes that were added since `save_accounts`.
    """

    def __init__(
        self, connection: Connection, now: float, capacity: Capacity, *, limits_file: bool
    ) -> None:
        self.execute = connection.execute
        self.now = now
        self.capacity = capacity
        self.limits_file = limits_file
        self.logs: set[str] = set()
        self.queues: set[str] = set()
        self.growth: dict[str, Usage] = {}
        row = connection.execute("SELECT version, event, forgotten FROM counts").fetchone()
        self.counters = self.version, self.event, self.forgotten = row

    def count(self, client: str, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to the accounts of *client*."""
        for name in accounts_of(client):
            had = self.growth.get(name, _NOTHING)
            self.growth[name] = Usage(had.entries + entries, had.size + size)

    def save_accounts(self) -> None:
        """Write the growth of all accounts."""
        for name, (entries, size) in self.growth.items():
            if entries or size:
                self.execute(
                    "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                    " entries = entries + excluded.entries, size = size + excluded.size",
                    (name, entries, size),
                )
            if entries < 0:
                self.execute("DELETE FROM accounts WHERE name = ? AND entries = 0", (name,))
        self.growth = {}

    def save(self) -> None:
        """Write the accounts and counters. Call it last, before the commit."""
        if self.growth:
            self.save_accounts()
        self.event += bool(self.queues)
        for queue in self.queues:
            self.execute(
                "INSERT INTO news VALUES (?, ?, ?) ON CONFLICT (queue) DO UPDATE SET"
                " event = excluded.event, deadline = excluded.deadline",
                (queue, self.event, self.now + ROW_RETENTION),
            )
        counters = (self.version, self.event, self.forgotten)
        if counters != self.counters:
            self.execute("UPDATE counts SET version = ?, event = ?, forgotten = ?", counters)


Source: TypeAlias = Connection | Transaction


def usage_of(source: Source, account: str, *, limits_file: bool) -> Usage:
    """Return the usage of *account*. Expired entries count until they are removed."""
    row = source.execute(_USAGE, (account,)).fetchone()
    used = Usage(*row) if row else _NOTHING
    if limits_file and account == EVERYTHING:
        used = used._replace(size=source.execute(_FILE_SIZE).fetchone()[0])
    return used


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


def count_labelled(connection: Connection, _now: float, label: str) -> int:
    """Return the number of records with *label*, expired ones included until they are removed.

    It reads the index alone: a join with the records took 10 ms for 5,000 of them.
    """
    (count,) = connection.execute(
        "SELECT count(*) FROM labels WHERE label = ?", (label,)
    ).fetchone()
    return int(count)


def touch_record(transaction: Transaction, key: str, ttl: float) -> bool:
    """Make the record under *key* expire in *ttl* seconds; return whether it exists."""
    now = transaction.now
    touched = transaction.execute(
        "UPDATE records SET deadline = ? WHERE key = ? AND deadline > ?", (now + ttl, key, now)
    )
    return touched.rowcount > 0


def apply(transaction: Transaction, ops: Sequence[Op]) -> None:
    """Perform *ops*. If this raises, the caller undoes its changes.

    Raises:
        StoreError: an `expect` did not hold, or there is no room.
    """
    for op in ops:
        if isinstance(op, Append):
            _append(transaction, op)
        else:
            _write(transaction, op)
    if _excess(transaction, ops):
        _make_room(transaction, ops)
        if error := _excess(transaction, ops):
            raise error
    transaction.save_accounts()


def _make_room(transaction: Transaction, ops: Sequence[Op]) -> None:
    """Remove expired entries, and then the oldest events of the logs that were appended to."""
    for _ in range(_MAX_SWEEPS):
        if not sweep(transaction):
            break
    for op in ops:
        while isinstance(op, Append) and _excess(transaction, ops):
            log = _find_log(transaction, op.log)
            if log is None or log.held < 2:
                break
            _save_log(transaction, _drop_oldest(transaction, log))


def sweep(transaction: Transaction) -> bool:
    """Remove some expired entries; return whether there may be more."""
    transaction.execute("DELETE FROM news WHERE deadline <= ?", (transaction.now,))
    more_records, more_logs = _sweep_records(transaction), _sweep_logs(transaction)
    return more_records or more_logs


def _excess(transaction: Transaction, ops: Sequence[Op]) -> StoreError | None:
    """Return the error for *ops*, which were performed, if an account has no room for them."""
    room, in_file = room_of(transaction.capacity, ops), transaction.limits_file
    # SQLite itself limits the file; only new work, which has no slack, leaves the reserve in it.
    for limit in room.limits[:-1] if in_file and room.slack else room.limits:
        more, bytes_more = transaction.growth.get(limit.account, _NOTHING)
        if more <= 0 and bytes_more <= room.slack:
            continue
        entries, size = transaction.execute(_USAGE, (limit.account,)).fetchone() or _NOTHING
        if in_file and limit.account == EVERYTHING:  # the file is as it is after the write
            size = transaction.execute(_FILE_SIZE).fetchone()[0] - bytes_more
        if (more > 0 and entries + more > limit.entries) or (
            bytes_more > room.slack and size + bytes_more > limit.size
        ):
            return transaction.capacity.refusal(limit.account, Usage(entries, size))
    return None


def _write(transaction: Transaction, op: Put | Delete) -> None:
    """Put or delete a record.

    Raises:
        Conflict: its `expect` does not hold.
    """
    execute = transaction.execute
    row = execute(
        "SELECT version, deadline, client, size, labels FROM records WHERE key = ?", (op.key,)
    ).fetchone()
    # At least the version of any earlier record, also of one that has expired.
    last, deadline, owner, had_size, column = row or (0, 0.0, "", 0, None)
    version = last if deadline > transaction.now else 0
    if op.expect is not None and op.expect != version:
        raise Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {version}")
    had: set[str] = set(json.decode(column)) if column else set()
    if isinstance(op, Delete):
        if row is not None:
            transaction.count(owner, -1, -had_size)
            execute("DELETE FROM records WHERE key = ?", (op.key,))
            for label in had:
                execute(_UNLABEL, (label, op.key))
            transaction.version = max(transaction.version, last)
        return
    client, size = op.client or (owner if version else ""), len(op.key) + len(op.value)
    if row is not None and client == owner:
        transaction.count(client, 0, size - had_size)
    else:
        transaction.count(client, 1, size)
        if row is not None:
            transaction.count(owner, -1, -had_size)
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
    for label in had - labels:
        execute(_UNLABEL, (label, op.key))
    for label in labels - had:
        execute("INSERT INTO labels VALUES (?, ?)", (label, op.key))


def _sweep_records(transaction: Transaction) -> bool:
    expired = transaction.execute(
        "SELECT rowid, key, version, client, size, labels FROM records WHERE deadline <= ?"
        " ORDER BY deadline LIMIT ?",
        (transaction.now, _RECORDS_PER_SWEEP),
    ).fetchall()
    for number, key, version, client, size, labels in expired:
        transaction.execute("DELETE FROM records WHERE rowid = ?", (number,))
        for label in json.decode(labels) if labels else ():
            transaction.execute(_UNLABEL, (label, key))
        transaction.version = max(transaction.version, version)
        transaction.count(client, -1, -size)
    return len(expired) == _RECORDS_PER_SWEEP


class _Log(NamedTuple):
    """A row of the table `logs`; *held* is the number of retained events."""

    number: int
    floor: int
    last: int
    held: int
    deadline: float
    size: int
    client: str


def _append(transaction: Transaction, op: Append) -> None:
    execute, now = transaction.execute, transaction.now
    transaction.event = id = transaction.event + 1
    transaction.logs.add(op.log)
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
        if log.held:
            transaction.count("", -log.held, -log.size)
            transaction.count(op.client, log.held, log.size)
        log = log._replace(client=op.client)
    execute("INSERT INTO events VALUES (?, ?, ?)", (id, log.number, op.data))
    transaction.count(log.client, 1, len(op.data))
    log = log._replace(
        last=id, held=log.held + 1, size=log.size + len(op.data), deadline=now + op.ttl
    )
    most = inf if op.keep_bytes is None else op.keep_bytes
    while log.held > op.keep or (log.size > most and log.held > 1):
        log = _drop_oldest(transaction, log)
    _save_log(transaction, log)


def read_events(
    connection: Connection, now: float, log: str, after: Position, limit: int
) -> tuple[Position, list[LogEvent]]:
    """Return at most *limit* events of *log* after *after*, and the position to continue from.

    Raises:
        LogTruncated: events after *after* were dropped, or it is not an id of this log.
    """
    row = _find_log(connection, log)
    event, forgotten = connection.execute("SELECT event, forgotten FROM counts").fetchone()
    floor = forgotten if row is None else row.last if row.deadline <= now else row.floor
    if after is None:
        position = floor if row else event
    elif isinstance(after, int):
        position = after
    else:
        position = event_number(log, after)
        if row is None or not (position == floor or _has_event(connection, row, position)):
            raise LogTruncated(log, after)
    if position < floor:
        raise LogTruncated(log, event_id(position))
    rows = connection.execute(
        "SELECT id, data FROM events WHERE log = ? AND id > ? ORDER BY id LIMIT ?",
        (row.number if row else None, position, limit),
    ).fetchall()
    events = list[LogEvent]()
    for id, data in rows:
        events.append(LogEvent(event_id(id), data))
    return rows[-1][0] if rows else max(position, event), events


def _sweep_logs(transaction: Transaction) -> bool:
    expired = transaction.execute(
        f"SELECT {_COLUMNS} FROM logs WHERE deadline <= ? ORDER BY deadline LIMIT ?",
        (transaction.now, _LOGS_PER_SWEEP),
    ).fetchall()
    events = 0
    for log in map(_Log._make, expired):
        if events >= _EVENTS_PER_SWEEP:
            return True
        if log.held:
            events += log.held
            emptied = _delete_events(transaction, log)
            _save_log(transaction, emptied._replace(deadline=transaction.now + ROW_RETENTION))
        else:
            transaction.execute("DELETE FROM logs WHERE number = ?", (log.number,))
            transaction.forgotten = max(transaction.forgotten, log.last)
    return len(expired) == _LOGS_PER_SWEEP


def _drop_oldest(transaction: Transaction, log: _Log) -> _Log:
    id, size = transaction.execute(
        "SELECT id, length(data) FROM events WHERE log = ? ORDER BY id LIMIT 1", (log.number,)
    ).fetchone()
    _delete_up_to(transaction, log, id)
    transaction.count(log.client, -1, -size)
    return log._replace(floor=id, held=log.held - 1, size=log.size - size)


def _delete_events(transaction: Transaction, log: _Log) -> _Log:
    """Delete the events of *log*, and return its row without them, which the caller saves."""
    _delete_up_to(transaction, log, log.last)
    transaction.count(log.client, -log.held, -log.size)
    return log._replace(floor=log.last, held=0, size=0, client="")


def _delete_up_to(transaction: Transaction, log: _Log, id: int) -> None:
    transaction.execute("DELETE FROM events WHERE log = ? AND id <= ?", (log.number, id))


def _save_log(transaction: Transaction, log: _Log) -> None:
    number, *values = log
    transaction.execute(
        "UPDATE logs SET floor = ?, last = ?, held = ?, deadline = ?, size = ?, client = ?"
        " WHERE number = ?",
        (*values, number),
    )


def _find_log(source: Source, name: str) -> _Log | None:
    row = source.execute(f"SELECT {_COLUMNS} FROM logs WHERE name = ?", (name,)).fetchone()
    return _Log(*row) if row else None


def _has_event(connection: Connection, log: _Log, id: int) -> bool:
    found = connection.execute("SELECT 1 FROM events WHERE log = ? AND id = ?", (log.number, id))
    return found.fetchone() is not None
