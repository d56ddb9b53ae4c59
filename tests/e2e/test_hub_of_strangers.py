"""A hub of third-party servers: registered, called, killed and reconnected."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from genmcp import Endpoint
from genmcp.client.client import Client
from genmcp.client.options import ClientOptions
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult
from tests.client.peer_servers import fastmcp, sdk
from tests.support.serving import serve

pytestmark = [pytest.mark.e2e, pytest.mark.peers]

SDK = """
import os
from mcp.server import MCPServer as Server
"""
FASTMCP = """
import os
from fastmcp import FastMCP as Server
"""
BODY = """
server = Server("stranger")

@server.tool()
def add(a: int, b: int) -> str:
    return str(a + b)

@server.tool()
def pid() -> str:
    return str(os.getpid())

@server.resource("note://today")
def note() -> str:
    return "buy milk"

@server.prompt()
def greet(name: str) -> str:
    return f"Hello {name}."

server.run("stdio"%s)
"""
STRANGERS = {"sdk": SDK + BODY % "", "fastmcp": FASTMCP + BODY % ", show_banner=False"}


def text(result: CallToolResult) -> str:
    """Return the text of a result."""
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_hub_works_with_a_third_party_server(stranger: str, tmp_path: Path) -> None:
    """Everything works, also after the server was killed, and for clients of the hub."""
    path = tmp_path / "server.py"
    path.write_text(STRANGERS[stranger])
    reconnected = asyncio.Event()

    async def sleep(delay: float) -> None:
        reconnected.set()

    async with asyncio.timeout(50), Hub(sleep=sleep) as hub:
        endpoint = Endpoint(hub.server())
        config = ServerConfig("it", command=sys.executable, args=[str(path)], retry=Retry(3))
        await hub.add(config)
        assert [each.name for each in hub.tools()] == ["it/add", "it/pid"]
        assert [each.uri for each in hub.resources()] == ["note://today"]
        assert [each.name for each in hub.prompts()] == ["it/greet"]
        assert text(await hub.call("it/add", {"a": 1, "b": 2})) == "3"
        assert (await hub.read("note://today", server="it")).contents[0].text == "buy milk"
        prompted = await hub.prompt("it/greet", {"name": "Ada"})
        assert prompted.messages[0].content == TextContent("Hello Ada.")

        before = text(await hub.call("it/pid"))
        os.kill(int(before), signal.SIGKILL)
        await reconnected.wait()
        assert text(await hub.call("it/pid")) != before

        async with Client(endpoint) as client:
            assert text(await client.call("it/add", {"a": 2, "b": 2})) == "4"
        await endpoint.aclose()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("revision", [None, "2025-11-25"])
async def test_hub_works_with_third_party_servers_over_http(revision: str | None) -> None:
    """The same with servers over HTTP, of both eras, side by side."""
    sdks, fasts = sdk().streamable_http_app(), fastmcp().http_app()
    options = ClientOptions(revision=revision)
    async with (
        asyncio.timeout(50),
        serve(sdks) as one,
        serve(fasts) as other,
        Hub(options=options) as hub,
    ):
        configs = [
            ServerConfig("sdk", url=f"{one}/mcp"),
            ServerConfig("fast", url=f"{other}/mcp"),
        ]
        assert await hub.add_all(configs) == {}
        for name in hub.servers():
            result = await hub.call(f"{name}/add", '{"a": 1, "b": 2}')
            assert result.structured == {"result": 3.0}
            assert (await hub.read("note://today", server=name)).contents[0].text == "Rain."
            prompted = await hub.prompt(f"{name}/greet", {"name": "Ann"})
            assert prompted.messages[0].content == TextContent("Say hello to Ann.")
        await hub.remove("sdk")
        assert {each.server_name for each in hub.tools()} == {"fast"}
