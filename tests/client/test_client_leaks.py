"""Many calls leave nothing behind."""

import asyncio
import gc
import sys
from pathlib import Path

import pytest

from genmcp import Channel, Endpoint, Suite, Tool, ToolRequest
from genmcp.client.client import Client
from genmcp.client.options import ClientOptions, Command
from tests.support.serving import serve

WARM, MORE, TIMES = 500, 2_500, 2
SPARE = 125
"""Blocks of memory: one that each twentieth call left would be more."""

DESCRIPTORS = Path("/proc/self/fd")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.no_cover,
    pytest.mark.skipif(not DESCRIPTORS.exists(), reason="counts what Linux lists"),
]

STDIO = """
import asyncio
from genmcp._transports.stdio import serve_stdio
from tests.client.test_client_leaks import suite
asyncio.run(serve_stdio(suite()))
"""


class Echo(Tool):
    """Returns its message."""

    name = "echo"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        message: str = request.arguments["message"]
        return message


def suite() -> Suite:
    return Suite(name="echoes", version="1", tools=[Echo()])


def left() -> tuple[int, int, int]:
    """Blocks of memory, file descriptors and asyncio.Tasks there are now."""
    gc.collect()
    return sys.getallocatedblocks(), len([*DESCRIPTORS.iterdir()]), len(asyncio.all_tasks())


async def call(client: Client, times: int) -> None:
    for number in range(times):
        assert (await client.call("echo", {"message": str(number)})).text == str(number)


async def check(client: Client) -> None:
    """A one-time event, such as a deferred import of the server, may occur in one of the runs."""
    await call(client, WARM)
    grown = []
    for _ in range(TIMES):
        before = left()
        await call(client, MORE)
        grown.append([now - then for now, then in zip(left(), before, strict=True)])
    blocks, descriptors, tasks = map(min, zip(*grown, strict=True))
    assert blocks < SPARE
    assert descriptors <= 0
    assert tasks <= 0


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_client_keeps_nothing_of_calls_over_http(revision: str) -> None:
    """Memory, file descriptors and tasks are the same after thousands of calls."""
    options = ClientOptions(revision=revision)
    async with serve(Endpoint(suite())) as url, Client(url, options=options) as client:
        await check(client)


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_client_keeps_nothing_of_calls_over_stdio(revision: str) -> None:
    """The same over the standard streams of a process."""
    command = Command(sys.executable, ["-c", STDIO])
    async with Client(command, options=ClientOptions(revision=revision)) as client:
        await check(client)
