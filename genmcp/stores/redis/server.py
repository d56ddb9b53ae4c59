"""The server of a RedisStore: its URL, the check of its settings, and its errors.

This is the only module that imports redis-py.
"""

import asyncio
import random
import re
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from genmcp.cancellation import run_to_completion
from genmcp.errors import ConfigurationError, StoreFull, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.stores.clocks import ServerClock, steady
from genmcp.stores.outages import Outages, redacted
from genmcp.stores.redis.scripts import ALL, FENCE

try:
    from redis import asyncio as aioredis
    from redis import backoff, exceptions
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
except ImportError as error:
    raise missing_extra("RedisStore", "redis", error) from error

# All errors of redis-py. TimeoutError is an OSError.
ERRORS: Final = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
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
# How Sentinels, and nodes of a cluster, are asked for the server: after a second, another one is.
_ASKING: Final = {"protocol": 2, "socket_timeout": 1.0, "socket_connect_timeout": 1.0}
_CLOSING: Final = 1.0  # seconds
_CONNECTIONS: Final = 4  # of an event loop: for writes, reads, followers, and a question of `ask`
_REJECTED: Final = (exceptions.NoScriptError, exceptions.MovedError, exceptions.ReadOnlyError)


def is_rejected(reply: object) -> bool:
    """Return whether the server has not performed a command, and another connection may help.

    After SCRIPT FLUSH or a failover, a slot has moved, or the write arrived too late (common.lua).
    """
    # Redis before 7 responds with an error of its own around one that was raised in a script.
    return isinstance(reply, _REJECTED) or (
        isinstance(reply, Exception)
        and (str(reply).startswith("LATE ") or "read only replica" in str(reply))
    )


def lacks_permission(error: object) -> bool:
    """Return whether the user may not give the command."""
    return isinstance(error, exceptions.NoPermissionError) or "NOPERM" in str(error)


async def ended(closing: Coroutine[Any, Any, None]) -> None:
    """Await the end of connections, which a server that is away does not confirm.

    Tasks are cancelled twice at the end of an event loop: by it, and by `LoopConnections`. Neither
    must leave a connection open.
    """

    async def within_a_second() -> None:
        with suppress(*ERRORS):
            async with asyncio.timeout(_CLOSING):
                await closing

    await run_to_completion(within_a_second())


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
        credentials, at, hosts = parts.netloc.rpartition("@")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        # The messages contain no part of the URL in which a password may be that is not encoded.
        if any("@" in name for name in query):
            raise ValueError("special characters of the password must be percent-encoded")
        self._sentinel = {
            "ssl": scheme == "rediss",
            "password": query.pop("sentinel_password", None),
        }
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
        first = hosts.partition(",")[0]
        self._url = f"{scheme}://{credentials}{at}{first}/{path or 0}?{urlencode(query)}"
        self.client(*self._hosts[0], 1.0).connection_pool.make_connection()
        if self._kind == "cluster":
            self._cluster()  # an unknown option is rejected now

    async def locate(self, key: str) -> tuple[str, int]:
        """Return the server, the node of the cluster for *key*, or the primary of the service."""
        if self._kind == "cluster":
            async with self._cluster() as cluster:
                node = cluster.get_node_from_key(key)
                return str(node.host), int(node.port)
        if not self._kind:
            return self._hosts[0]
        make: Any = aioredis.Sentinel  # redis-py declares no types for it
        hosts = random.sample(self._hosts, len(self._hosts))
        retry = Retry(backoff.NoBackoff(), 0)
        sentinel = make(hosts, sentinel_kwargs={**_ASKING, **self._sentinel, "retry": retry})
        try:
            host, port = await sentinel.discover_master(self._service)
            return str(host), int(port)
        finally:
            for each in sentinel.sentinels:
                await each.aclose()

    def client(self, host: str, port: int, timeout: float) -> Any:
        """Return redis-py's client of a server, with the connections of an event loop."""
        pool = aioredis.BlockingConnectionPool.from_url(self._url, protocol=2)
        pool.max_connections, pool.timeout = _CONNECTIONS, timeout
        # These hold whatever the URL has. A write is never sent twice. The callers limit how long
        # an operation takes: with a `socket_timeout`, redis-py sends in `asyncio.wait_for`, which
        # loses cancellations before Python 3.12.
        options = {"socket_connect_timeout": timeout, "socket_timeout": None}
        pool.connection_kwargs.update(options, host=host, port=port, retry_on_timeout=False)
        return aioredis.Redis.from_pool(pool)

    def _cluster(self) -> Any:
        options = {"startup_nodes": [ClusterNode(*each) for each in self._hosts], **_ASKING}
        return aioredis.RedisCluster.from_url(self._url, require_full_coverage=False, **options)


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        return unquote(parts.hostname or "localhost"), parts.port or default
    except ValueError:
        raise ValueError("the port is not a number up to 65535") from None


class RedisServer:
    """The server as all event loops of one process see it. Owned by a `RedisStore`.

    Args:
        url: that of the store.
        prefix: of all keys, with a hash tag.
        timeout: seconds for each attempt to connect.
        outages: those of the store.

    Attributes:
        clock: the clock of the server.
        stale: the names of lost pipelines, with writes that may still arrive.
        shown: the URL without secrets.
    """

    def __init__(self, url: str, prefix: str, timeout: float, outages: Outages) -> None:
        self.prefix = prefix
        self.timeout = timeout
        self.outages = outages
        self.clock = ServerClock()
        self.stale: set[str] = set()
        self._address = RedisAddress(url)
        self.shown = self._address.shown

    def __str__(self) -> str:
        return f"the Redis store at {self.shown}"

    async def connect(self) -> Any:
        """Return redis-py's client of the server that has the data now, after a check.

        Raises:
            ConfigurationError: it cannot hold the data of a store.
            StoreUnavailable: the same, although it could before, or it cannot be reached.
        """
        redis: Any = None
        try:
            host, port = await self._address.locate(self.prefix)
            redis = self._address.client(host, port, self.timeout)
            await self._prepare(redis)
            return redis
        except BaseException as error:
            if redis is not None:
                await ended(redis.aclose())
            if isinstance(error, ERRORS):
                raise self.failure(error) from error
            raise

    async def _prepare(self, redis: Any) -> None:
        """Send the scripts, check the settings, fence late writes, and measure the clock."""
        pipeline, stale = redis.pipeline(transaction=False), tuple(self.stale)
        pipeline.info()
        for script in ALL:
            pipeline.script_load(script.source)
        pipeline.evalsha(FENCE.sha, 1, self.prefix, 0, "", 0, *stale)
        facts, *replies = await pipeline.execute(raise_on_error=False)
        if isinstance(facts, Mapping):
            self._check(facts)
        elif lacks_permission(facts):  # managed servers, ACL rules
            facts = None
        if error := next((each for each in (facts, *replies) if isinstance(each, Exception)), None):
            raise error
        sent = steady()
        seconds, micros = await redis.time()
        self.clock.measure(sent, steady(), seconds + micros / 1_000_000)
        self.stale.difference_update(stale)

    def _check(self, facts: Mapping[str, Any]) -> None:
        version, policy = str(facts["redis_version"]), str(facts.get("maxmemory_policy"))
        if tuple(int(each) for each in re.findall(r"\d+", version)[:2]) < _OLDEST:
            raise self._refusal(f"Redis {version} is too old; 6.2 or Valkey is needed")
        if facts.get("role") == "slave":
            url = "use the URL of the primary, or redis+sentinel://"
            raise self._refusal(f"it is a read-only replica; {url}")
        if policy.startswith("allkeys"):
            hint = "set maxmemory-policy to noeviction"
            raise self._refusal(f"it evicts data (maxmemory-policy {policy}); {hint}")

    def unavailable(self, reason: object) -> StoreUnavailable:
        """Return the error for callers, after the server could not be reached."""
        return StoreUnavailable(f"{self}: {reason or type(reason).__name__}")

    def failure(self, error: BaseException) -> StoreUnavailable | ConfigurationError:
        """Return the error for callers, after *error* of redis-py."""
        if isinstance(error, exceptions.RedisClusterException) and error.__cause__ is not None:
            return self.failure(error.__cause__)
        text = str(error)
        if isinstance(error, StoreUnavailable | ConfigurationError):
            return type(error)(text)  # each caller adds its own traceback
        if isinstance(error, TimeoutError | exceptions.TimeoutError):
            return self.unavailable(f"no response within {self.timeout} seconds")
        if isinstance(error, exceptions.AuthenticationError) or lacks_permission(error):
            return self._refusal(f"{text} (the user and password are part of the URL)")
        # The words are those of Redis before 7, in a script.
        if isinstance(error, exceptions.OutOfMemoryError) or "when used memory" in text:
            return StoreFull(f"{self}: its memory is full; raise maxmemory, or lower max_bytes")
        if text.startswith(_UNFIT):
            return self._refusal(text)
        if text.startswith("LATE "):
            return self.unavailable("the write arrived too late, and was not performed")
        return self.unavailable(error if isinstance(error, ERRORS) else repr(error))

    def _refusal(self, reason: str) -> StoreUnavailable | ConfigurationError:
        # Before the first success, the settings are wrong; later, the server has changed.
        kind = StoreUnavailable if self.clock.was_measured else ConfigurationError
        return kind(f"{self}: {reason}")


def persistence_problem(facts: Mapping[str, Any], saves: Any) -> str | None:
    """Return which data a restart of the server loses, None if that is little or unknown.

    Args:
        facts: the response to INFO.
        saves: the response to CONFIG GET save, which the user may have no permission for.
    """
    if facts.get("aof_enabled") != 0 or not isinstance(saves, dict):
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
