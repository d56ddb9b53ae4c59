"""The contract of engines, on procrastinate over a real PostgreSQL server."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress

import psycopg
import pytest

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.tasks.engine import Engine
from genmcp.tasks.procrastinate import ProcrastinateEngine
from genmcp.testing.contracts.engine import BOUND, LEASE, expect, serving
from genmcp.testing.contracts.engine_processes import BrokerEngineContract, StartProcess
from genmcp.testing.contracts.engine_worker import HandlerProbe
from tests.support.postgres_server import PostgresServer, fresh_schema

pytestmark = pytest.mark.slow


@asynccontextmanager
async def procrastinate_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(ProcrastinateEngine(url, poll_interval=0.2, retry_delay=0.1)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of this module, which its tests kill and start again."""
    server = PostgresServer()
    try:
        server.launch()
        yield server
    finally:
        server.remove()


async def with_schema(server: PostgresServer) -> str:
    """Create an empty schema, and return the URL of that."""
    schema = fresh_schema()
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        await connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
    return f"{server.url}?options=-csearch_path%3D{schema}"


class InstalledServer:
    """A PostgreSQL server, and the URL of a schema with procrastinate's tables."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self._server = server
        self.url = url
        self.start = server.start
        self.pause = server.pause
        self.resume = server.resume

    def kill(self) -> None:
        self._server.end(signal.SIGKILL)


class TestProcrastinate(BrokerEngineContract):
    factory = "tests.tasks.test_procrastinate_engine:procrastinate_engine"

    @pytest.fixture
    async def broker(self, server: PostgresServer) -> AsyncIterator[InstalledServer]:
        url = await with_schema(server)
        async with aclosing(ProcrastinateEngine(url)) as engine:
            await engine.migrate()
        yield InstalledServer(server, url)
        if not server.is_running:
            server.launch()

    async def test_handlers_keep_their_ids_while_the_broker_is_suspended(
        self, engine: Engine, probe: HandlerProbe, start: StartProcess, broker: InstalledServer
    ) -> None:
        """For longer than a lease: none of the processes could renew theirs meanwhile."""
        worker = await start()
        await engine.submit("a")
        await worker.expect("started a")
        async with serving(engine, probe):
            broker.pause()
            try:
                await asyncio.sleep(1.5 * LEASE)
            finally:
                broker.resume()
            await asyncio.sleep(1.5 * LEASE)
            worker.tell("release a")
            await worker.expect("ended a")
        assert not probe.counts["started", "a"]

    async def test_suspended_broker_is_reported(self, broker: InstalledServer) -> None:
        """A submission fails after the timeout, and one after the suspension succeeds."""
        async with aclosing(ProcrastinateEngine(broker.url, timeout=0.5)) as engine:
            await engine.submit("a")
            broker.pause()
            try:
                async with asyncio.timeout(BOUND):
                    for _ in range(2):  # on a connection, and without one
                        with pytest.raises(StoreUnavailable, match="procrastinate's database: "):
                            await engine.submit("b")
            finally:
                broker.resume()
            async with asyncio.timeout(BOUND):
                while True:
                    with suppress(StoreUnavailable):
                        await engine.submit("c")
                        break

    async def test_rows_of_a_removed_worker_are_taken_over(
        self, engine: Engine, probe: HandlerProbe, broker: InstalledServer
    ) -> None:
        """Workers of the application remove others that have no heartbeat."""
        await engine.submit("a")
        async with await psycopg.AsyncConnection.connect(broker.url) as connection:
            await connection.execute("UPDATE procrastinate_jobs SET status = 'doing'")
        async with serving(engine, probe):
            await expect(probe, "started", "a")
            probe.release("a")

    async def test_long_name_of_a_queue(self, engine: Engine, probe: HandlerProbe) -> None:
        """PostgreSQL announces ids on a channel whose name has at most 63 bytes."""
        probe.holds = False
        queue = "audience%2Fof%20a%20server/" + "q" * 200
        async with serving(engine, probe, queue, queue[:-1]):
            await engine.submit("a", queue=queue)
            await engine.submit("b", queue=queue[:-1])
            await expect(probe, "ended", "a", "b")


async def test_tables_are_created_by_the_command_for_stores(server: PostgresServer) -> None:
    """Beside those of the store; a second time nothing is changed."""
    url = await with_schema(server)
    statements = await migrate(url, "--dry-run")
    assert "CREATE TABLE genmcp.records" in statements
    assert "CREATE TABLE procrastinate_jobs" in statements
    assert "migrated the tables of ProcrastinateEngine\n" in await migrate(url)
    assert await migrate(url) == "there is nothing to migrate\n"


async def migrate(url: str, *options: str) -> str:
    environment = {**os.environ, "GENMCP_STORE": url, "GENMCP_ENGINE": "procrastinate"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "genmcp", "store", "migrate", *options),
        env=environment,
        stdout=PIPE,
        stderr=STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_tables_are_created_once(server: PostgresServer) -> None:
    """By one of several processes that start at the same time."""
    async with aclosing(ProcrastinateEngine(await with_schema(server))) as engine:
        done = await asyncio.gather(*(engine.migrate() for _ in range(3)))
    assert len([statements for statements in done if statements]) == 1


async def test_database_that_cannot_be_reached(unused_tcp_port: int) -> None:
    """The error does not contain the password."""
    url = f"postgresql://me:secret@127.0.0.1:{unused_tcp_port}/none"
    async with aclosing(ProcrastinateEngine(url)) as engine:
        with pytest.raises(StoreUnavailable, match="procrastinate's database: ") as away:
            await engine.migrate()
    assert "secret" not in str(away.value)


def test_wrong_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a PostgreSQL URL") as refused:
        ProcrastinateEngine("mysql://me:secret@host/database")
    assert "secret" not in str(refused.value)


async def test_missing_tables_are_reported(server: PostgresServer) -> None:
    """When it starts to serve, not with each id."""
    async with aclosing(ProcrastinateEngine(await with_schema(server))) as engine:
        with pytest.raises(ConfigurationError, match="genmcp store migrate"):
            async with serving(engine, HandlerProbe()):
                pass
