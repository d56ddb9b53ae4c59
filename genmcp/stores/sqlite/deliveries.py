"""Deliveries in the file of a SQLiteStore."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from sqlite3 import Connection

from genmcp.stores.deliveries import Deliveries, Delivery
from genmcp.stores.sqlite.database import Database, Transaction
from genmcp.stores.waiter import Waiter

__all__ = ["SQLiteDeliveries"]


class SQLiteDeliveries(Deliveries):
    """Carries ids between the processes of one machine; `SQLiteStore.deliveries` is one."""

    def __init__(self, database: Callable[[], Database]) -> None:
        """*database* gives the one of the process it is called in."""
        self._database = database

    async def put(self, id: str, queue: str = "default", delay: float = 0.0) -> None:
        def change(transaction: Transaction) -> None:
            added = transaction.execute(
                "INSERT INTO deliveries (id, queue, due) VALUES (?, ?, ?)"
                " ON CONFLICT (id) DO NOTHING",
                (id, queue, transaction.now + delay),
            )
            transaction.news |= added.rowcount > 0

        await self._database().write(change)

    async def claim(
        self, queues: Collection[str], node: str, lease: float, limit: int
    ) -> Sequence[Delivery]:
        # Queue by queue: then it is the first rows of an index, however many are due.
        def is_any_due(connection: Connection, now: float) -> bool:
            return any(_first_due(connection, queue) <= now for queue in queues)

        def change(transaction: Transaction) -> list[Delivery]:
            now = transaction.now
            due: list[tuple[float, int, str, str]] = []
            for queue in queues:
                due += transaction.execute(
                    "SELECT due, number, id, queue FROM deliveries WHERE queue = ? AND due <= ?"
                    " ORDER BY due, number LIMIT ?",
                    (queue, now, limit),
                ).fetchall()
            longest = sorted(due)[:limit]
            for _, number, _, _ in longest:
                transaction.execute(
                    "UPDATE deliveries SET node = ?, due = ? WHERE number = ?",
                    (node, now + lease, number),
                )
            return [Delivery(id, queue) for _, _, id, queue in longest]

        return await self._database().write(change, needed=is_any_due) or []

    async def renew(self, node: str, ids: Collection[str], lease: float) -> Collection[str]:
        def change(transaction: Transaction) -> list[str]:
            until = transaction.now + lease
            return [id for id in ids if not _let(transaction, node, id, node, until)]

        return await self._database().write(change) or []

    async def lost(self, node: str, ids: Collection[str]) -> Collection[str]:
        def ask(connection: Connection, now: float) -> list[str]:
            return [id for id in ids if _holder(connection, id) != node]

        return await self._database().read(ask)

    async def release(self, node: str, id: str) -> None:
        def change(transaction: Transaction) -> None:
            transaction.news |= _let(transaction, node, id, None, transaction.now)

        await self._database().write(change)

    async def drop(self, node: str, id: str) -> None:
        def change(transaction: Transaction) -> None:
            transaction.execute("DELETE FROM deliveries WHERE id = ? AND node = ?", (id, node))

        await self._database().write(change)

    async def cancel(self, id: str) -> None:
        def change(transaction: Transaction) -> None:
            removed = transaction.execute("DELETE FROM deliveries WHERE id = ?", (id,))
            transaction.news |= removed.rowcount > 0

        await self._database().write(change)

    async def next_due(self, queues: Collection[str]) -> float | None:
        def ask(connection: Connection, now: float) -> float | None:
            due = min((_first_due(connection, queue) for queue in queues), default=inf)
            return None if due == inf else max(0.0, due - now)

        return await self._database().read(ask)

    @contextmanager
    def news(self) -> Iterator[Waiter]:
        database = self._database()
        with database.watch.of_news() as waiter:
            database.begin_to_watch()
            yield waiter


def _first_due(connection: Connection, queue: str) -> float:
    """Return when something in *queue* is due, `inf` if there is nothing."""
    (due,) = connection.execute(
        "SELECT min(due) FROM deliveries WHERE queue = ?", (queue,)
    ).fetchone()
    return inf if due is None else float(due)


def _holder(connection: Connection, id: str) -> str | None:
    row = connection.execute("SELECT node FROM deliveries WHERE id = ?", (id,)).fetchone()
    return row[0] if row else None


def _let(transaction: Transaction, node: str, id: str, holder: str | None, due: float) -> bool:
    """Let *holder* have the delivery that *node* holds, and say whether it does."""
    changed = transaction.execute(
        "UPDATE deliveries SET node = ?, due = ? WHERE id = ? AND node = ?",
        (holder, due, id, node),
    )
    return changed.rowcount > 0
