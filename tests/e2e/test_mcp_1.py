"""Servers and clients made with mcp 1.x, which most of those in use are."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path

import pytest

from genmcp import Endpoint, Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import UnsupportedRevision
from genmcp.client.options import ClientOptions, Command
from tests.e2e.pip import pip_environment
from tests.e2e.processes import serving
from tests.support.peers import MCP_1
from tests.support.serving import serve

# The first run installs it.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SERVER = """
import sys
from mcp.server.fastmcp import FastMCP

server = FastMCP("one", port=int(sys.argv[2]), log_level="ERROR")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

server.run(sys.argv[1])
"""
CLIENT = """
import asyncio, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main():
    async with streamablehttp_client(sys.argv[1]) as (read, write, _):
        async with ClientSession(read, write) as session:
            print((await session.initialize()).protocolVersion)
            print([each.name for each in (await session.list_tools()).tools])
            result = await session.call_tool("add", {"a": 1, "b": 2})
            print(result.content[0].text)

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def environment() -> Mapping[str, str]:
    """Return the environment in which `mcp` is 1.x."""
    return pip_environment(*MCP_1)


async def test_mcp_1_server_causes_no_warnings(
    environment: Mapping[str, str],
    tmp_path: Path,
    free_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its response to `server/discover`, an error with the id "server-error", is expected."""
    caplog.set_level(logging.WARNING)
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    command = [sys.executable, str(script), "streamable-http", str(free_port)]
    url = f"http://127.0.0.1:{free_port}/mcp"
    async with asyncio.timeout(60), serving(command, free_port, environment):
        async with Client(url) as client:
            assert client.revision == "2025-11-25"
            assert (await client.call("add", {"a": 1, "b": 2})).text == "3"
        shown = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "genmcp", "tools", url, stdout=PIPE, stderr=PIPE
        )
        out, err = await shown.communicate()

    assert caplog.messages == []
    assert out.startswith(b"add a=integer b=integer")
    assert err == b""


async def test_forced_revision_fails_on_mcp_1_stdio_server(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    """It does not support 2026-07-28, so the client raises an error."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    command = Command(
        sys.executable, [str(script), "stdio", "0"], env={"PYTHONPATH": environment["PYTHONPATH"]}
    )
    async with asyncio.timeout(60):
        with pytest.raises(UnsupportedRevision, match="does not support 2026-07-28"):
            await Client(command, options=ClientOptions(revision="2026-07-28")).open()
        async with Client(command) as client:
            assert (await client.call("add", {"a": 1, "b": 2})).text == "3"


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_mcp_1_client_uses_our_server(environment: Mapping[str, str], tmp_path: Path) -> None:
    """It initializes, lists and calls over Streamable HTTP."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    suite = Suite(name="ours", version="1", tools=[add])
    async with asyncio.timeout(60), serve(Endpoint(suite)) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), url, env=environment, stdout=PIPE
        )
        out, _ = await process.communicate()

    assert out.decode().splitlines() == ["2025-11-25", "['add']", "3"]
