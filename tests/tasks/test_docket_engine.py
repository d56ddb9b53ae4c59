"""The contract of engines, on `DocketEngine` and a real Redis server."""

import asyncio
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
from docket import Docket, Worker

from genmcp import Client
from genmcp.errors import ConfigurationError
from genmcp.tasks.docket import DocketEngine
from genmcp.tasks.engine import Engine
from genmcp.testing.contracts.engine import BOUND
from genmcp.testing.contracts.engine_processes import BrokerEngineContract, EngineBroker
from tests.support.redis_server import RedisServer
from tests.tasks.docket_application import make_engine, make_mux, send_mail


@asynccontextmanager
async def docket_engine(url: str) -> AsyncIterator[Engine]:
    async with aclosing(DocketEngine(url, reconnect_delay=0.2)) as engine:
        yield engine


class TestDocket(BrokerEngineContract):
    factory = "tests.tasks.test_docket_engine:docket_engine"

    @pytest.fixture
    async def broker(self) -> AsyncIterator[EngineBroker]:
        async with RedisServer() as server:
            yield server


@pytest.mark.parametrize("url", ["memory://", "postgresql://localhost/x", "localhost:6379"])
def test_url_of_another_service_is_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Redis or Valkey"):
        DocketEngine(url)


def test_interval_that_is_not_positive_is_rejected() -> None:
    """Redis waits without an end for 0 milliseconds."""
    with pytest.raises(ConfigurationError, match=r"check_interval must be at least 0\.001 seconds"):
        DocketEngine("redis://127.0.0.1", check_interval=0)


def test_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['docket'] = None; import genmcp.tasks.docket"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigurationError: DocketEngine needs an extra" in ended.stderr
    assert 'pip install "genmcp[docket]"' in ended.stderr


def test_docket_is_imported_when_it_is_used() -> None:
    code = "import sys, genmcp, genmcp.cli; print('docket' in sys.modules, 'redis' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "False"]


@asynccontextmanager
async def docket_worker(url: str) -> AsyncIterator[Process]:
    """The application's own worker, started by Docket's command."""
    command = [sys.executable, "-m", "docket", "worker", "--docket", "shop", "--url", url]
    tasks = ["--tasks", "tests.tasks.docket_application:tasks"]
    process = await asyncio.create_subprocess_exec(*command, *tasks, stdout=PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def noted(worker: Process, text: str) -> None:
    """Wait until *worker* prints *text*."""
    assert worker.stdout is not None
    async with asyncio.timeout(BOUND):
        while text not in (line := (await worker.stdout.readline()).decode()):
            assert line, "the worker has ended"


async def test_worker_that_has_failed_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a defect. Docket itself waits only through failures of the server."""
    run_forever, failures = Worker.run_forever, [RuntimeError("a defect")]

    async def fail_once(worker: Worker) -> None:
        if failures:
            raise failures.pop()
        await run_forever(worker)

    handled: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(Worker, "run_forever", fail_once)
    async with RedisServer() as server, docket_engine(server.url) as engine:
        await engine.submit("a")
        async with (
            engine.serve(handled.put, queues=["default"], concurrency=1, lease=5),
            asyncio.timeout(BOUND),
        ):
            assert await handled.get() == "a"
    assert "the worker of genmcp:default ended, and is started again" in caplog.text


async def test_worker_of_the_application_runs_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its own tasks. When it stops, another one continues its job at once."""
    async with RedisServer() as server:
        monkeypatch.setenv("SHOP_REDIS", server.url)
        mux = make_mux(make_engine(), "default")
        async with Client(mux) as client, Docket("shop", server.url) as docket:
            async with docket_worker(server.url) as first:
                await docket.add(send_mail)("Ann")
                await noted(first, "mail to Ann")
                task = await client.call_task("print_page", {"page": "slow"})
                await noted(first, "rendering slow")
                first.send_signal(signal.SIGTERM)
                async with asyncio.timeout(BOUND):
                    await first.communicate()
            monkeypatch.setenv("SHOP_FAST", "1")
            async with docket_worker(server.url) as second:
                async with asyncio.timeout(BOUND):
                    result = await task.wait()
                assert result.text == f"slow by {second.pid}"
        await mux.aclose()
