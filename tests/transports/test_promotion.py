"""Promotion: a call that runs long becomes a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    Failed,
    MemoryStore,
    Mux,
    Suite,
    Tool,
    ToolRequest,
)
from genmcp.core.outcome import Outcome
from genmcp.stores.store import Delete, Op, Put
from tests.support.asgi import MODERN, PATIENCE, TASKS, Client, Connection, until

CLIENT: dict[str, Any] = {"capabilities": TASKS}


class Long(Tool):
    """Runs until the test ends it, and records its end."""

    name = "long"
    promote_after = 0.001

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.go = asyncio.Event()
        self.saw: list[str] = []
        self.channel: Channel

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.channel = channel
        self.waits.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.saw.append("stopped")
            raise
        self.saw.append("ended")
        return "done"

    def on_cancel(self, channel: Channel) -> None:
        self.saw.append(f"cancelled {channel.request.id}")


class Slow(MemoryStore):
    """A store that takes its time to write a task."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = asyncio.Event()
        self.go = asyncio.Event()
        self.tasks: set[str] = set()

    async def apply(self, *ops: Op) -> None:
        for op in ops:
            if isinstance(op, Put) and op.key.startswith("test/task:"):
                self.writes.set()
                await self.go.wait()
                self.tasks.add(op.key)
            elif isinstance(op, Delete):
                self.tasks.discard(op.key)
        await super().apply(*ops)


OPEN: list[Mux] = []


def serving(tool: Tool, store: MemoryStore | None = None, **options: Any) -> Endpoint:
    mux = Mux(Suite(name="test", version="1", tools=[tool]), store=store)
    OPEN.append(mux)
    return Endpoint(mux, **options)


@pytest.fixture(autouse=True)
async def _closed(_tasks_end: None) -> AsyncIterator[None]:
    yield
    while OPEN:
        await OPEN.pop().aclose()


async def get(client: Client, id: str) -> dict[str, Any]:
    """Return how a task stands."""
    answer = await client.send(client.request("tasks/get", {"taskId": id}))
    found: dict[str, Any] = answer.json["result"]
    return found


async def over(client: Client, id: str) -> dict[str, Any]:
    """Wait for the end of a task, and return how it stands then."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await get(client, id)
            if task["status"] not in ("working", "input_required"):
                return task
            await asyncio.sleep(0)


@asynccontextmanager
async def promoted(client: Client, name: str = "long") -> AsyncIterator[tuple[Connection, str]]:
    """Call a tool, and give the connection and the id of the task it becomes."""
    async with client.open(client.call(name)) as connection:
        await until(lambda: connection.complete)
        result = connection.json["result"]
        assert result["resultType"] == "task"
        yield connection, result["taskId"]


async def test_promotion_writes_the_record_before_the_handle_goes_out() -> None:
    """Step 1: no handle is sent for a task that is not stored."""
    long, store = Long(), Slow()
    client = Client(serving(long, store), **CLIENT)
    async with client.open(client.call("long")) as connection:
        await store.writes.wait()
        assert connection.status == 0

        store.go.set()
        await until(lambda: connection.complete)
        assert {f"test/task:{connection.json['result']['taskId']}"} <= store.tasks
        long.go.set()
        await connection.over()


async def test_promotion_of_a_call_that_has_ended_meanwhile_is_none() -> None:
    """Step 2: the answer is the plain one, and goes out at once; the record is deleted."""
    long, store = Long(), Slow()
    client = Client(serving(long, store), **CLIENT)
    async with client.open(client.call("long")) as connection:
        await store.writes.wait()
        long.go.set()
        await until(lambda: connection.complete)
        assert connection.json["result"]["content"][0]["text"] == "done"

        store.go.set()
        await connection.over()
    assert set() == store.tasks


async def test_promotion_of_a_call_whose_client_has_left_is_none() -> None:
    """Step 3: it is cancelled as any other, and the record is deleted."""
    long, store = Long(), Slow()
    client = Client(serving(long, store), **CLIENT)
    async with client.open(client.call("long")) as connection:
        await store.writes.wait()
        connection.disconnect()
        await until(lambda: long.saw)
        store.go.set()
        await connection.over()

    assert long.saw == ["stopped", "cancelled 1"]
    assert set() == store.tasks


async def test_promotion_makes_a_disconnect_mean_nothing() -> None:
    """Steps 4 and 5: the client has its handle, and may go; the call ends as it would have."""
    long = Long()
    client = Client(serving(long), **CLIENT)
    async with promoted(client) as (connection, id):
        connection.disconnect()
        assert (await get(client, id))["status"] == "working"
        assert not connection.task.done()  # the host's state for the request stays alive

        long.go.set()
        await connection.over()
    assert long.saw == ["ended"]
    task = await get(client, id)
    assert (task["status"], task["result"]["content"][0]["text"]) == ("completed", "done")


async def test_promotion_leaves_progress_and_closed_to_the_task() -> None:
    """Messages of the call go to the task's status; its channel stays open."""
    long = Long()
    client = Client(serving(long), **CLIENT)
    async with client.open(client.call("long", progressToken="p")) as connection:
        await until(lambda: connection.complete)
        id = connection.json["result"]["taskId"]
        assert (False, id) == (long.channel.closed, long.channel.task)
        assert await long.channel.progress(1, 3, "one of three")

        task = await get(client, id)
        assert task["statusMessage"] == "one of three"
        assert task["_meta"]["io.genmcp/progress"] == {
            "progress": 1,
            "total": 3,
            "message": "one of three",
        }
        long.go.set()
        await connection.over()


async def test_promoted_call_is_reached_by_tasks_cancel_only() -> None:
    """`cancelled` is written first; then the hook is stopped, and `on_cancel` runs."""
    long = Long()
    client = Client(serving(long), **CLIENT)
    async with promoted(client) as (connection, id):
        answer = await client.send(client.request("tasks/cancel", {"taskId": id}, id=2))
        assert {answer.json["result"]["resultType"]} == {"complete"}
        await connection.over()

    assert long.saw == ["stopped", "cancelled 1"]
    assert (await get(client, id))["status"] == "cancelled"
    again = await client.send(client.request("tasks/cancel", {"taskId": id}, id=3))
    assert "result" in again.json


async def test_promoted_call_that_fails_has_the_same_error() -> None:
    """An `isError` result completes a task; an error of the protocol fails it."""

    class Failing(Long):
        name = "failing"

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            await super().call(request, channel)
            raise RuntimeError("secret")

    failing = Failing()
    client = Client(serving(failing), **CLIENT)
    async with promoted(client, "failing") as (connection, id):
        failing.go.set()
        await connection.over()

    task = await get(client, id)
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert "secret" not in str(task)


async def test_promoted_call_is_lost_when_its_server_stops() -> None:
    """After the grace period the plain call ends as lost, with that reason."""
    long = Long()
    endpoint = serving(long, grace=0.001)
    client = Client(endpoint, **CLIENT)
    async with promoted(client) as (connection, id):
        await endpoint.shutdown.stop()
        await connection.over()

    task = await get(client, id)
    assert (task["status"], task["error"]["code"]) == ("failed", -32603)
    assert "lost" in task["error"]["message"]


class Awaits(Long):
    """Waits with a continuation, which returns the outcome."""

    name = "awaits"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:  # type: ignore[override]
        channel.assigns["seen"] = 1
        return Continue("waited", super().call(request, channel))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        match outcome:
            case Done(value):
                return f"{value}, {channel.assigns['seen']}"
            case Failed(error):
                return type(error).__name__


@pytest.mark.parametrize(("stops", "said"), [(False, "done, 1"), (True, "WorkerLost")])
async def test_promoted_wait_ends_through_continue(stops: bool, said: str) -> None:
    """Whether it ends by itself or with its process: `continue_` gets the outcome."""
    awaits = Awaits()
    endpoint = serving(awaits, grace=0.001)
    client = Client(endpoint, **CLIENT)
    async with promoted(client, "awaits") as (connection, id):
        if stops:
            await endpoint.shutdown.stop()
        else:
            awaits.go.set()
        await connection.over()

    assert said == (await over(client, id))["result"]["content"][0]["text"]


async def test_always_a_task_is_made_before_the_call_runs() -> None:
    """`task = "always"`: the handle is there although the call never waits."""
    seen: list[str | None] = []

    class Always(Tool):
        """Runs at once."""

        name = "always"
        task = "always"

        def call(self, request: ToolRequest, channel: Channel) -> str:
            seen.append(channel.task)
            return "done"

    client = Client(serving(Always()), **CLIENT)
    async with promoted(client, "always") as (connection, id):
        await connection.over()

    assert [id] == seen
    assert (await over(client, id))["status"] == "completed"


async def test_never_a_task_is_held() -> None:
    """`task = "never"`, and every client without the extension: the answer comes when it comes."""

    class Never(Long):
        name = "never"
        task = "never"

    for tool, capabilities in ((Never(), TASKS), (Long(), {})):
        client = Client(serving(tool), capabilities=capabilities)
        async with client.open(client.call(tool.name)) as connection:
            await tool.waits.wait()
            await asyncio.sleep(10 * tool.promote_after)  # leaves time for an unwanted second run
            assert connection.status == 0
            tool.go.set()
            await connection.over()
        assert connection.json["result"]["content"][0]["text"] == "done"


async def test_tasks_required_are_refused_before_the_call_runs() -> None:
    """-32021 names the extension; a client of 2025 gets the name in an `isError` result."""

    class Requires(Long):
        name = "requires"
        requires_tasks = True

    requires = Requires()
    endpoint = serving(requires)
    client = Client(endpoint)
    refused = await client.send(client.call("requires"))
    legacy = await Client.begin(endpoint, "2025-11-25")
    response = await legacy.send(legacy.call("requires"))

    error = refused.json["error"]
    assert (refused.status, error["code"]) == (400, -32021)
    assert error["data"]["requiredCapabilities"] == TASKS
    assert response.json["result"]["isError"]
    assert "io.modelcontextprotocol/tasks" in response.json["result"]["content"][0]["text"]
    assert not requires.waits.is_set()
    assert client.version == MODERN
