"""What the event loops of a store send, over a pool of connections for each of them.

Requests of one kind that wait together are sent in one statement: one round trip, one commit, one
notification. The writes of an event loop are sent one statement after the other, so that a write
whose caller was cancelled is never overtaken by the next one.

**Lost connections.** A statement that only reads, or may be repeated without harm, is sent again on
a new connection, until the time of the request is over. For a write whose outcome is unknown the
caller gets StoreUnavailable, but only when the write cannot take effect any more, or takes effect
before any later write to its subjects:

- the server has closed the connection: the process that served it has ended;
- or the server's clock has passed the time up to which the server accepts the write, which is part
  of the statement. A suspended server may read it minutes later, and rejects it then.
"""

import asyncio
import logging
import os
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from msgspec import Struct
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.stores.clocks import reconnect_pause, steady
from genmcp.stores.postgres.connection import (
    CLOCK_ERROR,
    PostgresConnection,
    PostgresOptions,
    Row,
    ServerClock,
    connect,
    is_lost,
    translated,
)
from genmcp.stores.postgres.listener import NotificationListener

_ATTEMPTS: Final = 5  # at a statement that the server has rolled back
# serialization_failure, deadlock_detected, and a write that genmcp.apply has found to be late
_ROLLED_BACK: Final = {"40001", "40P01", "GM002"}
_READ_ONLY: Final = "25006"  # another server may be the primary now
_OF_ALL: Final = (StoreError, ConfigurationError)  # errors that are not about a single request
_MAX_BYTES: Final = 1024 * 1024  # of the requests that are sent together
_NAME: Final = "genmcp.stores.postgres"

# The pool logs each attempt to connect and each connection that it replaces: the store has one
# record for an outage. Records of an application's own pools pass.
logging.getLogger("psycopg.pool").addFilter(lambda record: _NAME not in record.getMessage())


class StatementKind(Struct, frozen=True, eq=False):
    """A kind of statement, which performs several requests at once.

    Args:
        sql: the statement. `genmcp.` stands for the schema.
        parameters: returns the parameters for some items, given the time up to which the server
            accepts the statement.
        results: returns the result of each item, or the StoreError that it failed with.
        limit: the maximum number of items in one statement.
        repeatable: whether the statement may be sent again if its outcome is unknown.
    """

    sql: str
    parameters: Callable[[Sequence[Any], float], dict[str, object]]
    results: Callable[[Sequence[Any], Sequence[Row]], Sequence[Any]]
    limit: int = 100
    repeatable: bool = True


class _LaneRequest(NamedTuple):
    item: Any
    cost: int
    deadline: float
    future: "asyncio.Future[Any]"


class Lane:
    """Requests that are sent in turn. A task runs only while there are some.

    Args:
        loop: has the connections.
        most: how many statements may be under way at once. Default 1.
        writes: whether it is used for writes. Default True.
    """

    def __init__(self, loop: "LoopConnections", *, most: int = 1, writes: bool = True) -> None:
        self._loop = loop
        self._most = most
        self._writes = writes
        self._pending: dict[StatementKind, deque[_LaneRequest]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def request(self, kind: StatementKind, item: Any, cost: int = 0) -> "asyncio.Future[Any]":
        """Submit *item*, whose size is *cost* bytes, and return a future with its result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = _LaneRequest(item, cost, steady() + self._loop.options.timeout, future)
        self._pending.setdefault(kind, deque()).append(request)
        self.tasks = {task for task in self.tasks if not task.done()}
        if len(self.tasks) < self._most:
            self.tasks.add(asyncio.create_task(self._run(), name="genmcp-postgres"))
        return future

    def _settle(self, request: _LaneRequest, result: Any) -> None:
        """Complete the caller's future with the result or the error, unless it was cancelled."""
        error = result if isinstance(result, Exception) else None
        outages, future = self._loop.options.outages, request.future
        if error or outages.failing:
            outages.record(error, write=self._writes)
        if not future.done():
            (future.set_exception if error else future.set_result)(result)

    async def _run(self) -> None:
        while self._pending:
            kind = next(iter(self._pending))
            waiting, batch, size = self._pending.pop(kind), list[_LaneRequest](), 0
            while waiting and len(batch) < kind.limit and size < _MAX_BYTES:
                request = waiting.popleft()
                if not request.future.done():  # its caller was not cancelled
                    batch.append(request)
                    size += request.cost
            if waiting:
                self._pending[kind] = waiting  # after those of other kinds
            if batch:
                await self._perform(kind, batch)

    async def _perform(self, kind: StatementKind, batch: Sequence[_LaneRequest]) -> None:
        results: Sequence[Any] | None = None
        attempts = 0
        while results is None:
            attempts += 1
            try:
                results = await self._execute(kind, batch)
            except Exception as error:
                if getattr(error, "sqlstate", None) in _ROLLED_BACK and attempts < _ATTEMPTS:
                    self._loop.clock.expires = -inf  # the server's clock may have been set
                elif is_lost(error) and kind.repeatable and steady() < batch[0].deadline:
                    continue
                elif len(batch) > 1 and not is_lost(error) and not isinstance(error, _OF_ALL):
                    for request in batch:  # one must not fail because of another
                        await self._perform(kind, [request])
                    return
                else:
                    failure = translated(self._loop.options, self._loop.clock, error)
                    if isinstance(failure, StoreError):
                        # Others whose time is over do not wait for the next attempt.
                        batch = [*batch, *self._late()]
                    results = [failure] * len(batch)
        for request, result in zip(batch, results, strict=True):
            self._settle(request, result)

    def _late(self) -> Sequence[_LaneRequest]:
        """Return the requests whose time is over."""
        waiting = [each for queue in self._pending.values() for each in queue]
        return [each for each in waiting if each.deadline <= steady() and not each.future.done()]

    async def _execute(self, kind: StatementKind, batch: Sequence[_LaneRequest]) -> Sequence[Any]:
        timeout, clock = self._loop.options.timeout, self._loop.clock
        items = [request.item for request in batch]
        async with self._loop.connection(batch[0].deadline) as connection:
            if steady() > clock.expires:
                async with asyncio.timeout(timeout):
                    await clock.measure(connection)
            until = clock.now() + timeout
            async with asyncio.timeout(timeout + CLOCK_ERROR):  # see above: until it is certain
                rows = await connection.fetch(kind.sql, kind.parameters(items, until))
        return kind.results(items, rows)


class LoopConnections:
    """The connections of one event loop, opened when they are needed.

    Deliveries have a lane of their own, so that a large write does not delay the renewal of a
    lease. psycopg's pool tries to connect again after growing pauses of up to minutes, and does not
    report errors: here an attempt is made while a request waits, and the request gets the error.
    """

    def __init__(self, options: PostgresOptions, clock: ServerClock) -> None:
        self.options = options
        self.clock = clock
        self.listener = NotificationListener(options)
        self.writes = Lane(self)
        self.work = Lane(self)
        # A connection is left for each of the others.
        self.reads = Lane(self, most=max(1, options.connections - 2), writes=False)
        self._failure: BaseException | None = None  # of the latest attempt to connect
        self._closed = False
        self._opened: WeakSet[PostgresConnection] = WeakSet()
        self._pool = AsyncConnectionPool(
            connection_class=PostgresConnection,
            kwargs={"opening": self._connect},
            min_size=0,
            max_size=options.connections,
            reconnect_timeout=0,
            name=_NAME,
            open=False,
        )

    @asynccontextmanager
    async def connection(self, deadline: float) -> AsyncIterator[PostgresConnection]:
        """Lend a connection, which is closed if it is lost; try to connect until *deadline*.

        Raises:
            StoreUnavailable: the server cannot be reached, or the store is closed.
            ConfigurationError: the server rejects the connection.
        """
        connection = await self._taken(deadline)
        try:
            yield connection
        except Exception as error:
            if is_lost(error) or getattr(error, "sqlstate", None) == _READ_ONLY:
                await connection.close()
            raise
        finally:
            await self._pool.putconn(connection)

    async def aclose(self) -> None:
        """Complete the statements that are under way, and disconnect."""
        self._closed = True
        await self._pool.close(timeout=1.0)
        await self.listener.aclose()
        if tasks := self.writes.tasks | self.work.tasks | self.reads.tasks:
            await asyncio.wait(tasks)
        self.drop()

    def drop(self) -> None:
        """Disconnect without waiting: the event loop was closed. From any thread."""
        for connection in self._opened:
            connection.pgconn.finish()

    async def _taken(self, deadline: float) -> PostgresConnection:
        failures, self._failure = 0, None
        while not self._closed:
            failures += 1
            try:
                await self._pool.open()
                # It makes an attempt to connect, unless one is under way.
                connection = await self._pool.getconn(reconnect_pause(failures))
                if not connection.is_broken():
                    return connection
                await self._pool.putconn(connection)  # which replaces it
            except (PoolTimeout, PoolClosed):
                text = f"{self.options.address}: no connection in {self.options.timeout} seconds"
                error = self._failure or StoreUnavailable(text)
                if isinstance(error, ConfigurationError) or steady() > deadline:
                    raise error from None
        raise StoreUnavailable(f"{self.options.address}: the store is closed")

    async def _connect(self) -> PostgresConnection:
        try:
            connection = await connect(self.options)
        except BaseException as error:
            self._failure = error
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()):
                # The worker of the pool takes that for a failed attempt, and would not end with its
                # event loop.
                task.cancel()
            raise
        self._failure = None
        self._opened.add(connection)
        return connection


class ConnectionRegistry:
    """The connections of all event loops of this process. Owned by a store."""

    def __init__(self, options: PostgresOptions) -> None:
        self.options = options
        self.clock = ServerClock()
        self._closed = False
        # By process: a child that was forked leaves the connections of its parent alone.
        self._loops = defaultdict[int, dict[asyncio.AbstractEventLoop, LoopConnections]](dict)

    def current(self) -> LoopConnections:
        """Return the connections of the running event loop.

        Raises:
            StoreUnavailable: the store is closed.
        """
        loop, loops = asyncio.get_running_loop(), self._loops[os.getpid()]
        found = loops.get(loop)
        if found is None:
            if self._closed:
                raise StoreUnavailable(f"{self.options.address}: the store is closed")
            for each in tuple(loops):
                if each.is_closed() and (left := loops.pop(each, None)):
                    left.drop()
            found = loops[loop] = LoopConnections(self.options, self.clock)
        return found

    async def aclose(self) -> None:
        """Close the connections of all event loops, and wake all waiters."""
        self._closed = True
        for loop, connections in self._loops.pop(os.getpid(), {}).items():
            if loop is asyncio.get_running_loop():
                await connections.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(connections.aclose(), loop)
            else:
                connections.drop()
