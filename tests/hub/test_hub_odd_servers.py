"""Third-party servers with missing features and defects."""

import asyncio
import sys
from pathlib import Path

import pytest

from genmcp import Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.hub.config import Retry, ServerConfig
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


async def test_rejected_list_is_empty(tmp_path: Path) -> None:
    """The server is registered with its other lists."""
    async with asyncio.timeout(30), Hub() as hub:
        await hub.add(old(tmp_path))

        assert [each.name for each in hub.tools()] == ["old/say"]
        assert hub.resources() == []
        assert hub.prompts() == []
        assert (await hub.call("old/say")).content == [TextContent("said")]


async def test_invalid_header_and_template_are_ignored(tmp_path: Path) -> None:
    """The rest of the server can be used."""
    async with asyncio.timeout(30), Hub() as hub:
        await hub.add(old(tmp_path))
        async with Client(hub.server()) as client:
            assert (await client.request("tools/call", {"name": "old/say"})).content == [
                TextContent("said")
            ]
            with pytest.raises(ServerError):
                await client.read("odd://x")


async def test_reconnection_reads_all_lists(tmp_path: Path) -> None:
    """Also of a server that announces no changes; clients are notified."""
    went = asyncio.Event()

    async def sleep(delay: float) -> None:
        script.write_text(sound.replace('"say"', '"tell"'))
        went.set()

    config = old(tmp_path)
    script = tmp_path / "old.py"
    sound = OLD.replace("x-mcp-header", "x-nothing")
    async with asyncio.timeout(30), Hub(sleep=sleep) as hub:
        server = hub.server()
        script.write_text(sound.replace('return {"content"', 'sys.exit(3) or {"content"'))
        config = ServerConfig("old", command=config.command, args=config.args, retry=Retry(1))
        await hub.add(config)
        async with Client(server) as client, client.listen(tools=True) as changes:
            assert (await client.call("old/say")).is_error
            await went.wait()
            await anext(changes)
            assert [each.name for each in await client.tools()] == ["old/tell"]


async def test_hub_connects_to_suites() -> None:
    """A target may be anything that a client takes. Equal names of tools stay distinct."""

    @tool
    async def who() -> str:
        """Returns its name."""
        return "one"

    @tool(name="who")
    async def who_else() -> str:
        """Returns its name."""
        return "other"

    async with asyncio.timeout(30), Hub() as hub:
        await hub.add(ServerConfig("a", target=Suite(name="s", version="1", tools=[who])))
        await hub.add(ServerConfig("b", target=Suite(name="s", version="1", tools=[who_else])))

        assert (await hub.call("a/who")).content == [TextContent("one")]
        assert (await hub.call("b/who")).content == [TextContent("other")]
