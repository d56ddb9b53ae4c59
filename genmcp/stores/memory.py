"""The store in the memory of this process: the default, and the reference for other stores."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from threading import Lock
from typing import Final

from genmcp.errors import ConfigurationError, StoreError
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage
from genmcp.stores.clocks import WakeSignal, unix_clock
from genmcp.stores.memory_deliveries import MemoryDeliveries, refuse
from genmcp.stores.memory_tables import NOTHING, Ledger, MemoryLogs, MemoryRecords, Undo
from genmcp.stores.store import (
    Append,
    FoundEntry,
    LogEvent,
    Op,
    Store,
    StoreEntry,
    StoreTotals,
    check_one_subject,
    room_of,
)

_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields


class MemoryStore(Store):
    """A store in the memory of this process.

    Expired entries are dropped when they are accessed, and a few others at each `apply`. There is
    no background task and no timer.

    Args:
        max_entries: the maximum number of records and events. Default 100,000.
        max_bytes: the maximum number of bytes in keys, values and event data. Default 64 MiB.
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
        clock: Callable[[], float] | None = None,
    ) -> None:
        if max_entries < 1:
            raise ConfigurationError(f"max_entries must be at least 1, not {max_entries}")
        self._capacity = Capacity(max_bytes, max_entries)
        self._clock = clock = clock or unix_clock()
        self._lock = Lock()
        self._now = clock  # raises StoreUnavailable once the store is closed
        self._deliveries = MemoryDeliveries(max_entries=max_entries, clock=clock)
        self._ledger = Ledger()
        self._records = MemoryRecords(self._ledger)
        # Event ids must be above those of every earlier process: a client may still have such an
        # id, and would otherwise skip events. The time in microseconds grows faster than any log.
        self._logs = MemoryLogs(time.time_ns() // 1000, self._ledger)

    def __repr__(self) -> str:
        records, used = len(self._records.held), self._ledger.of.get(EVERYTHING, NOTHING)
        return (
            f"<MemoryStore: {records} records, {used.entries - records} events in "
            f"{len(self._logs.held)} logs, {used.size} bytes>"
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
                if self._records.deadlines.first <= now or self._logs.deadlines.first <= now:
                    self._sweep(now)
                undo: list[Undo] = []
                try:
                    self._write(ops, now, undo)
                except StoreError:
                    for each in reversed(undo):
                        each()
                    raise
                self._logs.wake({op.log for op in ops if isinstance(op, Append)})
        except StoreError as error:
            self.outages.record(error)
            raise

    def _write(self, ops: Sequence[Op], now: float, undo: list[Undo]) -> None:
        """Perform *ops*, and then check that there was room for them."""
        room, used = room_of(self._capacity, ops), self._ledger.of.get
        before = [used(limit.account, NOTHING) for limit in room.limits]
        for op in ops:
            if isinstance(op, Append):
                undo.append(self._logs.append(op, now))
            else:
                undo.append(self._records.write(op, now))
        for limit, was in zip(room.limits, before, strict=True):
            while room.exceeded(limit, was, used(limit.account, NOTHING)):
                if not self._sweep(now) and not any(
                    self._logs.shorten(op.log) for op in ops if isinstance(op, Append)
                ):
                    raise self._capacity.refusal(limit.account, was)

    async def usage(self, account: str) -> Usage:
        with self._lock:
            now = self._now()
            while self._sweep(now):
                pass
            return self._ledger.of.get(account, NOTHING)

    async def totals(self) -> StoreTotals:
        with self._lock:
            self._now()
            return StoreTotals(self._ledger.of.get(EVERYTHING, NOTHING), self._capacity)

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
            self._ledger = Ledger()
            self._records = MemoryRecords(self._ledger)
            self._logs = MemoryLogs(0, self._ledger)
        self._deliveries.close()

    def _sweep(self, now: float) -> int:
        return self._records.sweep(now) + self._logs.sweep(now)
