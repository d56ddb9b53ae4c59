"""Heartbeats: which processes are alive, and whether this one can judge that.

Each process has a record that expires unless it is renewed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from math import inf

from genmcp.stores.clocks import steady
from genmcp.stores.store import Delete, Put, Store

__all__ = ["Heartbeats", "Presence"]

logger = logging.getLogger("genmcp")


class Presence:
    """The signs of life of this process, as accepted by its store.

    A process is gone when it has given no sign of life for a lease. A process that has given none
    itself for a third of a lease was away: it was suspended, its event loop was blocked, the
    machine slept, the store was unavailable, or a clock was set. The same may have prevented the
    signs of other processes. It therefore does not take them for gone until they have had a full
    lease to show that they are alive.

    A process that has just started cannot know what happened before: it does not take others for
    gone until a third of a lease after its own first sign of life. Living processes give signs of
    life and renew their leases at least as often.

    Args:
        lease: seconds without a sign of life after which a process is gone.
        wall: returns the time of the store's clock, which may be set; leases are measured by it.
        clock: returns seconds, and cannot be set.
    """

    def __init__(
        self, lease: float, wall: Callable[[], float], clock: Callable[[], float] = steady
    ) -> None:
        self._lease = lease
        self._wall = wall
        self._clock = clock
        self._shown: tuple[float, float] | None = None
        self._new_until = -inf
        self._away_until = -inf

    @property
    def doubts(self) -> bool:
        """Whether others may be alive although they have given no sign of life for a lease."""
        return self.doubt > 0

    @property
    def doubt(self) -> float:
        """For how many more seconds others may be alive without a sign of life; 0: they are not."""
        if self._shown is None:
            return self._lease / 3
        if self._away() > self._lease / 3:
            return self._lease
        return max(0.0, max(self._new_until, self._away_until) - self._clock())

    @property
    def was_away(self) -> bool:
        """Whether this process was away less than a lease ago, or still is."""
        return self._clock() < self._away_until or self._away() > self._lease / 3

    def show(self) -> None:
        """Record that the store has accepted a sign of life of this process."""
        if self._shown is None:
            self._new_until = self._clock() + self._lease / 3
        if (away := self._away()) > self._lease / 3:
            self._away_until = self._clock() + self._lease
            logger.warning(
                "this process was away for %.1f seconds (stopped, blocked, without its store, or a "
                "clock was set): for a lease of %g seconds it takes no other process for gone",
                away,
                self._lease,
            )
        self._shown = self._clock(), self._wall()

    def forget(self) -> None:
        """Expect no signs of life until the next one: this process stops working."""
        self._shown = None

    def _away(self) -> float:
        """Return the seconds since the last sign of life, or by which a clock was set since."""
        if self._shown is None:
            return 0.0
        shown, at = self._shown
        passed = self._clock() - shown
        return max(passed, abs(self._wall() - at - passed))


class Heartbeats:
    """The processes that share *store*; *own* is the name of this one.

    A process without a heartbeat for *lease* seconds is considered gone, and what lived in it lost.
    *presence* tells when this process cannot judge that. Keys begin with *prefix*. queues: the
    queues that this process serves.
    """

    def __init__(
        self, store: Store, own: str, lease: float, presence: Presence, prefix: str = ""
    ) -> None:
        self._store = store
        self._prefix = prefix
        self.own = own
        self.lease = lease
        self.presence = presence
        self.queues: Collection[str] = ()  # served by this process

    async def beat(self) -> None:
        """Renew the records of this process and its queues for another lease."""
        keys = [self._node(self.own), *map(self._served, self.queues)]
        await asyncio.gather(*(self._keep(key) for key in keys))
        self.presence.show()

    async def _keep(self, key: str) -> None:
        if not await self._store.touch(key, self.lease):
            await self._store.apply(Put(key, b"", ttl=self.lease))

    async def serves(self, queue: str) -> bool:
        """Return whether a process serves *queue*, or did less than a lease ago."""
        return (
            queue in self.queues
            or await self._store.get(self._served(queue)) is not None
            or self.presence.was_away
        )

    async def lives(self, node: str) -> bool:
        """Return whether the process *node* is alive, as far as this one can tell."""
        if node == self.own or self.presence.doubts:
            return True
        found = await self._store.get(self._node(node)) is not None
        return found or self.presence.doubts  # this process may have been suspended during the read

    async def leave(self) -> None:
        """Remove the record of this process."""
        self.presence.forget()
        self.queues = ()
        await self._store.apply(Delete(self._node(self.own)))

    def _node(self, node: str) -> str:
        return f"{self._prefix}node:{node}"

    def _served(self, queue: str) -> str:
        return f"{self._prefix}served:{queue}"
