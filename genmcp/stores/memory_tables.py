"""The records and logs of a `MemoryStore`, with the usage of each account.

Nothing here locks or reads the clock: the store holds its lock and passes the time.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable
from copy import copy
from functools import partial
from math import inf
from operator import attrgetter
from typing import Final, TypeAlias

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.accounts import Usage, accounts_of
from genmcp.stores.clocks import Deadlines, WakeSignal
from genmcp.stores.store import Append, Delete, FoundEntry, LogEvent, Put, StoreEntry

NOTHING: Final = Usage()
_id = attrgetter("id")
_id_of = "{:016x}".format  # fixed width, so that ids sort like their numbers


class Ledger:
    """The usage of each account of a `MemoryStore`. Owned by the store."""

    def __init__(self) -> None:
        # An account without entries is removed, so that memory stays bounded.
        self.of: dict[str, Usage] = {}

    def add(self, client: str, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to the accounts of *client*."""
        for name in accounts_of(client):
            had = self.of.get(name, NOTHING)
            self.of[name] = Usage(had.entries + entries, had.size + size)
            if had.entries + entries == 0:
                del self.of[name]


class MemoryRecord:
    """A record, its deadline, its labels and the client it counts towards."""

    __slots__ = ("client", "deadline", "entry", "labels", "size")

    def __init__(self, op: Put, version: int, deadline: float, client: str) -> None:
        self.entry = StoreEntry(op.value, version)
        self.deadline = deadline
        self.client = client
        self.labels: Collection[str] = frozenset(op.labels) if op.labels else ()
        self.size = len(op.key) + len(op.value)


Undo: TypeAlias = Callable[[], None]
"""Undoes a write. Writes are undone in reverse order."""


class MemoryRecords:
    """The records of a MemoryStore by key, with their deadlines. Owned by the store.

    All keys share one counter: a key that is written again after it was deleted continues above
    the highest version of any key, so that it never gets a version that it had before.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.held: dict[str, MemoryRecord] = {}
        self.deadlines = Deadlines(self.held)
        self._ledger = ledger
        self._version = 0  # the highest version assigned so far
        self._by_label: dict[str, list[str]] = {}  # keys in order; no label without a key

    def find(self, key: str, now: float) -> MemoryRecord | None:
        """Return the record under *key*, None if there is none or it has expired."""
        record = self.held.get(key)
        if record is not None and record.deadline <= now:
            self._drop(key)
            return None
        return record

    def labelled(self, label: str, after: str | None, limit: int, now: float) -> list[FoundEntry]:
        """Return at most *limit* records with *label* after the key *after*, in order."""
        keys = self._by_label.get(label, [])
        at = 0 if after is None else bisect_right(keys, after)
        found: list[FoundEntry] = []
        while len(found) < limit and at < len(keys):
            record = self.find(keys[at], now)
            if record is not None:  # otherwise it has expired, and its key was removed from `keys`
                found.append(FoundEntry(keys[at], record.entry.value, record.entry.version))
                at += 1
        return found

    def count(self, label: str) -> int:
        """Return the number of records with *label*."""
        return len(self._by_label.get(label, ()))

    def touch(self, key: str, ttl: float, now: float) -> bool:
        """Extend the record under *key* to *ttl* seconds from now; return whether it exists."""
        record = self.find(key, now)
        if record is None:
            return False
        record.deadline = now + ttl
        self.deadlines.add(key, record.deadline)
        return True

    def write(self, op: Put | Delete, now: float) -> Undo:
        """Perform *op*.

        Raises:
            Conflict: its `expect` does not hold. Nothing was written.
        """
        held = self.find(op.key, now)
        version = held.entry.version if held else 0
        if op.expect is not None and op.expect != version:
            raise Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {version}")
        made = None
        if isinstance(op, Put):
            client = op.client or (held.client if held else "")
            version = (version or self._version) + 1
            self._version = max(self._version, version)
            made = MemoryRecord(op, version, inf if op.ttl is None else now + op.ttl, client)
        self._replace(op.key, made)
        return partial(self._replace, op.key, held)

    def sweep(self, now: float) -> int:
        """Drop some expired records; return how many deadlines were examined."""
        names = self.deadlines.due(now)
        for key in names:
            self.find(key, now)
        return len(names)

    def _replace(self, key: str, record: MemoryRecord | None) -> None:
        if key in self.held:
            self._drop(key)
        if record is None:
            return
        self.held[key] = record
        self._ledger.add(record.client, 1, record.size)
        for label in record.labels:
            insort(self._by_label.setdefault(label, []), key)
        self.deadlines.add(key, record.deadline)

    def _drop(self, key: str) -> None:
        record = self.held.pop(key)
        self._ledger.add(record.client, -1, -record.size)
        for label in record.labels:
            keys = self._by_label[label]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._by_label[label]


class MemoryLog:
    """The retained events of a log, its deadline and its followers."""

    __slots__ = ("client", "deadline", "events", "floor", "size", "waiters")

    def __init__(self, floor: str) -> None:
        self.client = ""
        self.events: list[LogEvent] = []
        self.size = 0
        self.floor = floor  # no event after this id was dropped
        self.deadline = inf
        self.waiters: set[WakeSignal] = set()


class MemoryLogs:
    """The logs of a MemoryStore that have events or followers, with their deadlines.

    All logs share one counter for event ids. The floor of a log that is created again is the last
    id assigned to any log. It is therefore higher than every id that the log had before, and a
    follower with an old position gets LogTruncated instead of missing events silently.
    """

    def __init__(self, last: int, ledger: Ledger) -> None:
        self.held: dict[str, MemoryLog] = {}
        self.deadlines = Deadlines(self.held)
        self._ledger = ledger
        self._count = last
        self._last_id = _id_of(last)

    def append(self, op: Append, now: float) -> Undo:
        """Append an event to its log."""
        log = self._find_or_make(op.log, now)
        before = copy(log)
        before.events = log.events[:]
        self._count += 1
        self._last_id = _id_of(self._count)
        log.events.append(LogEvent(self._last_id, op.data))
        log.size += len(op.data)
        if op.client and not log.client:
            self._ledger.add("", 1 - len(log.events), len(op.data) - log.size)
            log.client = op.client
            self._ledger.add(log.client, len(log.events), log.size)
        else:
            self._ledger.add(log.client, 1, len(op.data))
        log.deadline = now + op.ttl
        self.deadlines.add(op.log, log.deadline)
        most = inf if op.keep_bytes is None else op.keep_bytes
        while len(log.events) > op.keep or (log.size > most and len(log.events) > 1):
            self._drop(op.log, log, 1)
        return partial(self._restore, op.log, before)

    def shorten(self, name: str) -> bool:
        """Drop the oldest event of the log *name*; return False if that is its only event."""
        log = self.held[name]
        if len(log.events) < 2:
            return False
        self._drop(name, log, 1)
        return True

    def since(self, name: str, after: str | None, limit: int, now: float) -> list[LogEvent]:
        """Return at most *limit* events after *after*, or the oldest ones for None.

        Raises:
            LogTruncated: events after *after* were dropped, or it is not an id of this log.
        """
        log = self._find(name, now)
        events = log.events if log else []
        if after is None:
            return events[:limit]
        at = bisect_right(events, after, key=_id)
        before = events[at - 1].id if at else log.floor if log else self._last_id
        if after != before:
            raise LogTruncated(name, after)
        return events[at : at + limit]

    def enter(self, name: str, waiter: WakeSignal, now: float) -> str:
        """Register *waiter*, to be woken by appends to the log *name*.

        Return the position before the first retained event.
        """
        log = self._find_or_make(name, now)
        log.waiters.add(waiter)
        return log.floor

    def leave(self, name: str, waiter: WakeSignal) -> None:
        """Remove *waiter* from the followers of the log *name*."""
        log = self.held.get(name)
        if log is None:  # the store was closed
            return
        log.waiters.discard(waiter)
        self._forget_if_idle(name, log)

    def wake(self, names: Iterable[str]) -> None:
        """Wake the followers of the logs *names*."""
        for name in names:
            log = self.held[name]
            for waiter in tuple(log.waiters):
                if not waiter.wake():
                    log.waiters.discard(waiter)

    def sweep(self, now: float) -> int:
        """Drop some expired logs; return how many deadlines were examined."""
        names = self.deadlines.due(now)
        for name in names:
            self._find(name, now)
        return len(names)

    def _find(self, name: str, now: float) -> MemoryLog | None:
        log = self.held.get(name)
        if log is not None and log.deadline <= now:
            self._drop(name, log, len(log.events))
        return self.held.get(name)

    def _find_or_make(self, name: str, now: float) -> MemoryLog:
        log = self._find(name, now)
        if log is None:
            log = self.held[name] = MemoryLog(self._last_id)
        return log

    def _drop(self, name: str, log: MemoryLog, count: int) -> None:
        """Drop the oldest *count* events, and the log itself once it has no events or followers."""
        log.floor = log.events[count - 1].id
        size = sum(len(event.data) for event in log.events[:count])
        log.size -= size
        self._ledger.add(log.client, -count, -size)
        del log.events[:count]
        if not log.events:
            log.deadline, log.client = inf, ""
        self._forget_if_idle(name, log)

    def _restore(self, name: str, log: MemoryLog) -> None:
        now = self.held[name]
        self._ledger.add(now.client, -len(now.events), -now.size)
        self.held[name] = log
        self._ledger.add(log.client, len(log.events), log.size)
        self.deadlines.add(name, log.deadline)
        self._forget_if_idle(name, log)

    def _forget_if_idle(self, name: str, log: MemoryLog) -> None:
        if not log.events and not log.waiters:
            del self.held[name]
