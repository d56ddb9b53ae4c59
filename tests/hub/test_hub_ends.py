"""Servers that come and go at the very same time, or are left while they do."""

import asyncio
from typing import Any

import pytest

from genmcp.client.errors import ConnectError, ConnectionLost
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import UnknownServer
from genmcp.core.client.events import SendMessage
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from tests.hub.far import OLD, TIME, Far, gate

OPTIONS = ClientOptions(revision=OLD)


class Slow(Far):
    """A server with a connection that closes once `may` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.closing, self.may = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        """Wait."""
        self.closing.set()
        await self.may.wait()
        await super().close()


async def registered(hub: Hub, far: Far) -> "asyncio.Task[None]":
    """Return the task that registers *far*, once the hub has the server."""
    coming = asyncio.ensure_future(hub.add(ServerConfig("far", target=far)))
    while not hub.servers():  # noqa: ASYNC110 - the moment is what matters
        await asyncio.sleep(0)
    return coming


async def test_remove_right_after_add_closes() -> None:
    """The connection is closed, even before its watcher has begun."""
    far = Far()
    async with asyncio.timeout(TIME), Hub(options=OPTIONS) as hub:
        coming = await registered(hub, far)
        await hub.remove("far")
        assert far.closed
        await coming


async def test_cancelled_add_leaves_nothing() -> None:
    """Also if it is cancelled in the moment in which it succeeds."""
    far = Far()
    async with asyncio.timeout(TIME), Hub(options=OPTIONS) as hub:
        coming = await registered(hub, far)
        coming.cancel()
        await asyncio.wait((coming,))
        assert coming.cancelled()
        assert hub.servers() == []
        assert far.closed


async def test_add_ends_after_closing_despite_cancellations() -> None:
    """It could be added again: two processes of a server would write to the same files."""
    far, closed = Slow(), []
    listing, _, far.answers["tools/list"] = gate()
    async with asyncio.timeout(TIME), Hub(options=OPTIONS) as hub:
        coming = asyncio.ensure_future(hub.add(ServerConfig("far", target=far)))
        coming.add_done_callback(lambda _: closed.append(far.closed))
        await listing.wait()
        coming.cancel()
        await far.closing.wait()
        for _ in range(10):
            coming.cancel()
            await asyncio.sleep(0)
        far.may.set()
        await asyncio.wait((coming,))
        assert coming.cancelled()
    assert closed == [1]


async def test_add_fails_while_the_hub_closes() -> None:
    """The server would stay connected. Afterwards it can be added."""
    far = Slow()
    async with asyncio.timeout(TIME):
        hub = Hub(options=OPTIONS)
        await hub.add(ServerConfig("far", target=far))
        stopping = asyncio.ensure_future(hub.aclose())
        await far.closing.wait()
        with pytest.raises(ConnectError, match="the hub was closed"):
            await hub.add(ServerConfig("other", target=Far()))
        far.may.set()
        await stopping
        async with hub:
            await hub.add(ServerConfig("other", target=Far()))


async def test_cancelled_stop_still_closes() -> None:
    """A cancelled `unregister` or `stop` continues, and a later `stop` waits for it."""
    far = Slow()
    async with asyncio.timeout(TIME):
        hub = Hub(options=OPTIONS)
        await hub.add(ServerConfig("far", target=far))
        for leave in (hub.remove("far"), hub.aclose()):
            leaving = asyncio.ensure_future(leave)
            await far.closing.wait()
            leaving.cancel()
            await asyncio.wait((leaving,))
            assert leaving.cancelled()
        stopping = asyncio.ensure_future(hub.aclose())
        await asyncio.sleep(0)
        assert not far.closed
        far.may.set()
        await stopping
        assert far.closed


async def test_cancelled_remove_fails_waiting_calls() -> None:
    """They would otherwise wait for a connection that is never opened."""
    asleep = asyncio.Event()
    far = Far()

    async def sleep(delay: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(TIME), Hub(options=OPTIONS, sleep=sleep) as hub:
        await hub.add(ServerConfig("far", target=far, retry=Retry(2)))
        far.down = True
        waiting = asyncio.ensure_future(hub.call("far/quick"))
        await asleep.wait()
        leaving = asyncio.ensure_future(hub.remove("far"))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(UnknownServer):
            await waiting


@pytest.mark.parametrize("moment", ["broken", "not connected"])
async def test_remove_waits_until_the_connection_is_closed(moment: str) -> None:
    """Also if it was closing already, or was not open yet."""
    far = Slow()
    far.may.set()
    again = asyncio.Event()

    async def sleep(delay: float) -> None:
        far.down = False
        far.closing.clear()
        far.may.clear()
        again.set()

    async def tools(_: Far, message: SendMessage) -> Any:
        if again.is_set():
            assert message.id is not None
            far.sink.on_failure(message.id, ConnectionLost("far", "bad"))
        return {"resultType": "complete", "tools": []}

    far.answers["tools/list"] = tools
    async with asyncio.timeout(TIME), Hub(options=OPTIONS, sleep=sleep) as hub:
        await hub.add(ServerConfig("far", target=far, retry=Retry(2)))
        far.down = True
        if moment == "broken":
            far.may.clear()
        reading = asyncio.ensure_future(hub.read("note://today", server="far"))
        if moment == "not connected":
            await again.wait()
        try:
            await far.closing.wait()
            before = far.closed
            leaving = asyncio.ensure_future(hub.remove("far"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not leaving.done()
        finally:
            far.may.set()
        await leaving
        assert far.closed == before + 1
        with pytest.raises(UnknownServer):
            await reading
