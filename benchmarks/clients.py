"""Benchmarks of clients: genmcp's compared with others, kept resources, and a large hub."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.calling import Address, Usage
from benchmarks.cases import Subject
from benchmarks.figures import Figure, number
from benchmarks.processes import (
    LOAD_CORE,
    PEERS,
    ROOT,
    SERVER_CORE,
    beside,
    pinned,
    served,
    surroundings,
)
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub

__all__ = ["clients", "hub", "left_behind", "main"]

REVISIONS = ("2026-07-28", "2025-11-25")
OWN = "benchmarks.peers.genmcp_client"
SLOW_SERVER = str(Path(__file__).parent / "peers" / "slow_server.py")
AT_ONCE = 8
WARM = 100  # calls before the measured ones, which fill caches and import modules


def clients(_: Subject, genmcp: Subject, *, count: int = 1000, rounds: int = 3) -> Sequence[Figure]:
    """Call echo of one server *count* times in sequence with each client, over HTTP and stdio."""
    pythons = {OWN: genmcp.python}
    for name in PEERS:
        pythons[f"benchmarks.peers.{name}_client"] = beside(genmcp.python, name)
    return compared(pythons, count=count, rounds=rounds)


def compared(pythons: dict[str, str], *, count: int, rounds: int) -> list[Figure]:
    """Compare the clients in these modules, each with its Python; genmcp and mcp come first."""
    figures = []
    for transport in ("HTTP", "stdio"):
        for revision in REVISIONS:
            best: dict[str, Usage] = {}
            with _server(transport, pythons[OWN]) as address:
                for _ in range(rounds):
                    for module, python in pythons.items():
                        _, usage = _run_client(module, python, address, revision, [WARM, count])
                        best[module] = min(best.get(module, usage), usage, key=_seconds)
            own, official, *_ = best.values()
            details = ", ".join(
                f"{_name(module)}: {_usage_text(each)}" for module, each in best.items()
            )
            name = f"{count:,} calls over {transport}, one after another, {revision}"
            figures.append(Figure(f"{name}, s", own.seconds, official.seconds / 2, details))
            figures.append(Figure(f"{name}, the client's CPU, s", own.cpu, official.cpu / 2))
    return figures


def left_behind(
    _: Subject, genmcp: Subject, *, first: int = 10_000, last: int = 100_000
) -> Sequence[Figure]:
    """Measure the growth of a client process from the *first* call to the *last*."""
    figures = []
    for transport in ("HTTP", "stdio"):
        with _server(transport, genmcp.python) as address:
            parts = [first, last - first]
            before, after = _run_client(OWN, genmcp.python, address, REVISIONS[0], parts)
        name = f"a client over {transport}, from {first:,} to {last:,} calls"
        details = f"after {first:,}: {number(before.memory / 1024)} MiB"
        kept = after.descriptors - before.descriptors + after.tasks - before.tasks
        figures.append(Figure(f"{name}, KiB", after.memory - before.memory, 1024, details))
        figures.append(Figure(f"{name}, file descriptors and tasks", kept, 1))
    return figures


def hub(_: Subject, genmcp: Subject, *, servers: int = 50, delay: float = 1.0) -> Sequence[Figure]:
    """Measure the registration of stdio servers that take *delay* seconds to start."""
    arguments = ["-m", "benchmarks.clients", str(servers), str(delay)]
    answer = subprocess.run(
        [genmcp.python, *arguments],
        capture_output=True,
        check=True,
        env=surroundings({}),
        cwd=ROOT,
        timeout=120,
    )
    waited = -(-servers // AT_ONCE) * delay
    return [
        Figure(
            f"a hub of {servers} servers that take {delay:g} s to start, {AT_ONCE} at a time, s",
            float(answer.stdout),
            8.5,
            f"the starts alone: {number(waited)}",
        )
    ]


def main() -> None:
    """Print the seconds until a hub with the given number of slow servers is up."""
    servers, delay = sys.argv[1:]
    print(asyncio.run(_up(int(servers), delay)))


async def _up(servers: int, delay: str) -> float:
    arguments = ["-I", "-S", SLOW_SERVER, delay]
    configs = [ServerConfig(f"server-{each}", sys.executable, arguments) for each in range(servers)]
    async with Hub() as many:
        began = time.perf_counter()
        failed = await many.add_all(configs)
        took = time.perf_counter() - began
        if failed or len(many.tools()) != servers:
            raise RuntimeError(f"{len(many.tools())} servers are up; {failed}")
    return took


@contextmanager
def _server(transport: str, python: str) -> Iterator[Address]:
    """Give the URL of a server over HTTP, or the command of one over stdio."""
    if transport == "HTTP":
        with served("benchmarks.subject:app", python=python) as server:
            yield f"http://127.0.0.1:{server.port}/mcp"
    else:
        command = [python, "-m", "genmcp", "serve", "--stdio", "benchmarks.subject:app"]
        yield pinned(SERVER_CORE, *command)


def _run_client(
    module: str, python: str, address: Address, revision: str, parts: Sequence[int]
) -> list[Usage]:
    """Run a client process, and return the usage of each part of its calls."""
    arguments = [module, json.dumps(address), revision, *map(str, parts)]
    command = pinned(LOAD_CORE, python, "-m", "benchmarks.calling", *arguments)
    answer = subprocess.run(
        command, capture_output=True, check=True, env=surroundings({}), cwd=ROOT, timeout=300
    )
    return [Usage(**json.loads(line)) for line in answer.stdout.splitlines()]


def _seconds(usage: Usage) -> float:
    return usage.seconds


def _usage_text(usage: Usage) -> str:
    return f"{number(usage.seconds)} (CPU {number(usage.cpu)})"


def _name(module: str) -> str:
    return module.rpartition(".")[2].removesuffix("_client")


if __name__ == "__main__":
    main()
