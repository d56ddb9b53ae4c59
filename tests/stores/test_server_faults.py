"""Servers of stores that fail, are suspended or cannot be used: the same behaviour over both.

The chaos tests (tests/chaos) do the same to whole deployments.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeAlias

import psycopg
import pytest

from genmcp.errors import ConfigurationError, Conflict, LogTruncated, StoreUnavailable
from genmcp.stores import open_store
from genmcp.stores.postgres import PostgresStore
from genmcp.stores.redis import RedisStore
from genmcp.stores.store import Append, Put, Store
from tests.contracts.bench import BOUND, data_of, entry_of, take
from tests.support.postgres_server import fresh_schema, in_schema, shared_postgres
from tests.support.redis_server import RedisServer
from tests.support.stores import StoreServer, kill, shared_store

TIMEOUT = 0.5
"""Seconds that an operation may take, where a test waits for that."""

Opened: TypeAlias = Callable[..., Any]


class Target:
    """A server of the test's own, and the stores that it opened on it."""

    def __init__(self, url: str, server: StoreServer) -> None:
        self.url = url
        self.server = server
        self.stores: list[Store] = []

    def opened(self, **options: Any) -> Any:
        kind: Any = RedisStore if isinstance(self.server, RedisServer) else PostgresStore
        self.stores.append(kind(self.url, **options))
        return self.stores[-1]

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Suspend the server: connections stay open, but get no responses."""
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.slow)])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    async with shared_store(request.param, tmp_path, own_server=True) as (url, server):
        assert server is not None
        target = Target(url, server)
        yield target
        await asyncio.gather(*(store.aclose() for store in target.stores))


async def eventually(operation: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of *operation*, which is repeated while the store is unavailable."""
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(StoreUnavailable):
                return await operation()
            await asyncio.sleep(0.02)


# Killed and suspended servers


async def test_acknowledged_writes_survive_a_kill(target: Target) -> None:
    """Nothing that was acknowledged is lost, and nothing is half written."""
    store, acknowledged, enough = target.opened(), list[int](), asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(writer, 100_000, 8):
            await store.apply(Put(f"k#{number}", b"%d" % number), Append("k", b"", ttl=60))
            acknowledged.append(number)
            if len(acknowledged) == 200:
                enough.set()

    writing = [asyncio.ensure_future(write(writer)) for writer in range(8)]
    async with asyncio.timeout(BOUND):
        await enough.wait()
    await kill(target.server)
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    await target.server.start()

    assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
    events = await eventually(lambda: store.read("k", limit=200_000))
    for number in acknowledged:
        assert await store.get(f"k#{number}")
    assert len(acknowledged) <= len(events) <= len(acknowledged) + 8


async def test_impatient_store_connects_again_after_an_outage(target: Target) -> None:
    """Its requests wait for less time than it pauses after many failures to connect."""
    store = target.opened(timeout=0.2)
    await store.apply(Put("k", b"1"))
    await kill(target.server)
    for _ in range(8):
        with pytest.raises(StoreUnavailable):
            await store.apply(Put("k", b"2"))
    await target.server.start()

    await eventually(lambda: store.apply(Put("k", b"3")))
    assert (await entry_of(store, "k")).value == b"3"


async def test_version_continues_after_a_kill(target: Target) -> None:
    """Two processes that race for a version never both win it, also across a restart."""
    store, other = target.opened(), target.opened()
    await store.apply(Put("k", b"1"))
    entry = await entry_of(other, "k")
    await kill(target.server)
    await target.server.start()
    await eventually(lambda: store.apply(Put("k", b"2")))

    with pytest.raises(Conflict):
        await eventually(lambda: other.apply(Put("k", b"3", expect=entry.version)))


async def test_restart_is_not_noticed_by_readers(target: Target) -> None:
    """A restart within the timeout: reads, followers, workers and the next write succeed."""
    store, other = target.opened(timeout=BOUND), target.opened(timeout=BOUND)
    await store.apply(Put("k", b"1"), Append("k", b"1", ttl=60))
    with store.deliveries.news() as news:
        async with aclosing(store.follow("k")) as followed:
            assert await take(followed, 1) == [b"1"]
            following = asyncio.ensure_future(take(followed, 1))
            await kill(target.server)
            reading = asyncio.ensure_future(store.get("k"))
            await target.server.start()
            assert (await reading).value == b"1"

            await other.apply(Append("k", b"2", ttl=60))
            assert await following == [b"2"]
            await other.deliveries.put("id")
            async with asyncio.timeout(BOUND):
                while not await store.deliveries.claim(["default"], "n", 30, 1):
                    news.clear()
                    await news.wait()


async def test_first_write_after_a_restart_succeeds(target: Target) -> None:
    """Idle connections are replaced."""
    store = target.opened(timeout=BOUND)
    for number in range(3):
        await store.apply(Put("k", b"%d" % number), Append("k", b"", ttl=60))
        await kill(target.server)
        await target.server.start()
    await store.apply(Append("k", b"", ttl=60))

    assert (await entry_of(store, "k")).value == b"2"
    assert len(await store.read("k")) == 4


async def test_suspended_server_makes_operations_fail(target: Target) -> None:
    """They fail after the timeout, and work again when the server continues."""
    store = target.opened(timeout=TIMEOUT)
    await store.apply(Put("k", b"1"))
    async with target.paused(), asyncio.timeout(BOUND):
        outcomes = await asyncio.gather(
            store.get("k"),
            store.apply(Put("k", b"2")),
            store.deliveries.put("a"),
            store.read("k"),
            return_exceptions=True,
        )
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 4
    assert all("no response" in str(outcome) for outcome in outcomes)
    assert (await eventually(lambda: store.get("k"))).value in {b"1", b"2"}


async def test_waiting_operations_fail_together(target: Target) -> None:
    """Not one after the other, each after an attempt to connect of its own."""
    store = target.opened(timeout=TIMEOUT)
    await store.apply(Put("k", b"1", ttl=60))
    async with target.paused():
        start = time.monotonic()
        outcomes = await asyncio.gather(
            *(store.touch("k", 60) for _ in range(40)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        assert time.monotonic() - start < 20 * TIMEOUT


async def test_late_write_does_not_overtake_a_newer_one(target: Target) -> None:
    """A suspended server reads a write after its caller has given up, and does not perform it."""
    store, other = target.opened(timeout=TIMEOUT), target.opened()
    await store.apply(Put("k", b"first"))
    await other.get("k")
    async with target.paused(), asyncio.timeout(BOUND):
        with pytest.raises(StoreUnavailable):
            await store.apply(Put("k", b"late"), Append("k", b"late", ttl=60))
        await asyncio.sleep(0.1)  # the estimate of the server's clock is not exact
    await eventually(lambda: other.apply(Put("k", b"newer")))

    await eventually(lambda: store.apply(Put("other", b"")))  # the server has read everything
    assert (await entry_of(other, "k")).value == b"newer"
    assert await data_of(other, "k") == []


async def test_closing_does_not_wait_for_a_suspended_server(target: Target) -> None:
    """Neither a follower nor an operation without a response delays it by more than a second."""
    store = target.opened()
    followed = store.follow("log")
    following = asyncio.ensure_future(anext(followed))
    await store.apply(Put("k", b""))
    async with target.paused():
        waiting = asyncio.ensure_future(store.get("k"))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await store.aclose()
        for each in (waiting, following):
            with pytest.raises(StoreUnavailable, match="closed"):
                await each


async def test_server_without_its_data_reuses_nothing(target: Target) -> None:
    """A process with an old version, or an old event id, does not mistake new data for old."""
    store = target.opened()
    await store.apply(Put("k", b"1"), Append("k", b"1", ttl=60))
    entry, (event,) = await entry_of(store, "k"), await store.read("k")
    if isinstance(target.server, RedisServer):
        await target.server.command("FLUSHALL")
    else:
        await sql(target.url, "DROP SCHEMA genmcp CASCADE")
        with pytest.raises(StoreUnavailable, match="genmcp store migrate"):
            await store.get("k")
        await store.migrate()

    assert await eventually(lambda: store.get("k")) is None
    with pytest.raises(Conflict):
        await store.apply(Put("k", b"2", expect=entry.version))
    for number in range(5):
        await store.apply(Put("k", b"%d" % number), Append("k", b"%d" % number, ttl=60))
    assert (await entry_of(store, "k")).version > entry.version
    with pytest.raises(LogTruncated):
        await store.read("k", event.id)


async def test_server_that_becomes_read_only_is_unavailable(target: Target) -> None:
    """After a failover that the address does not follow yet. The error names the reason."""
    store = target.opened(timeout=TIMEOUT)
    await store.apply(Put("k", b"1"))
    if isinstance(target.server, RedisServer):
        await target.server.command("REPLICAOF", "127.0.0.1", "1")
    else:
        setting = "ALTER SYSTEM SET default_transaction_read_only = on"
        await sql(target.url, setting, "SELECT pg_reload_conf()")
    with pytest.raises(StoreUnavailable, match=r"read.only"):
        while True:  # until the server has read its configuration
            await store.apply(Put("k", b"2"))
    with pytest.raises(StoreUnavailable, match=r"read.only"):
        await store.apply(Put("k", b"3"))
    if isinstance(target.server, RedisServer):
        await target.server.command("REPLICAOF", "NO", "ONE")
    else:
        setting = "ALTER SYSTEM RESET default_transaction_read_only"
        writable = f"{target.url}?options=-c%20default_transaction_read_only%3Doff"
        await sql(writable, setting, "SELECT pg_reload_conf()")

    await eventually(lambda: store.apply(Put("k", b"4")))


# Servers that cannot be used


async def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute *statements* over a connection of their own, and return the rows of the last one."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as link:
        for statement in statements:
            cursor = await link.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def redis(url: str = "{url}", **options: Any) -> AsyncIterator[str]:
    async with RedisServer(options.pop("settings", None), **options) as redis:
        yield url.format(url=redis.url, port=redis.port)


@asynccontextmanager
async def redis_of_a_user(rules: str) -> AsyncIterator[str]:
    async with RedisServer() as redis:
        await redis.command("ACL", "SETUSER", "ann", *f"on >wr0ng {rules}".split())
        yield f"redis://ann:wr0ng@127.0.0.1:{redis.port}"


@asynccontextmanager
async def postgres(
    user: str = "postgres:secret",
    database: str = "postgres",
    *,
    migrated: bool = True,
    changes: tuple[str, ...] = (),
) -> AsyncIterator[str]:
    """Yield the URL of a schema in the server of all tests, for *user* and *database*."""
    name, url = fresh_schema(), shared_postgres()
    if migrated:
        async with aclosing(PostgresStore(in_schema(url, name))) as store:
            await store.migrate()
    if changes:
        await sql(url, *(each.format(name=name) for each in changes))
    url = url.replace("postgres:secret", user.format(name=name)).removesuffix("postgres")
    yield in_schema(url + database, name)


UNUSABLE: dict[str, tuple[Callable[[], AbstractAsyncContextManager[str]], str]] = {
    "redis, evicting": (
        lambda: redis(settings={"maxmemory-policy": "allkeys-lru"}),
        "set maxmemory-policy to noeviction",
    ),
    "redis, replica": (
        lambda: redis(settings={"replicaof": "127.0.0.1 1"}),
        "read-only replica; use the URL of the primary",
    ),
    "redis, old": (redis, "is too old; 6.2 or Valkey is needed"),
    "redis, database": (lambda: redis("{url}/16"), "DB index is out of range"),
    "redis, no password": (
        lambda: redis("redis://127.0.0.1:{port}", password="secret"),
        "user and password are part of the URL",
    ),
    "redis, wrong password": (
        lambda: redis("redis://:wr0ng@127.0.0.1:{port}", password="secret"),
        "user and password are part of the URL",
    ),
    "redis, no rights": (
        lambda: redis_of_a_user("~* &* +@connection +info"),
        "no permissions to run",
    ),
    "postgres, old": (postgres, "PostgreSQL 14 or later is needed"),
    "postgres, wrong password": (
        lambda: postgres("postgres:wr0ng"),
        "password authentication failed",
    ),
    "postgres, database": (
        lambda: postgres(database="nothing"),
        'database "nothing" does not exist',
    ),
    "postgres, read-only": (
        lambda: postgres(database="postgres?options=-c%20default_transaction_read_only%3Don"),
        "is read-only, such as a replica: name the primary server",
    ),
    "postgres, no rights": (
        lambda: postgres("{name}:wr0ng", changes=("CREATE ROLE {name} LOGIN PASSWORD 'wr0ng'",)),
        "permission denied",
    ),
    "postgres, no schema": (lambda: postgres(migrated=False), "genmcp store migrate"),
    "postgres, older schema": (
        lambda: postgres(changes=("UPDATE {name}.meta SET version = 0",)),
        "genmcp store migrate",
    ),
    "postgres, newer schema": (
        lambda: postgres(changes=("UPDATE {name}.meta SET version = 99",)),
        "install the newer release",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
async def test_unusable_server_is_rejected_with_one_line(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation names the fault and the remedy; the log has one line, without a password."""
    make, message = UNUSABLE[case]
    async with make() as url, aclosing(open_store(url)) as store:
        if "old" in case.split():
            monkeypatch.setattr("genmcp.stores.redis.server._OLDEST", (99, 0))
            monkeypatch.setattr("genmcp.stores.postgres.server._OLDEST", 990000)
        for _ in range(2):
            for operation in (store.get("k"), store.apply(Put("k", b"")), store.read("k")):
                with pytest.raises(ConfigurationError) as caught:
                    await operation
                assert message in str(caught.value)
                assert "wr0ng" not in str(caught.value)

    (line,) = [each for each in caplog.messages if "is unavailable: " in each]
    assert message in line
    assert "wr0ng" not in caplog.text


@pytest.mark.parametrize(
    "url", ["redis://ann:wr0ng@127.0.0.1:{port}", "postgresql://ann:wr0ng@127.0.0.1:{port}/x"]
)
async def test_unreachable_server_is_unavailable(
    url: str, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be started later. The error names the server, and no password."""
    async with aclosing(open_store(url.format(port=free_port))) as store:
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=str(free_port)):
                await store.get(token_hex(4))

    assert sum("is unavailable: " in each for each in caplog.messages) == 1
    assert "wr0ng" not in caplog.text
