"""Which processes are alive: each keeps a record that runs out when it is not renewed."""

from genmcp.jobs.presence import Presence
from genmcp.stores.store import Delete, Put, Store

__all__ = ["Nodes"]


class Nodes:
    """The processes that share *store*, of which this is *own*.

    One that gives no sign of life for *lease* seconds is gone: what lived in it is lost. *presence*
    says when this one cannot tell.
    """

    def __init__(self, store: Store, own: str, lease: float, presence: Presence) -> None:
        self._store = store
        self.own = own
        self.lease = lease
        self.presence = presence

    async def beat(self) -> None:
        """Say that this one is alive, for a lease from now."""
        if not await self._store.touch(_key(self.own), self.lease):
            await self._store.apply(Put(_key(self.own), b"", ttl=self.lease))
        self.presence.show()

    async def lives(self, node: str) -> bool:
        """Whether a process is alive, as far as this one can tell."""
        if node == self.own or self.presence.doubts:
            return True
        found = await self._store.get(_key(node)) is not None
        return found or self.presence.doubts  # this one may have been stopped meanwhile

    async def leave(self) -> None:
        """Say that this one is no longer there."""
        self.presence.forget()
        await self._store.apply(Delete(_key(self.own)))


def _key(node: str) -> str:
    return f"node:{node}"
