"""The store in a PostgreSQL database."""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from genmcp.errors import ConfigurationError, Conflict, LogTruncated, StoreError
from genmcp.stores.accounts import Capacity, Usage
from genmcp.stores.clocks import ServerClock
from genmcp.stores.connections import ConnectionsByLoop
from genmcp.stores.following import PAGE, ROW_RETENTION, follow_pages
from genmcp.stores.postgres import statements
from genmcp.stores.postgres.connections import PostgresConnections, StatementKind, log_token
from genmcp.stores.postgres.deliveries import PostgresDeliveries
from genmcp.stores.postgres.schema import migrate
from genmcp.stores.postgres.server import PostgresOptions, address_of
from genmcp.stores.postgres.statements import LogPage, ReadRequest, from_text
from genmcp.stores.store import (
    Delete,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    Store,
    StoreEntry,
    check_one_subject,
    event_id,
    event_number,
    room_of,
)

_NAMED: Final = re.compile("([?&])schema=([^&]*)&?")
_SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,54}")


class _Seen(NamedTuple):
    """The position of a follower when it has read its log; None: the log did not exist."""

    position: int | None
    at: float


_Position: TypeAlias = str | _Seen | None


class PostgresStore(Store):
    """A store in a PostgreSQL database, shared by all processes that have its URL.

    The tables are made by `genmcp store migrate`, in a schema of their own. Acknowledged writes
    survive a crash of this process and of the server. Each event loop that uses the store opens up
    to four connections, one of which listens for notifications (LISTEN): connect to the server
    itself or to a pooler in session mode, never to one that pools transactions, and to the primary
    server, never to a replica. The store may be created before the process forks; a child cannot
    use it if its parent had used it before.

    Args:
        url: `postgresql://user:password@host:5432/database`, or another connection string of libpq.
            In a URL the parameter `schema` names the schema: lower-case letters, digits and "_".
            Default "genmcp".
        max_bytes: the maximum number of bytes in keys, values and event data. Beyond it writes that
            need room raise StoreFull until enough has expired. Default 4 GiB.
        timeout: seconds that a request waits for a connection, and that its statement may take;
            then StoreUnavailable is raised. Default 5.
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
        self.capacity: Capacity = Capacity(max_bytes)
        self._options = options = PostgresOptions(
            url=url,
            schema=schema,
            timeout=timeout,
            clock=clock,
            outages=self.outages,
            server_clock=ServerClock(),
        )
        make = partial(PostgresConnections, options, statements.SWEEP)
        self._connections = ConnectionsByLoop(options.address, make)
        self._deliveries = PostgresDeliveries(self._connections)

    def __repr__(self) -> str:
        return f"<PostgresStore: {self._options.address}, schema {self._options.schema!r}>"

    @property
    def deliveries(self) -> PostgresDeliveries:
        return self._deliveries

    def now(self) -> float:
        clock = self._options.clock
        return clock() if clock else self._options.server_clock.real()

    async def get(self, key: str) -> StoreEntry | None:
        entry: StoreEntry | None = await self._read(statements.GET, key)
        return entry

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        if ops:
            cost = sum(_size_of(op) for op in ops)
            item = ops, room_of(self.capacity, ops)
            writes = self._connections.here().writes
            if failure := await writes.request(statements.APPLY, item, cost):
                error = self._error(failure)
                try:
                    self.outages.record(error)
                    raise error
                finally:
                    del error  # its traceback has this frame: a reference cycle

    def _error(self, failure: dict[str, Any]) -> StoreError:
        """Return the error for a write that genmcp.apply has rejected."""
        name = from_text(failure["n"])
        if "v" in failure:
            version, expected = failure["v"], failure["e"]
            return Conflict(f"{name!r}: version {expected} was expected, but it is {version}")
        return self.capacity.refusal(name, Usage(failure["e"], failure["s"]))

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        item = (label, after or "", limit)
        found: Sequence[FoundEntry] = await self._read(statements.FIND, item)
        return found

    async def count(self, label: str) -> int:
        count: int = await self._read(statements.COUNT, label)
        return count

    async def usage(self, account: str) -> Usage:
        await self._connections.here().writes.request(statements.SWEEP, None)
        usage: Usage = await self._read(statements.USAGE, account)
        return usage

    async def problems(self) -> Sequence[str]:
        fsync = await self._read(statements.SETTINGS, None)
        unsafe = (
            "the server has fsync=off: a power failure may lose acknowledged writes, and damage "
            "the database; set fsync=on"
        )
        return () if fsync else (unsafe,)

    async def touch(self, key: str, ttl: float) -> bool:
        writes = self._connections.here().writes
        touched: bool = await writes.request(statements.TOUCH, (key, ttl))
        return touched

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        return (await self._page(log, after, limit))[1]

    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        beginning: _Position = after
        return follow_pages(
            lambda: self._connections.here().signal([log_token(log)]),
            partial(self._page, log),
            beginning,
        )

    async def _page(
        self, log: str, after: _Position, limit: int = PAGE
    ) -> tuple[_Position, Sequence[LogEvent]]:
        """Return the events after *after*, and the position to continue from."""
        now, position = self.now(), after.position if isinstance(after, _Seen) else None
        if isinstance(after, str):
            position = event_number(log, after)
        page: LogPage = await self._read(statements.READ, ReadRequest(log, position, limit))
        if isinstance(after, _Seen):
            position = _resumed(log, after.position, page, now - after.at)
        elif after is None:
            position = None if page.base is None else page.floor
        elif page.base is None or not page.known:
            raise LogTruncated(log, after)
        if page.events:
            position, _ = page.events[-1]
        return _Seen(position, now), [LogEvent(event_id(id), data) for id, data in page.events]

    async def migrate(self, *, dry_run: bool = False) -> str:
        return await migrate(self._options, dry_run=dry_run)

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._connections.aclose()

    async def _read(self, kind: StatementKind, item: Any) -> Any:
        return await self._connections.here().reads.request(kind, item)


def _size_of(op: Op) -> int:
    if isinstance(op, Delete):
        return 0
    return len(op.value if isinstance(op, Put) else op.data)


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
        if elapsed >= ROW_RETENTION:
            raise LogTruncated(log, event_id(position or 0))
        start = page.base
    if start is not None and page.floor > start:
        raise LogTruncated(log, event_id(start))
    return start
