"""A part of a store: several muxes may share one, and none sees what another keeps in it."""

from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from genmcp.stores.accounts import Usage
from genmcp.stores.store import Append, Entry, Event, Op, Store

__all__ = ["ScopedStore"]


class ScopedStore(Store):
    """The records and logs of *store* whose names begin with *scope*; here they are without it."""

    def __init__(self, store: Store, scope: str) -> None:
        self._store = store
        self._prefix = f"{scope}/"
        self.shared = store.shared
        self.durable = store.durable

    def __repr__(self) -> str:
        return f"<{self._prefix} in {self._store!r}>"

    def now(self) -> float:
        return self._store.now()

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(self._prefix + key)

    async def apply(self, *ops: Op) -> None:
        await self._store.apply(*map(self._scoped, ops))

    async def usage(self, account: str) -> Usage:
        return await self._store.usage(account)

    async def touch(self, key: str, ttl: float) -> bool:
        return await self._store.touch(self._prefix + key, ttl)

    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Sequence[Event]:
        return await self._store.read(self._prefix + log, after, limit)

    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        return self._store.follow(self._prefix + log, after)

    async def aclose(self) -> None:
        """Let go of nothing: the store is whoever's it is."""

    def _scoped(self, op: Op) -> Op:
        if isinstance(op, Append):
            return replace(op, log=self._prefix + op.log)
        return replace(op, key=self._prefix + op.key)
