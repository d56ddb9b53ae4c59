"""OpenTelemetry metrics: the names, units and attributes of the semantic conventions for MCP."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from genmcp import (
    Continue,
    Endpoint,
    InvalidParams,
    JobOptions,
    Mux,
    Run,
    Suite,
    Tool,
    ToolError,
    job,
    tool,
)
from genmcp.errors import StoreUnavailable
from genmcp.stores.redis import RedisStore
from genmcp.tasks.records import HeldTask
from genmcp.telemetry.metrics import OpenTelemetryMetrics
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.redis_server import RedisServer

SECRET = "a secret of at least 16 bytes"
ERRORS = "genmcp.store.errors"


@tool
async def echo(text: str) -> str:
    """Returns its argument, or fails."""
    match text:
        case "tool":
            raise ToolError("out of stock")
        case "params":
            raise InvalidParams("no such part")
        case "defect":
            raise RuntimeError("a secret")
        case "store":
            raise StoreUnavailable("gone")
    return text


released = threading.Event()
waiting: list[str] = []


@job(name="metrics.wait", queue="heavy")
def wait(run: Run) -> None:
    waiting.append(run.id)
    released.wait(30)


@tool
def holds() -> str:
    """Waits."""
    released.wait(30)
    return ""


class Waits(Tool):
    """Waits for a job that waits."""

    name = "waits"

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("waited", wait.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return "done"


@job(name="metrics.work", queue="heavy", retries=0)
async def work(run: Run, fail: bool) -> None:
    if fail:
        raise KeyError("no")


class Works(Tool):
    """Waits for a job."""

    name = "works"

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("worked", work.job(fail=request.arguments["fail"]))

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return "done"


class Measured:
    """An endpoint with metrics, and their measurements."""

    def __init__(self, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])
        self.metrics = OpenTelemetryMetrics(self.provider)
        suite = Suite(name="test", version="1", tools=[echo, holds, Waits, Works])
        self.endpoint = Endpoint(Mux(suite, telemetry=self.metrics, **options))

    async def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the attributes and the value, or number of measurements, of each series."""
        metric = (await self.all()).get(name)
        return [
            (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", None)))
            for point in (metric.data.data_points if metric else ())
        ]

    async def all(self) -> Mapping[str, Any]:
        # In a thread, as a reader that exports does: the gauges of queues wait for the event loop.
        data = await asyncio.to_thread(self.reader.get_metrics_data)
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def measured() -> Iterator[Measured]:
    made = Measured()
    yield made
    made.provider.shutdown()


CALL = {
    "mcp.method.name": "tools/call",
    "mcp.protocol.version": "2026-07-28",
    "gen_ai.tool.name": "echo",
    "gen_ai.operation.name": "execute_tool",
    "network.transport": "tcp",
    "network.protocol.name": "http",
}


async def test_duration_of_requests_is_a_histogram(measured: Measured) -> None:
    """In seconds, with the boundaries that the conventions give."""
    client = Client(measured.endpoint)
    await client.send(client.call("echo", {"text": "hi"}))
    await client.send(client.call("echo", {"text": "ho"}))

    assert await measured.points("mcp.server.operation.duration") == [(CALL, 2)]
    metric = (await measured.all())["mcp.server.operation.duration"]
    (point,) = metric.data.data_points
    assert metric.unit == "s"
    assert point.explicit_bounds == (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
    assert 0 < point.sum < 60


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tool", {"error.type": "tool_error"}),
        ("params", {"rpc.response.status_code": "-32602"}),
        ("store", {"rpc.response.status_code": "-32603", "error.type": "-32603"}),
    ],
)
async def test_duration_of_failed_requests_has_the_error(
    measured: Measured, text: str, error: dict[str, str]
) -> None:
    """A fault of the client has a code, but no `error.type`."""
    client = Client(measured.endpoint)
    await client.send(client.call("echo", {"text": text}))

    assert await measured.points("mcp.server.operation.duration") == [({**CALL, **error}, 1)]


async def test_rejected_messages_are_counted(measured: Measured) -> None:
    """Unknown names are not attributes: clients could send any number of them."""
    client = Client(measured.endpoint)
    await client.send(client.call("unknown"))
    await client.send(client.request("made/up"))

    transport = {"network.transport": "tcp", "network.protocol.name": "http"}
    assert await measured.points("genmcp.server.rejections") == [
        ({**transport, "mcp.method.name": method, "rpc.response.status_code": code}, 1)
        for method, code in (("tools/call", "-32602"), ("_OTHER", "-32601"))
    ]


async def test_duration_of_a_session_is_measured_at_its_end(measured: Measured) -> None:
    """If its client ends it. An expired session is not noticed."""
    client = await Client.begin(measured.endpoint, "2025-11-25")
    assert await measured.points("mcp.server.session.duration") == []
    await client.send(method="DELETE")

    ((attributes, count),) = await measured.points("mcp.server.session.duration")
    assert (attributes["mcp.protocol.version"], count) == ("2025-11-25", 1)


@pytest.mark.parametrize("fail", [False, True])
async def test_jobs_are_measured(measured: Measured, fail: bool) -> None:
    """In the process that runs them: how long they wait, and how long an attempt takes."""
    mux = Mux(
        measured.endpoint.mux.server,
        telemetry=measured.metrics,
        jobs=JobOptions(queues=["heavy"]),
    )
    client = Client(Endpoint(mux), capabilities=TASKS)
    await client.send(client.call("works", {"fail": fail}))
    named = {
        "genmcp.job.name": "metrics.work",
        "genmcp.queue": "heavy",
        "gen_ai.tool.name": "works",
    }
    await until(
        lambda: "genmcp.job.duration" in str(measured.reader.get_metrics_data()), pause=0.01
    )
    await mux.aclose()

    assert await measured.points("genmcp.job.duration") == [
        ({**named, **({"error.type": "KeyError"} if fail else {})}, 1)
    ]
    assert await measured.points("genmcp.job.wait") == [(named, 1)]


async def test_depth_and_age_of_queues_are_gauges() -> None:
    """Read from the engine when metrics are collected, for the queues that are served here."""
    measured = Measured(jobs=JobOptions(queues=["heavy"], concurrency=1))
    released.clear()
    waiting.clear()
    client = Client(measured.endpoint, capabilities=TASKS)
    assert await measured.points("genmcp.queue.depth") == []  # nothing is served yet
    await client.send(client.call("waits"))
    await client.send(client.call("waits"))
    await until(lambda: waiting)

    depths = await measured.points("genmcp.queue.depth")
    ((attributes, age),) = await measured.points("genmcp.queue.age")
    released.set()
    await measured.endpoint.mux.aclose()

    by_state = {attributes["genmcp.delivery.state"]: value for attributes, value in depths}
    assert by_state == {"waiting": 1, "held": 1}
    assert attributes == {"genmcp.queue": "heavy"}
    assert 0 < age < 60


async def test_collection_on_the_event_loop_does_not_block_it() -> None:
    """A reader on the loop gets the backlog of the collection before."""
    measured = Measured(jobs=JobOptions(queues=["heavy"]))
    await measured.endpoint.mux.tasks.worker.start()
    first = measured.reader.get_metrics_data()
    assert "genmcp.queue.depth" not in str(first)
    await until(lambda: "genmcp.queue.depth" in str(measured.reader.get_metrics_data()))
    await measured.endpoint.mux.aclose()


async def test_open_calls_and_streams_are_gauges(measured: Measured) -> None:
    """Calls that wait are counted, and streams on which a client listens."""
    released.clear()
    client = Client(measured.endpoint)
    listening = client.request(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
    )
    async with client.open(client.call("holds", id=2)) as call, client.open(listening) as stream:
        await stream.started()
        await until(lambda: len(measured.endpoint.mux.waiting_calls) == 1)
        assert await measured.points("genmcp.server.open_calls") == [({}, 1)]
        assert await measured.points("genmcp.server.open_streams") == [({}, 1)]
        released.set()
        await call.over()
    await until(lambda: not len(measured.endpoint.mux.streams))
    assert await measured.points("genmcp.server.open_calls") == [({}, 0)]
    assert await measured.points("genmcp.server.open_streams") == [({}, 0)]


async def test_takeovers_of_lost_leases_are_counted(tmp_path: Path) -> None:
    """By the process that takes a step over."""
    measured = Measured(store=f"sqlite:///{tmp_path}/test.db", secret=SECRET)
    mux = measured.endpoint.mux
    client = Client(measured.endpoint, capabilities=TASKS)
    response = await client.send(client.call("works", {"fail": False}))
    id = response.json["result"]["taskId"]
    records = mux.tasks.service.records
    stored = await records.find(id)
    assert stored is not None
    # As a process leaves it that dies in the step: claimed, and not released.
    held = HeldTask(records, id, stored.task.fencing_token, stored)
    claimed = await held.claim(3)
    await mux.tasks.service.runner.handle(claimed.queued_id)
    await mux.aclose()

    assert await measured.points("genmcp.lease.losses") == [({}, 1)]


async def test_idle_process_reports_the_outage_of_its_store() -> None:
    """An alert has to fire without traffic, and a series that ends would silence it."""
    async with RedisServer() as server:
        jobs = JobOptions(queues=["heavy"], lease=60)
        measured = Measured(store=RedisStore(server.url, timeout=0.5), secret=SECRET, jobs=jobs)
        mux = measured.endpoint.mux
        await mux.tasks.service.start()

        async def up() -> Any:
            return (await measured.points("genmcp.store.up"))[0][1]

        async def queues() -> tuple[Any, ...]:
            names = ("genmcp.queue.up", "genmcp.queue.age", "genmcp.queue.depth")
            return tuple([[n for _, n in await measured.points(name)] for name in names])

        async def errors() -> Any:
            return [number for _, number in await measured.points(ERRORS)]

        assert (await up(), await queues(), await errors()) == (1, ([1], [0], [0, 0]), [0, 0])
        server.kill()
        async with asyncio.timeout(6 * PATIENCE):
            # Each measurement reads the store, whose state may be unknown at that moment.
            while await up():
                pass
            while (await queues())[0] != [0]:
                pass
            while not any(await errors()):
                pass
        await server.start()
        async with asyncio.timeout(6 * PATIENCE):
            while not await up():
                pass
        assert await queues() == ([1], [0], [0, 0])
        await mux.aclose()
