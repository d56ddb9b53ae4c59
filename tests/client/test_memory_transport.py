"""The memory transport: the whole path through the endpoint, without a socket."""

import asyncio
from typing import Any

import pytest

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp.channel import Channel
from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ConnectionLost
from genmcp.client.transports.memory import AsgiAdapter, MemoryTransport
from genmcp.suite.suite import Suite
from genmcp.tools import Tool
from tests.client.sinks import LEGACY, MODERN, Recorder, notification, request

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wait(Tool):
    """Sends progress, then waits for `go_on`."""

    name = "wait"

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()

    async def call(self, request: Any, channel: Channel) -> str:
        await channel.progress(1)
        try:
            await self.go_on.wait()
        finally:
            self.left.set()
        return "done"


def suite(wait: Wait) -> Suite:
    return Suite(name="s", version="1", tools=[wait])


@pytest.mark.parametrize("kind", [Suite, Mux, Endpoint])
async def test_errors_name_the_server_in_this_process(kind: Any) -> None:
    served = suite(Wait())
    client = Client(served if kind is Suite else kind(served))

    with pytest.raises(
        ClientClosed, match=r"client of s \(in this process\) is not open: use `async"
    ):
        await client.tools()
    async with client:
        await client.tools()
    with pytest.raises(ClientClosed, match=r"client of s \(in this process\) is closed$"):
        await client.tools()


async def test_notifications_precede_the_result() -> None:
    wait = Wait()
    transport, recorder = MemoryTransport(suite(wait)), Recorder()
    await transport.open(recorder)
    meta = {**META, "progressToken": 1}
    calling = asyncio.ensure_future(transport.send(request(1, name="wait", _meta=meta)))
    await recorder.until(messages=1)
    assert not calling.done()
    wait.go_on.set()
    await calling
    await transport.close()

    assert recorder.decoded[0]["method"] == "notifications/progress"
    assert recorder.decoded[1]["result"]["content"][0]["text"] == "done"
    assert recorder.request_ids == [1, 1]


async def test_cancelled_send_cancels_the_call() -> None:
    """As a closed connection does."""
    wait = Wait()
    transport, recorder = MemoryTransport(suite(wait)), Recorder()
    await transport.open(recorder)
    meta = {**META, "progressToken": 1}
    calling = asyncio.ensure_future(transport.send(request(1, name="wait", _meta=meta)))
    await recorder.until(messages=1)
    calling.cancel()
    async with asyncio.timeout(5):
        await wait.left.wait()
    await transport.close()

    assert recorder.failures == []


@pytest.mark.parametrize("wrap", [Mux, Endpoint])
async def test_given_mux_or_endpoint_is_not_closed(wrap: Any) -> None:
    """It serves another client afterwards."""
    target = wrap(suite(Wait()))
    for id in (1, 2):
        transport, recorder = MemoryTransport(target), Recorder()
        await transport.open(recorder)
        await transport.send(request(id, "tools/list", _meta=META))
        await transport.close()
        assert recorder.decoded[0]["result"]["tools"][0]["name"] == "wait"
        with pytest.raises(ClientClosed):
            await transport.send(request(3))


async def test_legacy_session_in_memory() -> None:
    """With handshake, session and notification stream."""
    transport, recorder = MemoryTransport(suite(Wait())), Recorder()
    await transport.open(recorder)
    who = {"name": "test", "version": "1"}
    begin = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": who}
    await transport.send(request(1, "initialize", revision=None, **begin))
    await transport.send(notification("notifications/initialized"))
    await transport.send(request(2, "tools/list", revision=LEGACY))
    await transport.close()

    assert [each["id"] for each in recorder.decoded] == [1, 2]
    assert recorder.failures == []


async def test_failed_application_is_a_lost_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The exception is logged."""

    async def raising(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no")

    async def short(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})

    with pytest.raises(ConnectionLost, match="before it responded"):
        await AsgiAdapter(raising, "here").request("GET", "/", [])
    reply = await AsgiAdapter(short, "here").request("GET", "/", [])
    with pytest.raises(ConnectionLost, match="in a response"):
        await reply.read(100)

    assert "here failed" in caplog.text


async def test_application_waits_for_a_slow_reader() -> None:
    """Until the body is read, or the client disconnects."""
    written = 0
    full, more, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def flooding(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await send({"type": "http.response.start", "status": 200})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                written += 1
                if written >= 64:
                    (more if full.is_set() else full).set()
        except OSError:
            refused.set()

    requester = AsgiAdapter(flooding, "here")
    reply = await requester.request("GET", "/?a=b", [])
    async with asyncio.timeout(5):
        await full.wait()
        assert written == 64
        assert await reply.chunk() == b"x"
        await more.wait()
    assert written == 65
    await requester.close()
    async with asyncio.timeout(5):
        await refused.wait()
    with pytest.raises(ClientClosed):
        await requester.request("GET", "/", [])
