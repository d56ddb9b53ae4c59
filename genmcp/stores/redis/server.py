"""The server of a RedisStore: its URL, its clock, the check of its settings, and its errors.

This is the only module that imports redis-py.
"""

import itertools
import logging
import random
import re
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from secrets import token_hex
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from genmcp.errors import ConfigurationError, StoreFull, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores import redacted
from genmcp.stores.clocks import steady
from genmcp.stores.outages import Outages
from genmcp.stores.redis.scripts import ALL, FENCE

try:
    from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        MovedError,
        NoPermissionError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        RedisError,
    )
    from redis.exceptions import ConnectionError as LostError
    from redis.exceptions import TimeoutError as RedisTimeoutError
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
ERRORS: Final = (RedisError, OSError)  # of redis-py: TimeoutError is an OSError

# The kinds of errors, each with its class in redis-py, and words that Redis before 7 puts around it
# if it was raised within a script.
_KINDS: Final[Mapping[str, tuple[type[Exception], str]]] = {
    "NOSCRIPT": (NoScriptError, "NOSCRIPT"),
    "MOVED": (MovedError, "MOVED"),
    "OOM": (OutOfMemoryError, "command not allowed when used memory"),
    "READONLY": (ReadOnlyError, "read only replica"),
    "NOPERM": (NoPermissionError, "NOPERM"),
    "NOAUTH": (AuthenticationError, "NOAUTH"),
}
_NO_RETRY: Final = Retry(NoBackoff(), 0)
_PATIENCE: Final = 1.0  # seconds that a Sentinel has to respond, before another one is asked


def kind_of(error: Exception) -> str:
    """Return the kind of an error of the server, "" if it has no consequences of its own.

    LATE is a write that it did not perform (common.lua).
    """
    if str(error).startswith("LATE "):
        return "LATE"
    kinds = (k for k, (of, words) in _KINDS.items() if isinstance(error, of) or words in str(error))
    return next(kinds, "")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The options of a RedisStore that concern its connections."""

    prefix: str  # of all keys, with a hash tag
    timeout: float
    connections: int
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
        self._scheme, self._credentials = scheme, f"{credentials}@" if credentials else ""
        self._rest = f"{path or 0}?{urlencode(query)}"
        self.client(*self._hosts[0], 1, 1.0).connection_pool.make_connection()
        if self._kind == "cluster":
            self._cluster()  # an unknown option is rejected now

    async def locate(self, key: str) -> tuple[str, int]:
        """Return the server, the node of the cluster for *key*, or the primary of the service."""
        if self._kind == "sentinel":
            make: Any = Sentinel  # redis-py declares no types for it
            sentinel = make(
                random.sample(self._hosts, len(self._hosts)),
                sentinel_kwargs={
                    "protocol": 2,
                    "password": self._sentinel_password,
                    "ssl": self._scheme == "rediss",
                    "socket_timeout": _PATIENCE,
                    "retry": _NO_RETRY,
                },
            )
            try:
                host, port = await sentinel.discover_master(self._service)
                return str(host), int(port)
            finally:
                for each in sentinel.sentinels:
                    await each.aclose()
        if self._kind == "cluster":
            async with aclosing(self._cluster()) as cluster:
                try:
                    await cluster.initialize()
                    node = cluster.get_node_from_key(key)
                except RedisClusterException as error:  # which is no RedisError
                    cause = error.__cause__
                    raise cause if isinstance(cause, RedisError) else LostError(error) from error
                return str(node.host), int(node.port)
        return self._hosts[0]

    def client(self, host: str, port: int, connections: int, timeout: float) -> Any:
        """Return redis-py's client of a server, with a pool of *connections*."""
        pool = BlockingConnectionPool.from_url(self._url(host, port), protocol=2)
        pool.max_connections, pool.timeout = connections, timeout
        # These hold whatever the URL has. A write is never sent twice. The callers limit how long
        # an operation takes: with a `socket_timeout`, redis-py sends in `asyncio.wait_for`, which
        # loses cancellations before Python 3.12.
        pool.connection_kwargs.update(
            socket_timeout=None, socket_connect_timeout=timeout, retry_on_timeout=False
        )
        return Redis.from_pool(pool)

    def _url(self, host: str, port: int) -> str:
        host = f"[{host}]" if ":" in host else quote(host)
        return f"{self._scheme}://{self._credentials}{host}:{port}/{self._rest}"

    def _cluster(self) -> Any:
        options: dict[str, Any] = {"protocol": 2, "require_full_coverage": False}
        options["startup_nodes"] = [ClusterNode(*each) for each in self._hosts]
        return RedisCluster.from_url(self._url(*self._hosts[0]), **options)


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
        self._name = token_hex(8)
        self._numbers = itertools.count(1)
        self._was_accepted = False

    def __str__(self) -> str:
        return f"the Redis store at {self.address.shown}"

    def new_token(self) -> str:
        """Return a new name for a pipeline."""
        return f"{self._name}:{next(self._numbers)}"

    async def connect(self) -> Any:
        """Return redis-py's client of the server that has the data now."""
        settings = self.settings
        host, port = await self.address.locate(settings.prefix)
        # One connection more is for the followers.
        return self.address.client(host, port, settings.connections + 1, settings.timeout)

    async def prepare(self, redis: Any) -> None:
        """Check the server, measure its clock, send it the scripts, and fence late writes.

        Raises:
            ConfigurationError: it cannot hold the data of a store.
            StoreUnavailable: the same, although it could before.
        """
        sent = steady()
        seconds, micros = await redis.time()
        self.clock.measure(sent, steady(), seconds * 1_000_000 + micros, at_once=True)
        pipeline, stale = redis.pipeline(transaction=False), tuple(self.stale)
        pipeline.info()
        for script in ALL:
            pipeline.script_load(script.source)
        pipeline.evalsha(FENCE.sha, 1, self.settings.prefix, 0, "", 0, *stale)
        info, *replies = await pipeline.execute(raise_on_error=False)
        if not isinstance(info, Exception):
            await self._check(redis, info)
        elif not isinstance(info, NoPermissionError):  # managed servers, ACL rules
            raise info
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self.stale.difference_update(stale)
        self._was_accepted = True  # later errors are failures of the server

    async def _check(self, redis: Any, facts: Mapping[str, Any]) -> None:
        version = str(facts.get("redis_version", "0"))
        numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
        if numbers < _OLDEST:
            raise self._refusal(f"{self}: Redis {version} is too old; 6.2 or Valkey is needed")
        if facts.get("role") == "slave":
            raise self._refusal(
                f"{self} is a read-only replica; use the URL of the primary, or redis+sentinel://"
            )
        policy = str(facts.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            raise self._refusal(
                f"{self} evicts data when its memory is full (maxmemory-policy {policy}); set "
                "maxmemory-policy to noeviction"
            )
        if not self._was_accepted and facts.get("aof_enabled") == 0:
            try:
                saves = await redis.config_get("save")
            except NoPermissionError:
                return
            if problem := persistence_problem(facts, saves):
                logger.warning("%s: %s", self, problem)

    def unavailable(self, reason: object) -> StoreUnavailable:
        """Return the error for callers, after the server could not be reached."""
        return StoreUnavailable(f"{self}: {reason or type(reason).__name__}")

    def failure(self, error: Exception) -> StoreUnavailable | ConfigurationError:
        """Return the error for callers, after *error* of redis-py."""
        kind, text = kind_of(error), str(error)
        if isinstance(error, StoreUnavailable | ConfigurationError):
            return type(error)(text)  # each caller adds its own traceback
        if isinstance(error, TimeoutError | RedisTimeoutError):
            return self.unavailable(f"no response within {self.settings.timeout} seconds")
        if kind in ("NOAUTH", "NOPERM"):
            return self._refusal(f"{self}: {text} (the user and password are part of the URL)")
        if kind == "OOM":
            text = "its memory is full; raise maxmemory, or lower max_bytes"
            return StoreFull(f"{self}: {text}")
        if text.startswith(_UNFIT):
            return self._refusal(f"{self}: {text}")
        return self.unavailable(error)

    def _refusal(self, text: str) -> StoreUnavailable | ConfigurationError:
        # Before the first success, the settings are wrong; later, the server has changed.
        return StoreUnavailable(text) if self._was_accepted else ConfigurationError(text)


def persistence_problem(facts: Mapping[str, Any], saves: Mapping[str, Any] | None) -> str | None:
    """Return which data a restart of the server loses, None if that is little or unknown.

    Args:
        facts: the response to INFO.
        saves: the response to CONFIG GET save, None if the user may not give that command.
    """
    if facts.get("aof_enabled") != 0 or saves is None:
        return None
    lost = "what was written since its last snapshot" if saves.get("save") else "all tasks"
    return f"appendonly is no, so that a restart of the server loses {lost}; set it to yes"


def memory_problem(facts: Mapping[str, Any], max_bytes: int) -> str | None:
    """Return whether the memory of the server is full before the store is.

    Args:
        facts: the response to INFO.
        max_bytes: the capacity of the store.
    """
    memory = int(facts.get("maxmemory", 0))
    if not memory or memory >= 2 * max_bytes:
        return None
    return (
        f"maxmemory is {memory}, but max_bytes={max_bytes} needs at least twice as much; raise "
        "maxmemory or lower max_bytes"
    )
