"""A third-party gateway from HTTP to stdio that starts our server anew for every request."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from tests.e2e.processes import serving
from tests.support.npm import npm_package
from tests.support.peers import GATEWAY

# The first run installs it.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SERVER = """
from genmcp import *

@job
async def transcribe(run: Run) -> str:
    return "text"

class Transcribe(Tool):
    name = "transcribe"

    async def call(self, request, channel):
        return Continue("done", transcribe.job())

    async def continue_(self, tag, outcome, channel):
        return outcome.value

suite = Suite(name="gated", version="1", tools=[Transcribe])
"""


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
async def test_gateway_with_a_process_for_each_request_keeps_tasks(
    shared: bool, tmp_path: Path, free_port: int
) -> None:
    """The processes share a store and a secret, as docs/how-to/stdio.md requires."""
    (tmp_path / "gated.py").write_text(SERVER)
    node, modules = npm_package(*GATEWAY)
    own = f"{sys.executable} -m genmcp serve gated:suite --stdio"
    command = [node, str(modules / "supergateway" / "dist" / "index.js"), "--stdio", own]
    command += ["--outputTransport", "streamableHttp", "--port", str(free_port)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]),
    }
    if shared:
        environment["GENMCP_SECRET"] = "0123456789abcdef"
        environment["GENMCP_STORE"] = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with (
        asyncio.timeout(60),
        serving([*command, "--logLevel", "none"], free_port, environment),
        Client(f"http://127.0.0.1:{free_port}/mcp") as client,
    ):
        task = await client.call_task("transcribe")
        assert task.id is not None
        if shared:
            assert (await task.wait()).text == "text"
        else:
            with pytest.raises(ServerError, match="Unknown task"):
                await task.wait()
