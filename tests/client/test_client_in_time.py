"""The results of a client, and their order, for any behaviour of server and callbacks."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from genmcp.client.client import Client
from genmcp.client.errors import RequestTimeout
from genmcp.client.handler import ClientHandler
from genmcp.protocol.tasks import PROGRESS
from tests.client.scripted import Asked, event, served

pytestmark = pytest.mark.slow

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
COMPLETE = {"resultType": "complete"}
KEPT = COMPLETE | {"ttlMs": 60_000, "cacheScope": "private"}
DISCOVERED = KEPT | {
    "supportedVersions": [MODERN],
    "capabilities": {"tools": {}, "resources": {}, "extensions": {TASKS: {}}},
}
WELCOME = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
TOOLS = KEPT | {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
CONTENT: dict[str, Any] = COMPLETE | {"content": []}


def modern(**results: Any) -> Any:
    """A server of 2026-07-28 with these results; None means no response."""
    known = {"server/discover": DISCOVERED, "tools/list": TOOLS, "tools/call": CONTENT}
    known |= {name.replace("_", "/"): result for name, result in results.items()}

    async def script(asked: Asked) -> None:
        message = json.loads(asked.body or b"{}")
        if (method := message.get("method")) not in known:
            await asked.reply(404, {"jsonrpc": "2.0", "id": message.get("id"), "error": NOT_FOUND})
        elif (result := known[method]) is None:
            await asked.receive()
        else:
            await asked.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    return script


NOT_FOUND: Mapping[str, Any] = {"code": -32601, "message": "no"}


async def older(asked: Asked) -> None:
    """A server of 2025-06-18 whose calls report progress once, and log once."""
    if asked.method != "POST":
        await asked.reply(405)
        return
    message = json.loads(asked.body)
    id = message.get("id")
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "result": {}}
    if id is None:
        await asked.reply(202)
    elif message["method"] == "initialize":
        await asked.reply(200, answer | {"result": WELCOME})
    elif message["method"] == "tools/call":
        token = message["params"].get("_meta", {}).get("progressToken")
        progress = {"progressToken": token, "progress": 1}
        log = {"level": "info", "data": "x"}
        await asked.stream(
            event({"jsonrpc": "2.0", "method": "notifications/message", "params": log}),
            event({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}),
            event(answer | {"result": {"content": []}}),
        )
    elif message["method"] == "ping":
        await asked.reply(200, answer)
    else:
        await asked.reply(400, {"jsonrpc": "2.0", "id": id, "error": NOT_FOUND})


async def test_in_time_a_callback_that_hangs_does_not_keep_the_result() -> None:
    """The call returns when its time is over, and the callback is cancelled."""
    ended = asyncio.Event()

    async def hang(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with served(older) as url, Client(url) as client, asyncio.timeout(10):
        result = await client.call("t", progress=hang, timeout=0.5)
    assert not result.content
    assert ended.is_set()


async def test_in_time_cancelled_wait_in_a_callback_keeps_the_call() -> None:
    """Nor does a hook for notifications, of which the next one runs."""
    logged: list[object] = []

    async def broken(*_: object) -> None:
        other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    class Broken(ClientHandler):
        async def handle_log(self, params: Any) -> None:
            logged.append(params)
            await broken()

    async with served(older) as url, Client(url, handler=Broken()) as client:
        for _ in range(2):
            assert not (await client.call("t", progress=broken)).content
    assert len(logged) == 2


async def test_in_time_a_list_that_hangs_counts() -> None:
    """The tool is looked up within the time of its call, which is not sent then."""
    async with served(modern(tools_list=None)) as url, Client(url) as client:
        with pytest.raises(RequestTimeout, match="tools/list"):
            async with asyncio.timeout(5):
                await client.call("t", timeout=0.3)


@pytest.mark.parametrize("said", [True, [], {}, {"progress": "far"}, {"total": 3}])
async def test_in_time_progress_of_a_task_that_is_none_is_ignored(said: object) -> None:
    """The task continues."""
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
    task = times | {"taskId": "k", "ttlMs": None, "pollIntervalMs": 10}
    done = COMPLETE | task | {"status": "completed", "result": CONTENT, "_meta": {PROGRESS: said}}
    server = modern(tools_call=task | {"resultType": "task", "status": "working"}, tasks_get=done)
    reports: list[object] = []
    async with served(server) as url, Client(url) as client:
        await client.call("t", progress=lambda *report: reports.append(report), timeout=5)
    assert reports == []


async def test_in_time_what_is_kept_is_nobodys_to_change() -> None:
    """A caller that changes its result changes its own copy."""
    contents = KEPT | {"contents": [{"uri": "a:b", "text": "x"}]}
    async with served(modern(resources_read=contents)) as url, Client(url) as client:
        for _ in range(2):
            (found,) = await client.tools()
            assert found.input_schema == {"type": "object"}
            found.input_schema["type"] = "CHANGED"  # type: ignore[index]
            read = await client.read("a:b")
            assert len(read.contents) == 1
            read.contents.clear()  # type: ignore[attr-defined]
