"""What a client is told of changes when the stream of a server before 2026-07-28 breaks."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from genmcp.client.client import Client
from genmcp.client.options import ClientOptions, HttpOptions
from genmcp.client.subscriptions import ChangeStream
from tests.client.scripted import NOTE, Asked, event, served

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


class Legacy:
    """A server of 2025-06-18 that gives its stream as *streams* say, one after the other.

    The last of them counts for all that come later. A session that is not `session` is over.
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


async def refused(asked: Asked) -> None:
    await asked.reply(503)


@asynccontextmanager
async def heard(server: Legacy, *uris: str) -> AsyncIterator[tuple[Client, ChangeStream]]:
    """What listens for all that the server tells of."""
    options = ClientOptions(http=HttpOptions(max_resume_attempts=1, listen_retry_interval=0.01))
    async with (
        asyncio.timeout(15),
        served(server) as url,
        Client(url, options=options) as client,
        client.listen(*uris, tools=True, prompts=True) as changes,
    ):
        yield client, changes


async def told(changes: ChangeStream, count: int) -> set[tuple[str, Any]]:
    """The next changes."""
    found = [await anext(changes) for _ in range(count)]
    return {(each.method, getattr(each.params, "uri", None)) for each in found}


async def test_server_stream_that_breaks_may_have_missed_everything() -> None:
    """What was listened for counts as changed when there is a stream again, and only then."""
    server = Legacy(ended, held)
    async with heard(server, "note://a") as (_, changes):
        assert {(TOOLS, None), (PROMPTS, None), (UPDATED, "note://a")} == await told(changes, 3)
        assert 2 == server.methods.count("GET")


async def test_server_stream_that_cannot_be_had_makes_lists_read_again() -> None:
    """For as long as there is no stream, a list counts as changed now and then."""
    async with heard(Legacy(ended, refused)) as (client, changes):
        for _ in range(3):
            assert {(TOOLS, None), (PROMPTS, None)} == await told(changes, 2)
            assert [] == await client.tools()


async def test_server_stream_that_is_refused_without_end_is_asked_for_again() -> None:
    """What a server has to say about an error is not waited for for ever."""

    async def endless(asked: Asked) -> None:
        await asked.head(503, content_type="text/plain")
        await asked.write("Well, ")
        await asked.receive()

    server = Legacy(endless, held)
    async with heard(server):
        assert 2 == server.methods.count("GET")


async def test_server_stream_with_ids_is_taken_up_and_nothing_is_missed() -> None:
    """Where the server says again what did not come, no change is made up."""
    said = {"jsonrpc": "2.0", "method": TOOLS}

    async def first(asked: Asked) -> None:
        await asked.stream(event(NOTE, id="1", retry=1))

    async def second(asked: Asked) -> None:
        assert "1" == asked.headers["last-event-id"]
        await asked.stream(event(said, id="2"), more=True)
        await asked.receive()

    async with heard(Legacy(first, second)) as (_, changes):
        assert {(TOOLS, None)} == await told(changes, 1)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_server_stream_of_a_session_that_is_over_begins_another() -> None:
    """A server that was started anew is found out by its stream, without a request."""
    over = asyncio.Event()

    async def until(asked: Asked) -> None:
        await asked.stream(": hello\n\n", more=True)
        await asyncio.to_thread(asyncio.run_coroutine_threadsafe(over.wait(), loop).result)
        await asked.write("", more=False)

    loop = asyncio.get_running_loop()
    server = Legacy(until, held)
    async with heard(server) as (client, changes):
        server.session = "two"
        over.set()
        assert {(TOOLS, None), (PROMPTS, None)} == await told(changes, 2)
        assert [] == await client.tools()
        assert {(TOOLS, None), (PROMPTS, None)} == await told(changes, 2)  # there is a stream now
        assert client.is_open
    assert 2 == server.methods.count("initialize")


async def test_server_stream_of_a_server_that_forgets_all_sessions_is_bounded() -> None:
    """One session after the other is begun ever more slowly, and the client goes on."""

    async def forgotten(asked: Asked) -> None:
        server.session += "!"
        await asked.stream(": hello\n\n")

    server = Legacy(forgotten)
    async with heard(server) as (client, changes):
        while server.methods.count("initialize") < 3:
            await told(changes, 2)
        assert client.is_open
