"""HTTP+SSE of 2024-11-05, the automatic fallback of a client."""

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp._transports.endpoint import Endpoint
from genmcp.client.errors import (
    ClientClosed,
    ConnectionLost,
    HttpStatusError,
    NotFound,
    OutcomeUnknown,
)
from genmcp.suite.suite import Suite
from tests.client.scripted import ANSWER, Asked, event, opened, scripted
from tests.client.sinks import notification, request
from tests.support.serving import serve

pytestmark = pytest.mark.slow

OLD = "2024-11-05"
WHO = {"name": "test", "version": "1"}
BEGIN = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": WHO}


@pytest.mark.parametrize("max_connections", [1, 100])
async def test_sse_server_is_detected(max_connections: int) -> None:
    """A server that speaks only HTTP+SSE is used through its two URLs."""
    app = Starlette(routes=[Endpoint(Suite(name="old", version="1")).sse_route("/sse")])
    async with (
        serve(app) as url,
        opened(url + "/sse", max_connections=max_connections) as (transport, recorder),
    ):
        await transport.send(request(1, "initialize", revision=None, **BEGIN))
        await recorder.until(messages=1)
        await transport.send(notification("notifications/initialized", OLD))
        await transport.send(request(2, "ping", revision=OLD))
        await recorder.until(messages=2)

    first, second = recorder.decoded
    assert (first["id"], first["result"]["serverInfo"]["name"]) == (1, "old")
    assert second["id"] == 2
    assert recorder.request_ids == [None, None]
    assert recorder.failures == []


class OldServer:
    """A scripted server: its stream begins with *events* and carries the answers to posts."""

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
async def test_sse_is_tried_after_rejected_initialize(refuses: int) -> None:
    """Three statuses may come from a server of 2024. Events may follow the first one at once."""
    late = "data: " + json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}) + "\n\n"
    server = OldServer(ENDPOINT, late, "data: " + "x" * 2000 + "\n\n", refuses=refuses)
    async with scripted(server, max_message=1000) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=2, oversized=1)
        await transport.send(request(2, "stream", revision=OLD))

    assert recorder.decoded == [{"jsonrpc": "2.0", "method": "notifications/x"}, ANSWER]
    assert server.posts == ["initialize", "stream"]


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (OldServer(ENDPOINT, refuses=403), 403),
        (OldServer(ENDPOINT, refuses=404, body={"jsonrpc": "2.0", "id": 1, "error":
            {"code": -32601, "message": "Method not found"}}), 404),
        (OldServer("data: hello\n\n"), 405),
        (OldServer("event: endpoint\ndata: https://elsewhere.example/\n\n"), 405),
    ],
    ids=["other status", "modern", "no endpoint", "elsewhere"],
)  # fmt: skip
async def test_other_servers_keep_the_first_error(server: OldServer, status: int) -> None:
    """A server that does not speak HTTP+SSE receives no further message."""
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, HttpStatusError)
    assert recorder.failure.status == status
    assert server.posts == []


@pytest.mark.parametrize("ended", [False, True])
async def test_rejected_or_ended_stream_keeps_the_first_error(ended: bool) -> None:

    async def script(asked: Asked) -> None:
        await (asked.stream() if ended and asked.method == "GET" else asked.reply(404))

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, NotFound)


async def test_failed_post_fails_its_request() -> None:
    """A failed notification raises."""
    server: Any = OldServer(ENDPOINT)
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=1)
        await transport.send(request(2, "refused", revision=OLD))
        with pytest.raises(HttpStatusError):
            await transport.send(notification("refused", OLD))
        await transport.send(request(3, "break", revision=OLD))

    [(two, refused), (three, broken)] = recorder.failures
    assert (two, three) == (2, 3)
    assert isinstance(refused, HttpStatusError)
    assert isinstance(broken, HttpStatusError | OutcomeUnknown)


async def test_end_of_the_stream_fails_the_transport() -> None:
    """Without the stream no request can be answered."""
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


async def test_closed_sse_transport_is_silent() -> None:
    """Nothing is passed to the sink after `close`."""
    server = OldServer(ENDPOINT)
    async with scripted(server) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await recorder.until(messages=1)
        await transport.close()
        with pytest.raises(ClientClosed):
            await transport.send(request(2, "end", revision=OLD))

    assert recorder.failures == []
