"""The official client, for `benchmarks.calling`."""

from contextlib import asynccontextmanager

from mcp import Client, StdioServerParameters

from benchmarks.processes import ROOT


@asynccontextmanager
async def connected(address, revision):
    """Give a function that calls `echo` at *address*."""
    target = address
    if not isinstance(address, str):
        env = {"PYTHONPATH": str(ROOT)}
        target = StdioServerParameters(command=address[0], args=address[1:], env=env)
    mode = revision if revision == "2026-07-28" else "legacy"
    async with Client(target, mode=mode) as client:
        if client.protocol_version != revision:
            raise RuntimeError(f"it speaks {client.protocol_version}")

        async def call(message):
            return (await client.call_tool("echo", {"message": message})).content[0].text

        yield call
