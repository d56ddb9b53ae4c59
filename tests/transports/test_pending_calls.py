"""Calls that wait for less than a tick, or a little longer, and the state they leave behind.

test_cancellation.py and test_shutdown.py apply to these calls as well.
"""

import asyncio
import gc
import json
from contextvars import ContextVar
from typing import Any

import pytest

from genmcp import Channel, ClientLogHandler, MemoryStore, Mux, Suite, Tool, ToolRequest
from genmcp._transports.endpoint import Endpoint
from genmcp._transports.timers import TICK, TimerTable
from tests.support.asgi import MODERN, Client, serving, until
from tests.support.garbage import kinds, no_collections

pytestmark = pytest.mark.slow

__all__ = ["no_collections"]

HOST: ContextVar[str] = ContextVar("HOST", default="")


class Wait(Tool):
    """Waits for as many seconds as requested, or until `go` is set."""

    name = "wait"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.told = asyncio.Event()
        self.ran_in: list[Any] = []

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        if request.arguments.get("progress"):
            await channel.progress(1)
        self.began.set()
        try:
            if (seconds := request.arguments.get("seconds")) is not None:
                await asyncio.sleep(seconds)
            else:
                await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.ran_in.append((asyncio.current_task(), HOST.get()))
        return "done"

    async def on_cancel(self, channel: Channel) -> None:
        self.told.set()


async def bare(app: Endpoint, client: Client, message: Any, *, leaves: bool) -> None:
    """Send one request to *app*, with nothing around it that could be in a reference cycle."""
    headers = client.open(message)._scope["headers"]
    body = [json.dumps(message).encode()]

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop()}
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "headers": headers, "client": None}
    await app(scope, receive, send)


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
@pytest.mark.parametrize("forwards_logs", [False, True])
@pytest.mark.parametrize(
    ("arguments", "leaves"),
    [
        ({"seconds": 0}, False),
        ({"seconds": 1.2 * TICK}, False),
        ({"seconds": 0, "progress": True}, False),
        ({"seconds": 4 * TICK}, True),
    ],
    ids=["pending", "open", "streamed", "left"],
)
async def test_waiting_call_leaves_no_cyclic_garbage(
    version: str,
    arguments: dict[str, Any],
    leaves: bool,
    forwards_logs: bool,
    no_collections: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reference counts free all of a call, so that none causes a pause of the collector.

    With a ClientLogHandler the context of each call, which its timers have, leads to its channel.
    """
    monkeypatch.setattr(ClientLogHandler, "created", forwards_logs)
    app = serving(Wait)
    client = await Client.begin(app, version)

    async def garbage(calls: int) -> int:
        messages = [client.call("wait", arguments, id=n, progressToken=n) for n in range(calls)]
        await asyncio.gather(*(bare(app, client, each, leaves=leaves) for each in messages))
        await asyncio.sleep(0)  # the cancelled disconnect watches end
        await asyncio.sleep(0)
        return gc.collect()

    await garbage(10)
    few, many = await garbage(40), await garbage(80)

    assert many <= few, await kinds(garbage)


async def test_pending_call_runs_in_the_task_of_its_request() -> None:
    """So that the host's timeouts, cancellations and context variables reach the hook."""
    wait = Wait()
    app, client = serving(wait), Client(None)

    async def host() -> None:
        HOST.set("the host's")
        message = client.call("wait", {"seconds": 0})
        await bare(app, client, message, leaves=False)

    task = asyncio.create_task(host())
    await task

    assert [(task, "the host's")] == wait.ran_in


async def test_client_that_leaves_is_noticed_within_a_tick() -> None:
    """2026-07-28, Streamable HTTP, "Cancellation": the hook is cancelled, and `on_cancel` runs."""
    wait = Wait()
    client = Client(serving(wait))
    async with client.open(client.call("wait")) as connection:
        await wait.began.wait()
        connection.disconnect()
        await connection.over()

    assert wait.cancelled.is_set()
    assert connection.status == 499


async def test_cancelled_notification_reaches_a_pending_call() -> None:
    """The call ends without a response; its slot is free again."""
    wait = Wait()
    app = serving(wait)
    client = await Client.begin(app, "2025-11-25")
    async with client.open(client.call("wait", id=7)) as connection:
        await wait.began.wait()
        assert len(app.mux.waiting_calls) == 1
        await client.send(client.notification("notifications/cancelled", requestId=7))
        await connection.over()

    assert wait.cancelled.is_set()
    assert (connection.status, connection.body) == (202, b"")
    assert len(app.mux.waiting_calls) == 0


async def test_slot_is_given_back_once_per_call() -> None:
    """However a call ends: answered while pending, answered while open, or cancelled."""
    app = serving(Wait)
    client = Client(app)
    for seconds, leaves in ((0, False), (1.2 * TICK, False), (4 * TICK, True)):
        message = client.call("wait", {"seconds": seconds})
        await bare(app, client, message, leaves=leaves)
        assert len(app.mux.waiting_calls) == 0


async def test_host_that_cancels_a_pending_call_gets_its_cancellation() -> None:
    """The client gets a response, and the host's asyncio.Task ends as cancelled."""
    wait = Wait()
    client = Client(serving(wait))
    async with client.open(client.call("wait")) as connection:
        await wait.began.wait()
        connection.task.cancel()
        await connection.over()

    assert connection.task.cancelled()
    assert connection.status == 503
    assert wait.cancelled.is_set()


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_shutdown_reaches_calls_while_only_pending_ones_exist(version: str) -> None:
    """Once the grace is over, the call fails because of the shutdown."""
    wait = Wait()
    app = serving(wait, grace=0)
    client = await Client.begin(app, version)
    async with client.open(client.call("wait")) as connection:
        await wait.began.wait()
        await app.aclose()
        await connection.over()

    assert wait.cancelled.is_set()
    assert "shutting down" in connection.json["error"]["message"]


async def test_event_stream_opens_when_a_thread_sends_first() -> None:
    """A `def` hook that reports progress while its call is pending opens the response."""

    class Blocks(Tool):
        name = "blocks"

        def call(self, request: ToolRequest, channel: Channel) -> str:
            for n in range(3):
                channel.in_loop(channel.progress(n, 3))
            channel.start_stream()
            return "done"

    client = Client(serving(Blocks))
    async with client.open(client.call("blocks", progressToken="p")) as connection:
        await connection.over()

    assert connection.is_stream
    assert [each["params"]["progress"] for each in connection.messages[:-1]] == [0, 1, 2]
    assert connection.messages[-1]["result"]["content"][0]["text"] == "done"


async def test_open_call_keeps_the_context_of_its_request() -> None:
    """One timer serves the calls of all clients; a host's `send` sees the context of its own."""
    wait = Wait()
    app, client = serving(wait), Client(None)
    seen: dict[str, set[str]] = {"ann": set(), "bob": set()}

    async def host(user: str) -> None:
        HOST.set(user)
        message = client.call("wait", {"seconds": 1.2 * TICK}, progressToken=user)
        body = [json.dumps(message).encode()]

        async def receive() -> dict[str, Any]:
            seen[user].add(HOST.get())
            if body:
                return {"type": "http.request", "body": body.pop()}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            seen[user].add(HOST.get())

        headers = client.open(message)._scope["headers"]
        scope = {"type": "http", "method": "POST", "headers": headers, "client": None}
        await app(scope, receive, send)

    await asyncio.gather(host("ann"), host("bob"))

    assert seen == {"ann": {"ann"}, "bob": {"bob"}}


class CountingStore(MemoryStore):
    """Counts reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[str] = []

    async def get(self, key: str) -> Any:
        self.used.append(f"get {key}")
        return await super().get(key)

    async def apply(self, *ops: Any) -> None:
        self.used += [repr(op) for op in ops]
        await super().apply(*ops)


@pytest.mark.parametrize("seconds", [0, 1.2 * TICK], ids=["pending", "open"])
async def test_legacy_call_with_one_json_body_leaves_the_store_alone(seconds: float) -> None:
    """A stream that can be resumed is stored only if the response is a stream."""
    store = CountingStore()
    app = Endpoint(Mux(Suite(name="test", version="1", tools=[Wait]), store=store))
    client = await Client.begin(app, "2025-11-25")
    await bare(app, client, client.call("wait", {"seconds": 0}), leaves=False)
    store.used.clear()

    await bare(app, client, client.call("wait", {"seconds": seconds}), leaves=False)
    assert store.used == []

    message = client.call("wait", {"seconds": seconds, "progress": True}, progressToken=1)
    await bare(app, client, message, leaves=False)
    assert store.used != []


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_open_call_adds_one_asyncio_task(version: str) -> None:
    """One task waits for the disconnect; a writer is made for the first output."""
    wait = Wait()
    app = serving(wait)
    client = await Client.begin(app, version)
    loop = asyncio.get_running_loop()

    def extra() -> list[str]:
        return sorted(task.get_coro().__qualname__ for task in asyncio.all_tasks() - before)  # type: ignore[union-attr]

    async with client.open(client.call("wait")) as connection:
        await wait.began.wait()
        before = asyncio.all_tasks()
        await until(lambda: app.shutdown._loops, pause=TICK / 5)  # the call is pending before
        await asyncio.sleep(0)

        assert extra() == ["OpenResponse._watch_client"]
        assert sum(map(len, TimerTable.of(loop)._tables.values())) == 1
        wait.go.set()
        await connection.over()

    assert sum(map(len, TimerTable.of(loop)._tables.values())) == 0
    assert not connection.is_stream


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_silent_open_call_gets_its_first_comment_in_time(version: str) -> None:
    """The heartbeat needs no earlier message; one that was sent puts it off."""
    wait = Wait()
    app = serving(wait, heartbeat=2 * TICK)
    client = await Client.begin(app, version)
    for arguments in ({}, {"progress": True}):
        wait.go.clear()
        async with client.open(client.call("wait", arguments, progressToken=1)) as connection:
            await until(lambda: connection.comments, pause=TICK / 5)
            wait.go.set()
            await connection.over()
        assert connection.messages[-1]["result"]["content"][0]["text"] == "done"


async def test_error_of_the_hosts_receive_ends_an_open_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call is cancelled, and the error is logged like any other defect of the host."""
    wait = Wait()
    app, client = serving(wait), Client(None)
    body = [json.dumps(client.call("wait")).encode()]

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop()}
        raise LookupError("the host's")

    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = client.open(client.call("wait"))._scope["headers"]
    scope = {"type": "http", "method": "POST", "headers": headers, "client": None}
    await app(scope, receive, send)

    assert statuses == [500]
    assert "the host's" in caplog.text
    assert wait.cancelled.is_set()
    assert len(app.mux.waiting_calls) == 0
