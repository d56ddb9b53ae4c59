"""Servers that nobody here wrote, and that do less than they could, or something wrong."""

import asyncio
import sys
from pathlib import Path

import pytest

from genmcp import Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.hub.config import Backoff, Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent

#: Speaks 2024-11-05 a line at a time; its prompts cannot be listed.
OLD = """
import json, sys

def answer(method):
    match method:
        case "initialize":
            capabilities = {"tools": {}, "resources": {}, "prompts": {}}
            info = {"name": "old", "version": "1"}
            said = {"protocolVersion": "2024-11-05", "capabilities": capabilities}
            return {**said, "serverInfo": info}
        case "tools/list":
            text = {"type": "string", "x-mcp-header": "not a name"}
            schema = {"type": "object", "properties": {"a": text}}
            return {"tools": [{"name": "say", "inputSchema": schema}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "said"}]}
        case "resources/list":
            return {"resources": []}
        case "resources/templates/list":
            return {"resourceTemplates": [{"name": "odd", "uriTemplate": "odd://{?x}{&y}"}]}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"])
        said = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""


def old(folder: Path) -> ServerConfig:
    """Return the configuration of such a server."""
    path = folder / "old.py"
    path.write_text(OLD)
    return ServerConfig("old", command=sys.executable, args=[str(path)])


async def test_hub_takes_what_a_server_has_and_leaves_what_it_refuses(tmp_path: Path) -> None:
    """A list that cannot be had is empty, and the server is registered."""
    async with asyncio.timeout(30), Hub() as hub:
        await hub.register(old(tmp_path))

        assert [each.name for each in hub.tools()] == ["old/say"]
        assert hub.resources() == []
        assert hub.prompts() == []
        assert (await hub.call("old/say")).content == [TextContent("said")]


async def test_hub_serves_an_odd_server_as_far_as_it_can_be_served(tmp_path: Path) -> None:
    """A header that cannot be sent, and a template that is none, keep nobody from the rest."""
    async with asyncio.timeout(30), Hub() as hub:
        await hub.register(old(tmp_path))
        async with Client(hub.server()) as client:
            assert (await client.request("tools/call", {"name": "old/say"})).content == [
                TextContent("said")
            ]
            with pytest.raises(ServerError):
                await client.read("odd://x")


async def test_hub_looks_at_all_lists_again_when_a_server_comes_back(tmp_path: Path) -> None:
    """Even where the server tells of no changes; whoever is served hears of it."""
    went = asyncio.Event()

    async def sleep(delay: float) -> None:
        script.write_text(sound.replace('"say"', '"tell"'))
        went.set()

    config = old(tmp_path)
    script = tmp_path / "old.py"
    sound = OLD.replace("x-mcp-header", "x-nothing")
    async with asyncio.timeout(30), Hub(backoff=Backoff(sleep)) as hub:
        server = hub.server()
        script.write_text(sound.replace('return {"content"', 'sys.exit(3) or {"content"'))
        config = ServerConfig("old", command=config.command, args=config.args, retry=Retry(1))
        await hub.register(config)
        async with Client(server) as client, client.listen(tools=True) as changes:
            assert (await client.call("old/say")).is_error
            await went.wait()
            await anext(changes)
            assert [each.name for each in await client.tools()] == ["old/tell"]


async def test_hub_takes_two_servers_in_this_process() -> None:
    """A target may be anything a client takes; of equal names each is its own."""

    @tool
    async def who() -> str:
        """Tells who it is."""
        return "one"

    @tool(name="who")
    async def who_else() -> str:
        """Tells who it is."""
        return "other"

    async with asyncio.timeout(30), Hub() as hub:
        await hub.register(ServerConfig("a", target=Suite(name="s", version="1", tools=[who])))
        await hub.register(ServerConfig("b", target=Suite(name="s", version="1", tools=[who_else])))

        assert (await hub.call("a/who")).content == [TextContent("one")]
        assert (await hub.call("b/who")).content == [TextContent("other")]
