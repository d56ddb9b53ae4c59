"""The client with servers that respond too late, or do not read."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from genmcp.client.client import Client
from genmcp.client.errors import ConnectError, RequestTimeout
from genmcp.client.options import ClientOptions
from genmcp.client.transports.base import Transport, TransportSink
from genmcp.core.client.events import SendMessage

DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "ttlMs": 0,
    "cacheScope": "private",
    "resultType": "complete",
}
ANSWER = {"content": [], "resultType": "complete"}


class Late(Transport):
    """A server that responds to `server/discover` and pings; *ids* are those of other requests.

    *hears* runs for each notification, by its method.
    """

    server_name = "the server"

    def __init__(self) -> None:
        self.ids: asyncio.Queue[int] = asyncio.Queue()
        self.sink: TransportSink

    async def hears(self, method: str) -> None: ...

    async def open(self, sink: TransportSink) -> None:
        self.sink = sink

    async def send(self, message: SendMessage) -> None:
        said = msgspec.json.decode(message.message)
        match said:
            case {"id": id, "method": "server/discover"}:
                self.tell(id=id, result=DISCOVERED)
            case {"id": id, "method": "tools/list"}:
                page = {"tools": [], "ttlMs": 0, "cacheScope": "private"}
                self.tell(id=id, result={**page, "resultType": "complete"})
            case {"id": id}:
                self.ids.put_nowait(id)
            case _:
                await self.hears(said["method"])

    def tell(self, **message: Any) -> None:
        self.sink.on_message(msgspec.json.encode({"jsonrpc": "2.0", **message}))

    async def close(self) -> None: ...


@asynccontextmanager
async def connected(server: Transport) -> AsyncIterator[Client]:
    """A client of *server*, bounded."""
    async with asyncio.timeout(10):
        async with Client(server, options=ClientOptions(revision="2026-07-28")) as client:
            yield client


async def test_client_that_gave_up_a_call_does_not_mind_its_answer() -> None:
    """A response during the cancellation of its call has no effect."""
    server = Late()
    async with connected(server) as client:
        call = asyncio.create_task(client.call("t"))
        id = await server.ids.get()
        call.cancel()
        server.tell(id=id, result=ANSWER)
        with pytest.raises(asyncio.CancelledError):
            await call

        assert await client.tools() == []


async def test_client_stops_listening_when_the_server_has_had_enough() -> None:
    """A subscription the server cancels is over: the iteration ends, and nothing is raised.

    2026-07-28, basic/patterns, "Cancellation".
    """
    server = Late()
    async with connected(server) as client:
        listening = client.listen(tools=True)
        entering = asyncio.create_task(listening.__aenter__())
        id = await server.ids.get()
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        server.tell(
            method="notifications/subscriptions/acknowledged",
            params={"notifications": {"toolsListChanged": True}, "_meta": meta},
        )
        await entering
        server.tell(method="notifications/cancelled", params={"requestId": id})

        assert [change async for change in listening] == []
        await listening.__aexit__()


async def test_client_says_what_it_could_not_send(caplog: pytest.LogCaptureFixture) -> None:
    """A call that timed out reports it, also if the cancellation cannot be sent; that is logged."""

    class Deaf(Late):
        async def hears(self, method: str) -> None:
            raise ConnectError(self.server_name, "its ears are shut")

    with caplog.at_level(logging.WARNING, "genmcp.client"):
        async with connected(Deaf()) as client:
            with pytest.raises(RequestTimeout):
                await client.call("t", timeout=0.05)
            assert await client.tools() == []

    [said] = [each.getMessage() for each in caplog.records]
    assert said.startswith("notifications/cancelled could not be sent: ")
    assert "its ears are shut" in said


async def test_client_closes_while_a_server_reads_no_notification() -> None:
    """A message without a waiting caller does not delay the end, and is not sent after it."""

    class Slow(Late):
        def __init__(self) -> None:
            super().__init__()
            self.told = asyncio.Event()
            self.given_up = asyncio.Event()

        async def hears(self, method: str) -> None:
            self.told.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up.set()

    server = Slow()
    async with connected(server) as client:
        call = asyncio.create_task(client.call("t"))
        await server.ids.get()
        call.cancel()
        await server.told.wait()
        assert not server.given_up.is_set()

    assert server.given_up.is_set()
    assert call.cancelled()
