"""HTTP+SSE of 2024-11-05, which a client falls back to by itself."""

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp.client.errors import (
    ClientClosed,
    ConnectionLost,
    HttpStatusError,
    NotFound,
    OutcomeUnknown,
)
from genmcp.client.options import HttpOptions
from genmcp.suite.suite import Suite
from genmcp.transports.endpoint import Endpoint
from tests.client.scripted import ANSWER, Asked, event, opened, scripted
from tests.client.sinks import notification, request
from tests.support.serving import serve

OLD = "2024-11-05"
WHO = {"name": "test", "version": "1"}
BEGIN = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": WHO}


@pytest.mark.parametrize("max_connections", [1, 100])
async def test_sse_pair_is_found_by_itself(max_connections: int) -> None:
    """A server that only speaks HTTP+SSE is initialized and used through its two URLs."""
    options = HttpOptions(max_connections=max_connections)
    app = Starlette(routes=[Endpoint(Suite(name="old", version="1")).sse_route("/sse")])
    async with serve(app) as url, opened(url + "/sse", options) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None, **BEGIN))
        await recorder.until(messages=1)
        await transport.send(notification("notifications/initialized", OLD))
        await transport.send(request(2, "ping", revision=OLD))
        await recorder.until(messages=2)

    first, second = recorder.said
    assert (1, "old") == (first["id"], first["result"]["serverInfo"]["name"])
    assert 2 == second["id"]
    assert [None, None] == recorder.abouts
    assert [] == recorder.failures


class OldServer:
    """A scripted server: a stream with these events first, and posts that are answered on it."""

    def __init__(self, *events: str, refuses: int = 405, body: object = None) -> None:
        self.events = events
        self.refuses = refuses
        self.body = body
        self.posts: list[str] = []
        self.messages: asyncio.Queue[str | None] = asyncio.Queue()

    async def __call__(self, asked: Asked) -> None:
        if asked.method == "GET":
            await asked.stream(*self.events, more=True)
            gone = asyncio.ensure_future(asked.receive())
            gone.add_done_callback(lambda _: self.messages.put_nowait(None))
            while (text := await self.messages.get()) is not None:
                await asked.write(text)
            gone.cancel()
            await asked.write("", more=False)
        elif asked.path == "/mcp":
            await asked.reply(self.refuses, self.body)
        else:
            self.posts.append(asked.rpc)
            await self.answer(asked)

    async def answer(self, asked: Asked) -> None:
        if asked.rpc == "initialize":
            await self.messages.put(event(ANSWER))
            await asked.reply(202)
        elif asked.rpc == "stream":
            await asked.stream(": never ends\n\n", more=True)
            await asked.receive()
        elif asked.rpc == "break":
            raise ConnectionError
        elif asked.rpc == "end":
            await asked.reply(202)
            await self.messages.put(None)
        else:
            await asked.reply(500)


ENDPOINT = "event: endpoint\ndata: /messages?session=1\n\n"


@pytest.mark.parametrize("refuses", [400, 404, 405])
async def test_sse_pair_is_tried_where_the_message_is_refused(refuses: int) -> None:
    """These three statuses may mean that the server is of 2024; events may follow at once."""
    late = "data: " + json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}) + "\n\n"
    server = OldServer(ENDPOINT, late, "data: " + "x" * 2000 + "\n\n", refuses=refuses)
    async with scripted(server, max_message=1000) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=2, lost=1)
        await transport.send(request(2, "stream", revision=OLD))

    assert [{"jsonrpc": "2.0", "method": "notifications/x"}, ANSWER] == recorder.said
    assert ["initialize", "stream"] == server.posts


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (OldServer(ENDPOINT, refuses=403), 403),
        (OldServer(ENDPOINT, refuses=404, body={"jsonrpc": "2.0", "id": 1, "error":
            {"code": -32601, "message": "Method not found"}}), 404),
        (OldServer("data: hello\n\n"), 405),
        (OldServer("event: endpoint\ndata: https://elsewhere.example/\n\n"), 405),
        (OldServer(": nothing\n\n"), 405),
    ],
    ids=["other status", "modern", "no endpoint", "elsewhere", "silent"],
)  # fmt: skip
async def test_sse_pair_is_not_taken_for_something_else(server: OldServer, status: int) -> None:
    """What is no pair leaves the first error as it is, and gets no message."""
    async with scripted(server, HttpOptions(connect_timeout=0.3)) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, HttpStatusError)
    assert status == recorder.failure.status
    assert [] == server.posts


@pytest.mark.parametrize("ended", [False, True])
async def test_sse_pair_needs_a_stream(ended: bool) -> None:
    """A GET that is refused, or whose stream ends at once, leaves the first error as it is."""

    async def script(asked: Asked) -> None:
        await (asked.stream() if ended and asked.method == "GET" else asked.reply(404))

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, NotFound)


async def test_sse_pair_failed_post_fails_its_request() -> None:
    """A message that is not taken is told of, a notification raises."""
    server: Any = OldServer(ENDPOINT)
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=1)
        await transport.send(request(2, "refused", revision=OLD))
        with pytest.raises(HttpStatusError):
            await transport.send(notification("refused", OLD))
        await transport.send(request(3, "break", revision=OLD))

    [(two, refused), (three, broken)] = recorder.failures
    assert (2, 3) == (two, three)
    assert isinstance(refused, HttpStatusError)
    assert isinstance(broken, HttpStatusError | OutcomeUnknown)


async def test_sse_pair_that_ends_is_over() -> None:
    """Without its stream nothing can be answered: the transport is over, and says so."""
    server = OldServer(ENDPOINT)
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=1)
        await transport.send(request(2, "end", revision=OLD))
        await recorder.until(failures=1)
        with pytest.raises(ConnectionLost):
            await transport.send(request(3, revision=OLD))

    [(id, error)] = recorder.failures
    assert id is None
    assert isinstance(error, ConnectionLost)


async def test_sse_pair_is_closed_with_its_transport() -> None:
    """After `close` nothing is told any more."""
    server = OldServer(ENDPOINT)
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=1)
        await transport.close()
        with pytest.raises(ClientClosed):
            await transport.send(request(2, "end", revision=OLD))

    assert [] == recorder.failures
