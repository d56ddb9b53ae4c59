"""The client of genmcp, for `benchmarks.calling`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.calling import Address
from benchmarks.processes import ROOT
from genmcp.client.client import Client
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.targets import Target


@asynccontextmanager
async def connected(
    address: Address, revision: str
) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Give a function that calls `echo` at *address*."""
    target: Target
    if isinstance(address, str):
        target = address
    else:
        target = Command(address[0], address[1:], {"PYTHONPATH": str(ROOT)})
    async with Client(target, options=ClientOptions(revision=revision)) as client:

        async def call(message: str) -> str:
            return (await client.call("echo", {"message": message})).text

        yield call
