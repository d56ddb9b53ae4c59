"""`RedisStore`: records and logs in Redis or Valkey."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from msgspec import msgpack

from genmcp.errors import (
    ConfigurationError,
    Conflict,
    LogTruncated,
    StoreError,
    StoreUnavailable,
)
from genmcp.stores.accounts import EVERYTHING, Capacity, Room, Usage
from genmcp.stores.clocks import steady
from genmcp.stores.redis.client import RedisClient
from genmcp.stores.redis.deliveries import RedisDeliveries
from genmcp.stores.redis.scripts import APPLY, FIND, GET, READ, SWEEP, TOUCH
from genmcp.stores.redis.server import (
    RedisAddress,
    RedisClock,
    RedisServer,
    memory_problem,
    persistence_problem,
)
from genmcp.stores.store import (
    Append,
    Delete,
    FoundEntry,
    LogEvent,
    Op,
    Put,
    Store,
    StoreEntry,
    StoreTotals,
    check_one_subject,
    room_of,
)

# Seconds after which a follower reads although nothing was appended. Ids are counted over all logs,
# so that a position that is refreshed stays newer than any log whose row is deleted meanwhile: an
# hour after the log expired (tables.lua). It must be shorter than that.
FOLLOW_REFRESH: Final = 600.0
_FOLLOW_RETRY: Final = 0.5  # seconds until a follower reads again after the server has failed
_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields
_SWEPT_AT_ONCE: Final = 1000
# In the query of a URL:
_OPTIONS: Final = {"prefix": str, "max_bytes": int, "timeout": float, "connections": int}
_FIRST_DATA: Final = 4  # arguments of apply.lua before the values
_ID: Final = re.compile("[0-9a-f]{16}")
_ID_MOST: Final = 2**53  # a Lua number holds no larger integer exactly


class RedisStore(Store):
    """A store in Redis (6.2 or later) or Valkey, shared by processes on any number of machines.

    All of its keys have one hash tag, so that each operation is one script on one server: in a
    Redis Cluster, one node holds the whole store. Each event loop of a process has a few
    connections for operations, and one for subscriptions. They are made when they are needed, and
    made again when they are lost. The store may be created before the process forks.

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
        timeout: seconds after which an operation without a response raises StoreUnavailable.
            Default 5.
        connections: the maximum number of connections of an event loop for operations. Operations
            that find them busy are sent together afterwards. Default 2.

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
        connections: int = 2,
    ) -> None:
        for name, value in (("timeout", timeout), ("connections", connections)):
            if value <= 0:
                raise ConfigurationError(f"{name} must be above 0, not {value}")
        if not prefix or set(prefix) & set("{}"):
            raise ConfigurationError(f"prefix must be text without braces, not {prefix!r}")
        self._capacity = Capacity(max_bytes)
        self._address = RedisAddress(url)
        self._clock = RedisClock()
        self._prefix, self._timeout = f"{{{prefix}}}:", timeout
        of = self._address, self._clock, self.outages, self._prefix, timeout, connections
        self._server = partial(RedisServer, *of)
        self._clients: dict[int, RedisClient] = {}  # by process id: a forked child has its own
        self._deliveries = RedisDeliveries(self._client, self._clock)

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
        return f"<RedisStore: {self._address.shown}>"

    @property
    def deliveries(self) -> RedisDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._clock.now()

    async def get(self, key: str) -> StoreEntry | None:
        found = await self._client().commands.run(GET, key)
        return StoreEntry(found[0], int(found[1])) if found else None

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        entries: list[FoundEntry] = []
        commands, start = self._client().commands, after
        while len(entries) < limit:
            # Expired records are left out, so that a page may be shorter than was asked for.
            begins = "" if start is None else "1"
            last, *found = await commands.run(
                FIND, label, start or "", limit - len(entries), begins
            )
            rows = zip(found[::3], found[1::3], found[2::3], strict=True)
            entries += [FoundEntry(key.decode(), value, int(n)) for key, value, n in rows]
            if not last:
                break
            start = last.decode()
        return entries

    async def count(self, label: str) -> int:
        return (await self._swept(EVERYTHING, label))[2]

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        room, data = room_of(self._capacity, ops), list[bytes]()
        request = msgpack.encode(([_operation(op, data) for op in ops], room.limits, room.slack))
        reply = await self._client().commands.run(APPLY, request, *data)
        if reply != 1:
            error = self._error(reply, ops, room)
            self.outages.record(error)
            raise error

    def _error(self, reply: Sequence[Any], ops: Sequence[Op], room: Room) -> StoreError:
        """Return the error for the response of apply.lua to a write that it rejected."""
        kind, number, *counts = reply
        if kind == b"over":
            account = room.limits[int(number) - 1].account
            return self._capacity.refusal(account, Usage(*map(int, counts)))
        op = ops[int(number) - 1]
        assert not isinstance(op, Append)
        return Conflict(f"{op.key!r}: version {op.expect} was expected, but it is {int(counts[0])}")

    async def totals(self) -> StoreTotals:
        return StoreTotals(await self.usage(EVERYTHING), self._capacity)

    async def problems(self) -> Sequence[str]:
        commands = self._client().commands
        info = await commands.ask("INFO")
        if info is None:
            return ("the user may not give the command INFO: add it to its ACL rules",)
        found = (
            persistence_problem(info, await commands.ask("CONFIG GET", "save")),
            memory_problem(info, self._capacity.size),
        )
        return [each for each in found if each]

    async def usage(self, account: str) -> Usage:
        entries, size, _ = await self._swept(account, "")
        return Usage(entries, size)

    async def _swept(self, account: str, label: str) -> Sequence[int]:
        """Remove expired entries; return the usage of *account*, and the count of *label*."""
        commands = self._client().commands
        while True:
            reply = await commands.run(SWEEP, _SWEPT_AT_ONCE, account, label)
            _, looked, counts = reply
            if looked < _SWEPT_AT_ONCE:
                return [*map(int, counts)]

    async def touch(self, key: str, ttl: float) -> bool:
        return bool(await self._client().commands.run(TOUCH, key, _micros(ttl)))

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        return (await self._read(log, _position(log, after), limit, strict=True))[1]

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        client, position, strict = self._client(), _position(log, after), True
        with client.channels.log_signal(log) as signal:
            failing: float | None = None  # since when the server has not responded
            while True:
                signal.clear()  # before the read: see WakeSignal
                wait = FOLLOW_REFRESH
                try:
                    position, events = await self._read(log, position, _READ_AT_ONCE, strict=strict)
                    strict, failing = False, None
                except StoreUnavailable:
                    # A restart or a failover need not end a follower that has begun.
                    failing, events, wait = failing or steady(), (), _FOLLOW_RETRY
                    if strict or client.closed or steady() > failing + self._timeout:
                        raise
                for event in events:
                    yield event
                if len(events) < _READ_AT_ONCE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await signal.wait()

    async def _read(
        self, log: str, position: str, limit: int, *, strict: bool
    ) -> tuple[str, Sequence[LogEvent]]:
        """Return the events after *position*, and the position to continue from."""
        run = self._client().commands.run
        return _events(log, position, await run(READ, log, position, limit, "1" if strict else ""))

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._client().aclose()

    def _client(self) -> RedisClient:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:  # two threads may get here at once, hence `setdefault`
            client = self._clients.setdefault(pid, RedisClient(self._server()))
        return client


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _operation(op: Op, data: list[bytes]) -> Sequence[object]:
    """Return *op* in the form that apply.lua reads, and add its bytes to *data*."""
    if not isinstance(op, Delete):
        data.append(op.data if isinstance(op, Append) else op.value)
    number = _FIRST_DATA + len(data)
    if isinstance(op, Append):
        most = -1 if op.keep_bytes is None else op.keep_bytes
        return ("a", op.log, number, _micros(op.ttl), op.keep, most, op.client)
    expect = -1 if op.expect is None else op.expect
    if isinstance(op, Put):
        ttl = -1 if op.ttl is None else _micros(op.ttl)
        return ("p", op.key, expect, number, ttl, op.client, op.labels)
    return ("d", op.key, expect)


def _position(log: str, after: str | None) -> str:
    """Return the number of the event *after*, "" for None.

    Raises:
        LogTruncated: it is not an id.
    """
    if after is None:
        return ""
    if not _ID.fullmatch(after) or (number := int(after, 16)) > _ID_MOST:
        raise LogTruncated(log, after)
    return str(number)


def _events(log: str, position: str, reply: Any) -> tuple[str, Sequence[LogEvent]]:
    if reply is None:
        raise LogTruncated(log, _text(position))
    last, *rows = reply
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return last.decode(), [LogEvent(_text(id), data) for id, data in pairs]


def _text(number: bytes | str) -> str:
    return f"{int(number or 0):016x}"  # fixed width, so that ids sort like their numbers
