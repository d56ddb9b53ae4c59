"""The server of a RedisStore: its URL, connections to it, its clock, and the check of its settings.

This is the only module that imports redis-py. It uses redis-py's connections (TLS, authentication,
parser) and its discovery of the primary by Sentinels, but neither its pools nor its pub/sub: a
`RedisConnection` batches commands, and `RedisChannels` serves any number of followers.
"""

import itertools
import logging
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from secrets import token_hex
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores import redacted
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages

try:
    from redis.asyncio.connection import ConnectionPool, SSLConnection
    from redis.asyncio.sentinel import Sentinel
    from redis.exceptions import (
        AuthenticationError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
    )
except ImportError as error:
    raise missing_extra("RedisStore", "redis", error) from error

logger = logging.getLogger("genmcp")

_OLDEST: Final = (6, 2)
_SCHEMES: Final = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_PORTS: Final = {"": 6379, "sentinel": 26379, "cluster": 6379}
_FORMS: Final = (
    "redis://[user:password@]host[:port][/db], or valkey://, with TLS rediss:// or valkeys://, or "
    "redis+sentinel://host:port,host:port/service[/db], or redis+cluster://host:port,host:port"
)
# The errors of a new connection that no later attempt avoids: the number of the database, and the
# protected mode. Others pass, such as too many clients.
_UNFIT: Final = ("DB index", "SELECT is not allowed", "DENIED")
_MOVED: Final = re.compile(r"(?:MOVED )?\d+ (?P<host>.*):(?P<port>\d+)$")


class ErrorReply(NamedTuple):
    """An error that the server has responded with.

    Attributes:
        kind: LATE (a write that was not performed, and the server's time in microseconds),
            NOSCRIPT, MOVED, OOM, READONLY, NOAUTH, NOPERM, or "" for all others.
        text: its text.
    """

    kind: str
    text: str


class RedisConnectionLost(OSError):
    """The connection was lost, or could not be made."""


class MovedToNode(Exception):
    """Another node of the cluster serves the data."""

    def __init__(self, reply: ErrorReply) -> None:
        found = _MOVED.search(reply.text)
        super().__init__(reply.text)
        self.host = found["host"] if found else ""
        self.port = int(found["port"]) if found else 0


class RedisWire:
    """A connection to the server. Owned by a `RedisConnection` or by `RedisChannels`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def send(self, data: bytes) -> None:
        """Send encoded commands."""
        try:
            await self._connection.send_packed_command([data], check_health=False)
        except (RedisError, OSError) as error:
            raise RedisConnectionLost(str(error)) from error

    async def receive(self) -> Any:
        """Return the next response, which may be an ErrorReply."""
        try:
            return await self._connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            return _error_reply(error)
        except AuthenticationError as error:
            return ErrorReply("NOAUTH", str(error))
        except (RedisError, OSError) as error:
            raise RedisConnectionLost(str(error)) from error

    async def exchange(self, *commands: Sequence[str | bytes | int]) -> list[Any]:
        """Send *commands* together, and return their responses."""
        await self.send(b"".join(map(encoded, commands)))
        return [await self.receive() for _ in commands]

    async def close(self) -> None:
        """Close the connection at once."""
        with suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


def encoded(command: Sequence[str | bytes | int]) -> bytes:
    """Return *command* as it is sent."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def _error_reply(error: ResponseError) -> ErrorReply:
    text = str(error)
    if text.startswith("LATE "):
        return ErrorReply("LATE", text.removeprefix("LATE "))
    # An error within a script has the error of the command in its text (before Redis 7).
    if isinstance(error, NoScriptError) or text.startswith("NOSCRIPT"):
        return ErrorReply("NOSCRIPT", text)
    if type(error).__name__ == "MovedError" or text.startswith("MOVED"):
        return ErrorReply("MOVED", text)
    if isinstance(error, OutOfMemoryError) or "command not allowed when used memory" in text:
        return ErrorReply("OOM", text)
    if isinstance(error, ReadOnlyError) or "read only replica" in text:
        return ErrorReply("READONLY", text)
    if type(error).__name__ == "NoPermissionError" or "NOPERM" in text:
        return ErrorReply("NOPERM", text)
    return ErrorReply("", text)


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The options of a RedisStore that concern its connections."""

    prefix: str  # of all keys, with a hash tag
    timeout: float
    connect_timeout: float
    sweep_interval: float
    max_requests: int
    outages: Outages


class RedisClock:
    """The clock of the server, as this process estimates it.

    Attributes:
        skew: seconds to add, also in the scripts. Tests let time pass by it.
    """

    def __init__(self) -> None:
        self.skew = 0.0
        self._ahead = time.time() - steady()
        self._error = inf  # at most this many seconds
        self._measured = 0.0

    def real(self) -> float:
        """Return the server's time, in seconds since 1970."""
        return steady() + self._ahead

    def now(self) -> float:
        """Return the time of the store."""
        return steady() + self._ahead + self.skew

    def measure(self, sent: float, received: float, micros: int, *, at_once: bool = False) -> None:
        """Record that the server's time was *micros* at some moment between *sent* and *received*.

        A sample that took longer than the best one is ignored for half a minute, unless *at_once*.
        """
        error = (received - sent) / 2
        if at_once or error <= max(self._error, 0.01) or received > self._measured + 30:
            self._ahead = micros / 1_000_000 - (sent + received) / 2
            self._error, self._measured = error, received


class RedisAddress:
    """The address in a URL: a server, the nodes of a cluster, or the Sentinels of a service.

    Raises:
        ConfigurationError: *url* has another form.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        base, _, self._kind = scheme.partition("+")
        self.shown = redacted(url)
        if base not in _SCHEMES or self._kind not in _PORTS or not rest:
            raise ConfigurationError(f"RedisStore: {self.shown!r} is not supported; use {_FORMS}")
        try:
            self._parse(_SCHEMES[base], rest)
        except (ValueError, TypeError) as error:  # TypeError: an option unknown to redis-py
            raise ConfigurationError(f"RedisStore: {self.shown!r}: {error}; use {_FORMS}") from None

    def _parse(self, scheme: str, rest: str) -> None:
        parts = urlsplit(f"{scheme}://{rest}")
        credentials, _, hosts = parts.netloc.rpartition("@")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        # The messages contain no part of the URL in which a password may be that is not encoded.
        if any("@" in name for name in query):
            raise ValueError("special characters of the password must be percent-encoded")
        self._sentinel_password = query.pop("sentinel_password", None)
        path, self._service = parts.path.strip("/"), ""
        if self._kind == "sentinel":
            self._service, _, path = path.partition("/")
            if not self._service:
                raise ValueError("the name of the service is missing")
        if path and not path.isdecimal():
            raise ValueError("the path is not the number of a database")
        self._hosts = [_host_and_port(each, _PORTS[self._kind]) for each in hosts.split(",")]
        if len(self._hosts) > 1 and not self._kind:
            raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
        user, _, password = credentials.partition(":")
        url = f"{scheme}://host/{path or 0}?{urlencode(query)}"
        # The timeouts of redis-py are disabled: the store has its own.
        pool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=None
        )
        self._class: Any = pool.connection_class
        self._options: dict[str, Any] = dict(pool.connection_kwargs)
        self._options |= {"socket_timeout": None, "socket_connect_timeout": None}
        if user:
            self._options["username"] = unquote(user)
        if password:
            self._options["password"] = unquote(password)
        self._connection(*self._hosts[0])  # an unknown option is rejected now

    async def connect(self) -> RedisWire:
        """Connect to the server, or to one node of the cluster.

        Raises:
            AuthenticationError: the password is wrong.
            ResponseError: there is no such database, or the user may not use it.
            RedisError, OSError: the server cannot be reached.
        """
        host, port = await self._primary() if self._kind == "sentinel" else self._hosts[0]
        connection = self._connection(host, port)
        try:
            await connection.connect()
        except BaseException:
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
            # The next attempt is made at the next node.
            self._hosts.append(self._hosts.pop(0))
            raise
        return RedisWire(connection)

    def prefer(self, host: str, port: int) -> None:
        """Connect to this node of the cluster from now on."""
        # A node that does not know its own address leaves the host out: it is then that of the URL.
        address = (host or self._hosts[0][0], port)
        self._hosts = [address, *(each for each in self._hosts if each != address)][:100]

    def _connection(self, host: str, port: int) -> Any:
        return self._class(**{**self._options, "host": host, "port": port})

    async def _primary(self) -> tuple[str, int]:
        options: dict[str, Any] = {"protocol": 2}
        if self._sentinel_password is not None:
            options["password"] = self._sentinel_password
        if issubclass(self._class, SSLConnection):
            options["ssl"] = True
        make: Any = Sentinel  # redis-py declares no types for it
        sentinel = make(random.sample(self._hosts, len(self._hosts)), sentinel_kwargs=options)
        try:
            host, port = await sentinel.discover_master(self._service)
            return str(host), int(port)
        finally:
            for each in sentinel.sentinels:
                await each.aclose()


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        return unquote(parts.hostname or "localhost"), parts.port or default
    except ValueError:
        raise ValueError("the port is not a number up to 65535") from None


class RedisServerState:
    """The state that all connections of one process share.

    Attributes:
        stale: the names of lost connections, with writes that may still arrive.
    """

    def __init__(self, address: RedisAddress, settings: RedisSettings, clock: RedisClock) -> None:
        self.address = address
        self.settings = settings
        self.clock = clock
        self.stale: set[str] = set()
        self._name = f"{token_hex(8)}:{os.getpid()}"
        self._numbers = itertools.count(1)
        self._was_accepted = False

    def __str__(self) -> str:
        return f"the Redis store at {self.address.shown}"

    def new_token(self) -> str:
        """Return a new name for a connection."""
        return f"{self._name}:{next(self._numbers)}"

    async def connect(self) -> RedisWire:
        """Connect to the server.

        Raises:
            ConfigurationError: the user, the password or the number of the database is wrong.
            StoreUnavailable: the server cannot be reached, or does not accept them any more.
        """
        try:
            return await self.address.connect()
        except AuthenticationError as error:
            raise self.not_allowed(str(error)) from error
        except ResponseError as error:
            reply = _error_reply(error)
            if reply.kind == "NOPERM":
                raise self.not_allowed(reply.text) from error
            if reply.text.startswith(_UNFIT):
                raise self.refusal(f"{self}: {reply.text}") from error
            raise self.unavailable(error) from error
        except (RedisError, OSError) as error:
            raise self.unavailable(error) from error

    def unavailable(self, reason: object) -> StoreUnavailable:
        """Return the error for callers, after the server could not be reached."""
        return StoreUnavailable(f"{self}: {reason or type(reason).__name__}")

    async def check(self, wire: RedisWire, info: Any) -> None:
        """Check the server by its INFO.

        Raises:
            ConfigurationError: it cannot hold the data of a store.
            StoreUnavailable: the same, although it could before.
        """
        if isinstance(info, ErrorReply):  # the user may not ask: managed servers, ACL rules
            if info.kind != "NOPERM":
                raise self.not_allowed(info.text)
            return
        facts = facts_of(info)
        version = facts.get("redis_version", "0")
        numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
        if numbers < _OLDEST:
            raise self.refusal(f"{self}: Redis {version} is too old; 6.2 or Valkey is needed")
        if facts.get("role") == "slave":
            raise self.refusal(
                f"{self} is a read-only replica; use the URL of the primary, or redis+sentinel://"
            )
        policy = facts.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise self.refusal(
                f"{self} evicts data when its memory is full (maxmemory-policy {policy}); set "
                "maxmemory-policy to noeviction"
            )
        if not self._was_accepted and facts.get("aof_enabled") == "0":
            (saves,) = await wire.exchange(("CONFIG", "GET", "save"))
            if problem := persistence_problem(facts, saves):
                logger.warning("%s: %s", self, problem)

    def accept(self) -> None:
        """Remember that the settings are right: later errors are failures of the server."""
        self._was_accepted = True

    def not_allowed(self, text: str) -> StoreUnavailable | ConfigurationError:
        """Return the error for callers, after the user lacked a permission."""
        return self.refusal(f"{self}: {text} (the user and password are part of the URL)")

    def refusal(self, text: str) -> StoreUnavailable | ConfigurationError:
        """Return the error for callers, after the server was found unfit."""
        # Before the first success, the settings are wrong; later, the server has changed.
        return StoreUnavailable(text) if self._was_accepted else ConfigurationError(text)


def facts_of(info: bytes) -> Mapping[str, str]:
    """Return the fields of the response to INFO."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, separator, value in lines if separator}


def persistence_problem(facts: Mapping[str, str], saves: Any) -> str | None:
    """Return which data a restart of the server loses, None if that is little or unknown.

    Args:
        facts: as returned by `facts_of`.
        saves: the response to CONFIG GET save.
    """
    if facts.get("aof_enabled") != "0" or not isinstance(saves, list) or len(saves) != 2:
        return None
    lost = "what was written since its last snapshot" if saves[1] else "all tasks"
    return f"appendonly is no, so that a restart of the server loses {lost}; set it to yes"


def memory_problem(facts: Mapping[str, str], max_bytes: int) -> str | None:
    """Return whether the memory of the server is full before the store is.

    Args:
        facts: as returned by `facts_of`.
        max_bytes: the capacity of the store.
    """
    memory = int(facts.get("maxmemory", 0))
    if not memory or memory >= 2 * max_bytes:
        return None
    return (
        f"maxmemory is {memory}, but max_bytes={max_bytes} needs at least twice as much; raise "
        "maxmemory or lower max_bytes"
    )
