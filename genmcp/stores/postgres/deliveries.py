"""Deliveries in a PostgreSQL database.

Owners take turns as in `SQLiteStore`: a due delivery has a *turn*, and deliveries are claimed in
the order of turns. An owner's next delivery gets the turn after its last one, but no lower turn
than that of the delivery to be claimed next. A delivery that waits for its delay, or is held, has
no turn: a claim assigns one when the delivery is due. Claims that run at the same time skip the
rows of each other (SKIP LOCKED). Two of them may assign the same turn, which only makes the order
between owners less exact.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from genmcp.stores.clocks import WakeSignal
from genmcp.stores.connections import ConnectionsByLoop
from genmcp.stores.deliveries import UNBOUNDED, Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.postgres.connections import (
    PostgresConnections,
    StatementKind,
    queue_tokens,
    single,
)
from genmcp.stores.postgres.server import Row
from genmcp.stores.postgres.statements import from_text, to_json, to_text


def _without_results(items: Sequence[Any], rows: Sequence[Row]) -> Sequence[Any]:
    return [()] * len(items)


_PUT: Final = StatementKind(
    sql="SELECT genmcp.put(%(puts)s::jsonb, %(now)s)::text",
    parameters=lambda items: {"puts": to_json(items)},
    results=_without_results,
)
_CLAIM: Final = single(
    "SELECT * FROM genmcp.claim(%(queues)s::text[], %(holder)s, %(lease)s, %(limit)s, %(delay)s,"
    " %(started)s, %(most)s, %(owners)s::text[], %(held)s::bigint[], %(full)s::text[], %(now)s)"
)
_RENEW: Final = single(
    "WITH mine AS (SELECT id FROM genmcp.deliveries"
    "  WHERE id = ANY (%(ids)s::text[]) AND node = %(holder)s ORDER BY id FOR UPDATE)"
    " UPDATE genmcp.deliveries AS d SET due = genmcp.clock(%(now)s) + %(lease)s, turn = NULL"
    " FROM mine WHERE d.id = mine.id RETURNING d.id"
)
_HELD: Final = single(
    "SELECT id FROM genmcp.deliveries WHERE id = ANY (%(ids)s::text[]) AND node = %(holder)s"
)
_RELEASE: Final = single(
    "WITH released AS (UPDATE genmcp.deliveries"
    "  SET node = NULL, due = genmcp.clock(%(now)s), turn = NULL"
    "  WHERE id = %(id)s AND node = %(holder)s RETURNING queue)"
    " SELECT genmcp.tell_queues(ARRAY[queue])::text FROM released"
)
_DROP: Final = StatementKind(
    sql="DELETE FROM genmcp.deliveries AS d"
    " USING unnest(%(ids)s::text[], %(holders)s::text[]) AS h(id, node)"
    " WHERE d.id = h.id AND d.node = h.node",
    parameters=lambda items: {
        "ids": [item["id"] for item in items],
        "holders": [item["holder"] for item in items],
    },
    results=_without_results,
)
_CANCEL: Final = single(
    "WITH removed AS (DELETE FROM genmcp.deliveries WHERE id = %(id)s RETURNING queue)"
    " SELECT genmcp.tell_queues(ARRAY[queue])::text FROM removed"
)
_NEXT_DUE: Final = single("SELECT genmcp.next_due(%(queues)s::text[], %(full)s::text[], %(now)s)")
# An expired lease counts as waiting, also if a claim has assigned a turn to it already.
_BACKLOG: Final = single(
    "SELECT count(*) FILTER (WHERE node IS NULL OR due <= now),"
    " count(*) FILTER (WHERE node IS NOT NULL AND due > now),"
    " greatest(0, max(now - due) FILTER (WHERE node IS NULL OR due <= now))"
    " FROM genmcp.deliveries, genmcp.clock(%(now)s) AS now WHERE queue = %(queue)s"
)


class PostgresDeliveries(Deliveries):
    """Deliveries between processes. Owned by a `PostgresStore`."""

    def __init__(self, connections: ConnectionsByLoop[PostgresConnections]) -> None:
        self._connections = connections

    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        put = {"i": to_text(id), "q": to_text(queue), "d": delay, "o": to_text(owner)}
        await self._request(_PUT, put)

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
        held = share.held
        rows = await self._request(
            _CLAIM,
            {
                "queues": _texts(queues),
                "holder": holder,
                "lease": lease,
                "limit": limit,
                "delay": takeover_delay,
                # By the clock of the server: the claim may reach it late, if it was suspended.
                "started": self._connections.here().clock.real(),
                "most": share.most,
                "owners": [to_text(owner) for owner in held],
                "held": list(held.values()),
                "full": _texts(share.full),
            },
        )
        return [Delivery(*map(from_text, row)) for row in rows]

    async def renew(self, holder: str, ids: Collection[str], lease: float) -> Collection[str]:
        item = {"holder": holder, "ids": _texts(ids), "lease": lease}
        return _without(ids, await self._request(_RENEW, item))

    async def lost(self, holder: str, ids: Collection[str]) -> Collection[str]:
        item = {"holder": holder, "ids": _texts(ids)}
        return _without(ids, await self._request(_HELD, item))

    async def release(self, holder: str, id: str) -> None:
        await self._request(_RELEASE, {"holder": holder, "id": to_text(id)})

    async def drop(self, holder: str, id: str) -> None:
        await self._request(_DROP, {"holder": holder, "id": to_text(id)})

    async def cancel(self, id: str) -> None:
        await self._request(_CANCEL, {"id": to_text(id)})

    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        item = {"queues": _texts(queues), "full": _texts(share.full)}
        ((due,),) = await self._request(_NEXT_DUE, item)
        return None if due is None else float(due)

    async def backlog(self, queue: str) -> Backlog:
        ((waiting, held, age),) = await self._request(_BACKLOG, {"queue": to_text(queue)})
        return Backlog(waiting, held, age)

    def news(self, queues: Collection[str] = ()) -> AbstractContextManager[WakeSignal]:
        return self._connections.here().signal(queue_tokens(map(to_text, queues)))

    async def _request(self, kind: StatementKind, item: Mapping[str, object]) -> Sequence[Row]:
        rows: Sequence[Row] = await self._connections.here().work.request(kind, item)
        return rows


def _texts(names: Collection[str]) -> list[str]:
    return [to_text(name) for name in dict.fromkeys(names)]


def _without(ids: Collection[str], held: Sequence[Row]) -> list[str]:
    found = {from_text(id) for (id,) in held}
    return [id for id in ids if id not in found]
