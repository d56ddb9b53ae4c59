"""The client of FastMCP, for `benchmarks.calling`."""

from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from benchmarks.processes import ROOT


@asynccontextmanager
async def connected(address, revision):
    """Give a function that calls `echo` at *address*."""
    target = address
    if not isinstance(address, str):
        env = {"PYTHONPATH": str(ROOT)}
        target = StdioTransport(address[0], address[1:], env=env, keep_alive=False)
    mode = revision if revision == "2026-07-28" else "legacy"
    async with Client(target, mode=mode) as client:

        async def call(message):
            return (await client.call_tool("echo", {"message": message})).content[0].text

        yield call
