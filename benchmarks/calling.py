"""A client as a process of its own: it calls `echo` and says what that took.

    python -m benchmarks.calling benchmarks.own_client '"http://127.0.0.1:8000/mcp"' 2026-07-28 1000

The first argument is a module whose `connected` gives a function that calls; the second, in JSON,
a URL or the words of a command; then come the revision, and how many calls each part has. After
each part a line of JSON is written, a `Taken`.
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

__all__ = ["Connected", "Taken"]

Address = str | list[str]
"""A URL, or the words of a command."""

Connected = Callable[[Address, str], AbstractAsyncContextManager[Callable[[str], Awaitable[str]]]]
"""Takes the server and the revision; the function it gives takes a message and returns it."""


@dataclass(frozen=True)
class Taken:
    """What a number of calls took, in seconds, and what is there behind them; memory in KiB."""

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
            print(json.dumps(asdict(_taken(seconds, cpu))), flush=True)


def _taken(seconds: float, cpu: float) -> Taken:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    return Taken(seconds, cpu, memory, descriptors, len(asyncio.all_tasks()))


def main() -> None:
    """Do what the arguments say."""
    module, address, revision, *parts = sys.argv[1:]
    connected = importlib.import_module(module).connected
    asyncio.run(_run(connected, json.loads(address), revision, [int(part) for part in parts]))


if __name__ == "__main__":
    main()
