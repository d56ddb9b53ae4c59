"""Properties of `RedisStore` alone: its URL, the settings of the server, its connections."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from genmcp.errors import ConfigurationError, Conflict, StoreFull, StoreUnavailable
from genmcp.stores import log_problems, open_store
from genmcp.stores.following import follow
from genmcp.stores.redis import RedisStore
from genmcp.stores.store import Append, Delete, LogEvent, Put
from tests.support.delay import Delay
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

BOUND = 30.0
"""Seconds after which a test that waits fails."""


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A server of the test's own, to kill and to pause."""
    async with RedisServer() as server:
        yield server


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until *condition*, about the state of a server, returns True."""
    async with asyncio.timeout(BOUND):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# Settings


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://127.0.0.1:1", "the name of the service is missing"),
        ("redis://127.0.0.1/tasks", "the path is not the number of a database"),
        ("redis://127.0.0.1:1,127.0.0.1:2", "several hosts need"),
        ("redis://127.0.0.1:port", "the port is not a number"),
        ("redis://127.0.0.1?no_such_option=1", "no_such_option"),
        ("http://127.0.0.1", "is not supported; use redis://"),
        ("redis://", "is not supported; use redis://"),
    ],
)
def test_unsupported_url_is_rejected(url: str, message: str) -> None:
    """At construction: nothing has to be reached for it."""
    with pytest.raises(ConfigurationError, match=message):
        RedisStore(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis:/ann:secret@127.0.0.1",
        "redis://ann:secret/1@127.0.0.1",
        "redis://ann:secret?1@127.0.0.1",
        "redis://ann:1?secret@127.0.0.1",
    ],
)
def test_error_for_a_url_has_no_password(url: str) -> None:
    """Also if special characters of the password are not encoded."""
    with pytest.raises(ConfigurationError) as caught:
        RedisStore(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"max_bytes": 0},
        {"prefix": ""},
        {"prefix": "{a}"},
    ],
)
def test_option_out_of_range_is_rejected(options: Mapping[str, Any]) -> None:
    """The message names the option."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        RedisStore(**options)


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_store_is_opened_by_its_url(redis_url: str, scheme: str) -> None:
    """Redis and Valkey speak one protocol."""
    store = open_store(redis_url.replace("redis", scheme, 1))
    assert isinstance(store, RedisStore)
    async with aclosing(store):
        assert store.shared
        assert store.durable
        assert await store.get(token_hex(8)) is None


async def test_stores_with_different_prefixes_share_nothing(redis_url: str) -> None:
    """Neither records, deliveries nor wake-ups."""
    names = token_hex(8), token_hex(8)
    async with (
        aclosing(RedisStore(redis_url, prefix=names[0])) as one,
        aclosing(RedisStore(redis_url, prefix=names[1])) as two,
    ):
        await one.apply(Put("k", b"1", labels=("all",)), Append("k", b"1", ttl=60))
        await one.deliveries.put("a")

        assert await two.get("k") is None
        assert await two.read("k") == []
        assert await two.count("all") == 0
        assert await two.deliveries.claim(("default",), "n", 30, 1) == []


async def test_full_server_rejects_new_data_and_keeps_leases(server: RedisServer) -> None:
    """At `maxmemory` a write raises StoreFull; deletes, leases and reads still succeed."""
    async with aclosing(RedisStore(server.url)) as store:
        await store.apply(Put("old", b"x" * 1000))
        await store.deliveries.put("held")
        await store.deliveries.claim(("default",), "n", 30, 1)
        await server.command("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(StoreFull, match="raise maxmemory"):
            for number in range(100):
                await store.apply(Put(f"{number}", b"x" * 100_000))

        assert list(await store.deliveries.renew("n", ["held"], 30)) == []
        await store.deliveries.release("n", "held")
        await store.deliveries.put("next")
        assert await store.touch("old", 60)
        await store.apply(Delete("old"))
        assert await store.get("old") is None


async def test_data_of_another_version_is_rejected(server: RedisServer) -> None:
    """A write does not mix two layouts, and its error names the remedy."""
    await server.command("HSET", "{genmcp}:meta", "event", "1", "forgotten", "1")
    async with aclosing(RedisStore(server.url)) as store:
        with pytest.raises(StoreUnavailable, match=r"another version.*choose another prefix"):
            await store.apply(Put("k", b"1"))

        assert await store.get("k") is None


async def test_lost_scripts_are_loaded_again(server: RedisServer) -> None:
    """An operator's SCRIPT FLUSH fails no operation, also of several at once."""
    async with aclosing(RedisStore(server.url)) as store:
        await store.apply(Put("k", b"0"))
        await server.command("SCRIPT", "FLUSH")
        await asyncio.gather(*(store.apply(Put(f"{n}", b"1")) for n in range(50)), store.get("k"))

        assert await store.get("49")


async def test_url_may_have_options(redis_url: str) -> None:
    """A variable such as GENMCP_STORE has nothing but the URL."""
    prefix = token_hex(8)
    url = f"{redis_url}/0?prefix={prefix}&max_bytes=1000&health_check_interval=5"
    async with aclosing(open_store(url)) as store, aclosing(RedisStore.from_url(url)) as other:
        await store.apply(Put("k", b"1"))
        assert await other.get("k")
        totals = await store.totals()
        assert totals is not None
        assert totals.used == (1, 2)
        assert totals.capacity.size == 1000
    with pytest.raises(ConfigurationError, match="max_bytes='much' in the URL"):
        open_store("redis://localhost?max_bytes=much")


async def test_weak_settings_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A loss of data at a restart, and a memory that is smaller than the store."""
    options = {"appendonly": "no", "maxmemory": "100mb"}
    async with RedisServer(options) as server, aclosing(RedisStore(server.url)) as store:
        await log_problems(store)
        assert "a restart of the server loses all tasks" in caplog.text
        persistence, memory = await store.problems()

        assert "appendonly is no" in persistence
        assert "maxmemory is 104857600, but max_bytes=1073741824" in memory
    async with RedisServer() as server, aclosing(RedisStore(server.url)) as store:
        assert list(await store.problems()) == []


async def test_documented_permissions_are_enough(server: RedisServer) -> None:
    """The rules of docs/how-to/store-redis.md, for a user that has nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "store-redis.md").read_text("utf-8")
    rules = page.partition("`resetchannels ")[2].partition("`")[0]
    assert rules
    password = token_hex(8)
    rules = f"on >{password} resetchannels {rules}"
    assert await server.command("ACL", "SETUSER", "genmcp", *rules.split()) == b"+OK"
    async with aclosing(RedisStore(f"redis://genmcp:{password}@127.0.0.1:{server.port}")) as store:
        async with aclosing(store.follow("log")) as followed:
            following = asyncio.ensure_future(anext(followed))
            await store.apply(Put("k", b"1", ttl=60, labels=("a",)), Append("k", b"1", ttl=60))
            await store.apply(Append("log", b"1", ttl=60))
            async with asyncio.timeout(BOUND):
                assert (await following).data == b"1"
        await store.deliveries.put("a")
        assert await store.deliveries.claim(("default",), "n", 30, 1)
        assert await store.count("a") == 1
        assert await store.totals()
        assert await store.problems() == []
    async with aclosing(
        RedisStore(f"redis://genmcp:{password}@127.0.0.1:{server.port}", prefix="other")
    ) as store:
        with pytest.raises(ConfigurationError, match=r"permission|access"):
            await store.apply(Put("k", b"1"))


async def test_follower_continues_after_its_connection_fell_silent(server: RedisServer) -> None:
    """A network that drops packets reports nothing: the server has to respond to a PING."""
    async with (
        Delay(server.port) as proxy,
        aclosing(RedisStore(proxy.url, timeout=0.5)) as store,
        aclosing(RedisStore(server.url)) as writer,
        aclosing(follow(store, "log")) as followed,
    ):

        async def next_data() -> bytes:
            async for item in followed:
                if isinstance(item, LogEvent):
                    return item.data
            raise AssertionError("a follower does not end")

        await writer.apply(Append("log", b"0", ttl=60))
        assert await next_data() == b"0"
        following = asyncio.ensure_future(next_data())

        async def is_subscribed() -> bool:
            return b"sub=1" in await server.command("CLIENT", "LIST", "TYPE", "pubsub")

        await until(is_subscribed)
        proxy.mute()
        await writer.apply(Append("log", b"1", ttl=60))
        async with asyncio.timeout(BOUND):
            assert await following == b"1"


# Connections


async def test_ten_thousand_followers_share_a_connection(server: RedisServer) -> None:
    """A change reaches all of them, with one subscription and few commands."""
    async with aclosing(RedisStore(server.url, timeout=BOUND)) as store:
        reached = 0
        done, counted = asyncio.Event(), asyncio.Event()

        async def follow() -> None:
            nonlocal reached
            async with aclosing(store.follow("log")) as followed:
                await anext(followed)
                reached += 1
                if reached == 10_000:
                    done.set()
                await counted.wait()  # a channel without followers is left after a second

        followers = [asyncio.ensure_future(follow()) for _ in range(10_000)]
        await store.get("k")
        await asyncio.sleep(0.5)
        before = await calls(server)
        await store.apply(Append("log", b"1", ttl=60))
        async with asyncio.timeout(BOUND):
            await done.wait()

        assert await calls(server) - before < 20
        assert await connections(server) <= 3
        assert len((await server.command("CLIENT", "LIST", "TYPE", "pubsub")).splitlines()) == 1
        counted.set()
        await asyncio.gather(*followers)


async def calls(server: RedisServer) -> int:
    """The number of scripts that the server has run."""
    stats = (await server.command("INFO", "commandstats")).decode()
    line = next(line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:"))
    return int(line.partition("calls=")[2].partition(",")[0])


async def test_operations_of_one_turn_are_sent_together(server: RedisServer) -> None:
    """One write to the socket, and one read of the server."""
    async with aclosing(RedisStore(server.url)) as store:
        await store.get("k")
        before = await reads(server)
        await asyncio.gather(*(store.apply(Put(f"{n}", b"1")) for n in range(50)))

        assert await reads(server) - before <= 3  # the batch, and the questions of this test


async def reads(server: RedisServer) -> int:
    """How often the server has read from a socket."""
    stats = (await server.command("INFO", "stats")).decode()
    line = next(line for line in stats.splitlines() if line.startswith("total_reads_processed:"))
    return int(line.partition(":")[2])


async def use(store: RedisStore) -> None:
    """Write an event to *store*, and follow it; close nothing."""
    await store.apply(Append("log", b"1", ttl=60))
    async with aclosing(store.follow("log")) as followed:
        await anext(followed)


async def connections(server: RedisServer) -> int:
    """The number of connections of stores to the server."""
    return (await server.command("CLIENT", "LIST")).count(b"id=") - 1  # that of this command


def test_event_loops_use_a_store_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    """One loop for each test, or each request: the connections of an ended one are closed."""
    with asyncio.Runner() as runner:
        server = RedisServer()
        runner.run(server.start())
        try:
            store = RedisStore(server.url)
            for _ in range(3):
                asyncio.run(use(store))

            async def is_closed() -> bool:
                return await connections(server) == 0

            runner.run(until(is_closed))
            asyncio.run(store.aclose())
        finally:
            server.end()
    gc.collect()  # a connection, or a task, that was left would be reported now
    assert not caplog.messages


async def test_connection_is_encrypted(server: RedisServer, tmp_path: Path) -> None:
    """With `rediss://` or `valkeys://` the server needs a certificate that the client trusts."""
    certificate, key = self_signed()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with Delay(server.port, tls) as proxy:
        url = proxy.url.replace("redis://", "valkeys://")
        async with aclosing(RedisStore(f"{url}?ssl_ca_certs={tmp_path}/cert.pem")) as store:
            await store.apply(Append("log", b"1", ttl=60))
            async with aclosing(store.follow("log")) as followed:
                assert (await anext(followed)).data == b"1"
        async with aclosing(RedisStore(url)) as store:
            with pytest.raises(StoreUnavailable, match="certificate"):
                await store.get("k")


def self_signed() -> tuple[bytes, bytes]:
    """A certificate for 127.0.0.1, and its private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


# Cluster and Sentinel


async def test_store_in_a_cluster() -> None:
    """All keys of a store are in one slot. A node of the URL may be away."""
    async with RedisServer({"cluster-enabled": "yes"}) as server:
        url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{server.port}"
        async with aclosing(RedisStore(url)) as store:
            await store.apply(Put("k", b"1", ttl=60, labels=("a", "b")), Append("k", b"1", ttl=60))
            with pytest.raises(Conflict):
                await store.apply(Put("k", b"2", expect=0))
            await store.deliveries.put("a", owner="ann")
            claimed = await store.deliveries.claim(("default",), "n", 30, 1)

            assert [each.id for each in claimed] == ["a"]
            assert [each.key for each in await store.find("b")] == ["k"]
            async with aclosing(store.follow("k")) as followed:
                assert (await anext(followed)).data == b"1"


async def test_store_follows_its_slot_to_another_node() -> None:
    """A node without the slot of the store refers to the node that has it."""
    options = {"cluster-enabled": "yes"}
    async with RedisServer(options) as first, RedisServer(options, slots=False) as second:
        await second.command("CLUSTER", "MEET", "127.0.0.1", str(first.port))

        async def is_member() -> bool:
            return b"cluster_state:ok" in await second.command("CLUSTER", "INFO")

        await until(is_member)
        async with aclosing(RedisStore(f"redis+cluster://127.0.0.1:{second.port}")) as store:
            await store.apply(Put("k", b"1"))
            assert await store.get("k")
        assert await first.command("EXISTS", "{genmcp}:r:k") == b":1"


async def test_sentinel_leads_to_the_new_primary() -> None:
    """After a failover operations fail for a while, and then reach the other server."""
    async with (
        RedisServer() as primary,
        RedisServer({"replicaof": f"127.0.0.1 {primary.port}"}) as replica,
        RedisServer(sentinel_of=primary) as sentinel,
        aclosing(
            RedisStore(f"redis+sentinel://127.0.0.1:{sentinel.port}/main", timeout=1)
        ) as store,
        aclosing(store.follow("log")) as followed,
    ):
        await store.apply(Put("k", b"1"), Append("k", b"1", ttl=60))
        following = asyncio.ensure_future(anext(followed))

        async def is_replicated() -> bool:
            return (
                b"slaves=1" in await sentinel.command("INFO", "sentinel")
                and b"master_link_status:up" in await replica.command("INFO", "replication")
                and await replica.command("EXISTS", "{genmcp}:r:k") == b":1"
            )

        await until(is_replicated)
        primary.kill()
        entry = None
        async with asyncio.timeout(BOUND):
            while entry is None:
                with suppress(StoreUnavailable):
                    entry = await store.get("k")

        assert entry is not None
        assert entry.value == b"1"
        await store.apply(Append("log", b"2", ttl=60))
        async with asyncio.timeout(BOUND):
            assert (await following).data == b"2"
