"""The connections of an event loop to a PostgreSQL server.

Requests of one kind that wait together are sent in one statement: one round trip, one commit, one
notification.

**Lost connections.** A statement that only reads, or may be repeated without harm, is sent again on
a new connection, until the time of the request is over. For a write whose outcome is unknown the
caller gets StoreUnavailable, but only when the write cannot take effect any more, or takes effect
before any later write to its subjects:

- the server has said that it ends the process that served it (a shutdown or crash);
- or the server's clock has passed the time up to which the server accepts the write, which is part
  of the statement. A suspended server may read it minutes later, and rejects it then.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import CLOCK_ERROR, steady
from genmcp.stores.connections import LoopConnections
from genmcp.stores.lanes import Again, Lane, Late, RequestKind
from genmcp.stores.postgres.server import (
    DatabaseError,
    PostgresConnection,
    PostgresOptions,
    Row,
    connect,
    is_lost,
)
from genmcp.stores.waiters import ANY_QUEUE

# serialization_failure, deadlock_detected, and a write that genmcp.apply has found to be late
_ROLLED_BACK: Final = {"40001", "40P01", "GM002"}
# Connect anew: another server may be the primary now, or the server's clock may have been set.
_UNFIT: Final = {"25006", "GM002"}
# Classes of errors of the data of one item: cardinality, data, constraints, limits of a program.
_OF_AN_ITEM: Final = ("21", "22", "23", "54")
_MAX_TOKENS: Final = 700  # in one notification, whose payload has less than 8000 bytes
_EVERYTHING: Final = "*"


class StatementKind(RequestKind, frozen=True, eq=False, kw_only=True):
    """A kind of statement, which performs several requests at once.

    Args:
        sql: the statement. `genmcp.` stands for the schema. It may have parameters `now`, the time
            of a test, and `until`, the time up to which the server accepts the statement.
        parameters: returns the other parameters for some items.
        results: returns the result of each item.
        limit: the maximum number of items in one statement.
        repeatable: whether the statement may be sent again if its outcome is unknown.
    """

    sql: str
    parameters: Callable[[Sequence[Any]], dict[str, object]]
    results: Callable[[Sequence[Any], Sequence[Row]], Sequence[Any]]
    repeatable: bool = True


def single(
    sql: str,
    parameters: Callable[[Any], dict[str, object]] = lambda item: item,
    result: Callable[[Sequence[Row]], Any] = lambda rows: rows,
) -> StatementKind:
    """Return a kind of statement for one item at a time."""
    return StatementKind(
        sql=sql,
        parameters=lambda items: parameters(items[0]),
        results=lambda items, rows: [result(rows)],
        limit=1,
    )


def log_token(name: str) -> str:
    """Return the short name of a log in notifications. Two logs may have the same one."""
    return "l" + _digest(name)


def queue_tokens(queues: Iterable[str]) -> Collection[str]:
    """Return the names under which a worker of *queues* waits; without any: of all queues."""
    return ["q" + _digest(queue) for queue in queues] or [ANY_QUEUE]


def payload_of(tokens: Iterable[str]) -> str:
    """Return the payload of a notification."""
    distinct = set(tokens)
    return " ".join(distinct) if len(distinct) <= _MAX_TOKENS else _EVERYTHING


def _digest(name: str) -> str:
    # As in genmcp.tell_queues.
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:8]


def _is_of_an_item(error: Exception, state: str | None) -> bool:
    """Return whether other items of the same statement may have caused no *error*."""
    return not is_lost(error) and (state is None or state.startswith(_OF_AN_ITEM))


class PostgresConnections(LoopConnections):
    """The connections of one event loop. Owned by a `PostgresStore`.

    There is one for writes, one for deliveries, so that a large write does not delay the renewal of
    a lease, one for reads, and one that listens for notifications. They are made when they are
    needed. A process is woken for its own writes, too, by the notification that is part of their
    transaction.

    Attributes:
        work: the requests of deliveries.
    """

    def __init__(self, options: PostgresOptions, sweep: StatementKind) -> None:
        name, outages, timeout = options.address, options.outages, options.timeout
        super().__init__(name, options.server_clock, outages, timeout)
        self.work = Lane(name, self.send, outages, timeout, writes=True)
        self._options = options
        self._sweep = sweep
        self._idle: list[PostgresConnection] = []

    def lanes(self) -> Sequence[Lane]:
        return (*super().lanes(), self.work)

    async def send(self, kind: Any, items: Sequence[Any]) -> Sequence[Any]:
        try:
            connection = await self.in_time(self._taken())
        except (StoreUnavailable, ConfigurationError) as error:
            return self.not_sent(self._options.failure(error), len(items))
        # Until then, something on the way to the server may hold the statement back.
        over = asyncio.get_running_loop().time() + self.timeout + CLOCK_ERROR
        try:
            times = {"now": self._options.now, "until": self.clock.real() + self.timeout}
            async with asyncio.timeout_at(over):
                rows = await connection.fetch(
                    self._options.in_schema(kind.sql), {**kind.parameters(items), **times}
                )
            results: Sequence[Any] = kind.results(items, rows)
            return results
        except Exception as error:
            failure, state = self._options.failure(error), getattr(error, "sqlstate", None)
            if is_lost(error) or state in _UNFIT:
                connection.pgconn.finish()
            if state in _ROLLED_BACK or (is_lost(error) and kind.repeatable):
                return [Again(failure)] * len(items)
            if is_lost(error) and state is None:
                return [Late(failure, over)] * len(items)
            if len(items) == 1 or not _is_of_an_item(error, state):
                return [failure] * len(items)
            # One must not fail because of another one: each is sent alone.
            return [each for item in items for each in await self.send(kind, [item])]
        finally:
            if not connection.closed:
                self._idle.append(connection)

    async def keep(self) -> None:
        more = True
        while more:
            sent = steady()
            more, time = await self.writes.request(self._sweep, None)
            self.clock.measure(sent, steady(), time)

    async def listen(self) -> None:
        connection = await self._opened()
        try:
            async with asyncio.timeout(self.timeout):
                await connection.fetch(f'LISTEN "{self._options.schema}.news"')
            self.waiters.wake_all()  # they read what was written before
            async for notification in connection.notifies():
                tokens = notification.payload.split()
                if _EVERYTHING in tokens:
                    self.waiters.wake_all()
                else:
                    is_queue = any(token.startswith("q") for token in tokens)
                    self.waiters.wake([*tokens, ANY_QUEUE] if is_queue else tokens)
        except (DatabaseError, TimeoutError):
            pass  # the operations of the waiters raise it
        finally:
            connection.pgconn.finish()

    async def disconnect(self) -> None:
        for connection in self._idle:
            connection.pgconn.finish()
        self._idle.clear()

    def changed(self, name: str) -> None:
        """Do nothing: all notifications are in one channel."""

    async def _taken(self) -> PostgresConnection:
        """Return an idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_broken():
                return connection
            connection.pgconn.finish()
        return await self._opened()

    async def _opened(self) -> PostgresConnection:
        async with self._connecting:
            return await self.attempt(partial(connect, self._options))
