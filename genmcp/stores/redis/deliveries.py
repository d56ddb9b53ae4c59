"""Deliveries in the server of a RedisStore. deliveries.lua describes how they are stored."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import msgpack

from genmcp.stores.clocks import WakeSignal
from genmcp.stores.connections import ConnectionsByLoop
from genmcp.stores.deliveries import UNBOUNDED, Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.redis.connections import RedisConnections
from genmcp.stores.redis.scripts import DELIVERIES, micros
from genmcp.stores.waiters import ANY_QUEUE, queue_name


class RedisDeliveries(Deliveries):
    """Deliveries between all processes that share the server. Owned by a `RedisStore`."""

    def __init__(self, connections: ConnectionsByLoop[RedisConnections]) -> None:
        self._connections = connections

    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        await self._run("put", id, queue, max(0, micros(delay)), owner)

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
        started, extension = micros(self._connections.here().clock.real()), micros(takeover_delay)
        most, held = (-1, {}) if share is UNBOUNDED else (share.most, share.held)
        times = (micros(lease), limit, extension, started)
        claimed = await self._run("claim", tuple(queues), holder, *times, most, held)
        names = [each.decode() for each in claimed]
        return [Delivery(*row) for row in zip(names[::3], names[1::3], names[2::3], strict=True)]

    async def renew(self, holder: str, ids: Collection[str], lease: float) -> Collection[str]:
        lost = await self._run("renew", holder, tuple(ids), micros(lease))
        return [id.decode() for id in lost]

    async def lost(self, holder: str, ids: Collection[str]) -> Collection[str]:
        return [id.decode() for id in await self._run("lost", holder, tuple(ids), 0)]

    async def release(self, holder: str, id: str) -> None:
        await self._run("release", holder, (id,), 0)

    async def drop(self, holder: str, id: str) -> None:
        await self._run("drop", holder, (id,), 0)

    async def cancel(self, id: str) -> None:
        await self._run("cancel", id)

    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        due = await self._run("next_due", tuple(queues), tuple(share.full))
        return None if due is None else int(due) / 1_000_000

    async def backlog(self, queue: str) -> Backlog:
        waiting, held, age = await self._run("backlog", queue)
        return Backlog(int(waiting), int(held), int(age) / 1_000_000)

    def news(self, queues: Collection[str] = ()) -> AbstractContextManager[WakeSignal]:
        return self._connections.here().signal([*map(queue_name, queues)] or [ANY_QUEUE])

    async def _run(self, operation: str, *args: object) -> Any:
        return await self._connections.here().run(DELIVERIES, operation, msgpack.encode(args))
