"""Jobs that a dead process has left in its store, and the endpoints that continue them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from genmcp import Continue, Done, Endpoint, JobOptions, Mux, Run, Suite, Tool, job
from genmcp.errors import StoreUnavailable
from genmcp.registry.endpoint import RegistryEndpoint
from genmcp.registry.registry import Registry
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.testing import connect
from tests.support.asgi import PATIENCE, Client, serving, until

done: asyncio.Event


@job(name="left.work")
async def leave_behind(run: Run) -> str:
    done.set()
    return "done"


class Works(Tool):
    """Has a job done."""

    name = "works"
    task = "always"

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("done", leave_behind.job())

    def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return str(outcome.value if isinstance(outcome, Done) else outcome.error)


def studio(path: Path, queue: str = "default") -> Mux:
    suite = Suite(name="studio", version="1", tools=[Works])
    return Mux(
        suite,
        store=f"sqlite:///{path}",
        jobs=JobOptions(queues=[queue]),
        secret="a secret of 16 bytes",
    )


@pytest.fixture
async def left(tmp_path: Path) -> Path:
    """A file with a job in it that has no worker."""
    global done
    done = asyncio.Event()
    path = tmp_path / "studio.db"
    mux = studio(path, "another")
    client = await Client.begin(Endpoint(mux), "2025-11-25")
    async with client.open(client.call("works")) as call:
        deliveries = mux.store.deliveries
        assert deliveries is not None
        due = None
        async with asyncio.timeout(PATIENCE):
            while due is None:
                await asyncio.sleep(0.01)
                due = await deliveries.next_due(["studio/default"])
        call.task.cancel()
    await mux.aclose()
    return path


async def test_first_request_goes_on_with_what_is_left(left: Path) -> None:
    """Any request, of any client."""
    mux = studio(left)
    assert mux.tasks.worker.dormant
    client = Client(Endpoint(mux))
    await client.send(client.request("server/discover"))
    assert not mux.tasks.worker.dormant
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    await mux.aclose()


LATE = "stored jobs wait for the first request"


async def test_mount_without_a_start_is_warned_once(
    left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette does not forward its lifespan to a route, so that jobs wait for a request."""
    mux = studio(left)
    client = Client(endpoint := Endpoint(mux))
    await client.send(client.request("server/discover"))
    assert caplog.text.count(LATE) == 1

    await endpoint.aclose()  # another start of the host
    await client.send(client.request("server/discover"))
    assert caplog.text.count(LATE) == 1
    await mux.aclose()


@pytest.mark.parametrize("case", ["started", "in process", "no job", "memory", "registry"])
async def test_server_that_needs_no_start_is_not_warned(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started, no process is restarted, no tool can wait, nothing is stored, or the request
    has made it.
    """
    suite = Suite(name="studio", version="1", tools=[] if case == "no job" else [Works])
    store = None if case == "memory" else f"sqlite:///{tmp_path / 'studio.db'}"
    mux = Mux(suite, store=store, secret="a secret of 16 bytes")
    endpoint = RegistryEndpoint(Registry([mux])) if case == "registry" else Endpoint(mux)
    if case == "started" and isinstance(endpoint, Endpoint):
        endpoint.start()
    if case == "in process" and isinstance(endpoint, Endpoint):
        async with connect(endpoint) as client:
            await client.tools()
    else:
        sender = Client(endpoint, path="/studio", root_path="")
        await sender.send(sender.request("tools/list"))

    assert LATE not in caplog.text
    await endpoint.aclose()
    await mux.aclose()


async def test_lifespan_goes_on_with_what_is_left(
    left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No request is needed: a restarted server continues its jobs. It logs its store once."""
    caplog.set_level("INFO")
    endpoint = Endpoint(mux := studio(left))
    response: list[str] = []

    async def receive() -> dict[str, Any]:
        if not response:
            return {"type": "lifespan.startup"}
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        response.append(message["type"])

    await endpoint({"type": "lifespan"}, receive, send)
    assert response == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert LATE not in caplog.text
    endpoint.start()
    await mux.aclose()
    assert caplog.text.count("started, store: <SQLiteStore: '") == 1
    assert "studio.db'>, queues: default" in caplog.text


async def test_registry_that_is_started_goes_on_with_what_is_left(left: Path) -> None:
    """No request is needed, to whichever of its servers."""
    endpoint = RegistryEndpoint(Registry([mux := studio(left)]))
    endpoint.start()
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    await endpoint.aclose()
    await mux.aclose()


async def test_server_that_is_idle_starts_nothing_over_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a job to continue, a request leaves no asyncio.Task behind."""
    caplog.set_level("INFO")
    endpoint = serving(Works)
    before = asyncio.all_tasks()
    endpoint.start()
    client = Client(endpoint)
    await client.send(client.request("tools/list"))

    assert before == asyncio.all_tasks()
    assert "started, store: <MemoryStore" in caplog.text


async def test_store_that_cannot_be_reached_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that finds the store broken is answered; the next one retries."""
    mux = studio(tmp_path / "studio.db")
    client = Client(Endpoint(mux))

    async def gone(self: object, key: str, ttl: float) -> bool:
        raise StoreUnavailable("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(SQLiteStore, "touch", gone)
        answer = await client.send(client.request("tools/list"))
        assert answer.status == 200
        await until(lambda: mux.tasks.worker.dormant)
    assert "tries again: the disk is gone" in caplog.text

    await client.send(client.request("tools/list"))
    async with asyncio.timeout(PATIENCE):
        await mux.tasks.service.start()
    assert not mux.tasks.worker.dormant
    await mux.aclose()


async def test_mux_that_was_closed_is_dormant_again(tmp_path: Path) -> None:
    """A host may be started a second time."""
    mux = studio(tmp_path / "studio.db")
    mux.tasks.worker.wake()
    await mux.tasks.aclose()
    assert mux.tasks.worker.dormant
    await mux.aclose()
