"""Replicas of a server over one shared store, behind a balancer without affinity.

    python -m tests.support.replicas tests.conformance.server --port 8000 --store redis

Runs the module in several processes, each with `--port N`, and the variables GENMCP_STORE and
GENMCP_SECRET. At SIGTERM all of them end.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.balancer import Balancer
from tests.support.stores import shared_store

ROOT = Path(__file__).parents[2]
_START = 30.0  # seconds for a process to listen
_STOP = 10.0  # seconds for a process to end after SIGTERM


class Replicas(NamedTuple):
    """The balancer, and the ports and process ids of the processes behind it."""

    balancer: Balancer
    ports: Sequence[int]
    pids: Sequence[int]


@asynccontextmanager
async def replicas(
    module: str, store: str, count: int = 3, port: int = 0
) -> AsyncIterator[Replicas]:
    """Run *count* processes of *module* over the store with this URL."""
    environment = {**os.environ, "GENMCP_STORE": store, "GENMCP_SECRET": "of all the replicas"}
    ports = [_free_port() for _ in range(count)]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, "--port", str(each), cwd=ROOT, env=environment
        )
        for each in ports
    ]
    try:
        async with asyncio.timeout(_START):
            for process, each in zip(processes, ports, strict=True):
                await _listening(process, each)
        async with Balancer([f"http://127.0.0.1:{each}" for each in ports], port) as balancer:
            yield Replicas(balancer, ports, [each.pid for each in processes])
    finally:
        await asyncio.gather(*(_ended(each) for each in processes))


async def _listening(process: Process, port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if process.returncode is not None:
                raise RuntimeError(f"a replica ended with {process.returncode}") from None
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def main() -> None:
    """Run the command until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--store", default="sqlite", help="sqlite, redis, postgres or a URL")
    args = parser.parse_args()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            shared_store(args.store, Path(folder)) as store,
            replicas(args.module, store.url, args.replicas, args.port),
        ):
            await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
