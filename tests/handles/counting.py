"""A server whose tools count in values of handles.

    python -m tests.handles.counting FD STORE [LEASE]

FD is a listening socket inherited from the parent, STORE the URL of a store. LEASE are the seconds
of a lease. `hang` tells by a log message when it is inside of its block, and does not leave it.
"""

import asyncio
import socket
import sys

import uvicorn
from msgspec import Struct

from genmcp import Channel, Endpoint, Mux, Suite, handles, tool
from genmcp.handles import Handle

SECRET = "a secret that all processes have"


class Counter(Struct):
    number: int = 0


@tool
async def start(channel: Channel) -> Handle[Counter]:
    """Starts to count."""
    return await Handle.new(channel, Counter())


@tool
async def count(counter: Handle[Counter]) -> int:
    """Counts one more."""
    async with counter as value:
        number = value.number
        await asyncio.sleep(0)  # another call would read the same number now
        value.number = number + 1
    return value.number


@tool
async def read(counter: Handle[Counter]) -> int:
    """Reads the number."""
    return (await counter.get()).number


@tool
async def hang(counter: Handle[Counter], channel: Channel) -> None:
    """Counts a million, and never ends."""
    async with counter as value:
        value.number += 1_000_000
        await channel.log("info", "inside")
        await asyncio.Event().wait()


suite = Suite(name="counting", version="1", tools=[start, count, read, hang])


def main(fd: str, store: str, lease: str = "") -> None:
    """Serve until the process is killed."""
    if lease:
        vars(handles)["_LEASE"] = float(lease)
    config = uvicorn.Config(
        Endpoint(Mux(suite, secret=SECRET, store=store)),
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    with socket.socket(fileno=int(fd)) as listener:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
