"""A client process that calls `echo` and prints the time and resources used.

    python -m benchmarks.calling CLIENT '"http://127.0.0.1:8000/mcp"' 2026-07-28 1000

Arguments: a module with a `connected` function, such as `benchmarks.peers.genmcp_client`; the URL
or the words of a command, as JSON; the revision; the number of calls of each part. After each part,
a `Usage` is printed as a line of JSON. Must not import genmcp: other clients run without it.
"""

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Connected", "Usage"]

Address = str | list[str]
"""A URL, or the words of a command."""

Connected = Callable[[Address, str], AbstractAsyncContextManager[Callable[[str], Awaitable[str]]]]
"""Called with the server and the revision. Gives a function that echoes a message."""


@dataclass(frozen=True)
class Usage:
    """Time in seconds that a number of calls took, and the resources in use after them (KiB)."""

    seconds: float
    cpu: float
    memory: int
    descriptors: int
    tasks: int


async def _run(connected: Connected, address: Address, revision: str, parts: Sequence[int]) -> None:
    async with connected(address, revision) as call:
        for count in parts:
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                if await call("hello") != "hello":
                    raise RuntimeError("not the answer that is measured")
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            print(json.dumps(asdict(_usage(seconds, cpu))), flush=True)


def _usage(seconds: float, cpu: float) -> Usage:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    return Usage(seconds, cpu, memory, descriptors, len(asyncio.all_tasks()))


def main() -> None:
    """Run the calls given by the command line."""
    module, address, revision, *parts = sys.argv[1:]
    connected = importlib.import_module(module).connected
    asyncio.run(_run(connected, json.loads(address), revision, [int(part) for part in parts]))


if __name__ == "__main__":
    main()
