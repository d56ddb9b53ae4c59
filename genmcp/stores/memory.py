"""The store in the memory of this process: the default, and the reference for other stores."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from threading import Lock
from typing import Final

from genmcp.errors import OverShare, StoreError, StoreFull
from genmcp.stores.accounts import Account, Capacity, Usage
from genmcp.stores.clocks import WakeSignal, unix_clock
from genmcp.stores.memory_deliveries import MemoryDeliveries, refuse
from genmcp.stores.memory_tables import MemoryLogs, MemoryRecords, StagedWrite
from genmcp.stores.store import (
    FoundEntry,
    LogEvent,
    Op,
    Store,
    StoreEntry,
    StoreTotals,
    check_one_subject,
)

_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields
_NOTHING: Final = (0, 0)


class MemoryStore(Store):
    """A store in the memory of this process.

    When the store is full, whole logs are dropped, starting with the log that has been idle for
    longest. Of the log that is being appended to, the oldest events are dropped. Records are never
    dropped: a write that does not fit beside the records raises StoreFull. The same applies to each
    account. When its share is used up, its own logs are dropped, and a write that does not fit
    beside its records raises OverShare.

    Expired entries are dropped when they are accessed, and a few others at each `apply`. There is
    no background task and no timer.

    Args:
        max_entries: the maximum number of records and events. Default 100,000.
        max_bytes: the maximum number of bytes in keys, values and event data. Default 64 MiB.
        reserve: the fraction of the store, and of each client's share, that new work may not use:
            updates of stored work need it. Default 0.1.
        clock: returns Unix time. Default: a clock that setting the system time does not affect.

    Raises:
        ConfigurationError: one of them is out of range.
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
        self._bounds = Capacity(max_bytes, max_entries, reserve)
        self._clock = clock = clock or unix_clock()
        # The maximum entries and bytes that a write may fill; index True: for new work.
        entries, size = max_entries, max_bytes
        self._room = ((entries, size), (entries * (1 - reserve), size * (1 - reserve)))
        self._lock = Lock()
        self._now = clock  # raises StoreUnavailable once the store is closed
        self._deliveries = MemoryDeliveries(max_entries=max_entries, clock=clock)
        self._records = MemoryRecords()
        # Event ids must be above those of every earlier process: a client may still have such an
        # id, and would otherwise skip events. The time in microseconds grows faster than any log.
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

    async def get(self, key: str) -> StoreEntry | None:
        with self._lock:
            record = self._records.find(key, self._now())
            return record.entry if record else None

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        with self._lock:
            return self._records.labelled(label, after, limit, self._now())

    async def count(self, label: str) -> int:
        with self._lock:
            now = self._now()
            while self._sweep(now):
                pass
            return self._records.count(label)

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        try:
            with self._lock:
                now = self._now()
                records, logs = self._records, self._logs
                if records.deadlines.first <= now or logs.deadlines.first <= now:
                    self._sweep(now)
                write = records.stage(ops, now)
                self._make_room(write, now)
                accounts = write.accounts
                tight = accounts and not self._have_ample(write)
                if tight:
                    self._check_shares(write, now)
                records.commit(write.records)
                written: set[str] = set()
                for op in write.appends:
                    logs.append(op, now)
                    written.add(op.log)
                for account in accounts if tight else ():
                    while self._is_over_share(account):
                        if not logs.drop_oldest_of(account.name, written):
                            break
                while self._over(logs.events, logs.size):
                    logs.drop_oldest(written)
                logs.wake(written)
        except StoreError as error:
            self.outages.record(error)
            raise

    async def usage(self, account: str) -> Usage:
        with self._lock:
            now = self._now()
            while self._sweep(now):
                pass
            return self._usage(account)

    async def totals(self) -> StoreTotals:
        with self._lock:
            self._now()
            records, logs = self._records, self._logs
            used = Usage(len(records.held) + logs.events, records.size + logs.size)
            return StoreTotals(used, self._bounds)

    async def touch(self, key: str, ttl: float) -> bool:
        with self._lock:
            return self._records.touch(key, ttl, self._now())

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        with self._lock:
            return self._logs.since(log, after, limit, self._now())

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        waiter = WakeSignal()
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
        self.outages.closed = True
        with self._lock:
            self._now = refuse
            self._logs.wake(self._logs.held)
            self._records, self._logs = MemoryRecords(), MemoryLogs(0)
        self._deliveries.close()

    def _sweep(self, now: float) -> int:
        return self._records.sweep(now) + self._logs.sweep(now)

    def _make_room(self, write: StagedWrite, now: float) -> None:
        """Check that the write fits if all logs are dropped; remove expired entries until it does.

        Raises:
            StoreFull: it does not fit.
        """
        entries = max(write.entries - write.replaced_entries, 0)
        size = max(write.size - write.replaced_size, 0)
        while setting := self._over(entries, size, new=write.new):
            if not self._sweep(now):
                raise StoreFull(
                    f"the memory store is full ({setting}): {self!r} cannot take {entries} entries "
                    f"and {size} bytes more; raise the setting, or give records a shorter ttl"
                )

    def _over(self, entries: int, size: int, *, new: bool = False) -> str | None:
        """Return the setting that the given entries and bytes would exceed, None if they fit.

        They are counted in addition to the records.
        """
        records, (most, largest) = self._records, self._room[new]
        if entries and len(records.held) + entries > most:
            return f"max_entries={self._bounds.entries}" + self._reserved(new)
        if size and records.size + size > largest:
            return f"max_bytes={self._bounds.size}" + self._reserved(new)
        return None

    def _reserved(self, new: bool) -> str:
        return f", of which reserve={self._bounds.reserve} is not for new work" if new else ""

    def _have_ample(self, write: StagedWrite) -> bool:
        """Return True if the write certainly fits into the shares; False if that is unknown.

        This is a cheap check, for the common case of a client far below its share. It counts each
        operation in full, as if the operation replaced nothing and no log could be dropped.
        """
        records, logs = self._records.ledger.of, self._logs.ledger.of
        most, largest = self._room[write.new]
        for account in write.accounts:
            kept, size = records.get(account.name, _NOTHING)
            events, events_size = logs.get(account.name, _NOTHING)
            if (
                (account.most is not None and kept + write.entries > account.most)
                or size + events_size + write.size > account.share * largest
                or kept + events + write.entries > account.share * most
            ):
                return False
        return True

    def _check_shares(self, write: StagedWrite, now: float) -> None:
        """Check that the accounts have room for the write if all of their logs are dropped.

        Raises:
            OverShare: an account has no room.
        """
        for account in write.accounts:
            name = account.name
            while True:
                growth = self._records.growth_of(name, write.records)
                mine = [
                    len(op.data)
                    for op in write.appends
                    if any(each.name == name for each in op.owner)
                ]
                growth = Usage(growth.entries + len(mine), growth.size + sum(mine))
                used = self._records.ledger.used(name)
                try:
                    self._bounds.check(account, used, growth, new=write.new)
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
