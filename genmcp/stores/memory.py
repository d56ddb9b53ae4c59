"""The store in this process's memory: the default, and the reference for the other engines."""

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from threading import Lock
from typing import Final

from genmcp.errors import OverShare, StoreFull, Unavailable
from genmcp.stores.accounts import Account, Bounds, Owner, Usage
from genmcp.stores.clocks import unix_clock
from genmcp.stores.deliveries import MemoryDeliveries
from genmcp.stores.memory_tables import MemoryLogs, MemoryRecord, MemoryRecords
from genmcp.stores.store import (
    Append,
    Delete,
    Entry,
    Event,
    Op,
    Put,
    Store,
    check_one_subject,
)
from genmcp.stores.waiter import Waiter

__all__ = ["MemoryStore"]

_READ_AT_ONCE: Final = 100  # events a follower holds while it yields them


class MemoryStore(Store):
    """A store in the memory of this process, bounded by *max_entries* and *max_bytes*.

    Entries are records and events; bytes are those of keys, values and event data. When a bound is
    reached, whole logs are dropped, the one without an append for longest first; of the log that is
    being appended to, the oldest events are dropped. Records are never dropped: a write that does
    not fit beside them raises StoreFull.

    The same applies to each account: when its share is used up, its own logs are dropped, and a
    write that does not fit beside its records raises OverShare. New work is rejected once only
    *reserve* is left, a fraction of the store and of each share (default 0.1), which updates of
    stored work still need.

    Expired entries are dropped when they are accessed, and a few others at each `apply`: there is
    no background task and no timer. *clock* returns Unix time; the default is not affected when
    the system time is set.
    """

    shared = False
    durable = False

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        reserve: float = 0.1,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._bounds = Bounds(max_bytes, max_entries, reserve)
        self._clock = clock = clock or unix_clock()
        self._lock = Lock()
        self._closed = False
        self._deliveries = MemoryDeliveries(max_entries=max_entries, clock=clock)
        self._records = MemoryRecords()
        # Ids begin where no earlier process, counting from its own start, can have come: a client
        # may still have one of those.
        self._logs = MemoryLogs(time.time_ns() // 1000)

    def __repr__(self) -> str:
        records, logs = self._records, self._logs
        return (
            f"<MemoryStore: {len(records.held)} records, {logs.events} events in "
            f"{len(logs.held)} logs, {records.size + logs.size} bytes>"
        )

    @property
    def deliveries(self) -> MemoryDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._clock()

    async def get(self, key: str) -> Entry | None:
        with self._lock:
            record = self._records.find(key, self._now())
            return record.entry if record else None

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        with self._lock:
            now = self._now()
            self._sweep(now)
            staged = self._records.stage(ops, now)
            appends = [op for op in ops if isinstance(op, Append)]
            new = False
            accounts: Owner = ()
            for op in ops:
                if isinstance(op, Delete):
                    continue
                new = new or op.new
                if op.owner is not accounts and op.owner:
                    accounts = tuple({a.name: a for a in (*accounts, *op.owner)}.values())
            self._make_room(staged, appends, now, new=new)
            tight = accounts and not self._have_ample(accounts, ops, new=new)
            if tight:
                self._check_shares(accounts, staged, appends, now, new=new)
            self._records.commit(staged)
            for op in appends:
                self._logs.append(op, now)
            written = {op.log for op in appends}
            for account in accounts if tight else ():
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
            self._records, self._logs = MemoryRecords(), MemoryLogs(0)
        self._deliveries.close()

    def _now(self) -> float:
        if self._closed:
            raise Unavailable("the store is closed")
        return self._clock()

    def _sweep(self, now: float) -> int:
        return self._records.sweep(now) + self._logs.sweep(now)

    def _make_room(
        self,
        staged: Mapping[str, MemoryRecord | None],
        appends: Sequence[Append],
        now: float,
        *,
        new: bool,
    ) -> None:
        """Check that the write fits once all logs are dropped; sweep expired entries for it.

        Raises:
            StoreFull: it does not fit.
        """
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
        """Return the setting that the given entries and bytes would exceed, None if they fit.

        They are counted in addition to the records.
        """
        bounds, records = self._bounds, self._records
        most = bounds.entries_for(new=new)
        if entries and most is not None and len(records.held) + entries > most:
            return f"max_entries={bounds.entries}" + self._reserved(new)
        if size and records.size + size > bounds.size_for(new=new):
            return f"max_bytes={bounds.size}" + self._reserved(new)
        return None

    def _reserved(self, new: bool) -> str:
        return f", of which reserve={self._bounds.reserve} is not for new work" if new else ""

    def _have_ample(self, accounts: Owner, ops: Sequence[Op], *, new: bool) -> bool:
        """Return whether *ops* fit into the shares for certain: a cheap, conservative check.

        It counts each operation in full, as if nothing were replaced and no log were dropped.
        """
        size = 0
        for op in ops:
            if isinstance(op, Put):
                size += len(op.key) + len(op.value)
            elif isinstance(op, Append):
                size += len(op.data)
        bounds, records, logs = self._bounds, self._records.ledger, self._logs.ledger
        most, largest = bounds.entries_for(new=new), bounds.size_for(new=new)
        for account in accounts:
            (kept, kept_size), (said, said_size) = records[account.name], logs[account.name]
            if (
                account.most is not None
                or kept_size + said_size + size > account.share * largest
                or (most is not None and kept + said + len(ops) > account.share * most)
            ):
                return False
        return True

    def _check_shares(
        self,
        accounts: Owner,
        staged: Mapping[str, MemoryRecord | None],
        appends: Sequence[Append],
        now: float,
        *,
        new: bool,
    ) -> None:
        """Check that *accounts* have room for the write once all of their logs are dropped.

        Raises:
            OverShare: one of them has no room.
        """
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
