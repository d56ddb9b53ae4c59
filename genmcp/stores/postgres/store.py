"""The store in a PostgreSQL database."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from genmcp.errors import ConfigurationError, LogTruncated
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage
from genmcp.stores.clocks import steady
from genmcp.stores.postgres.connection import PostgresOptions, address_of
from genmcp.stores.postgres.deliveries import PostgresDeliveries
from genmcp.stores.postgres.listener import log_token
from genmcp.stores.postgres.loops import ConnectionRegistry, LoopConnections, StatementKind
from genmcp.stores.postgres.schema import migrate
from genmcp.stores.postgres.statements import (
    LogPage,
    ReadRequest,
    Statements,
    event_of,
    id_of,
)
from genmcp.stores.store import (
    Delete,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    Store,
    StoreEntry,
    StoreTotals,
    check_one_subject,
)

FOLLOW_REFRESH: Final = 60.0
"""Seconds after which a follower reads its log although it was not notified. Below an hour: see
`_ROW_RETENTION`."""

_NAMED: Final = re.compile("([?&])schema=([^&]*)&?")
_SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,54}")
_ID: Final = re.compile("[0-7][0-9a-f]{15}")
_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields
_MAX_SWEEPS: Final = 50  # before the usage of an account is read
_SWEEP_INTERVAL: Final = 1.0  # seconds
_ROW_RETENTION: Final = 3600.0  # seconds for which the row of an expired log is retained


class PostgresStore(Store):
    """A store in a PostgreSQL database, shared by all processes that have its URL.

    The tables are made by `genmcp store migrate`, in a schema of their own. Acknowledged writes
    survive a crash of this process and of the server. Each event loop that uses the store opens up
    to `connections` + 1 connections, one of which listens for notifications (LISTEN): connect to
    the server itself or to a pooler in session mode, never to one that pools transactions, and to
    the primary server, never to a replica.

    Args:
        url: `postgresql://user:password@host:5432/database`, or another connection string of libpq.
            In a URL the parameter `schema` names the schema: lower-case letters, digits and "_".
            Default "genmcp".
        max_bytes: the maximum number of bytes in keys, values and event data. Beyond it writes that
            need room raise StoreFull until enough has expired. Default 4 GiB.
        timeout: seconds that a statement may take, and that a request waits for a connection; then
            StoreUnavailable is raised. Default 5.
        connections: the maximum number of connections for statements, per event loop. Default 4:
            one for writes, one for deliveries, and two for reads.
        clock: for tests: returns Unix time, and replaces the clock of the server.

    Raises:
        ConfigurationError: an option is out of range, or *url* cannot be parsed.
    """

    shared = True
    durable = True

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int = 4 * 1024**3,
        timeout: float = 5.0,
        connections: int = 4,
        clock: Callable[[], float] | None = None,
    ) -> None:
        named = _NAMED.search(url)
        schema, url = named[2] if named else "genmcp", _NAMED.sub(r"\1", url).rstrip("?&")
        address_of(url)
        if not _SCHEMA.fullmatch(schema):
            raise ConfigurationError(
                f"schema must be a name of lower-case letters, digits and '_', not {schema!r}"
            )
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 seconds, not {timeout}")
        if connections < 1:
            raise ConfigurationError(f"connections must be at least 1, not {connections}")
        capacity = Capacity(max_bytes)
        self._options = PostgresOptions(
            url=url,
            schema=schema,
            capacity=capacity,
            timeout=timeout,
            connections=connections,
            clock=clock,
            outages=self.outages,
        )
        self._connections = ConnectionRegistry(self._options)
        self._statements = Statements(self._options)
        self._deliveries = PostgresDeliveries(self._connections)
        self._next_sweep = 0.0

    @classmethod
    def from_url(cls, url: str) -> "PostgresStore":
        """Return a store for *url*."""
        return cls(url)

    def __repr__(self) -> str:
        return f"<PostgresStore: {self._options.address}, schema {self._options.schema!r}>"

    @property
    def deliveries(self) -> PostgresDeliveries:
        return self._deliveries

    def now(self) -> float:
        clock = self._options.clock
        return clock() if clock else self._connections.clock.now()

    async def get(self, key: str) -> StoreEntry | None:
        entry: StoreEntry | None = await self._read(self._statements.get, key)
        return entry

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        connections = self._connections.current()
        self._sweep_if_due(connections)
        if ops:
            cost = sum(_size_of(op) for op in ops)
            await connections.writes.request(self._statements.apply, ops, cost)

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        found: Sequence[FoundEntry] = await self._read(
            self._statements.find, (label, after or "", limit)
        )
        return found

    async def count(self, label: str) -> int:
        count: int = await self._read(self._statements.count, label)
        return count

    async def usage(self, account: str) -> Usage:
        for _ in range(_MAX_SWEEPS):
            if not await self._read(self._statements.sweep, None):
                break
        usage: Usage = await self._read(self._statements.usage, account)
        return usage

    async def totals(self) -> StoreTotals:
        return StoreTotals(await self.usage(EVERYTHING), self._options.capacity)

    async def problems(self) -> Sequence[str]:
        (fsync,) = await self._read(self._statements.settings, None)
        unsafe = (
            "the server has fsync=off: a power failure may lose acknowledged writes, and damage "
            "the database; set fsync=on"
        )
        return () if fsync else (unsafe,)

    async def touch(self, key: str, ttl: float) -> bool:
        connections = self._connections.current()
        touched: bool = await connections.writes.request(self._statements.touch, (key, ttl))
        return touched

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        page = await self._first_page(log, after, limit)
        return [event_of(*event) for event in page.events]

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        connections = self._connections.current()
        with connections.listener.signal({log_token(log)}) as signal:
            looked = self.now()
            page = await self._first_page(log, after, _READ_AT_ONCE)
            position: int | None = None  # None: the log does not exist
            if page.base is not None:
                position = page.floor if after is None else _position(log, after)
            while True:
                for id, data in page.events:
                    yield event_of(id, data)
                    position = id
                if not page.events:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FOLLOW_REFRESH):
                            await signal.wait()
                signal.clear()  # before the read: see WakeSignal
                last_look, looked = looked, self.now()
                request = ReadRequest(log, position, _READ_AT_ONCE)
                page = await self._read(self._statements.read, request)
                position = _resumed(log, position, page, looked - last_look)

    async def migrate(self, *, dry_run: bool = False) -> str:
        return await migrate(self._options, dry_run=dry_run)

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._connections.aclose()

    async def _read(self, kind: StatementKind, item: Any) -> Any:
        return await self._connections.current().reads.request(kind, item)

    async def _first_page(self, log: str, after: str | None, limit: int) -> LogPage:
        position = None if after is None else _position(log, after)
        page: LogPage = await self._read(self._statements.read, ReadRequest(log, position, limit))
        if after is not None and (page.base is None or not page.known):
            raise LogTruncated(log, after)
        return page

    def _sweep_if_due(self, connections: LoopConnections) -> None:
        if steady() < self._next_sweep:
            return
        self._next_sweep = steady() + _SWEEP_INTERVAL

        def swept(future: asyncio.Future[bool]) -> None:
            if not future.cancelled() and not future.exception() and future.result():
                self._next_sweep = 0.0  # there may be more

        # Without waiting for it: a sweep that fails must not fail the write.
        connections.reads.request(self._statements.sweep, None).add_done_callback(swept)


def _size_of(op: Op) -> int:
    if isinstance(op, Delete):
        return 0
    return len(op.value if isinstance(op, Put) else op.data)


def _position(log: str, after: str) -> int:
    if not _ID.fullmatch(after):
        raise LogTruncated(log, after)
    return int(after, 16)


def _resumed(log: str, position: int | None, page: LogPage, elapsed: float) -> int | None:
    """Return the position of a follower before the events of *page*.

    None: the log did not exist when the follower looked, *elapsed* seconds before this page.

    Raises:
        LogTruncated: events may have been dropped since.
    """
    start = position
    if position is None or page.base is None or position < page.base:
        # The row of a log stays for an hour after it has expired. If the row is missing, or a new
        # one, the follower had seen all events of the old one when it looked less than an hour ago.
        if elapsed >= _ROW_RETENTION:
            raise LogTruncated(log, id_of(position or 0))
        start = page.base
    if start is not None and page.floor > start:
        raise LogTruncated(log, id_of(start))
    return start
