"""The client and the hub with a server of the TypeScript SDK that loses its sessions."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from genmcp.client.client import Client
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from tests.e2e.processes import kill, serving
from tests.support.npm import npm_package
from tests.support.peers import SDK

# The first run installs it.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SCRIPT = Path(__file__).with_name("typescript_server.mjs")


@pytest.fixture(scope="session")
def typescript() -> Callable[[int], list[str]]:
    """Return a function from a port to the command of the server."""
    node, modules = npm_package(*SDK)
    return lambda port: [node, str(SCRIPT), str(port), str(modules)]


async def test_client_survives_restarted_typescript_server(
    typescript: Callable[[int], list[str]], free_port: int
) -> None:
    """It responds with HTTP 400, not 404: the client initializes again, and repeats the request."""
    command, url = typescript(free_port), f"http://127.0.0.1:{free_port}/mcp"
    async with asyncio.timeout(60), serving(command, free_port) as first, Client(url) as client:
        assert (await client.call("pid")).text == str(first.pid)
        await kill(first)
        async with serving(command, free_port) as second:
            assert (await client.call("pid")).text == str(second.pid)
            assert [each.name for each in await client.tools()] == ["pid"]


async def test_hub_survives_restarted_typescript_server(
    typescript: Callable[[int], list[str]], free_port: int
) -> None:
    """Its member stays registered, and calls succeed."""
    command, url = typescript(free_port), f"http://127.0.0.1:{free_port}/mcp"
    async with asyncio.timeout(60), serving(command, free_port) as first, Hub() as hub:
        await hub.add(ServerConfig("it", url=url, retry=Retry(3)))
        assert (await hub.call("it/pid")).text == str(first.pid)
        await kill(first)
        async with serving(command, free_port) as second:
            assert (await hub.call("it/pid")).text == str(second.pid)
            assert hub.servers() == ["it"]
