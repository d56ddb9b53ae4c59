"""Which processes are alive: each has a record that expires unless it is renewed."""

import asyncio
from collections.abc import Collection

from genmcp.stores.store import Delete, Put, Store
from genmcp.tasks.presence import Presence

__all__ = ["Heartbeats"]


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
