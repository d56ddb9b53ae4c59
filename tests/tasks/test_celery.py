"""The example of docs/external-queues.md on Celery: a real worker, over a real Redis server."""

import asyncio
import importlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from genmcp.client.client import Client
from genmcp.tasks.celery import CeleryQueue
from genmcp.tasks.queues import ExternalStatus
from tests.support.documented import write_examples
from tests.support.redis_server import RedisServer
from tests.support.serving import serve

pytestmark = pytest.mark.slow

PATIENCE = 30  # seconds: a worker of Celery takes some to start

StartWorker = Callable[..., Awaitable[Process]]


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with RedisServer() as server:
        yield server


@pytest.fixture
def reports(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The example, connected to the test's server."""
    write_examples("external-queues", tmp_path)
    monkeypatch.setenv("REDIS_URL", redis.url)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("reports")
    del sys.modules["reports"]


@pytest.fixture
async def start_worker(reports: ModuleType, tmp_path: Path) -> AsyncIterator[StartWorker]:
    """A function that starts a worker of Celery, which ends with the test."""
    started: list[Process] = []

    async def start(server: str = "http://127.0.0.1:1", *options: str) -> Process:
        command = "-m", "celery", "-A", "reports.celery", "worker", "--loglevel=info", *options
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
            "REPORTS_URL": server,
        }
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--concurrency=2", "--without-gossip", "--without-mingle"),
            cwd=tmp_path,
            env=environment,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        started.append(worker)
        assert worker.stdout is not None
        printed = b""
        async with asyncio.timeout(PATIENCE):
            while b" ready." not in printed:
                line = await worker.stdout.readline()
                printed += line
                assert line, printed.decode()
        return worker

    yield start
    for worker in started:
        with suppress(ProcessLookupError):
            worker.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                await worker.communicate()
        except TimeoutError:
            worker.kill()
            await worker.communicate()


async def until(
    queue: CeleryQueue, id: str, fits: Callable[[ExternalStatus], bool]
) -> ExternalStatus:
    """Watch the task *id* until its status *fits*."""
    async with asyncio.timeout(PATIENCE):
        async for status in queue.watch(id):
            if fits(status):
                return status
    raise AssertionError(f"watched to its end: {status}")


async def test_call_waits_for_a_celery_task(reports: ModuleType, start_worker: StartWorker) -> None:
    """Its progress is the progress of the call, and its end is announced by the worker."""
    reports.queue._poll_interval = 0.05
    progress: list[tuple[float, float | None, str | None]] = []
    async with serve(reports.app) as url, Client(f"{url}/mcp") as client:
        await start_worker(url)
        result = await client.call(
            "report", {"pages": 5}, progress=lambda *report: progress.append(report)
        )
    assert result.text == "5 pages on 3 sheets"
    assert progress[-1][1:] == (5, f"page {progress[-1][0]:.0f}")


async def test_celery_announces_the_end(reports: ModuleType, start_worker: StartWorker) -> None:
    """The signal of the example: nothing is read but once, and then at the end."""
    reports.queue._poll_interval = 3600.0
    async with serve(reports.app) as url, Client(f"{url}/mcp") as client:
        await start_worker(url)
        assert (await client.call("report", {"pages": 3})).text == "3 pages on 2 sheets"


async def test_celery_task_that_raises(
    reports: ModuleType, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is in the log of the server, and not in the result."""
    reports.queue._poll_interval = 0.05
    async with serve(reports.app) as url, Client(f"{url}/mcp") as client:
        await start_worker()
        result = await client.call("report", {"pages": 0})
    assert result.is_error
    assert "at least one page" not in result.text
    assert "at least one page" in caplog.text


async def test_waiting_celery_task_is_revoked(
    reports: ModuleType, start_worker: StartWorker
) -> None:
    """A worker that is there notes it, although the task has not begun."""
    queue = CeleryQueue(reports.celery, poll_interval=0.05)
    await start_worker()
    sent = await asyncio.to_thread(reports.build.apply_async, (3,), countdown=2)
    assert (await queue.snapshot(sent.id)).phase == "queued"

    await queue.cancel(sent.id)

    assert (await until(queue, sent.id, lambda status: status.over)).phase == "cancelled"


async def test_running_celery_task_is_terminated(
    reports: ModuleType, start_worker: StartWorker
) -> None:
    queue = CeleryQueue(reports.celery, poll_interval=0.05, terminate=True)
    await start_worker()
    sent = await asyncio.to_thread(reports.build.delay, 1000)
    running = await until(queue, sent.id, lambda status: status.phase == "working")
    assert running.total == 1000

    await queue.cancel(sent.id)

    assert (await until(queue, sent.id, lambda status: status.over)).phase == "cancelled"
