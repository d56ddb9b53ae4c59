"""Deliveries in a SQLite database.

Owners take turns by start-time fair queueing, with deliveries of equal size. A due delivery has a
*turn*, and deliveries are claimed in the order of turns. An owner's next delivery gets the turn
after its last one, but no lower turn than that of the delivery to be claimed next. Owners therefore
alternate, however many deliveries each has put, and each operation is an index look-up. A delivery
that waits for its delay, or is held, has no turn: a claim assigns one when the delivery is due.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from operator import itemgetter
from sqlite3 import Connection
from typing import Any, Final

from genmcp.stores.clocks import WakeSignal, steady
from genmcp.stores.deliveries import UNBOUNDED, Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.sqlite.database import Database
from genmcp.stores.sqlite.tables import Source, Transaction
from genmcp.stores.waiters import ANY_QUEUE, queue_name

_TURNS_PER_CLAIM: Final = 100  # assigned to deliveries that became due


class SQLiteDeliveries(Deliveries):
    """Deliveries in *database*. Owned by its store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(
        self, id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
    ) -> None:
        def change(transaction: Transaction) -> None:
            turn = _next_turn(transaction, queue, owner) if delay <= 0 else None
            added = transaction.execute(
                "INSERT INTO deliveries (id, queue, due, owner, turn) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO NOTHING",
                (id, queue, transaction.now + delay, owner, turn),
            )
            if added.rowcount:
                transaction.queues.add(queue)

        await self._database.write(change)

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
        started, full = steady(), share.full
        # Checked before, without a transaction: an idle worker must not block other writers. The
        # query reads only the first rows of an index, however many deliveries are due.
        if await self.next_due(queues, share) != 0:
            return []

        def change(transaction: Transaction) -> list[Delivery]:
            until, counts = transaction.now + lease, Counter(share.held)
            # If this claim had to wait for long, others may have been unable to renew their leases.
            if extension := lease if steady() - started > lease / 3 else takeover_delay:
                _extend_expired(transaction, queues, transaction.now + extension)
            due = [*map(partial(_due, transaction, limit, full), queues)]
            claimed: list[Delivery] = []
            while len(claimed) < limit and (left := [*filter(None, due)]):
                longest = min(left, key=itemgetter(0))
                _, number, id, queue, owner = longest.popleft()
                if owner and counts[owner] >= share.most:
                    continue  # this owner's share is full: the next claim excludes it
                counts[owner] += 1
                transaction.execute(
                    "UPDATE deliveries SET node = ?, due = ?, turn = NULL WHERE number = ?",
                    (holder, until, number),
                )
                claimed.append(Delivery(id, queue, owner))
            return claimed

        return await self._database.write(change)

    async def renew(self, holder: str, ids: Collection[str], lease: float) -> Collection[str]:
        def change(transaction: Transaction) -> list[str]:
            until = transaction.now + lease
            return [id for id in ids if not _transfer(transaction, holder, id, holder, until)]

        return await self._database.write(change)

    async def lost(self, holder: str, ids: Collection[str]) -> Collection[str]:
        def query(connection: Connection, now: float) -> list[str]:
            return [id for id in ids if _queue_and_holder(connection, id)[1] != holder]

        return await self._database.read(query)

    async def release(self, holder: str, id: str) -> None:
        def change(transaction: Transaction) -> None:
            if _transfer(transaction, holder, id, None, transaction.now):
                queue, _ = _queue_and_holder(transaction, id)
                transaction.queues.add(queue)

        await self._database.write(change)

    async def drop(self, holder: str, id: str) -> None:
        def change(transaction: Transaction) -> None:
            transaction.execute("DELETE FROM deliveries WHERE id = ? AND node = ?", (id, holder))

        await self._database.write(change)

    async def cancel(self, id: str) -> None:
        def change(transaction: Transaction) -> None:
            queue, _ = _queue_and_holder(transaction, id)
            if queue is not None:
                transaction.execute("DELETE FROM deliveries WHERE id = ?", (id,))
                transaction.queues.add(queue)

        await self._database.write(change)

    async def next_due(
        self, queues: Collection[str], share: OwnerShare = UNBOUNDED
    ) -> float | None:
        full = share.full

        def query(connection: Connection, now: float) -> float | None:
            due = min(map(partial(_first_due, connection, full), queues), default=inf)
            return None if due == inf else max(0.0, due - now)

        return await self._database.read(query)

    async def backlog(self, queue: str) -> Backlog:
        def query(connection: Connection, now: float) -> Backlog:
            # An expired lease counts as waiting, also if a claim has assigned a turn to it already.
            held, waiting, due = connection.execute(
                "SELECT total(node IS NOT NULL AND due > ?1), count(*), min(due)"
                "   FILTER (WHERE node IS NULL OR due <= ?1)"
                " FROM deliveries WHERE queue = ?2",
                (now, queue),
            ).fetchone()
            age = 0.0 if due is None else max(0.0, now - due)
            return Backlog(waiting - int(held), int(held), age)

        return await self._database.read(query)

    @contextmanager
    def news(self, queues: Collection[str] = ()) -> Iterator[WakeSignal]:
        with self._database.waiters.signal([*map(queue_name, queues)] or [ANY_QUEUE]) as signal:
            self._database.start_watching()
            yield signal


def _first_due(connection: Connection, full: Collection[str], queue: str) -> float:
    """Return when a delivery in *queue* is due: `-inf` if it has a turn, `inf` if it is empty.

    Deliveries with a turn are ignored if their owner is in *full*.
    """
    others = _without(full) if full else ""
    if connection.execute(
        f"SELECT 1 FROM deliveries WHERE queue = ? AND turn IS NOT NULL{others} LIMIT 1",
        (queue, *full),
    ).fetchone():
        return -inf
    (due,) = connection.execute(
        "SELECT min(due) FROM deliveries WHERE queue = ? AND turn IS NULL", (queue,)
    ).fetchone()
    return inf if due is None else float(due)


def _extend_expired(transaction: Transaction, queues: Collection[str], until: float) -> None:
    """Extend expired leases to *until*, so that their holders keep the deliveries."""
    for queue in queues:
        transaction.execute(
            "UPDATE deliveries SET due = ?, turn = NULL"
            " WHERE queue = ? AND node IS NOT NULL AND due <= ?",
            (until, queue, transaction.now),
        )


def _without(owners: Collection[str]) -> str:
    return f" AND owner NOT IN ({', '.join('?' * len(owners))})"


def _due(
    transaction: Transaction, limit: int, full: Collection[str], queue: str
) -> deque[tuple[float, int, str, str, str]]:
    """Return the first due deliveries of *queue*, in order, as (due, number, id, queue, owner).

    Deliveries of owners in *full* are left out.
    """
    waited = transaction.execute(
        "SELECT number, owner FROM deliveries WHERE queue = ? AND turn IS NULL AND due <= ?"
        " ORDER BY due, number LIMIT ?",
        (queue, transaction.now, max(limit, _TURNS_PER_CLAIM)),
    ).fetchall()
    for number, owner in waited:
        turn = _next_turn(transaction, queue, owner)
        transaction.execute("UPDATE deliveries SET turn = ? WHERE number = ?", (turn, number))
    others = _without(full) if full else ""
    rows = transaction.execute(
        "SELECT due, number, id, queue, owner FROM deliveries WHERE queue = ?"
        f" AND turn IS NOT NULL{others} ORDER BY turn, number LIMIT ?",
        (queue, *full, limit),
    )
    return deque(rows)


def _next_turn(transaction: Transaction, queue: str, owner: str) -> int:
    (turn,) = transaction.execute(
        "SELECT max(coalesce((SELECT max(turn) + 1 FROM deliveries"
        "  WHERE queue = ?1 AND owner = ?2 AND turn IS NOT NULL), 0),"
        " coalesce((SELECT min(turn) FROM deliveries WHERE queue = ?1 AND turn IS NOT NULL), 0))",
        (queue, owner),
    ).fetchone()
    return int(turn)


def _queue_and_holder(source: Source, id: str) -> tuple[Any, Any]:
    """Return the queue of *id* and its holder; None for those that do not exist."""
    row = source.execute("SELECT queue, node FROM deliveries WHERE id = ?", (id,)).fetchone()
    return row or (None, None)


def _transfer(transaction: Transaction, holder: str, id: str, to: str | None, due: float) -> bool:
    """Give the delivery that *holder* has to *to*; return False if *holder* does not have it."""
    changed = transaction.execute(
        "UPDATE deliveries SET node = ?, due = ?, turn = NULL WHERE id = ? AND node = ?",
        (to, due, id, holder),
    )
    return changed.rowcount > 0
