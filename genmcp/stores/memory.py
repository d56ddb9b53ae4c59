"""The store in this process's memory: the default, and the reference for the other engines."""

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from operator import attrgetter
from threading import Lock
from typing import Final

from genmcp.errors import ConfigurationError, Conflict, Gap, Unavailable
from genmcp.stores.deadlines import Deadlines
from genmcp.stores.deliveries import MemoryDeliveries
from genmcp.stores.store import Append, Entry, Event, Op, Put, Store
from genmcp.stores.waiter import Waiter

__all__ = ["MemoryStore"]

_READ_AT_ONCE: Final = 100  # events a follower holds while it yields them

_id = attrgetter("id")


class MemoryStore(Store):
    """Keeps everything in this process, up to *max_entries* records and events of *max_bytes*.

    Past a bound whole logs are dropped, first the one that was longest without an append; of the
    log that is being appended to the oldest events. Records are never dropped: what would need room
    that only records take raises Unavailable. Bytes are those of keys, values and events' data.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if value < 1:
                raise ConfigurationError(f"{name}: {value} is less than 1")
        self._max_entries = max_entries
        self._max_bytes = max_bytes
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
            self._make_room(staged, appends, now)
            self._records.commit(staged)
            for op in appends:
                self._logs.append(op, now)
            written = {op.log for op in appends}
            while self._over(self._logs.events, self._logs.size):
                self._logs.drop_oldest(written)
            self._logs.wake(written)

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
        self, staged: Mapping[str, "_Record | None"], appends: Sequence[Append], now: float
    ) -> None:
        """Refuse what would not fit even if all that is in the logs were dropped."""
        entries, size = self._records.growth(staged)
        entries += len(appends)
        size += sum(len(op.data) for op in appends)
        while setting := self._over(max(entries, 0), max(size, 0)):
            if not self._sweep(now):
                raise Unavailable(
                    f"the memory store is full ({setting}): {self!r} cannot take {entries} entries "
                    f"and {size} bytes more; raise the setting, or let records run out sooner"
                )

    def _over(self, entries: int, size: int) -> str | None:
        """Name the setting that so much beside the records would go past."""
        if entries and len(self._records.held) + entries > self._max_entries:
            return f"max_entries={self._max_entries}"
        if size and self._records.size + size > self._max_bytes:
            return f"max_bytes={self._max_bytes}"
        return None


class _Record:
    __slots__ = ("deadline", "entry", "size")

    def __init__(self, key: str, value: bytes, version: int, deadline: float) -> None:
        self.entry = Entry(value, version)
        self.deadline = deadline
        self.size = len(key) + len(value)


class _Records:
    """The records, and when each runs out."""

    def __init__(self) -> None:
        self.held: dict[str, _Record] = {}
        self.size = 0
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
            staged[op.key] = self._made(op, version, now) if isinstance(op, Put) else None
        return staged

    def growth(self, staged: Mapping[str, _Record | None]) -> tuple[int, int]:
        """Return by how many records, and how many bytes, *staged* is more than what is held."""
        held = [self.held[key] for key in staged if key in self.held]
        kept = [record for record in staged.values() if record]
        return len(kept) - len(held), sum(r.size for r in kept) - sum(r.size for r in held)

    def commit(self, staged: Mapping[str, _Record | None]) -> None:
        for key, record in staged.items():
            if key in self.held:
                self._drop(key)
            if record:
                self.held[key] = record
                self.size += record.size
                self._deadlines.add(key, record.deadline)

    def sweep(self, now: float) -> int:
        """Drop some of what has run out, and return how much was looked at."""
        names = self._deadlines.due(now)
        for key in names:
            self.find(key, now)
        return len(names)

    def _made(self, op: Put, replaced: int, now: float) -> _Record:
        version = (replaced or self._version) + 1
        self._version = max(self._version, version)
        return _Record(op.key, op.value, version, inf if op.ttl is None else now + op.ttl)

    def _drop(self, key: str) -> None:
        self.size -= self.held.pop(key).size


class _Log:
    __slots__ = ("deadline", "events", "floor", "waiters")

    def __init__(self, floor: str) -> None:
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
        self._deadlines = Deadlines(self.held)
        self._last = last

    def append(self, op: Append, now: float) -> None:
        log = self._find_or_make(op.log, now)
        self._last += 1
        log.events.append(Event(self._last_id, op.data))
        self.events += 1
        self.size += len(op.data)
        self.held.move_to_end(op.log)
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
        self.events -= count
        self.size -= sum(len(event.data) for event in log.events[:count])
        del log.events[:count]
        if not log.events:
            log.deadline = inf
        self._forget_if_idle(name, log)

    def _forget_if_idle(self, name: str, log: _Log) -> None:
        if not log.events and not log.waiters:
            del self.held[name]
