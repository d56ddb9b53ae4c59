"""Log messages of the servers behind a hub, forwarded to the caller."""

import asyncio
from typing import Any

import msgspec
import pytest

from genmcp import Channel, Endpoint, Suite, tool
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.core.client.events import SendMessage
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.params import LoggingLevel, LoggingMessageNotificationParams
from tests.hub.far import TIME, Far, Piped, gate, said
from tests.support.serving import serve

NEW, OLD = "2026-07-28", "2025-11-25"


class Reader(ClientHandler):
    """Records log messages."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, Any]] = []

    async def handle_log(self, message: LoggingMessageNotificationParams) -> Any:
        """Keep it."""
        self.logged.append((message.level, message.data))


@tool
async def once(channel: Channel) -> str:
    """Logs."""
    await channel.log("debug", "detail")
    await channel.log("warning", {"disk": "full"}, "disks")
    return "done"


def suite() -> Suite:
    """Return a server that logs, with two calls running at a time."""
    both = asyncio.Barrier(2)

    @tool
    async def work(who: str, channel: Channel) -> str:
        """Logs something of every kind."""
        await channel.log("debug", f"{who}: begun")
        await both.wait()
        await channel.log("info", f"{who}: half of it")
        await channel.log("error", f"{who}: done")
        return "worked"

    return Suite(name="s", version="1", tools=[work, once])


def client_of(server: Any, revision: str, handler: Reader, level: LoggingLevel | None) -> Client:
    """Return a client of *revision* that requests log messages from *level* on."""
    options = ClientOptions(revision=revision, log_level=level)
    return Client(server, handler=handler, options=options)


@pytest.mark.parametrize("behind", [NEW, OLD])
@pytest.mark.parametrize("before", [NEW, OLD])
async def test_log_messages_go_to_the_caller(before: str, behind: str) -> None:
    """From the level on that it requested."""
    ada, bob = Reader(), Reader()
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=behind)) as hub:
        server = hub.server()
        await hub.add(ServerConfig("a", target=suite()))
        async with (
            client_of(server, before, ada, "debug") as one,
            client_of(server, before, bob, "error") as other,
        ):
            await asyncio.gather(
                one.call("a/work", {"who": "Ada"}), other.call("a/work", {"who": "Bob"})
            )
    assert ada.logged == [
        ("debug", "Ada: begun"),
        ("info", "Ada: half of it"),
        ("error", "Ada: done"),
    ]
    assert bob.logged == [("error", "Bob: done")]


@pytest.mark.parametrize("behind", [NEW, OLD])
async def test_log_messages_need_a_requested_level(behind: str) -> None:
    """Since 2026-07-28 a client without a level receives nothing."""
    reader = Reader()
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=behind)) as hub:
        server = hub.server()
        await hub.add(ServerConfig("a", target=suite()))
        async with client_of(server, NEW, reader, None) as client:
            await client.call("a/once")
            assert reader.logged == []
            await client.log_level("info")
            await client.call("a/once")
    assert reader.logged == [("warning", {"disk": "full"})]


async def test_handler_of_the_hub_gets_log_messages() -> None:
    """As it answers the questions."""
    own, reader = Reader(), Reader()
    options = ClientOptions(revision=NEW, log_level="info")
    async with asyncio.timeout(TIME), Hub(handler=own, options=options) as hub:
        server = hub.server()
        await hub.add(ServerConfig("a", target=suite()))
        async with client_of(server, NEW, reader, "debug") as client:
            await client.call("a/once")
    assert own.logged == [("warning", {"disk": "full"})]
    assert reader.logged == []


async def test_log_message_before_the_response_is_forwarded() -> None:
    """Both may be read at once."""

    async def quick(far: Far, message: SendMessage) -> Any:
        params = {"level": "error", "data": "hot"}
        body = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
        far.sink.on_message(msgspec.json.encode(body), message.id)
        return said("done")

    reader = Reader()
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=OLD)) as hub:
        server = hub.server()
        await hub.add(ServerConfig("far", target=Far(quick=quick)))
        async with client_of(server, OLD, reader, None) as client:
            await client.call("far/quick")
    assert reader.logged == [("error", "hot")]


async def test_log_message_over_stdio_needs_a_single_call() -> None:
    """With two calls running its caller is unknown."""
    came, go, answer = gate()

    async def quick(far: Far, message: SendMessage) -> Any:
        params = {"level": "error", "data": len(far.called)}
        far.questions.put_nowait({"method": "notifications/message", "params": params})
        await far.questions.join()
        return said("done")

    far = Piped(slow=answer, quick=quick)
    ada, bob = Reader(), Reader()
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision=OLD)) as hub:
        server = hub.server()
        await hub.add(ServerConfig("far", target=far))
        async with (
            client_of(server, OLD, ada, None) as one,
            client_of(server, OLD, bob, None) as other,
        ):
            slow = asyncio.ensure_future(one.call("far/slow"))
            await came.wait()
            await other.call("far/quick")
            go.set()
            await slow
            await other.call("far/quick")
    assert (ada.logged, bob.logged) == ([], [("error", 3)])


@pytest.mark.parametrize("behind", [NEW, OLD])
async def test_log_messages_over_http_go_to_their_caller(behind: str) -> None:
    """Also beside other calls that are running."""
    readers = Reader(), Reader()
    async with (
        asyncio.timeout(30),
        serve(Endpoint(suite())) as url,
        Hub(options=ClientOptions(revision=behind)) as hub,
    ):
        server = hub.server()
        await hub.add(ServerConfig("a", url=url))
        async with (
            client_of(server, NEW, readers[0], "info") as one,
            client_of(server, NEW, readers[1], "info") as other,
        ):
            await asyncio.gather(
                one.call("a/work", {"who": "Ada"}), other.call("a/work", {"who": "Bob"})
            )
    for reader, who in zip(readers, ("Ada", "Bob"), strict=True):
        assert reader.logged == [("info", f"{who}: half of it"), ("error", f"{who}: done")]
