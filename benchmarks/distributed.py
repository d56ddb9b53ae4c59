"""Measure a server and workers over a shared store: latency, takeover, throughput, idle CPU.

    python -m benchmarks.distributed                   # all stores
    python -m benchmarks.distributed redis postgres    # those whose name contains one of the words

One server (which runs no jobs) and two workers are started as processes for each store.
Redis writes its file every second (`appendfsync everysec`), PostgreSQL runs without fsync: neither
loses anything when a process is killed. The server and its client run on one core, the workers and
the store on the other, as if on another machine.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.processes import (
    LOAD_CORE,
    ROOT,
    SERVER_CORE,
    TICKS,
    family,
    free_port,
    pinned,
    surroundings,
)
from genmcp.stores import open_store
from genmcp.stores.postgres import PostgresStore
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.sockets import Connection, called

LATENCIES = 100  # jobs, one after the other
JOBS = 10_000
STEPS = 5_000  # deliveries with nothing to do
AT_ONCE = 64  # of them that are claimed at a time
IDLE = 10.0  # seconds
LEASE = 5.0  # seconds, for the takeover
PLAIN = 2_000  # plain calls, for their p99
TIMEOUT = 300.0  # seconds, of one measurement
TASKS: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@dataclass
class Setup:
    """A store by its URL."""

    name: str
    store: str


@dataclass
class Figures:
    """The figures of one setup by name, in the order in which they were measured."""

    values: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: str) -> None:
        self.values[name] = value
        print(f"  {name}: {value}", flush=True)


@asynccontextmanager
async def setups(folder: Path, words: Sequence[str]) -> AsyncIterator[Iterator[Setup]]:
    """Yield the setups whose name contains one of *words*, with their servers running."""
    async with AsyncExitStack() as stack:
        made = [Setup("memory", "memory://"), Setup("sqlite", f"sqlite:///{folder}/store.db")]
        if any_in(words, "redis"):
            redis = await stack.enter_async_context(RedisServer({"appendfsync": "everysec"}))
            made.append(Setup("redis", redis.url))
        if any_in(words, "postgres"):
            postgres = await stack.enter_async_context(PostgresServer())
            async with aclosing(PostgresStore(postgres.url)) as store:
                await store.migrate()
            made.append(Setup("postgres", postgres.url))
        pin()
        yield (each for each in made if any_in(words, each.name))


def pin() -> None:
    """Pin this process to the core of the server, and its children to the other one."""
    for pid in family(os.getpid()):
        core = SERVER_CORE if pid == os.getpid() else LOAD_CORE
        with suppress(FileNotFoundError, ProcessLookupError):  # a worker of PostgreSQL has ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


def any_in(words: Sequence[str], name: str) -> bool:
    """Return whether *name* contains one of *words*, or there are none."""
    return not words or any(word in name for word in words)


class Fleet:
    """The processes of one setup."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.notes = folder / f"{setup.name.replace(' ', '-')}.notes"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._log = (folder / f"{setup.name.replace(' ', '-')}.log").open("ab")
        self._settings = {"GENMCP_STORE": setup.store, "BENCHMARK_NOTES": str(self.notes)}
        self.running: list[Process] = []

    async def serve(self, queues: str = "none", lease: float = 30.0) -> Process:
        """Start the server."""
        options = ["--port", str(self.port), "--log-level", "warning", "--no-access-log"]
        app = "benchmarks.distributed_app:app"
        process = await self._start(["uvicorn", app, *options], queues, lease)
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                assert process.returncode is None, self._log.name
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return process

    async def work(self, lease: float = 30.0) -> Process:
        """Start a worker."""
        command = ["genmcp", "worker", "benchmarks.distributed_app:mux"]
        return await self._start(command, "default", lease, LOAD_CORE)

    async def _start(
        self, command: Sequence[str], queues: str, lease: float, core: int = SERVER_CORE
    ) -> Process:
        env = {**self._settings, "BENCHMARK_QUEUES": queues, "BENCHMARK_LEASE": str(lease)}
        process = await asyncio.create_subprocess_exec(
            *pinned(core, sys.executable, "-m", *command),
            env=surroundings(env),
            cwd=ROOT,
            stdout=self._log,
            stderr=self._log,
        )
        self.running.append(process)
        return process

    async def stop(self) -> None:
        """End all processes."""
        for process in self.running:
            if process.returncode is None:
                process.terminate()
        for process in self.running:
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self.running.clear()

    async def call(
        self,
        connection: Connection,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        id: int = 1,
        capabilities: Mapping[str, Any] = {},
    ) -> Any:
        """Return the result of a call."""
        response = await connection.ask(called(tool, arguments, id=id, capabilities=capabilities))
        messages = await response.messages()
        assert "result" in messages[-1], messages
        return messages[-1]["result"]

    async def noted(self, size: int) -> None:
        """Wait until the notes have *size* bytes."""
        while True:
            if self._noted() >= size:
                return
            await asyncio.sleep(0.005)

    def _noted(self) -> int:
        return self.notes.stat().st_size if self.notes.exists() else 0


async def measure(setup: Setup, folder: Path) -> Figures:
    """Return the figures of *setup*."""
    figures = Figures()
    fleet = Fleet(setup, folder)
    shared = not setup.store.startswith("memory")
    try:
        async with asyncio.timeout(TIMEOUT * 3):
            server = await fleet.serve("none" if shared else "default")
            await plain(fleet, figures, "plain call")
            workers = [await fleet.work(), await fleet.work()] if shared else []
            await latency(fleet, figures)
            await idle(figures, dict(zip(("server", "worker"), (server, *workers), strict=False)))
            if shared:
                await throughput(fleet, workers, figures)
                await fleet.stop()
                await takeover(fleet, figures)
                await fleet.stop()
                await steps(setup, figures)
    finally:
        await fleet.stop()
    return figures


async def plain(
    fleet: Fleet, figures: Figures, name: str, end: "asyncio.Future[None] | None" = None
) -> None:
    """Measure plain calls, one after the other: `PLAIN` of them, or until *end* is done."""
    times: list[float] = []
    async with await Connection.open(fleet.url) as connection:
        while not end.done() if end else len(times) < PLAIN:
            began = time.perf_counter()
            await fleet.call(connection, "echo", {"message": "hello"})
            times.append((time.perf_counter() - began) * 1e3)
    figures.add(name, f"p50 {median(times):.2f} ms, p99 {quantiles(times, n=100)[98]:.2f} ms")


async def latency(fleet: Fleet, figures: Figures) -> None:
    """Measure the way of short jobs, one after the other, whose client waits for the result."""
    starts, ends = [], []
    async with await Connection.open(fleet.url) as connection:
        for turn in range(LATENCIES + 5):
            result = await fleet.call(connection, "stamped")
            received = time.time()
            submitted, began, ended = result["structuredContent"]["times"]
            if turn >= 5:  # the first ones wait for the workers to start
                starts.append((began - submitted) * 1e3)
                ends.append((received - ended) * 1e3)
    for name, times in (("submit to start", starts), ("finish to client", ends)):
        figures.add(name, f"p50 {median(times):.1f} ms, p95 {quantiles(times, n=20)[18]:.1f} ms")


async def idle(figures: Figures, processes: Mapping[str, Process]) -> None:
    """Measure the CPU time of idle processes."""
    await asyncio.sleep(2)
    before = {name: cpu(each) for name, each in processes.items()}
    await asyncio.sleep(IDLE)
    for name, each in processes.items():
        figures.add(f"idle {name}", f"{(cpu(each) - before[name]) / IDLE:.1%} of a core")


def cpu(process: Process) -> float:
    """Return the CPU time of a process, in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def throughput(fleet: Fleet, workers: Sequence[Process], figures: Figures) -> None:
    """Measure how fast one worker completes jobs that were submitted before it is started."""
    for each in workers:
        each.terminate()
        await each.wait()
    fleet.notes.unlink(missing_ok=True)
    began = time.perf_counter()
    numbers = iter(range(JOBS))

    async def submit() -> None:
        async with await Connection.open(fleet.url) as connection:
            for number in numbers:
                await fleet.call(connection, "trivial", id=number, capabilities=TASKS)

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(submit())
    figures.add("jobs submitted", f"{JOBS / (time.perf_counter() - began):.0f}/s")
    worker = await fleet.work()
    await fleet.noted(1)
    began = time.perf_counter()
    await plain(fleet, figures, "plain call meanwhile", asyncio.ensure_future(fleet.noted(JOBS)))
    figures.add("jobs completed by one worker", f"{JOBS / (time.perf_counter() - began):.0f}/s")
    assert worker.returncode is None


async def steps(setup: Setup, figures: Figures) -> None:
    """Measure the queue alone: put, claim and drop deliveries for which nothing is done."""
    async with aclosing(open_store(setup.store)) as store:
        queue = store.deliveries
        assert queue is not None
        left = iter(range(STEPS))

        async def put() -> None:
            for number in left:
                await queue.put(f"step {number}", "steps", owner=f"client {number % 10}")

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(put())
        done = 0
        while done < STEPS:
            claimed = await queue.claim(("steps",), "benchmark", 30.0, AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for each in claimed:
                    group.create_task(queue.drop("benchmark", each.id))
            done += len(claimed)
        figures.add("empty steps", f"{STEPS / (time.perf_counter() - began):.0f}/s")


async def takeover(fleet: Fleet, figures: Figures) -> None:
    """Measure how long after a kill -9 of its worker a job starts again."""
    fleet.notes.unlink(missing_ok=True)
    await fleet.serve(lease=LEASE)
    workers = {each.pid: each for each in [await fleet.work(LEASE), await fleet.work(LEASE)]}
    async with await Connection.open(fleet.url) as connection:
        await fleet.call(connection, "long", capabilities=TASKS)
    await fleet.noted(1)
    await asyncio.sleep(LEASE)  # a worker that has just started takes over nothing
    first = int(fleet.notes.read_text().split()[0])
    killed = time.time()
    os.kill(workers[first].pid, signal.SIGKILL)
    size = fleet.notes.stat().st_size
    await fleet.noted(size + 1)
    again = float(fleet.notes.read_text().splitlines()[1].split()[1])
    figures.add(f"takeover with a lease of {LEASE:g} s", f"{again - killed:.1f} s")


def table(found: Mapping[str, Figures]) -> str:
    """Return the figures as a table of Markdown, with one column for each setup."""
    names = list(dict.fromkeys(name for each in found.values() for name in each.values))
    lines = ["| | " + " | ".join(found) + " |", "|---|" + "--:|" * len(found)]
    for name in names:
        cells = [each.values.get(name, "-") for each in found.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


async def main() -> None:
    """Measure the chosen setups, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only setups whose name contains one of these")
    words = parser.parse_args().words
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as name:
        async with setups(Path(name), words) as chosen:
            for setup in chosen:
                print(setup.name, flush=True)
                found[setup.name] = await measure(setup, Path(name))
    print(table(found))
    print(json.dumps({name: each.values for name, each in found.items()}))


if __name__ == "__main__":
    asyncio.run(main())
