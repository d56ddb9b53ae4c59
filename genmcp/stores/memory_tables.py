"""The records and logs of a `MemoryStore`, with the usage of each account.

Nothing here locks or reads the clock: the store holds its lock and passes the time.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter

from genmcp.errors import Conflict, LogTruncated
from genmcp.stores.accounts import AccountUsage, Owner, Usage, names_of
from genmcp.stores.clocks import Deadlines, WakeSignal
from genmcp.stores.store import Append, Delete, FoundEntry, LogEvent, Op, Put, StoreEntry

_id = attrgetter("id")
_id_of = "{:016x}".format  # fixed width, so that ids sort like their numbers


class MemoryRecord:
    """A record, its deadline, its labels and the accounts it counts towards."""

    __slots__ = ("accounts", "deadline", "entry", "labels", "size")

    def __init__(self, op: Put, version: int, deadline: float, accounts: Sequence[str]) -> None:
        self.entry = StoreEntry(op.value, version)
        self.deadline = deadline
        self.accounts = accounts
        self.labels: Collection[str] = frozenset(op.labels) if op.labels else ()
        self.size = len(op.key) + len(op.value)


class StagedWrite:
    """A checked write that is not committed yet. `records` has None for a deleted key."""

    __slots__ = (
        "accounts",
        "appends",
        "entries",
        "new",
        "records",
        "replaced_entries",
        "replaced_size",
        "size",
    )

    def __init__(self) -> None:
        self.records: dict[str, MemoryRecord | None] = {}
        self.appends: list[Append] = []
        self.accounts: Owner = ()
        self.new = False
        # The entries and bytes that are added, and those that are removed by being replaced.
        self.entries = self.size = self.replaced_entries = self.replaced_size = 0


class MemoryRecords:
    """The records of a MemoryStore by key, with their deadlines. Owned by the store.

    All keys share one counter: a key that is written again after it was deleted continues above
    the highest version of any key, so that it never gets a version that it had before.
    """

    def __init__(self) -> None:
        self.held: dict[str, MemoryRecord] = {}
        self.size = 0
        self.ledger = AccountUsage()
        self.deadlines = Deadlines(self.held)
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

    def stage(self, ops: Iterable[Op], now: float) -> StagedWrite:
        """Check *ops*, and return them as a write that `commit` can perform. Write nothing.

        Raises:
            Conflict: an `expect` did not hold.
        """
        write = StagedWrite()
        staged, accounts = write.records, write.accounts
        for op in ops:
            # Each `expect` is compared with the state that the operations before it leave.
            if not isinstance(op, Delete):
                write.new = write.new or op.new
                if not accounts:
                    accounts = op.owner
                elif op.owner is not accounts:
                    accounts = (*accounts, *(each for each in op.owner if each not in accounts))
            if isinstance(op, Append):
                write.appends.append(op)
                write.entries += 1
                write.size += len(op.data)
                continue
            held = staged[op.key] if op.key in staged else self.find(op.key, now)
            version = held.entry.version if held else 0
            if op.expect is not None and op.expect != version:
                raise Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {version}")
            made = staged[op.key] = self._record(op, held, now) if isinstance(op, Put) else None
            if made:
                write.entries += 1
                write.size += made.size
            if held:
                write.replaced_entries += 1
                write.replaced_size += held.size
        write.accounts = accounts
        return write

    def growth_of(self, account: str, staged: Mapping[str, MemoryRecord | None]) -> Usage:
        """Return how many records and bytes *staged* would add to *account*."""
        entries = size = 0
        for key, record in staged.items():
            held = self.held.get(key)
            if held is not None and account in held.accounts:
                entries, size = entries - 1, size - held.size
            if record is not None and account in record.accounts:
                entries, size = entries + 1, size + record.size
        return Usage(entries, size)

    def commit(self, staged: Mapping[str, MemoryRecord | None]) -> None:
        """Write the staged records."""
        for key, record in staged.items():
            if key in self.held:
                self._drop(key)
            if record:
                self.held[key] = record
                self.size += record.size
                if record.accounts:
                    self.ledger.add(record.accounts, 1, record.size)
                for label in record.labels:
                    insort(self._by_label.setdefault(label, []), key)
                self.deadlines.add(key, record.deadline)

    def sweep(self, now: float) -> int:
        """Drop some expired records; return how many deadlines were examined."""
        names = self.deadlines.due(now)
        for key in names:
            self.find(key, now)
        return len(names)

    def _record(self, op: Put, replaced: MemoryRecord | None, now: float) -> MemoryRecord:
        version = (replaced.entry.version if replaced else self._version) + 1
        self._version = max(self._version, version)
        accounts: Sequence[str] = ()
        if op.owner:
            accounts = names_of(op.owner)
        elif replaced:
            accounts = replaced.accounts
        deadline = inf if op.ttl is None else now + op.ttl
        return MemoryRecord(op, version, deadline, accounts)

    def _drop(self, key: str) -> None:
        record = self.held.pop(key)
        self.size -= record.size
        if record.accounts:
            self.ledger.add(record.accounts, -1, -record.size)
        for label in record.labels:
            keys = self._by_label[label]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._by_label[label]


class MemoryLog:
    """The retained events of a log, its deadline and its followers."""

    __slots__ = ("accounts", "deadline", "events", "floor", "size", "waiters")

    def __init__(self, floor: str) -> None:
        self.accounts: Sequence[str] = ()
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

    def __init__(self, last: int) -> None:
        self.held: OrderedDict[str, MemoryLog] = OrderedDict()  # ordered by last append
        self.events = 0
        self.size = 0
        self.ledger = AccountUsage()
        # The logs of each account that have events, ordered by last append.
        self._of_account: dict[str, OrderedDict[str, None]] = {}
        self.deadlines = Deadlines(self.held)
        self._count = last
        self._last_id = _id_of(last)

    def append(self, op: Append, now: float) -> None:
        """Append an event to its log."""
        log = self._find_or_make(op.log, now)
        self._count += 1
        self._last_id = _id_of(self._count)
        log.events.append(LogEvent(self._last_id, op.data))
        self.events += 1
        self.size += len(op.data)
        log.size += len(op.data)
        self.held.move_to_end(op.log)
        if op.owner and not log.accounts:
            self._assign(op.log, log, names_of(op.owner))
        elif log.accounts:
            self.ledger.add(log.accounts, 1, len(op.data))
            for account in log.accounts:
                self._of_account[account].move_to_end(op.log)
        log.deadline = now + op.ttl
        self.deadlines.add(op.log, log.deadline)
        excess = len(log.events) - op.keep
        if op.keep_bytes is not None and log.size > op.keep_bytes:
            excess = max(excess, _count(log.events, log.size - op.keep_bytes))
        if excess > 0:
            self._drop(op.log, log, excess)

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

    def drop_oldest(self, written: Collection[str]) -> None:
        """Drop the log that has been idle for longest, or the oldest event of *written* logs."""
        name, log = next(iter(self.held.items()))
        if name in written:  # ordered by last append: every log with events is in *written*
            name = min(written, key=lambda name: self.held[name].events[0].id)
            self._drop(name, self.held[name], 1)
        elif log.events:
            self._drop(name, log, len(log.events))
        else:
            self.held.move_to_end(name)  # empty: retained for its followers

    def drop_oldest_of(self, account: str, written: Collection[str]) -> bool:
        """Drop the log of *account* that has been idle for longest; return whether there was one.

        Logs in *written*, the write that needs the room, lose their oldest event instead, but never
        the newest one.
        """
        names = self._of_account.get(account)
        if not names:
            return False
        name = next(iter(names))
        if name not in written:
            self._drop(name, self.held[name], len(self.held[name].events))
            return True
        long = [name for name in names if len(self.held[name].events) > 1]
        if long:
            name = min(long, key=lambda name: self.held[name].events[0].id)
            self._drop(name, self.held[name], 1)
        return bool(long)

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
        self.events -= count
        self.size -= size
        log.size -= size
        if log.accounts:
            self.ledger.add(log.accounts, -count, -size)
        del log.events[:count]
        if not log.events:
            log.deadline = inf
            self._unassign(name, log)
        self._forget_if_idle(name, log)

    def _assign(self, name: str, log: MemoryLog, accounts: Sequence[str]) -> None:
        log.accounts = accounts
        self.ledger.add(accounts, len(log.events), log.size)
        for account in accounts:
            self._of_account.setdefault(account, OrderedDict())[name] = None

    def _unassign(self, name: str, log: MemoryLog) -> None:
        for account in log.accounts:
            names = self._of_account[account]
            del names[name]
            if not names:
                del self._of_account[account]
        log.accounts = ()

    def _forget_if_idle(self, name: str, log: MemoryLog) -> None:
        if not log.events and not log.waiters:
            del self.held[name]


def _count(events: Sequence[LogEvent], size: int) -> int:
    """Return how many of the oldest *events* to drop to free at least *size* bytes.

    The newest event is never counted, so that fewer bytes may be freed.
    """
    count = 0
    while size > 0 and count < len(events) - 1:
        size -= len(events[count].data)
        count += 1
    return count
