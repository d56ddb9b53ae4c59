"""`RedisStore`: records and logs in Redis or Valkey."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from msgspec import msgpack

from genmcp.errors import ConfigurationError, Conflict, LogTruncated, StoreError
from genmcp.stores.accounts import EVERYTHING, Capacity, Room, Usage
from genmcp.stores.connections import ConnectionsByLoop
from genmcp.stores.following import PAGE, Position, follow_pages
from genmcp.stores.redis.connections import SWEPT_AT_ONCE, Argument, RedisConnections
from genmcp.stores.redis.deliveries import RedisDeliveries
from genmcp.stores.redis.scripts import APPLY, FIND, GET, READ, SWEEP, TOUCH, Script, micros
from genmcp.stores.redis.server import RedisServer, memory_problem, persistence_problem
from genmcp.stores.store import (
    Append,
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
from genmcp.stores.waiters import log_name

# In the query of a URL:
_OPTIONS: Final = {"prefix": str, "max_bytes": int, "timeout": float}
_FIRST_DATA: Final = 4  # arguments of apply.lua before the values


class RedisStore(Store):
    """A store in Redis (6.2 or later) or Valkey, shared by processes on any number of machines.

    All of its keys have one hash tag, so that each operation is one script on one server: in a
    Redis Cluster, one node holds the whole store. Each event loop of a process has one connection
    for writes, one for reads, and one for subscriptions. They are made when they are needed, and
    made again when they are lost. The store may be created before the process forks; a child cannot
    use it if its parent had used it before.

    An acknowledged write is as durable as the server: with `appendonly yes` and
    `appendfsync always` nothing is lost when the server is killed, with `everysec` up to two
    seconds. A failover to a replica loses what was not replicated yet.

    Args:
        url: `redis://[user:password@]host[:port][/database]`, `valkey://`, with TLS `rediss://` or
            `valkeys://`, `redis+sentinel://host:port,host:port/service[/database]`, or
            `redis+cluster://host:port,host:port`.
        prefix: begins the names of all keys and channels. Stores with different prefixes share
            nothing. Default "genmcp".
        max_bytes: the maximum number of bytes in keys, values and event data. The server needs two
            to three times as much memory. Beyond it writes that need room raise StoreFull until
            enough entries have expired. Default 1 GiB.
        timeout: seconds that an operation waits for the server, and then for its response. After
            that StoreUnavailable is raised. Default 5.

    Raises:
        ConfigurationError: an option is out of range, or the URL has another form.
    """

    shared = True
    durable = True

    def __init__(
        self,
        url: str = "redis://localhost:6379",
        *,
        prefix: str = "genmcp",
        max_bytes: int = 1024**3,
        timeout: float = 5.0,
    ) -> None:
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 seconds, not {timeout}")
        if not prefix or set(prefix) & set("{}"):
            raise ConfigurationError(f"prefix must be text without braces, not {prefix!r}")
        self.capacity: Capacity = Capacity(max_bytes)
        self._server = RedisServer(url, f"{{{prefix}}}:", timeout, self.outages)
        make = partial(RedisConnections, self._server)
        self._connections = ConnectionsByLoop(str(self._server), make)
        self._deliveries = RedisDeliveries(self._connections)

    @classmethod
    def from_url(cls, url: str) -> "RedisStore":
        """Return the store at *url*, with options from its query.

        Raises:
            ConfigurationError: *url* has another form, or an option is out of range.
        """
        base, _, query = url.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        options: dict[str, Any] = {}
        try:
            for name, value in pairs:
                if name in _OPTIONS:
                    options[name] = _OPTIONS[name](value)
        except ValueError as error:
            raise ConfigurationError(f"RedisStore: {name}={value!r} in the URL: {error}") from None
        rest = urlencode([(name, value) for name, value in pairs if name not in _OPTIONS])
        return cls(f"{base}?{rest}" if rest else base, **options)

    def __repr__(self) -> str:
        return f"<RedisStore: {self._server.shown}>"

    @property
    def deliveries(self) -> RedisDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._server.clock.now()

    async def get(self, key: str) -> StoreEntry | None:
        found = await self._run(GET, key)
        return StoreEntry(found[0], int(found[1])) if found else None

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        entries: list[FoundEntry] = []
        start = after
        while len(entries) < limit:
            # Expired records are left out, so that a page may be shorter than was asked for.
            begins = "" if start is None else "1"
            last, *found = await self._run(FIND, label, start or "", limit - len(entries), begins)
            rows = zip(found[::3], found[1::3], found[2::3], strict=True)
            entries += [FoundEntry(key.decode(), value, int(n)) for key, value, n in rows]
            if not last:
                break
            start = last.decode()
        return entries

    async def count(self, label: str) -> int:
        return (await self._counts(EVERYTHING, label))[2]

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        room, data = room_of(self.capacity, ops), list[bytes]()
        request = msgpack.encode(([_operation(op, data) for op in ops], room.limits, room.slack))
        reply = await self._run(APPLY, request, *data)
        if reply != 1:
            error = self._error(reply, ops, room)
            try:
                self.outages.record(error)
                raise error
            finally:
                del error  # its traceback has this frame: a reference cycle

    def _error(self, reply: Sequence[Any], ops: Sequence[Op], room: Room) -> StoreError:
        """Return the error for the response of apply.lua to a write that it rejected."""
        kind, number, *counts = reply
        if kind == b"over":
            account = room.limits[int(number) - 1].account
            return self.capacity.refusal(account, Usage(*map(int, counts)))
        op = ops[int(number) - 1]
        assert not isinstance(op, Append)
        return Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {int(counts[0])}")

    async def problems(self) -> Sequence[str]:
        ask = self._connections.here().ask
        info = await ask("INFO")
        if info is None:
            return ("the user may not give the command INFO: add it to its ACL rules",)
        found = (
            persistence_problem(info, await ask("CONFIG GET", "save")),
            memory_problem(info, self.capacity.size),
        )
        return [each for each in found if each]

    async def usage(self, account: str) -> Usage:
        entries, size, _ = await self._counts(account, "")
        return Usage(entries, size)

    async def _counts(self, account: str, label: str) -> Sequence[int]:
        """Remove some expired entries; return the usage of *account*, and the count of *label*."""
        _, _, counts = await self._run(SWEEP, SWEPT_AT_ONCE, account, label)
        return [*map(int, counts)]

    async def touch(self, key: str, ttl: float) -> bool:
        return bool(await self._run(TOUCH, key, micros(ttl)))

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        return (await self._page(log, after, limit))[1]

    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        beginning: Position = after
        return follow_pages(
            lambda: self._connections.here().signal([log_name(log)]),
            partial(self._page, log),
            beginning,
        )

    async def _page(
        self, log: str, after: Position, limit: int = PAGE
    ) -> tuple[Position, Sequence[LogEvent]]:
        """Return the events after *after*, and the position to continue from."""
        is_id = isinstance(after, str)
        position = event_number(log, after) if isinstance(after, str) else after
        start = "" if position is None else str(position)
        run = self._connections.here().run
        reply = await run(READ, log, start, limit, "1" if is_id else "")
        if reply is None:
            raise LogTruncated(log, event_id(position or 0))
        last, *rows = reply
        pairs = zip(rows[::2], rows[1::2], strict=True)
        return int(last), [LogEvent(event_id(int(id)), data) for id, data in pairs]

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._connections.aclose()

    async def _run(self, script: Script, *args: Argument) -> Any:
        return await self._connections.here().run(script, *args)


def _operation(op: Op, data: list[bytes]) -> Sequence[object]:
    """Return *op* in the form that apply.lua reads, and add its bytes to *data*."""
    if not isinstance(op, Delete):
        data.append(op.data if isinstance(op, Append) else op.value)
    number = _FIRST_DATA + len(data)
    if isinstance(op, Append):
        most = -1 if op.keep_bytes is None else op.keep_bytes
        return ("a", op.log, number, micros(op.ttl), op.keep, most, op.client)
    expect = -1 if op.expect is None else op.expect
    if isinstance(op, Put):
        ttl = -1 if op.ttl is None else micros(op.ttl)
        return ("p", op.key, expect, number, ttl, op.client, op.labels)
    return ("d", op.key, expect)
