"""Ids on their way to whoever works on them: what `LocalEngine` stands on, and it in memory.

A delivery is an id in a queue. It is *due* when its delay is over and nobody holds it; a node that
claims it holds it for a lease, and when that runs out it is due again. So each is delivered at
least once, to whoever is alive, and it is gone only when its holder drops it or it is cancelled.

Each engine passes tests/stores/test_deliveries_contract.py.
"""

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from genmcp.stores.clocks import Waiter

__all__ = ["UNBOUNDED", "Deliveries", "Delivery", "OwnerShare"]


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
