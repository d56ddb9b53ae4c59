"""Statements of one event loop, combined and executed on a few connections.

Requests of one kind that wait together are sent in one statement: one round trip, one commit, one
notification. All writes of an event loop go over one connection, one statement after the other, so
that a write whose caller was cancelled is never overtaken by the next one.

**Lost connections.** A statement that only reads, or may be repeated without harm, is sent again on
a new connection, until the time of the request is over. For a write whose outcome is unknown the
caller gets StoreUnavailable, but only when it is certain that the write does not take effect any
more, or takes effect before any later write to its subjects:

- the server was started since, or has confirmed that the backend of the lost connection has ended;
- or the server's clock has passed the time up to which the server accepts the write, which is part
  of the statement. A suspended server may read it minutes later, and rejects it then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.stores.clocks import reconnect_pause, steady
from genmcp.stores.postgres.connection import (
    CLOCK_ERROR,
    PostgresConnection,
    PostgresOptions,
    Row,
    ServerClock,
    connect,
    is_late,
    is_lost,
    is_moved,
    is_of_one,
    is_repeatable,
    translated,
)

_ATTEMPTS: Final = 5  # at a statement that the server has rolled back
_END_INTERVAL: Final = 1.0  # seconds between attempts to end a lost connection at the server
_MAX_BYTES: Final = 1024 * 1024  # of the requests that are sent together


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


class _LaneRequest:
    __slots__ = ("cost", "deadline", "future", "item", "kind", "report")

    def __init__(
        self,
        kind: StatementKind,
        item: Any,
        cost: int,
        deadline: float,
        report: Callable[[Exception | None], object],
    ) -> None:
        self.kind = kind
        self.report = report
        self.item = item
        self.cost = cost
        self.deadline = deadline
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, result: Any) -> None:
        """Complete the caller's future with the result or the error, unless it was cancelled."""
        error = result if isinstance(result, Exception) else None
        self.report(error)
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Lane:
    """One connection, and the requests that wait for it. Owned by an event loop.

    The connection is opened when the first request comes. An asyncio.Task runs only while there are
    requests.
    """

    def __init__(
        self,
        options: PostgresOptions,
        clock: ServerClock,
        on_lost: Callable[[], None],
        *,
        writes: bool = True,
    ) -> None:
        """*on_lost* is called when a connection is lost while a statement is under way.

        *writes*: whether it is used for writes.
        """
        self._writes = writes
        self._options = options
        self._clock = clock
        self._on_lost = on_lost
        self._pending: deque[_LaneRequest] = deque()
        self._connection: PostgresConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def load(self) -> int:
        """The number of waiting requests."""
        return len(self._pending) + (self._task is not None)

    async def request(self, kind: StatementKind, item: Any, cost: int = 0) -> Any:
        """Return the result for *item*; *cost* is its size in bytes."""
        return await self.submit(kind, item, cost)

    def submit(self, kind: StatementKind, item: Any, cost: int = 0) -> "asyncio.Future[Any]":
        """Submit *item*, and return a future with its result."""
        if self._closed:
            raise StoreUnavailable(f"{self._options.address}: the store is closed")
        deadline = steady() + self._options.timeout
        request = _LaneRequest(kind, item, cost, deadline, self._report)
        self._pending.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="genmcp-postgres")
        return request.future

    def _report(self, error: Exception | None) -> None:
        outages = self._options.outages
        if self._task is not None and self._task.cancelling():
            return  # the event loop is being closed
        if error is not None or outages.failing:
            outages.record(error, write=self._writes)

    async def aclose(self) -> None:
        """Complete the statement that is under way, reject the others, and disconnect."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait({self._task})
        self.drop()

    def drop(self) -> None:
        """Disconnect at once. From any thread, if the event loop is closed."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()

    async def _run(self) -> None:
        batch: Sequence[_LaneRequest] = ()
        try:
            while self._pending:
                batch = self._take()
                if batch:
                    await self._perform(batch)
        except BaseException as error:
            for request in (*batch, *self._pending):
                request.settle(StoreUnavailable(f"{self._options.address}: interrupted: {error!r}"))
            self._pending.clear()
            raise
        finally:
            self._task = None

    def _take(self) -> Sequence[_LaneRequest]:
        """Remove and return the first request, and others of its kind."""
        kind, size = self._pending[0].kind, 0
        batch: list[_LaneRequest] = []
        left: deque[_LaneRequest] = deque()
        for request in self._pending:
            if request.future.done():  # its caller was cancelled
                continue
            fits = not batch or (len(batch) < kind.limit and size + request.cost <= _MAX_BYTES)
            if request.kind is kind and fits:
                batch.append(request)
                size += request.cost
            else:
                left.append(request)
        self._pending = left
        return batch

    async def _perform(self, batch: Sequence[_LaneRequest]) -> None:
        kind, attempts = batch[0].kind, 0
        while True:
            if self._closed:
                error: Exception = StoreUnavailable(f"{self._options.address}: the store is closed")
                break
            try:
                results = await self._execute(kind, batch)
            except Exception as raised:
                error = raised
            else:
                for request, result in zip(batch, results, strict=True):
                    request.settle(result)
                return
            attempts += 1
            if is_late(error) and attempts < _ATTEMPTS:
                self._clock.doubt()
                continue
            if is_repeatable(error) and attempts < _ATTEMPTS:
                continue
            if is_lost(error) and kind.repeatable and steady() < batch[0].deadline:
                continue
            if len(batch) > 1 and is_of_one(error):
                for request in batch:  # one must not fail because of another
                    await self._perform([request])
                return
            break
        error = translated(self._options, self._clock, error)
        failed = [*batch]
        if self._connection is None:  # the next attempt to connect may take as long as this one
            failed += [request for request in self._pending if request.deadline <= steady()]
        for request in failed:
            request.settle(error)

    async def _execute(self, kind: StatementKind, batch: Sequence[_LaneRequest]) -> Sequence[Any]:
        connection = await self._connected(batch[0].deadline)
        until = self._clock.now() + self._options.timeout
        items = [request.item for request in batch]
        try:
            async with asyncio.timeout(self._options.timeout + CLOCK_ERROR):
                rows = await connection.fetch(kind.sql, kind.parameters(items, until))
            return kind.results(items, rows)
        except Exception as error:
            if is_lost(error) or is_moved(error):
                self._disconnect()
                self._on_lost()
                if is_lost(error) and not kind.repeatable:
                    await self._await_end(connection, until)
            raise

    async def _connected(self, deadline: float) -> PostgresConnection:
        """Return the connection; try to connect until *deadline*, at least once.

        Raises:
            StoreUnavailable: the server cannot be reached.
            ConfigurationError: it rejects the connection.
        """
        failures = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = await connect(self._options)
                elif self._connection.is_broken():
                    self._disconnect()
                    continue
                if self._clock.is_stale:
                    async with asyncio.timeout(self._options.timeout):
                        await self._clock.measure(self._connection)
            except Exception as error:
                if not isinstance(error, StoreUnavailable) and not is_lost(error):
                    raise
                self._disconnect()
                failures += 1
                pause = reconnect_pause(failures)
                if self._closed or steady() + pause > deadline:
                    raise translated(self._options, self._clock, error) from error
                await asyncio.sleep(pause)
            else:
                return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()

    async def _await_end(self, lost: PostgresConnection, until: float) -> None:
        """Wait until a statement on the connection *lost* can no longer overtake a later write."""
        left = until + CLOCK_ERROR - self._clock.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left)):
                while True:
                    try:
                        connection = await self._connected(steady() + left)
                        if lost.pid and await connection.end_other(lost.pid, lost.started):
                            return
                    except (ConfigurationError, StoreError):
                        break
                    except Exception as error:
                        if not is_lost(error):
                            break
                        self._disconnect()
                    await asyncio.sleep(_END_INTERVAL)
                await asyncio.sleep(max(0.0, until + CLOCK_ERROR - self._clock.now()))
