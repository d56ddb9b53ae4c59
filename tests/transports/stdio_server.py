"""A server over standard streams that writes to them directly."""

import asyncio
import os
import subprocess
import sys

from genmcp import Channel, Suite, tool
from genmcp._transports.stdio import serve_stdio


@tool
async def count(to: int, channel: Channel) -> int:
    """Counts, and makes noise."""
    sys.stdout.write("printed\n")
    os.write(1, b"written\n")
    await asyncio.to_thread(subprocess.run, ["echo", "child"], check=True)
    sys.stdout.write(f"stdin: {sys.stdin.read()!r}\n")
    await channel.log("info", "counting")
    for step in range(to):
        await channel.progress(step + 1, to)
    return to


@tool
async def hold() -> str:
    """Waits until it is cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        sys.stdout.write("hold was cancelled\n")
        raise
    return ""


if __name__ == "__main__":
    sys.stdout.write("before\n")
    asyncio.run(serve_stdio(Suite(name="test", version="1", tools=[count, hold])))
