"""The client with tasks of FastMCP, which sends no notifications and has a poll interval of 5 s."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from genmcp.client.client import Client
from tests.e2e.pip import pip_environment
from tests.e2e.processes import serving
from tests.support.peers import FASTMCP_TASKS

# The first run installs it.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SERVER = """
import asyncio, sys
from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension

server = FastMCP("tasks")
server.add_extension(TasksExtension())

@server.tool(task=True)
async def bake(minutes: float) -> str:
    await asyncio.sleep(minutes)
    return "bread"

server.run("http", port=int(sys.argv[1]), show_banner=False, log_level="ERROR")
"""


@pytest.fixture(scope="session")
def environment() -> Mapping[str, str]:
    """Return the environment in which FastMCP has tasks."""
    return pip_environment(*FASTMCP_TASKS, complete=False)


async def test_short_task_of_fastmcp_does_not_take_its_poll_interval(
    environment: Mapping[str, str], tmp_path: Path, free_port: int
) -> None:
    """A task of 0.1 s completes long before the interval of 5 s."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    url = f"http://127.0.0.1:{free_port}/mcp"
    async with (
        asyncio.timeout(60),
        serving([sys.executable, str(script), str(free_port)], free_port, environment),
        Client(url) as client,
    ):
        task = await client.call_task("bake", {"minutes": 0.1})
        assert (await task.status()).poll_interval_ms == 5000
        async with asyncio.timeout(4):
            assert (await task.wait()).text == "bread"
