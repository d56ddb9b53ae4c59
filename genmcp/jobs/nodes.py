"""Which processes are alive: each keeps a record that runs out when it is not renewed."""

import asyncio
from collections.abc import Collection

from genmcp.jobs.presence import Presence
from genmcp.stores.store import Delete, Put, Store

__all__ = ["Nodes"]


class Nodes:
    """The processes that share *store*, of which this is *own*.

    One that gives no sign of life for *lease* seconds is gone: what lived in it is lost. *presence*
    says when this one cannot tell. queues: those that this one serves.
    """

    def __init__(self, store: Store, own: str, lease: float, presence: Presence) -> None:
        self._store = store
        self.own = own
        self.lease = lease
        self.presence = presence
        self.queues: Collection[str] = ()  # that it serves

    async def beat(self) -> None:
        """Say that this one is alive and serves its queues, for a lease from now."""
        keys = [_key(self.own), *map(_served, self.queues)]
        await asyncio.gather(*(self._keep(key) for key in keys))
        self.presence.show()

    async def _keep(self, key: str) -> None:
        if not await self._store.touch(key, self.lease):
            await self._store.apply(Put(key, b"", ttl=self.lease))

    async def serves(self, queue: str) -> bool:
        """Whether a process serves *queue*, or did less than a lease ago."""
        return (
            queue in self.queues
            or await self._store.get(_served(queue)) is not None
            or self.presence.doubts
        )

    async def lives(self, node: str) -> bool:
        """Whether a process is alive, as far as this one can tell."""
        if node == self.own or self.presence.doubts:
            return True
        found = await self._store.get(_key(node)) is not None
        return found or self.presence.doubts  # this one may have been stopped meanwhile

    async def leave(self) -> None:
        """Say that this one is no longer there."""
        self.presence.forget()
        self.queues = ()
        await self._store.apply(Delete(_key(self.own)))


def _key(node: str) -> str:
    return f"node:{node}"


def _served(queue: str) -> str:
    return f"served:{queue}"
