"""Ids on their way to whoever works on them: what `LocalEngine` stands on, and it in memory.

A delivery is an id in a queue. It is *due* when its delay is over and nobody holds it; a node that
claims it holds it for a lease, and when that runs out it is due again. So each is delivered at
least once, to whoever is alive, and it is gone only when its holder drops it or it is cancelled.

Each engine passes tests/stores/test_deliveries_contract.py.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf
from threading import Lock
from typing import Final, NamedTuple

from genmcp.errors import StoreUnavailable
from genmcp.stores.deadlines import Deadlines
from genmcp.stores.waiter import Waiter

__all__ = ["UNBOUNDED", "Deliveries", "Delivery", "MemoryDeliveries", "OwnerShare"]


class Delivery(NamedTuple):
    """A claimed id, the queue it was in, and the owner it was put for."""

    id: str
    queue: str
    owner: str = ""


class OwnerShare:
    """A bound on the deliveries of one owner that a node holds. Without an owner there is no bound.

    Args:
        most: the maximum number of deliveries per owner.
        held: the number of deliveries of each owner that the node holds already.
    """

    __slots__ = ("_held", "_most", "full")

    def __init__(self, most: int, held: Mapping[str, int]) -> None:
        self._most = most
        self._held = Counter(held)
        self.full: Collection[str] = {owner for owner in held if held[owner] >= most}
        """The owners that have reached the bound."""

    def copy(self) -> "OwnerShare":
        """Return a share that counts by itself from now on."""
        return OwnerShare(self._most, self._held)

    def take(self, owner: str) -> bool:
        """Count one more delivery of *owner*. Return False if the bound is reached."""
        if owner and self._held[owner] >= self._most:
            return False
        if owner:
            self._held[owner] += 1
            if self._held[owner] >= self._most:
                self.full = {*self.full, owner}
        return True


UNBOUNDED: Final = OwnerShare(sys.maxsize, {})
"""The share of a node without a bound per owner."""


class Deliveries(ABC):
    """Carries ids to nodes, for any number of event loops and threads at the same time.

    A *node* is any text that no other holder uses, also not one that held something before a
    restart. Each method raises StoreUnavailable if the engine could not be reached or is closed.

    A worker's loop, which misses nothing and polls nothing:

        with deliveries.news(queues) as news:
            while True:
                news.clear()
                claimed = await deliveries.claim(queues, node, lease, free_slots)
                ...  # begin them; stop what `lost` names
                with suppress(TimeoutError):
                    async with asyncio.timeout(await deliveries.next_due(queues)):
                        await news.wait()
    """

    @abstractmethod
    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        """Schedule the delivery of *id* in *delay* seconds (default: at once).

        Does nothing if *id* is there already, waiting or held. The owners with due deliveries in a
        queue take turns, so that an owner with thousands of deliveries does not delay the first one
        of another.
        """

    @abstractmethod
    async def claim(
        self,
        queues: Collection[str],
        node: str,
        lease: float,
        limit: int,
        *,
        spare: float = 0.0,
        share: OwnerShare = UNBOUNDED,
    ) -> Sequence[Delivery]:
        """Claim due deliveries of *queues* for *node*: at most *limit*, within *share*.

        Deliveries of one owner in one queue are claimed in the order in which they became due; of
        several queues, the one that has been due longest comes first. *node* holds the lease for
        *lease* seconds; until then no other node can claim the delivery. The result may contain an
        id that *node* still works on, because its lease expired while the process was frozen: treat
        it as renewed.

        With *spare* above 0, deliveries whose lease has expired are not claimed: their holder's
        lease is extended by *spare* seconds from now. It is extended by *lease* seconds if the
        claim itself took more than a third of *lease*, because the store did not respond or this
        process was suspended: the holder may have been unable to renew its lease, too.
        """

    @abstractmethod
    async def renew(self, node: str, ids: Collection[str], lease: float) -> Collection[str]:
        """Let *node* hold each of *ids* for *lease* seconds from now.

        Return those it does not hold: taken by another after the lease ran out, or cancelled. A
        lease that ran out is renewed as long as nobody took the delivery.
        """

    @abstractmethod
    async def lost(self, node: str, ids: Collection[str]) -> Collection[str]:
        """Return those of *ids* that *node* does not hold, as `renew` does, and change nothing."""

    @abstractmethod
    async def release(self, node: str, id: str) -> None:
        """Make *id* due now, for anybody. Nothing happens if *node* does not hold it."""

    @abstractmethod
    async def drop(self, node: str, id: str) -> None:
        """Forget *id*: the work is done. Nothing happens if *node* does not hold it."""

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Forget *id*, whoever holds it; the holder learns it from `news` and `lost`."""

    @abstractmethod
    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        """Return the seconds until something in *queues* is due or has an expired lease.

        0 if something is due now, None if the queues are empty. Do not call it while there is no
        capacity for more: it returns 0 as long as due deliveries are left unclaimed. Due deliveries
        of owners whose *share* is full are ignored.
        """

    @abstractmethod
    def news(self, queues: Collection[str] = ()) -> AbstractContextManager[Waiter]:
        """Give a Waiter, for the running loop, that is woken by each put, release and cancel.

        *queues* are those of interest; the default is all. It may be woken for other ones, too.
        By other processes' too if the store is shared (SQLite: within 25 ms), and when it is
        closed. Clear it before looking (`claim`, `lost`), wait after.
        """


class MemoryDeliveries(Deliveries):
    """Carries ids inside this process, at most *max_entries*.

    Beyond that `put` raises StoreUnavailable.
    """

    def __init__(
        self, *, max_entries: int = 100_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._lock = Lock()
        self._now = clock  # until the store is closed
        self._queues: dict[str, _Queue] = {}
        self._queue_of: dict[str, _Queue] = {}
        self._waiters: dict[Waiter, Collection[str]] = {}  # with the queues of interest

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
        spare: float = 0.0,
        share: OwnerShare = UNBOUNDED,
    ) -> Sequence[Delivery]:
        with self._lock:
            now = self._now()
            if spare:
                for name in queues:
                    if queue := self._queues.get(name):
                        queue.spare(now, now + spare)
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

    @contextmanager
    def news(self, queues: Collection[str] = ()) -> Iterator[Waiter]:
        waiter = Waiter()
        with self._lock:
            self._waiters[waiter] = queues
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)

    def close(self) -> None:
        """Refuse whatever is asked from now on; the store does it at its own end."""
        with self._lock:
            self._now = _refuse
            self._queues.clear()
            self._queue_of.clear()
            self._wake()

    def _first_due(
        self, queues: Collection[str], now: float, full: Collection[str]
    ) -> tuple[float, "_Queue | None"]:
        """Return when something in *queues* is due, and the queue in which it is due first."""
        first, found = inf, None
        for name in queues:
            if (queue := self._queues.get(name)) and (due := queue.next_due(now, full)) < first:
                first, found = due, queue
        return first, found

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


def _refuse() -> float:
    raise StoreUnavailable("the store is closed")


class _Held:
    __slots__ = ("deadline", "node", "owner")

    def __init__(self, deadline: float, owner: str) -> None:
        self.deadline = deadline  # due at this time: after its delay, or when the lease expires
        self.owner = owner
        self.node: str | None = None


class _Queue:
    """The deliveries of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[str, _Held] = {}
        # Due ids by owner. The owner whose turn is next comes first, and so does the id that became
        # due first.
        self._due: dict[str, dict[str, None]] = {}
        self._deadlines = Deadlines(self.held)

    def put(self, id: str, due: float, owner: str) -> None:
        self.held[id] = _Held(due, owner)
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
            self._due[owner] = ids  # behind the other owners
        return id, owner

    def spare(self, now: float, until: float) -> None:
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

    def _no_longer_due(self, id: str, owner: str) -> None:
        ids = self._due.get(owner)
        if ids is not None and id in ids:
            del ids[id]
            if not ids:
                del self._due[owner]
