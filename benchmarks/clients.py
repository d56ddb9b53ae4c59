"""Clients: how long calls take beside those of others, what they leave behind, and a large hub."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.calling import Address, Taken
from benchmarks.cases import Subject
from benchmarks.environments import PEERS, beside
from benchmarks.figures import Figure, number
from benchmarks.processes import LOAD_CORE, ROOT, SERVER_CORE, pinned, served, surroundings
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub

__all__ = ["clients", "hub", "left_behind", "main"]

REVISIONS = ("2026-07-28", "2025-11-25")
OWN = "benchmarks.own_client"
SLOW = str(Path(__file__).with_name("slow_start.py"))
AT_ONCE = 8
WARM = 100  # calls before those that are measured: what is imported, cached and listed with them


def clients(_: Subject, genmcp: Subject, *, count: int = 1000, rounds: int = 3) -> Sequence[Figure]:
    """Call echo of one server *count* times in turn, with each client, over HTTP and stdio."""
    pythons = {OWN: genmcp.python}
    for name in PEERS:
        pythons[f"benchmarks.peers.{name}_client"] = beside(genmcp.python, name)
    return compared(pythons, count=count, rounds=rounds)


def compared(pythons: dict[str, str], *, count: int, rounds: int) -> list[Figure]:
    """Compare the clients in these modules, each with its Python; genmcp's and mcp's come first."""
    figures = []
    for way in ("HTTP", "stdio"):
        for revision in REVISIONS:
            best: dict[str, Taken] = {}
            with _server(way, pythons[OWN]) as address:
                for _ in range(rounds):
                    for module, python in pythons.items():
                        _, taken = _taken(module, python, address, revision, [WARM, count])
                        best[module] = min(best.get(module, taken), taken, key=_seconds)
            own, official, *_ = best.values()
            told = ", ".join(f"{_name(module)}: {_said(each)}" for module, each in best.items())
            name = f"{count:,} calls over {way}, one after another, {revision}"
            figures.append(Figure(f"{name}, s", own.seconds, official.seconds / 2, told))
            figures.append(Figure(f"{name}, the client's CPU, s", own.cpu, official.cpu / 2))
    return figures


def left_behind(
    _: Subject, genmcp: Subject, *, first: int = 10_000, last: int = 100_000
) -> Sequence[Figure]:
    """Call echo, and see what the client has more of after the *last* call than the *first*."""
    figures = []
    for way in ("HTTP", "stdio"):
        with _server(way, genmcp.python) as address:
            parts = [first, last - first]
            before, after = _taken(OWN, genmcp.python, address, REVISIONS[0], parts)
        name = f"a client over {way}, from {first:,} to {last:,} calls"
        told = f"after {first:,}: {number(before.memory / 1024)} MiB"
        kept = after.descriptors - before.descriptors + after.tasks - before.tasks
        figures.append(Figure(f"{name}, KiB", after.memory - before.memory, 1024, told))
        figures.append(Figure(f"{name}, file descriptors and tasks", kept, 1))
    return figures


def hub(_: Subject, genmcp: Subject, *, servers: int = 50, delay: float = 1.0) -> Sequence[Figure]:
    """Register servers over stdio that take *delay* seconds to start, eight at a time."""
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
    """Print in how many seconds a hub of so many servers, each so slow, is up."""
    servers, delay = sys.argv[1:]
    print(asyncio.run(_up(int(servers), delay)))


async def _up(servers: int, delay: str) -> float:
    arguments = ["-I", "-S", SLOW, delay]
    configs = [ServerConfig(f"server-{each}", sys.executable, arguments) for each in range(servers)]
    async with Hub() as many:
        began = time.perf_counter()
        failed = await many.register_all(configs, concurrency=AT_ONCE)
        took = time.perf_counter() - began
        if failed or len(many.tools()) != servers:
            raise RuntimeError(f"{len(many.tools())} servers are up; {failed}")
    return took


@contextmanager
def _server(way: str, python: str) -> Iterator[Address]:
    """Give a server that is there over HTTP, or the command of one over stdio."""
    if way == "HTTP":
        with served("benchmarks.subject:app", python=python) as server:
            yield f"http://127.0.0.1:{server.port}/mcp"
    else:
        command = [python, "-m", "genmcp", "serve", "--stdio", "benchmarks.subject:app"]
        yield pinned(SERVER_CORE, *command)


def _taken(
    module: str, python: str, address: Address, revision: str, parts: Sequence[int]
) -> list[Taken]:
    """Let a client make its calls, and return what each part of them took."""
    arguments = [module, json.dumps(address), revision, *map(str, parts)]
    command = pinned(LOAD_CORE, python, "-m", "benchmarks.calling", *arguments)
    answer = subprocess.run(
        command, capture_output=True, check=True, env=surroundings({}), cwd=ROOT, timeout=300
    )
    return [Taken(**json.loads(line)) for line in answer.stdout.splitlines()]


def _seconds(taken: Taken) -> float:
    return taken.seconds


def _said(taken: Taken) -> str:
    return f"{number(taken.seconds)} (CPU {number(taken.cpu)})"


def _name(module: str) -> str:
    return module.rpartition(".")[2].removesuffix("_client")


if __name__ == "__main__":
    main()
