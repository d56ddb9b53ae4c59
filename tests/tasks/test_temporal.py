"""The example of docs/how-to/temporal.md on Temporal: a real server, and a real worker."""

import asyncio
import importlib
import os
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from temporalio.client import Client as TemporalClient

from genmcp.client.client import Client
from genmcp.tasks.queues import ExternalStatus
from genmcp.tasks.temporal import TemporalQueue
from tests.support.documented import write_examples
from tests.support.serving import serve
from tests.support.temporal_server import TemporalServer

pytestmark = pytest.mark.slow

PATIENCE = 30  # seconds
MODULES = ("shipping", "parcels", "parcels_worker")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a development server of Temporal."""
    server = TemporalServer()
    try:
        with asyncio.Runner() as runner:
            runner.run(server.start())
        yield server.url
    finally:
        server.end()


@pytest.fixture
async def client(address: str) -> TemporalClient:
    return await TemporalClient.connect(address)


@pytest.fixture
async def parcels(
    client: TemporalClient, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ModuleType]:
    """The example with its worker, connected to the test's server."""
    write_examples("how-to/temporal", tmp_path, **{each: f"{each}.py" for each in MODULES})
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    monkeypatch.setenv("GENMCP_STORE", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("GENMCP_SECRET", "a secret of the tests")
    monkeypatch.syspath_prepend(tmp_path)
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "parcels_worker.py",
        cwd=tmp_path,
        stdin=DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    module = importlib.import_module("parcels")
    yield module
    await module.mux.aclose()
    del sys.modules["parcels"]
    worker.kill()
    await worker.communicate()


async def until(
    queue: TemporalQueue, id: str, fits: Callable[[ExternalStatus], bool]
) -> ExternalStatus:
    """Ask for the workflow *id* until its status *fits*."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if fits(status := await queue.snapshot(id)):
                return status
            await asyncio.sleep(0.05)


async def started(client: TemporalClient, id: str, parcels: int) -> TemporalQueue:
    """Start a workflow, and return a queue that follows it."""
    await client.start_workflow("Ship", parcels, id=id, task_queue="parcels")

    async def connect() -> TemporalClient:
        return client

    return TemporalQueue(connect)


async def test_call_waits_for_a_workflow(parcels: ModuleType) -> None:
    """It is submitted when the wait is stored, and its result is that of the wait."""
    async with serve(parcels.app) as url, Client(f"{url}/mcp") as client:
        result = await client.call("ship", {"parcels": 5})
    assert result.text == "The order is on its way: 5 parcels shipped."


async def test_workflow_that_raises(parcels: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """The error is in the log of the server, and not in the result."""
    async with serve(parcels.app) as url, Client(f"{url}/mcp") as client:
        result = await client.call("ship", {"parcels": 13})
    assert result.is_error
    assert "13 parcels" not in result.text
    assert "13 parcels cannot be shipped" in caplog.text


@pytest.mark.parametrize("by", ["queue", "operator"])
async def test_workflow_is_cancelled(parcels: ModuleType, client: TemporalClient, by: str) -> None:
    queue = await started(client, f"cancelled by {by}", 1000)
    assert await queue.snapshot(f"cancelled by {by}") == ExternalStatus("working")

    if by == "queue":
        await queue.cancel(f"cancelled by {by}")
    else:
        await client.get_workflow_handle(f"cancelled by {by}").terminate()

    ended = await until(queue, f"cancelled by {by}", lambda status: status.over)
    assert ended.phase == "cancelled"
    await queue.cancel(f"cancelled by {by}")  # does nothing


async def test_unknown_workflow_fails(client: TemporalClient) -> None:
    async def connect() -> TemporalClient:
        return client

    queue = TemporalQueue(connect)
    assert (await queue.snapshot("unknown")).phase == "failed"
    ended = await until(queue, "unknown", lambda status: status.over)
    assert ended == ExternalStatus("failed", error="no workflow 'unknown'")
    await queue.cancel("unknown")
