"""The `Deliveries` interface: a queue of ids with leases, from which workers claim.

A delivery is an id in a queue. It is *due* when its delay has passed and no worker holds it. A
worker that claims it holds a lease on it; when the lease expires, the delivery is due again. Each
id is therefore delivered at least once, to a worker that is alive. It is removed only when its
holder acknowledges it with `drop`, or when it is cancelled.

A lease decides which worker is to work on an id. It does not prevent one that was suspended from
continuing after its lease has expired: `Task.claim` therefore assigns a fencing token to each claim
of a task, and writes with an earlier token are rejected.

Every implementation passes `DeliveriesContract` in tests/contracts.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from genmcp.stores.clocks import WakeSignal


class Delivery(NamedTuple):
    """A claimed id, its queue, and the owner that it was put for ("" if it has none)."""

    id: str
    queue: str
    owner: str = ""


class Backlog(NamedTuple):
    """The deliveries of one queue.

    Attributes:
        waiting: the number of deliveries that no worker holds: those that are due, including those
            whose lease has expired, and those that wait for their delay.
        held: the number of deliveries that workers hold.
        age: seconds since the oldest waiting delivery became due; 0 if none is due.
    """

    waiting: int
    held: int
    age: float


class OwnerShare:
    """A limit on the deliveries of each owner that one worker holds.

    Deliveries without an owner are not limited.

    Args:
        most: the maximum number of deliveries per owner.
        held: the number of deliveries of each owner that the worker holds already.

    Attributes:
        full: the owners that have reached the limit.
    """

    def __init__(self, most: int, held: Mapping[str, int]) -> None:
        self.most = most
        self.held = held
        self.full: set[str] = set()
        for owner, count in held.items():
            if owner and count >= most:
                self.full.add(owner)


UNBOUNDED: Final = OwnerShare(sys.maxsize, {})
"""The share of a worker without a limit per owner."""


class Deliveries(ABC):
    """Delivers ids to workers. Safe for any number of event loops and threads at the same time.

    *holder* is the name under which a worker holds its leases. It must be unique, also among the
    workers of one process, and those before a restart. Every method raises StoreUnavailable if the
    queue cannot be reached or was closed.

    This worker misses no delivery, and does not poll:

        with deliveries.news(queues) as news:
            while True:
                news.clear()
                claimed = await deliveries.claim(queues, holder, lease, free_slots)
                ...  # start them; stop those that `lost` returns
                with suppress(TimeoutError):
                    async with asyncio.timeout(await deliveries.next_due(queues)):
                        await news.wait()
    """

    @abstractmethod
    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        """Schedule the delivery of *id*. Do nothing if *id* is in a queue already, waiting or held.

        Args:
            id: any text, unique over all queues.
            queue: the queue to put it in. Default: "default".
            delay: seconds until it is due. Default 0.
            owner: the client it is for. The owners with due deliveries in a queue take turns, so
                that an owner with thousands of deliveries does not delay the first one of another.
        """

    @abstractmethod
    async def claim(
        self,
        queues: Collection[str],
        holder: str,
        lease: float,
        limit: int,
        *,
        takeover_delay: float = 0.0,
        share: OwnerShare = UNBOUNDED,
    ) -> Sequence[Delivery]:
        """Claim due deliveries for *holder*. No other worker can, until the lease expires.

        If the claim itself takes more than a third of *lease*, the store did not respond or this
        process was suspended. Other workers may have been unable to renew their leases for the same
        reason. Expired leases are then extended by *lease*, and not taken over.

        Args:
            queues: the queues to claim from. Within a queue, the deliveries of one owner are
                claimed in the order in which they became due. Of several queues, the one whose
                first delivery has been due for longest comes first.
            holder: the name under which the leases are held.
            lease: seconds until the lease expires, unless `renew` extends it.
            limit: the maximum number of deliveries to claim.
            takeover_delay: if above 0, deliveries with an expired lease are not claimed. Their
                lease is extended to *takeover_delay* seconds from now. Default 0.
            share: the limit per owner. Default: no limit.

        Returns:
            The claimed deliveries. They may include an id that *holder* still works on, because the
            lease expired while the process was suspended. Its lease counts as renewed: do not
            start the work again.
        """

    @abstractmethod
    async def renew(self, holder: str, ids: Collection[str], lease: float) -> Collection[str]:
        """Extend the leases of *holder* on *ids* to *lease* seconds from now.

        An expired lease is renewed as long as no other worker has claimed the delivery.

        Returns:
            The ids that *holder* does not hold: another worker has claimed them after the lease
            expired, or they were cancelled.
        """

    @abstractmethod
    async def lost(self, holder: str, ids: Collection[str]) -> Collection[str]:
        """Return those of *ids* that *holder* does not hold, like `renew`, but renew no lease."""

    @abstractmethod
    async def release(self, holder: str, id: str) -> None:
        """Make *id* due now, for any worker. Do nothing if *holder* does not hold it."""

    @abstractmethod
    async def drop(self, holder: str, id: str) -> None:
        """Remove *id*: the work is done. Do nothing if *holder* does not hold it."""

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Remove *id*, also if a worker holds it.

        The signal of `news` wakes its holder, which then learns of the cancellation from `lost`.
        """

    @abstractmethod
    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        """Return the seconds until a delivery in *queues* is due or its lease expires.

        0 if one is due now, None if the queues are empty. Due deliveries of owners whose *share* is
        full are ignored. Do not call this while the worker has no capacity: it returns 0 for as
        long as due deliveries are unclaimed, and the caller would spin.
        """

    @abstractmethod
    async def backlog(self, queue: str) -> Backlog:
        """Return how many deliveries of *queue* wait and are held, and for how long.

        Meant for monitoring: the cost may be proportional to the length of the queue.
        """

    @abstractmethod
    def news(self, queues: Collection[str] = ()) -> AbstractContextManager[WakeSignal]:
        """Return a context manager with a signal that is set by each put, release and cancel.

        The signal belongs to the running event loop. Call its `clear` before `claim` and `lost`,
        and its `wait` after them. It is also set when the queue is closed and, if the store is
        shared, by changes of other processes (SQLite: within 25 ms). It may be set without reason.

        Args:
            queues: the queues of interest. Default: all.
        """
