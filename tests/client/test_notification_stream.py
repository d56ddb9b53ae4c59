"""Subscriptions of a client when the notification stream of a legacy server breaks."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp.client.client import Client
from genmcp.client.subscriptions import ChangeStream
from tests.client.scripted import NOTE, Asked, event, served
from tests.support.client_bounds import bounds

pytestmark = pytest.mark.slow

CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True},
}
WELCOME = {
    "protocolVersion": "2025-06-18",
    "capabilities": CAPABILITIES,
    "serverInfo": {"name": "s", "version": "1"},
}
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"

Stream = Callable[[Asked], Awaitable[None]]


class LegacyServer:
    """A server of 2025-06-18 that responds to each GET with the next of *streams*.

    The last one is used for all later requests. Sessions other than `session` are unknown.
    """

    def __init__(self, *streams: Stream) -> None:
        self._streams = [*streams]
        self.session = "one"
        self.methods: list[str] = []

    async def __call__(self, asked: Asked) -> None:
        message = json.loads(asked.body or b"{}")
        method, id = message.get("method", asked.method), message.get("id")
        self.methods.append(method)
        answer = {"jsonrpc": "2.0", "id": id, "result": {}}
        if method == "initialize":
            await asked.reply(200, answer | {"result": WELCOME}, mcp_session_id=self.session)
        elif method == "server/discover":
            error = {"code": -32601, "message": "no"}
            await asked.reply(400, {"jsonrpc": "2.0", "id": id, "error": error})
        elif asked.headers.get("mcp-session-id") != self.session:
            await asked.reply(404)
        elif method == "GET":
            stream = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
            await stream(asked)
        elif method == "tools/list":
            await asked.reply(200, answer | {"result": {"tools": []}})
        else:
            await asked.reply(200 if id is not None else 202, answer)


async def held(asked: Asked) -> None:
    await asked.stream(": hello\n\n", more=True)
    await asked.receive()


async def ended(asked: Asked) -> None:
    await asked.stream(": hello\n\n")


@asynccontextmanager
async def subscribed(
    server: LegacyServer, *uris: str
) -> AsyncIterator[tuple[Client, ChangeStream]]:
    """Subscribe to everything."""
    with bounds(first_delay=0.01):
        async with (
            asyncio.timeout(15),
            served(server) as url,
            Client(url) as client,
            client.listen(*uris, tools=True, prompts=True) as changes,
        ):
            yield client, changes


async def next_changes(changes: ChangeStream, count: int) -> set[tuple[str, Any]]:
    """Return the next changes: their methods and URIs."""
    found = [await anext(changes) for _ in range(count)]
    return {(each.method, getattr(each.params, "uri", None)) for each in found}


async def test_broken_stream_reports_changes_when_reopened() -> None:
    """All subscribed lists and resources count as changed once the stream is open again."""
    server = LegacyServer(ended, held)
    async with subscribed(server, "note://a") as (_, changes):
        assert await next_changes(changes, 3) == {
            (TOOLS, None),
            (PROMPTS, None),
            (UPDATED, "note://a"),
        }
        assert server.methods.count("GET") == 2


async def test_endless_error_response_does_not_block_retries() -> None:
    """The body of an error response may never end; the stream is opened again anyway."""

    async def endless(asked: Asked) -> None:
        await asked.head(503, content_type="text/plain")
        await asked.write("Well, ")
        await asked.receive()

    server = LegacyServer(endless, held)
    async with subscribed(server) as (_, changes):
        assert await next_changes(changes, 2) == {(TOOLS, None), (PROMPTS, None)}
        assert server.methods.count("GET") == 2


async def test_resumed_stream_reports_no_spurious_changes() -> None:
    """A stream with event ids is resumed, so nothing was lost."""
    said = {"jsonrpc": "2.0", "method": TOOLS}

    async def first(asked: Asked) -> None:
        await asked.stream(event(NOTE, id="1", retry=1))

    async def second(asked: Asked) -> None:
        assert asked.headers["last-event-id"] == "1"
        await asked.stream(event(said, id="2"), more=True)
        await asked.receive()

    async with subscribed(LegacyServer(first, second)) as (_, changes):
        assert await next_changes(changes, 1) == {(TOOLS, None)}
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_stream_detects_ended_session() -> None:
    """A restarted server is detected by the stream, without a request of the user."""
    over = asyncio.Event()

    async def until_restart(asked: Asked) -> None:
        await asked.stream(": hello\n\n", more=True)
        await asyncio.to_thread(asyncio.run_coroutine_threadsafe(over.wait(), loop).result)
        await asked.write("", more=False)

    loop = asyncio.get_running_loop()
    server = LegacyServer(until_restart, held)
    async with subscribed(server) as (client, changes):
        server.session = "two"
        over.set()
        assert await next_changes(changes, 2) == {(TOOLS, None), (PROMPTS, None)}
        assert await client.tools() == []
        assert client.is_open
    assert server.methods.count("initialize") == 2


async def test_repeatedly_ended_sessions_back_off() -> None:
    """New sessions are begun at growing intervals, and the client stays open."""

    async def forgotten(asked: Asked) -> None:
        server.session += "!"
        await asked.stream(": hello\n\n")

    server = LegacyServer(forgotten)
    async with subscribed(server) as (client, changes):
        while server.methods.count("initialize") < 3:
            await next_changes(changes, 2)
        assert client.is_open
