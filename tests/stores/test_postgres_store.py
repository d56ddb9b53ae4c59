"""Properties of `PostgresStore` alone: its URL, migration, accounts, connections, processes."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from genmcp import Endpoint, Mux, Suite
from genmcp.core.client_key import client_of
from genmcp.errors import ConfigurationError, Conflict, OverShare, StoreUnavailable
from genmcp.stores import open_store
from genmcp.stores.accounts import ANONYMOUS, Usage
from genmcp.stores.deliveries import OwnerShare
from genmcp.stores.postgres import PostgresStore, schema
from genmcp.stores.store import Append, Delete, Put
from tests.contracts.bench import entry_of, in_another_loop, take
from tests.support.delay import Delay
from tests.support.postgres_server import PostgresServer, fresh_schema, in_schema, shared_postgres

Opened: TypeAlias = Callable[..., PostgresStore]

BOUND = 30.0
"""Seconds after which a test that waits fails."""

TIMEOUT = 0.5
"""Seconds that a statement may take, where a test waits for that."""


@pytest.fixture
async def name() -> str:
    """A schema that exists."""
    name = fresh_schema()
    async with aclosing(PostgresStore(in_schema(shared_postgres(), name))) as store:
        await store.migrate()
    return name


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """Opens stores, which are closed after the test."""
    stores: list[PostgresStore] = []

    def opened(url: str, *, schema: str | None = None, **options: Any) -> PostgresStore:
        stores.append(PostgresStore(in_schema(url, schema) if schema else url, **options))
        return stores[-1]

    yield opened
    await asyncio.gather(*(store.aclose() for store in stores))


@pytest.fixture
async def server() -> AsyncIterator[PostgresServer]:
    """A server of the test's own, with the schema `genmcp`."""
    async with PostgresServer() as server:
        async with aclosing(PostgresStore(server.url)) as store:
            await store.migrate()
        yield server


async def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute *statements* over a connection of their own, and return the rows of the last one."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as link:
        for statement in statements:
            cursor = await link.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


# Start-up


async def test_role_with_rights_on_the_data_is_enough(opened: Opened, name: str) -> None:
    """Servers and workers need not own the schema: see the page on stores."""
    await sql(
        shared_postgres(),
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        f"GRANT USAGE ON SCHEMA {name} TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO {name}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {name}",
    )
    store = opened(shared_postgres().replace("postgres:secret", f"{name}:secret"), schema=name)

    await store.apply(Put("k", b"1"), Append("k", b"event", ttl=60))
    await store.apply(Delete("k"))

    assert await store.get("k") is None
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await sql(
            shared_postgres().replace("postgres:secret", f"{name}:secret"),
            f"DROP TABLE {name}.records",
        )


@pytest.mark.parametrize("url", ["postgresql://a:b@[::1/x", "postgresql://h/d?nothing=1"])
def test_url_with_an_error_is_rejected(url: str) -> None:
    """The message does not repeat the URL, which may have a password."""
    with pytest.raises(ConfigurationError, match="cannot be parsed") as caught:
        PostgresStore(url)
    assert url not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"max_bytes": 0}],
    ids=str,
)
def test_option_out_of_range_is_rejected(options: dict[str, Any]) -> None:
    """The message names the option."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        PostgresStore("postgresql://localhost/", **options)


def test_schema_with_another_name_than_an_identifier_is_rejected() -> None:
    """The name becomes a part of statements."""
    with pytest.raises(ConfigurationError, match="schema must be a name"):
        PostgresStore("postgresql://localhost/?schema=Bad;name")


async def test_url_names_the_schema(name: str) -> None:
    """The parameter `schema` of a URL is for the store, the others for the server."""
    url = f"{shared_postgres()}?application_name=shop&schema={name}"
    async with aclosing(open_store(url)) as store:
        await store.apply(Put("k", b"1"))
        rows = await sql(shared_postgres(), f"SELECT key FROM {name}.records")
        names = await sql(shared_postgres(), "SELECT application_name FROM pg_stat_activity")
    assert rows == [("k",)]
    assert ("shop",) in names


# Migration


async def test_migration_is_done_once(opened: Opened) -> None:
    """Of several processes that migrate at once, one creates the schema."""
    name = fresh_schema()
    stores = [opened(shared_postgres(), schema=name) for _ in range(4)]
    done = await asyncio.gather(*(store.migrate() for store in stores))

    assert sorted(map(bool, done)) == [False, False, False, True]
    await stores[0].apply(Put("k", b"1"))
    assert await stores[1].get("k")


async def test_dry_run_changes_nothing(opened: Opened) -> None:
    """It returns the statements, which an administrator may execute instead."""
    name = fresh_schema()
    store = opened(shared_postgres(), schema=name)
    script = await store.migrate(dry_run=True)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await store.get("k")

    await sql(shared_postgres(), script)
    await store.apply(Put("k", b"1"))


async def test_older_schema_is_migrated(
    opened: Opened, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The scripts of later versions are executed on the data, all of them or none."""
    await opened(shared_postgres(), schema=name).apply(Put("k", b"1"))
    monkeypatch.setattr(schema, "_FOLDER", tmp_path)
    monkeypatch.setattr(schema, "_SCRIPTS", {2: "schema.sql", 3: "3.sql", 4: "4.sql"})
    for module in ("schema", "server"):
        monkeypatch.setattr(f"genmcp.stores.postgres.{module}.SCHEMA_VERSION", 4)
    (tmp_path / "3.sql").write_text("CREATE TABLE genmcp.second ();")
    (tmp_path / "4.sql").write_text("CREATE TABLE genmcp.second ();")
    newer = opened(shared_postgres(), schema=name)
    with pytest.raises(ConfigurationError, match="already exists"):
        await newer.migrate()
    with pytest.raises(ConfigurationError, match="has version 2"):
        await newer.get("k")

    (tmp_path / "4.sql").write_text("CREATE TABLE genmcp.third ();")
    assert f"{name}.third" in await newer.migrate()
    assert await newer.get("k")


async def test_schema_that_cannot_be_migrated_is_rejected(opened: Opened, name: str) -> None:
    """The message names the remedy, and the data stays."""
    await sql(shared_postgres(), f"UPDATE {name}.meta SET version = 1")
    with pytest.raises(ConfigurationError, match=f"version 1.*DROP SCHEMA {name} CASCADE"):
        await opened(shared_postgres(), schema=name).migrate()


# Names and usage


async def test_names_may_have_any_character(opened: Opened, name: str) -> None:
    """PostgreSQL's text has no NUL; different keys stay different nevertheless."""
    store = opened(shared_postgres(), schema=name)
    keys = ["a\x00", "a\x01", "a\x010", "a\x011", "ü\U0001f600", "a b\n\\'\""]
    for key in keys:
        await store.apply(Put(key, key.encode(), labels=(key,)), Append(key, b"", ttl=60))
        assert store.deliveries
        await store.deliveries.put(key, queue=key, owner=key)
    for key in keys:
        assert (await entry_of(store, key)).value == key.encode()
        assert [each.key for each in await store.find(key)] == [key]
        assert [each.id for each in await store.deliveries.claim([key], "n", 30, 9)] == [key]


async def test_usage_is_exact_after_concurrent_writes(opened: Opened, name: str) -> None:
    """Each connection counts in a row of its own; the sum is the usage."""
    stores = [opened(shared_postgres(), schema=name) for _ in range(4)]
    ann = client_of(None, "10.0.0.1")
    await asyncio.gather(
        *(
            store.apply(Put(f"{number}:{turn}", b"12", client=ann))
            for number, store in enumerate(stores)
            for turn in range(25)
        )
    )
    assert await stores[0].usage(ann) == Usage(100, 100 * 5 + 60)
    assert await stores[0].usage(ANONYMOUS) == await stores[1].usage(ann)


async def test_counters_of_former_clients_are_removed(opened: Opened, name: str) -> None:
    """Also if one process has added entries that another one has removed."""
    stores = [opened(shared_postgres(), schema=name) for _ in range(4)]
    for number in range(20):
        client = f"client {number % 5}"
        await stores[number % 4].apply(Put(f"k:{number}", b"1", client=client))
        if number != 7:
            await stores[(number + 1) % 4].apply(Delete(f"k:{number}"))
    async with asyncio.timeout(BOUND):
        while True:
            assert await stores[0].usage("client 0") == Usage()
            assert await stores[0].usage("client 2") == Usage(1, 4)
            counters = await sql(
                shared_postgres(), f"SELECT name, entries, size FROM {name}.accounts"
            )
            if [each for each in counters if each[0]] == [("client 2", 1, 4)]:
                break


async def test_claims_take_as_long_in_a_long_queue(opened: Opened, name: str) -> None:
    """Also while a process takes nothing over, and if its only client uses its whole share."""
    full = OwnerShare(1, {"ann": 1})

    async def shortest(length: int) -> list[float]:
        await sql(
            shared_postgres(),
            f"TRUNCATE {name}.deliveries",
            f"INSERT INTO {name}.deliveries (id, queue, owner, due, turn)"
            f" SELECT i, 'default', 'ann', 0, i FROM generate_series(1, {length}) AS i",
        )
        deliveries = opened(shared_postgres(), schema=name).deliveries
        operations: list[Callable[[], Awaitable[Any]]] = [
            lambda: deliveries.claim(["default"], "node", 60.0, 1),
            lambda: deliveries.claim(["default"], "node", 60.0, 1, takeover_delay=60.0),
            lambda: deliveries.claim(["default"], "node", 60.0, 1, share=full),
            lambda: deliveries.next_due(["default"], full),
        ]
        return [min([await seconds(operation) for _ in range(10)]) for operation in operations]

    short, long = await shortest(100), await shortest(20_000)
    assert all(slow < 5 * fast for slow, fast in zip(long, short, strict=True)), (short, long)


async def seconds(operation: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await operation()
    return time.perf_counter() - start


# Crashes and suspensions of the server


async def test_lost_connection_of_the_listener_is_replaced(opened: Opened, name: str) -> None:
    """Followers read the events that were appended in between."""
    store, other = opened(shared_postgres(), schema=name), opened(shared_postgres(), schema=name)
    await store.apply(Append("k", b"0", ttl=60))
    async with aclosing(store.follow("k")) as followed:
        await take(followed, 1)
        following = asyncio.ensure_future(take(followed, 20))
        for number in range(20):
            await sql(
                shared_postgres(),
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE query LIKE 'LISTEN \"{name}%'",
            )
            await other.apply(Append("k", b"%d" % number, ttl=60))
        assert await following == [b"%d" % number for number in range(20)]


async def test_server_without_free_connections_is_unavailable(opened: Opened) -> None:
    """The error is that of the server."""
    async with PostgresServer(max_connections="8") as server:
        async with aclosing(opened(server.url)) as store:
            await store.migrate()
        links = []
        try:
            with suppress(psycopg.OperationalError):
                while True:
                    links.append(await psycopg.AsyncConnection.connect(server.url))
            with pytest.raises(StoreUnavailable, match="too many clients"):
                await opened(server.url, timeout=0.2).get("k")
        finally:
            for link in links:
                await link.close()


async def test_writes_succeed_after_a_step_of_the_clock(opened: Opened, name: str) -> None:
    """The clock of a server that is set forward does not make its writes late."""
    await sql(
        shared_postgres(),
        f"CREATE TABLE {name}.step AS SELECT interval '0' AS ahead",
        f"CREATE FUNCTION {name}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
        f" 'SELECT pg_catalog.clock_timestamp() + ahead FROM {name}.step'",
    )
    # A path that names pg_catalog last: the function above is the clock of the server.
    url = f"{shared_postgres()}?options=-c%20search_path%3D{name}%2Cpg_catalog"
    store = opened(url, schema=name)
    await store.apply(Put("k", b"1"))
    await sql(shared_postgres(), f"UPDATE {name}.step SET ahead = '1 hour'")
    await store.apply(Put("k", b"2"))

    assert (await entry_of(store, "k")).value == b"2"
    assert abs(store.now() - time.time() - 3600) < 1


async def test_batch_that_times_out_is_not_sent_again(opened: Opened, name: str) -> None:
    """Fifteen more attempts would each take as long, and all other writes would wait for them."""
    store, later = (opened(shared_postgres(), schema=name, timeout=TIMEOUT) for _ in range(2))
    async with await psycopg.AsyncConnection.connect(shared_postgres()) as operator:
        await operator.execute(f"LOCK TABLE {name}.records".encode())
        batch = asyncio.gather(
            *(store.apply(Put(f"k:{number}", b"")) for number in range(15)), return_exceptions=True
        )
        for _ in range(2):  # after the second one, the batch has certainly timed out
            with pytest.raises(StoreUnavailable):
                await later.apply(Put("k", b""))
    assert {type(result) for result in await batch} == {StoreUnavailable}


async def test_write_held_back_never_follows_a_later_one(opened: Opened, name: str) -> None:
    """A pooler or load balancer has lost the client, and delivers its write nevertheless."""
    port = shared_postgres().partition("@")[2].partition(":")[2].partition("/")[0]
    async with Delay(int(port)) as delay:
        url = shared_postgres().replace(port, delay.url.rpartition(":")[2], 1)
        store = opened(f"{url}?application_name={name}", schema=name, timeout=TIMEOUT)
        await store.apply(Put("k", b"before"))
        release = delay.hold()
        first = asyncio.ensure_future(store.apply(Put("k", b"first")))
        await delay.held.wait()
        delay.cut()
        with pytest.raises(StoreUnavailable):
            await first
        await store.apply(Put("k", b"second"))
        await store.aclose()

        release.set()
        await delay.sent.wait()
        async with asyncio.timeout(BOUND):
            while await connections_of(name):
                pass  # each look is a query

    assert (await entry_of(opened(shared_postgres(), schema=name), "k")).value == b"second"


async def test_rejected_write_removes_what_has_expired(opened: Opened, name: str) -> None:
    """The room belongs to others; and the next rejected write need not do it again."""
    store = opened(shared_postgres(), schema=name, max_bytes=10_000)
    await store.apply(*(Put(f"old#{number}", b"", ttl=60) for number in range(5)))
    await sql(shared_postgres(), f"UPDATE {name}.records SET deadline = 0, sweep_at = 0")

    with pytest.raises(OverShare):
        await store.apply(Put("k", b"x" * 5_000, client="principal eve", new=True))

    assert await sql(shared_postgres(), f"SELECT count(*) FROM {name}.records") == [(0,)]


# Event loops and forks


async def connections_of(application: str) -> int:
    """Return how many connections the server has from *application*."""
    activity = f"FROM pg_stat_activity WHERE application_name = '{application}'"
    ((count,),) = await sql(shared_postgres(), f"SELECT count(*) {activity}")
    return int(count)


async def test_connections_of_closed_loops_are_dropped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A host may run each request in a loop of its own, as Starlette's TestClient does."""
    store = PostgresStore(in_schema(f"{shared_postgres()}?application_name={name}", name))

    async def use() -> None:
        async with aclosing(store.follow("k")) as followed:
            following = asyncio.ensure_future(take(followed, 1))
            await store.apply(Append("k", b"", ttl=60))
            assert await following
            await store.apply(Delete("k"))
        assert store.deliveries
        await asyncio.gather(store.get("k"), store.get("l"), store.deliveries.put("a"))

    for _ in range(5):
        await in_another_loop(use())
    async with asyncio.timeout(BOUND), aclosing(store):
        await store.get("k")
        while await connections_of(name) > 4:  # the server is still ending the others
            pass
    assert [each.getMessage() for each in caplog.records] == []


_INTERRUPTED = """
import asyncio, sys
from genmcp.stores.postgres import PostgresStore, schema

async def main():
    store = PostgresStore(sys.argv[1])
    asyncio.ensure_future(store.get("k"))
    await asyncio.to_thread(sys.stdin.read)  # until the store has begun to connect

asyncio.run(main())
"""


async def test_process_ends_while_its_store_connects() -> None:
    """Its event loop waits for all tasks, and the server may never respond."""
    begun = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"postgresql://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", _INTERRUPTED, url),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(BOUND):
                await begun.wait()
                _, printed = await process.communicate(b"")
        finally:
            if process.returncode is None:
                process.kill()
        assert (process.returncode, printed) == (0, b"")


# Many processes, writers and followers


async def test_writers_of_one_key_take_turns(opened: Opened, name: str) -> None:
    """Sixteen writers in four instances neither deadlock nor lose a version."""
    stores = [opened(shared_postgres(), schema=name) for _ in range(4)]

    async def write(store: PostgresStore) -> None:
        for _ in range(5):
            while True:
                read = await store.get("k")
                with suppress(Conflict):
                    await store.apply(
                        Put("k", b"", expect=read.version if read else 0),
                        Put("k#part", b""),
                        Append("k", b"", ttl=60),
                    )
                    break

    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(write(store) for store in stores for _ in range(4)))
    assert len(await stores[0].read("k")) == 80


async def test_thousand_followers_need_few_connections(opened: Opened, name: str) -> None:
    """An append of another process reaches all; they share one LISTEN connection."""
    url = f"{shared_postgres()}?application_name={name}"
    store, other = opened(url, schema=name), opened(shared_postgres(), schema=name)
    followers = [store.follow(f"log:{number % 10}") for number in range(1000)]
    taking = [asyncio.ensure_future(take(each, 1)) for each in followers]
    for number in range(10):
        await other.apply(Append(f"log:{number}", b"%d" % number, ttl=60))

    got = await asyncio.gather(*taking)
    assert got == [[b"%d" % (number % 10)] for number in range(1000)]
    used = await sql(
        shared_postgres(),
        f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'",
    )
    assert used[0][0] <= 5
    for each in followers:
        await each.aclose()


async def test_cancelled_write_never_follows_a_later_one(opened: Opened, name: str) -> None:
    """The next write of the process to the subject takes effect after it, or instead of it."""
    store = opened(shared_postgres(), schema=name)
    for number in range(50):
        cancelled = asyncio.ensure_future(store.apply(Put("k", b"cancelled")))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        cancelled.cancel()
        await store.apply(Put("k", b"%d" % number))
        await asyncio.wait([cancelled])
        assert (await entry_of(store, "k")).value == b"%d" % number


# Start of a server


async def started(store: PostgresStore) -> list[dict[str, Any]]:
    """Return the messages with which an endpoint on *store* responds to a start and a stop."""
    endpoint = Endpoint(Mux(Suite(name="shop", version="1"), store=store, secret="s" * 16))
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return events.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(BOUND):
        await endpoint({"type": "lifespan"}, receive, send)
    return sent


async def test_server_does_not_start_without_a_schema(opened: Opened) -> None:
    """The host, such as uvicorn, ends with the message."""
    (failed,) = await started(opened(shared_postgres(), schema="missing"))
    assert failed["type"] == "lifespan.startup.failed"
    assert "genmcp store migrate" in failed["message"]


async def test_server_starts_with_warnings(
    opened: Opened, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that loses data in a power failure can be used nevertheless."""
    sent = await started(opened(shared_postgres(), schema=name))
    assert [each["type"] for each in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert "fsync=off" in caplog.text


async def test_server_starts_before_its_store(opened: Opened, free_port: int) -> None:
    """The store may be started later; until then the server is not ready."""
    store = opened(f"postgresql://localhost:{free_port}/x", timeout=0.2)
    assert (await started(store))[0]["type"] == "lifespan.startup.complete"
