"""The store in the memory of this process: the default, and the reference for other stores."""

import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock
from typing import Final

from genmcp.errors import OverShare, StoreFull, StoreUnavailable
from genmcp.stores.accounts import Account, Capacity, Usage
from genmcp.stores.clocks import Deadlines, WakeSignal, unix_clock
from genmcp.stores.deliveries import UNBOUNDED, Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.memory_tables import MemoryLogs, MemoryRecords, StagedWrite
from genmcp.stores.store import FoundEntry, LogEvent, Op, Store, StoreEntry, check_one_subject

_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields
_NOTHING: Final = (0, 0)


class MemoryDeliveries(Deliveries):
    """Deliveries within this process. Owned by a `MemoryStore`.

    Args:
        max_entries: the maximum number of ids; beyond it `put` raises StoreUnavailable. Default
            100,000.
        clock: returns seconds. Default: `time.monotonic`.
    """

    def __init__(
        self, *, max_entries: int = 100_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._lock = Lock()
        self._now = clock  # raises StoreUnavailable once the store is closed
        self._queues: dict[str, _Queue] = {}
        self._queue_of: dict[str, _Queue] = {}
        self._waiters: dict[WakeSignal, Collection[str]] = {}  # by signal: the queues of interest

    def __repr__(self) -> str:
        return f"<MemoryDeliveries: {len(self._queue_of)} in {len(self._queues)} queues>"

    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        with self._lock:
            now = self._now()
            if id in self._queue_of:
                return
            if len(self._queue_of) >= self._max_entries:
                raise StoreUnavailable(f"{self!r} is full (max_entries={self._max_entries})")
            into = self._queues.setdefault(queue, _Queue(queue))
            into.put(id, now + delay, owner)
            self._queue_of[id] = into
            self._wake(queue)

    async def claim(
        self,
        queues: Collection[str],
        node: str,
        lease: float,
        limit: int,
        *,
        takeover_delay: float = 0.0,
        share: OwnerShare = UNBOUNDED,
    ) -> Sequence[Delivery]:
        with self._lock:
            now = self._now()
            if takeover_delay:
                for name in queues:
                    if queue := self._queues.get(name):
                        queue.extend_expired(now, now + takeover_delay)
            claimed: list[Delivery] = []
            while len(claimed) < limit:
                due, longest = self._first_due(queues, now, share.full)
                if longest is None or due > now:
                    break
                id, owner = longest.take(node, now + lease, share.full)
                share.take(owner)
                claimed.append(Delivery(id, longest.name, owner))
            return claimed

    async def renew(self, node: str, ids: Collection[str], lease: float) -> Collection[str]:
        with self._lock:
            until = self._now() + lease
            lost = []
            for id in ids:
                if queue := self._holding(node, id):
                    queue.hold(id, node, until)
                else:
                    lost.append(id)
            return lost

    async def lost(self, node: str, ids: Collection[str]) -> Collection[str]:
        with self._lock:
            self._now()
            return [id for id in ids if self._holding(node, id) is None]

    async def release(self, node: str, id: str) -> None:
        with self._lock:
            now = self._now()
            if queue := self._holding(node, id):
                queue.hold(id, None, now)
                self._wake(queue.name)

    async def drop(self, node: str, id: str) -> None:
        with self._lock:
            self._now()
            if self._holding(node, id):
                self._forget(id)

    async def cancel(self, id: str) -> None:
        with self._lock:
            self._now()
            if queue := self._queue_of.get(id):
                self._forget(id)
                self._wake(queue.name)

    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        with self._lock:
            now = self._now()
            due, _ = self._first_due(queues, now, share.full)
            return None if due == inf else max(0.0, due - now)

    async def backlog(self, queue: str) -> Backlog:
        with self._lock:
            now = self._now()
            found = self._queues.get(queue)
            return found.backlog(now) if found else Backlog(0, 0, 0.0)

    @contextmanager
    def news(self, queues: Collection[str] = ()) -> Iterator[WakeSignal]:
        waiter = WakeSignal()
        with self._lock:
            self._waiters[waiter] = queues
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)

    def close(self) -> None:
        """Make all later calls raise StoreUnavailable, and wake the waiters."""
        with self._lock:
            self._now = _refuse
            self._queues.clear()
            self._queue_of.clear()
            self._wake()

    def _first_due(
        self, queues: Collection[str], now: float, full: Collection[str]
    ) -> tuple[float, "_Queue | None"]:
        """Return when a delivery in *queues* is due first, and its queue."""
        first, earliest = inf, None
        for name in queues:
            if (queue := self._queues.get(name)) and (due := queue.next_due(now, full)) < first:
                first, earliest = due, queue
        return first, earliest

    def _holding(self, node: str, id: str) -> "_Queue | None":
        """Return the queue of *id* if *node* holds it."""
        queue = self._queue_of.get(id)
        return queue if queue and queue.held[id].node == node else None

    def _forget(self, id: str) -> None:
        queue = self._queue_of.pop(id)
        queue.forget(id)
        if not queue.held:
            del self._queues[queue.name]

    def _wake(self, queue: str | None = None) -> None:
        """Wake the waiters for *queue*; None: all of them."""
        for waiter, queues in tuple(self._waiters.items()):
            if (queue is None or not queues or queue in queues) and not waiter.wake():
                del self._waiters[waiter]


class _QueuedId:
    __slots__ = ("deadline", "node", "owner")

    def __init__(self, deadline: float, owner: str) -> None:
        self.deadline = deadline  # when its delay has passed, or its lease expires
        self.owner = owner
        self.node: str | None = None


class _Queue:
    """The deliveries of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[str, _QueuedId] = {}
        # Due ids by owner, in the order of the next claims: the first owner is next, and of its ids
        # the one that became due first.
        self._due: dict[str, dict[str, None]] = {}
        self._deadlines = Deadlines(self.held)

    def put(self, id: str, due: float, owner: str) -> None:
        self.held[id] = _QueuedId(due, owner)
        self._deadlines.add(id, due)

    def hold(self, id: str, node: str | None, until: float) -> None:
        held = self.held[id]
        self._no_longer_due(id, held.owner)
        held.node, held.deadline = node, until
        self._deadlines.add(id, until)

    def take(self, node: str, until: float, full: Collection[str]) -> tuple[str, str]:
        """Hold the next delivery for *node*; return its id and owner."""
        owner = next(owner for owner in self._due if owner not in full)
        ids = self._due[owner]
        id = next(iter(ids))
        self.hold(id, node, until)
        if ids:
            del self._due[owner]
            self._due[owner] = ids  # this owner is now behind the other owners
        return id, owner

    def extend_expired(self, now: float, until: float) -> None:
        """Extend expired leases to *until*, so that their holders keep the deliveries."""
        self.next_due(now, ())
        for id in [id for ids in self._due.values() for id in ids]:
            if (node := self.held[id].node) is not None:
                self.hold(id, node, until)

    def forget(self, id: str) -> None:
        self._no_longer_due(id, self.held.pop(id).owner)

    def next_due(self, now: float, full: Collection[str]) -> float:
        while self._deadlines.first <= now:
            for id in self._deadlines.due(now):
                held = self.held.get(id)
                if held is not None and held.deadline <= now:
                    self._due.setdefault(held.owner, {})[id] = None
        for owner, waiting in self._due.items():
            if owner not in full:
                return self.held[next(iter(waiting))].deadline
        return self._deadlines.next()

    def backlog(self, now: float) -> Backlog:
        waiting = [
            each.deadline
            for each in self.held.values()
            if each.node is None or each.deadline <= now
        ]
        age = max(0.0, now - min(waiting, default=now))
        return Backlog(len(waiting), len(self.held) - len(waiting), age)

    def _no_longer_due(self, id: str, owner: str) -> None:
        ids = self._due.get(owner)
        if ids is not None and id in ids:
            del ids[id]
            if not ids:
                del self._due[owner]


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

    async def usage(self, account: str) -> Usage:
        with self._lock:
            now = self._now()
            while self._sweep(now):
                pass
            return self._usage(account)

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
        with self._lock:
            self._now = _refuse
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


def _refuse() -> float:
    raise StoreUnavailable("the store is closed")
