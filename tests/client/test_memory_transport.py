"""The memory transport: the whole path through the endpoint, without a socket."""

import asyncio
from typing import Any

import pytest

from genmcp.channel import Channel
from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed, ConnectionLost
from genmcp.client.transports.memory import AsgiAdapter, MemoryTransport
from genmcp.mux.mux import Mux
from genmcp.suite.suite import Suite
from genmcp.tool import Tool
from genmcp.transports.endpoint import Endpoint
from tests.client.sinks import LEGACY, MODERN, Recorder, notification, request

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wait(Tool):
    """Says so, waits, and remembers how that ended."""

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
async def test_client_of_a_server_in_this_process_names_it(kind: Any) -> None:
    """In what it says, such as that it was never opened, or is not open any more."""
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


async def test_memory_stream_is_passed_on_as_it_comes() -> None:
    """A notification is there before the answer is."""
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

    assert "notifications/progress" == recorder.said[0]["method"]
    assert "done" == recorder.said[1]["result"]["content"][0]["text"]
    assert [1, 1] == recorder.abouts


async def test_memory_cancelled_send_cancels_the_call() -> None:
    """Leaving `send` reaches the tool, as a closed connection would."""
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

    assert [] == recorder.failures


@pytest.mark.parametrize("wrap", [Mux, Endpoint])
async def test_memory_leaves_open_what_it_was_given(wrap: Any) -> None:
    """A mux or an endpoint serves another client after the first is gone."""
    target = wrap(suite(Wait()))
    for id in (1, 2):
        transport, recorder = MemoryTransport(target), Recorder()
        await transport.open(recorder)
        await transport.send(request(id, "tools/list", _meta=META))
        await transport.close()
        assert "wait" == recorder.said[0]["result"]["tools"][0]["name"]
        with pytest.raises(ClientClosed):
            await transport.send(request(3))


async def test_memory_serves_legacy_sessions() -> None:
    """An older revision has its handshake, its session and its stream here as well."""
    transport, recorder = MemoryTransport(suite(Wait())), Recorder()
    await transport.open(recorder)
    who = {"name": "test", "version": "1"}
    begin = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": who}
    await transport.send(request(1, "initialize", revision=None, **begin))
    await transport.send(notification("notifications/initialized"))
    await transport.send(request(2, "tools/list", revision=LEGACY))
    await transport.close()

    assert [1, 2] == [each["id"] for each in recorder.said]
    assert [] == recorder.failures


async def test_memory_application_that_fails_breaks_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An application that raises, or says nothing, is told of as a lost connection; and logged."""

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


async def test_memory_body_that_is_not_read_waits() -> None:
    """An application that writes faster than is read waits, until it is read or left."""
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
        assert 64 == written
        assert b"x" == await reply.chunk()
        await more.wait()
    assert 65 == written
    await requester.close()
    async with asyncio.timeout(5):
        await refused.wait()
    with pytest.raises(ClientClosed):
        await requester.request("GET", "/", [])
