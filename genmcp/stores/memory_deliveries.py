"""The deliveries of a `MemoryStore`."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock

from genmcp.errors import StoreUnavailable
from genmcp.stores.clocks import Deadlines, WakeSignal
from genmcp.stores.deliveries import UNBOUNDED, Backlog, Deliveries, Delivery, OwnerShare


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
            self._now = refuse
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


def refuse() -> float:
    """Raise StoreUnavailable: this is the clock of a closed store."""
    raise StoreUnavailable("the store is closed")
