"""The store in this process's memory: the default, and the reference for the other engines."""

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter
from threading import Lock
from typing import Final

from genmcp.errors import Conflict, Gap, OverShare, StoreFull, Unavailable
from genmcp.stores.accounts import Account, Bounds, Ledger, Usage, names_of
from genmcp.stores.deadlines import Deadlines
from genmcp.stores.deliveries import MemoryDeliveries
from genmcp.stores.store import Append, Delete, Entry, Event, Op, Put, Store
from genmcp.stores.waiter import Waiter

__all__ = ["MemoryStore"]

_READ_AT_ONCE: Final = 100  # events a follower holds while it yields them

_id = attrgetter("id")


class MemoryStore(Store):
    """Keeps everything in this process, up to *max_entries* records and events of *max_bytes*.

    Past a bound whole logs are dropped, first the one that was longest without an append; of the
    log that is being appended to the oldest events. Records are never dropped: what would need room
    that only records take raises StoreFull. Bytes are those of keys, values and events' data.

    The same holds for each account: past its share its own logs are dropped, and what only its
    records leave no room for raises OverShare. New work is refused while the *reserve*, a fraction
    of the store and of each share, is all that is left: steps of what is kept already need it.

    What has run out is dropped when it is met, and a few of the rest at each `apply`: there is no
    task, no timer and no loop here. *clock* gives seconds and never goes back.
    """

    shared = False
    durable = False

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        reserve: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = Bounds(max_bytes, max_entries, reserve)
        self._clock = clock
        self._lock = Lock()
        self._closed = False
        self._deliveries = MemoryDeliveries(max_entries=max_entries, clock=clock)
        self._records = _Records()
        # Ids begin where no earlier process, counting from its own start, can have come: a client
        # may still have one of those.
        self._logs = _Logs(time.time_ns() // 1000)

    def __repr__(self) -> str:
        records, logs = self._records, self._logs
        return (
            f"<MemoryStore: {len(records.held)} records, {logs.events} events in "
            f"{len(logs.held)} logs, {records.size + logs.size} bytes>"
        )

    @property
    def deliveries(self) -> MemoryDeliveries:
        return self._deliveries

    async def get(self, key: str) -> Entry | None:
        with self._lock:
            record = self._records.find(key, self._now())
            return record.entry if record else None

    async def apply(self, *ops: Op) -> None:
        with self._lock:
            now = self._now()
            self._sweep(now)
            staged = self._records.stage(ops, now)
            appends = [op for op in ops if isinstance(op, Append)]
            new = any(op.new for op in ops if not isinstance(op, Delete))
            self._make_room(staged, appends, now, new=new)
            accounts = {a.name: a for op in ops if not isinstance(op, Delete) for a in op.owner}
            if accounts:
                self._check_shares(accounts.values(), staged, appends, now, new=new)
            self._records.commit(staged)
            for op in appends:
                self._logs.append(op, now)
            written = {op.log for op in appends}
            for account in accounts.values():
                while self._is_over_share(account):
                    if not self._logs.drop_oldest_of(account.name, written):
                        break
            while self._over(self._logs.events, self._logs.size):
                self._logs.drop_oldest(written)
            self._logs.wake(written)

    async def usage(self, account: str) -> Usage:
        with self._lock:
            now = self._now()
            while self._sweep(now):
                pass
            return self._usage(account)

    async def touch(self, key: str, ttl: float) -> bool:
        with self._lock:
            return self._records.touch(key, ttl, self._now())

    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Sequence[Event]:
        with self._lock:
            return self._logs.since(log, after, limit, self._now())

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        waiter = Waiter()
        with self._lock:
            beginning = self._logs.enter(log, waiter, self._now())
        seen = beginning if after is None else after
        try:
            while True:
                waiter.clear()
                with self._lock:
                    events = self._logs.since(log, seen, _READ_AT_ONCE, self._now())
                for event in events:
                    yield event
                    seen = event.id
                if not events:
                    await waiter.wait()
        finally:
            with self._lock:
                self._logs.leave(log, waiter)

    async def aclose(self) -> None:
        with self._lock:
            self._closed = True
            self._logs.wake(self._logs.held)
            self._records, self._logs = _Records(), _Logs(0)
        self._deliveries.close()

    def _now(self) -> float:
        if self._closed:
            raise Unavailable("the store is closed")
        return self._clock()

    def _sweep(self, now: float) -> int:
        return self._records.sweep(now) + self._logs.sweep(now)

    def _make_room(
        self,
        staged: Mapping[str, "_Record | None"],
        appends: Sequence[Append],
        now: float,
        *,
        new: bool,
    ) -> None:
        """Refuse what would not fit even if all that is in the logs were dropped."""
        entries, size = self._records.growth(staged)
        entries += len(appends)
        size += sum(len(op.data) for op in appends)
        while setting := self._over(max(entries, 0), max(size, 0), new=new):
            if not self._sweep(now):
                raise StoreFull(
                    f"the memory store is full ({setting}): {self!r} cannot take {entries} entries "
                    f"and {size} bytes more; raise the setting, or let records run out sooner"
                )

    def _over(self, entries: int, size: int, *, new: bool = False) -> str | None:
        """Name the setting that so much beside the records would go past."""
        bounds, records = self._bounds, self._records
        most = bounds.entries_for(new=new)
        if entries and most is not None and len(records.held) + entries > most:
            return f"max_entries={bounds.entries}" + self._reserved(new)
        if size and records.size + size > bounds.size_for(new=new):
            return f"max_bytes={bounds.size}" + self._reserved(new)
        return None

    def _reserved(self, new: bool) -> str:
        return f", of which reserve={self._bounds.reserve} is not for new work" if new else ""

    def _check_shares(
        self,
        accounts: Iterable[Account],
        staged: Mapping[str, "_Record | None"],
        appends: Sequence[Append],
        now: float,
        *,
        new: bool,
    ) -> None:
        """Refuse what an account has no room for even if all of its logs were dropped."""
        for account in accounts:
            name = account.name
            while True:
                growth = self._records.growth_of(name, staged)
                mine = [len(op.data) for op in appends if any(a.name == name for a in op.owner)]
                growth = Usage(growth.entries + len(mine), growth.size + sum(mine))
                used = self._records.ledger.used(name)
                try:
                    self._bounds.check(account, used, growth, new=new)
                except OverShare:
                    if self._sweep(now):
                        continue
                    raise
                break

    def _is_over_share(self, account: Account) -> bool:
        used, bounds = self._usage(account.name), self._bounds
        most = bounds.entries_for(new=False)
        return used.size > account.share * bounds.size or (
            most is not None and used.entries > account.share * most
        )

    def _usage(self, account: str) -> Usage:
        records, logs = self._records.ledger.used(account), self._logs.ledger.used(account)
        return Usage(records.entries + logs.entries, records.size + logs.size)


class _Record:
    __slots__ = ("accounts", "deadline", "entry", "size")

    def __init__(
        self, key: str, value: bytes, version: int, deadline: float, accounts: Sequence[str]
    ) -> None:
        self.entry = Entry(value, version)
        self.deadline = deadline
        self.accounts = accounts
        self.size = len(key) + len(value)


class _Records:
    """The records, and when each runs out."""

    def __init__(self) -> None:
        self.held: dict[str, _Record] = {}
        self.size = 0
        self.ledger = Ledger()
        self._deadlines = Deadlines(self.held)
        self._version = 0  # the largest given yet

    def find(self, key: str, now: float) -> _Record | None:
        record = self.held.get(key)
        if record is not None and record.deadline <= now:
            self._drop(key)
            return None
        return record

    def touch(self, key: str, ttl: float, now: float) -> bool:
        record = self.find(key, now)
        if record is None:
            return False
        record.deadline = now + ttl
        self._deadlines.add(key, record.deadline)
        return True

    def stage(self, ops: Iterable[Op], now: float) -> dict[str, _Record | None]:
        """Return what *ops* would leave under each key they touch, and write nothing."""
        staged: dict[str, _Record | None] = {}
        for op in ops:
            if isinstance(op, Append):
                continue
            held = staged[op.key] if op.key in staged else self.find(op.key, now)
            version = held.entry.version if held else 0
            if op.expect is not None and op.expect != version:
                raise Conflict(f"{op.key!r}: version {op.expect} was expected, {version} is there")
            staged[op.key] = self._made(op, held, now) if isinstance(op, Put) else None
        return staged

    def growth(self, staged: Mapping[str, _Record | None]) -> tuple[int, int]:
        """Return by how many records, and how many bytes, *staged* is more than what is held."""
        held = [self.held[key] for key in staged if key in self.held]
        kept = [record for record in staged.values() if record]
        return len(kept) - len(held), sum(r.size for r in kept) - sum(r.size for r in held)

    def growth_of(self, account: str, staged: Mapping[str, _Record | None]) -> Usage:
        """Return by how much *staged* is more than what is held for *account*."""
        entries = size = 0
        for key, record in staged.items():
            held = self.held.get(key)
            if held is not None and account in held.accounts:
                entries, size = entries - 1, size - held.size
            if record is not None and account in record.accounts:
                entries, size = entries + 1, size + record.size
        return Usage(entries, size)

    def commit(self, staged: Mapping[str, _Record | None]) -> None:
        for key, record in staged.items():
            if key in self.held:
                self._drop(key)
            if record:
                self.held[key] = record
                self.size += record.size
                if record.accounts:
                    self.ledger.add(record.accounts, 1, record.size)
                self._deadlines.add(key, record.deadline)

    def sweep(self, now: float) -> int:
        """Drop some of what has run out, and return how much was looked at."""
        names = self._deadlines.due(now)
        for key in names:
            self.find(key, now)
        return len(names)

    def _made(self, op: Put, replaced: _Record | None, now: float) -> _Record:
        version = (replaced.entry.version if replaced else self._version) + 1
        self._version = max(self._version, version)
        accounts: Sequence[str] = ()
        if op.owner:
            accounts = names_of(op.owner)
        elif replaced:
            accounts = replaced.accounts
        deadline = inf if op.ttl is None else now + op.ttl
        return _Record(op.key, op.value, version, deadline, accounts)

    def _drop(self, key: str) -> None:
        record = self.held.pop(key)
        self.size -= record.size
        if record.accounts:
            self.ledger.add(record.accounts, -1, -record.size)


class _Log:
    __slots__ = ("accounts", "deadline", "events", "floor", "waiters")

    def __init__(self, floor: str) -> None:
        self.accounts: Sequence[str] = ()
        self.events: list[Event] = []
        self.floor = floor  # the id after which nothing was dropped
        self.deadline = inf
        self.waiters: set[Waiter] = set()


class _Logs:
    """The logs that have events or followers, and when each runs out.

    Ids are taken from one count for all logs, so that the floor of a log that begins anew, which is
    the last id given to any, is past every id it had before.
    """

    def __init__(self, last: int) -> None:
        self.held: OrderedDict[str, _Log] = OrderedDict()  # the longest without an append first
        self.events = 0
        self.size = 0
        self.ledger = Ledger()
        # The logs of each account that have events, the longest without an append first.
        self._of_account: dict[str, OrderedDict[str, None]] = {}
        self._deadlines = Deadlines(self.held)
        self._last = last

    def append(self, op: Append, now: float) -> None:
        log = self._find_or_make(op.log, now)
        self._last += 1
        log.events.append(Event(self._last_id, op.data))
        self.events += 1
        self.size += len(op.data)
        self.held.move_to_end(op.log)
        if op.owner and not log.accounts:
            self._assign(op.log, log, names_of(op.owner))
        elif log.accounts:
            self.ledger.add(log.accounts, 1, len(op.data))
            for account in log.accounts:
                self._of_account[account].move_to_end(op.log)
        log.deadline = now + op.ttl
        self._deadlines.add(op.log, log.deadline)
        if (excess := len(log.events) - op.keep) > 0:
            self._drop(op.log, log, excess)

    def since(self, name: str, after: str | None, limit: int, now: float) -> list[Event]:
        log = self._find(name, now)
        events = log.events if log else []
        if after is None:
            return events[:limit]
        at = bisect_right(events, after, key=_id)
        before = events[at - 1].id if at else log.floor if log else self._last_id
        if after != before:
            raise Gap(name, after)
        return events[at : at + limit]

    def enter(self, name: str, waiter: Waiter, now: float) -> str:
        """Let *waiter* be woken by appends, and return the id before the first event there is."""
        log = self._find_or_make(name, now)
        log.waiters.add(waiter)
        return log.floor

    def leave(self, name: str, waiter: Waiter) -> None:
        log = self.held.get(name)
        if log is None:  # the store was closed
            return
        log.waiters.discard(waiter)
        self._forget_if_idle(name, log)

    def wake(self, names: Iterable[str]) -> None:
        for name in names:
            log = self.held[name]
            for waiter in tuple(log.waiters):
                waiter.wake()
                if waiter.gone:
                    log.waiters.discard(waiter)

    def drop_oldest(self, written: Collection[str]) -> None:
        """Drop the log that was longest without an append, or the oldest event in *written*."""
        name, log = next(iter(self.held.items()))
        if name in written:  # and with it all that have events
            name = min(written, key=lambda name: self.held[name].events[0].id)
            self._drop(name, self.held[name], 1)
        elif log.events:
            self._drop(name, log, len(log.events))
        else:
            self.held.move_to_end(name)  # it is kept for its followers

    def drop_oldest_of(self, account: str, written: Collection[str]) -> bool:
        """Drop the log of *account* that was longest without an append.

        Of those in *written* the oldest event goes instead, but never the newest. Return whether
        anything was dropped.
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
        """Drop some of what has run out, and return how much was looked at."""
        names = self._deadlines.due(now)
        for name in names:
            self._find(name, now)
        return len(names)

    @property
    def _last_id(self) -> str:
        return f"{self._last:016x}"  # of one width: the order of the texts is that of the numbers

    def _find(self, name: str, now: float) -> _Log | None:
        log = self.held.get(name)
        if log is not None and log.deadline <= now:
            self._drop(name, log, len(log.events))
        return self.held.get(name)

    def _find_or_make(self, name: str, now: float) -> _Log:
        log = self._find(name, now)
        if log is None:
            log = self.held[name] = _Log(self._last_id)
        return log

    def _drop(self, name: str, log: _Log, count: int) -> None:
        """Drop the oldest *count* events, and the log if nothing holds it any more."""
        log.floor = log.events[count - 1].id
        size = sum(len(event.data) for event in log.events[:count])
        self.events -= count
        self.size -= size
        if log.accounts:
            self.ledger.add(log.accounts, -count, -size)
        del log.events[:count]
        if not log.events:
            log.deadline = inf
            self._unassign(name, log)
        self._forget_if_idle(name, log)

    def _assign(self, name: str, log: _Log, accounts: Sequence[str]) -> None:
        log.accounts = accounts
        self.ledger.add(accounts, len(log.events), sum(len(event.data) for event in log.events))
        for account in accounts:
            self._of_account.setdefault(account, OrderedDict())[name] = None

    def _unassign(self, name: str, log: _Log) -> None:
        for account in log.accounts:
            names = self._of_account[account]
            del names[name]
            if not names:
                del self._of_account[account]
        log.accounts = ()

    def _forget_if_idle(self, name: str, log: _Log) -> None:
        if not log.events and not log.waiters:
            del self.held[name]
