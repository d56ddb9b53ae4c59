"""A hub of servers over HTTP, where a failure shows with the next request."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from genmcp import Endpoint, Suite, tool
from genmcp.client.errors import ConnectError
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent
from tests.support.serving import PATIENCE, Server

pytestmark = pytest.mark.slow


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class App:
    """Serves a suite, and records the headers of requests."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.endpoint = Endpoint(Suite(name="far", version="1", tools=[add]))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers.update(scope.get("headers", ()))
        await self.endpoint(scope, receive, send)


@asynccontextmanager
async def serving(port: int) -> AsyncIterator[App]:
    """Serve on that port of loopback."""
    app = App()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        options: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": 1}
        server = Server(uvicorn.Config(app, **options), listener)
        server.thread.start()
        try:
            await asyncio.to_thread(server.settled.wait, PATIENCE)
            yield app
        finally:
            server.should_exit = True
            await asyncio.to_thread(server.thread.join, PATIENCE)


def config(port: int, retry: Retry | None = None) -> ServerConfig:
    """Return the configuration of the server on that port."""
    return ServerConfig(
        "far", url=f"http://127.0.0.1:{port}/mcp", headers={"x-who": "me"}, retry=retry
    )


async def test_hub_sends_the_headers_of_a_server(free_port: int) -> None:
    """The headers of its configuration are part of every request."""
    async with serving(free_port) as app, Hub() as hub:
        await hub.add(config(free_port))
        result = await hub.call("far/add", {"a": 1, "b": 2})

    assert result.content == [TextContent("3")]
    assert app.headers[b"x-who"] == b"me"


async def test_call_waits_until_the_server_is_back(free_port: int) -> None:
    """A call that was not sent is sent once the server listens again."""
    came, back = asyncio.Event(), asyncio.Event()

    async def sleep(delay: float) -> None:
        came.set()
        await back.wait()

    async with asyncio.timeout(30), Hub(sleep=sleep) as hub:
        async with serving(free_port):
            await hub.add(config(free_port, Retry(1)))
        call = asyncio.ensure_future(hub.call("far/add", {"a": 1, "b": 2}))
        await came.wait()
        async with serving(free_port):
            back.set()
            assert (await call).content == [TextContent("3")]


async def test_hub_evicts_a_server_that_is_gone(free_port: int) -> None:
    """The call fails, and afterwards the server is unknown."""
    async with asyncio.timeout(30), Hub() as hub:
        async with serving(free_port):
            await hub.add(config(free_port))
        with pytest.raises(ConnectError, match="far"):
            await hub.call("far/add", {"a": 1, "b": 2})
        assert hub.servers() == []
