"""Jobs on an engine, while processes of genmcp, workers of the engine, and its broker are killed.

CHAOS_JOBS is the number of jobs, by default 20; CHAOS_SEED the seed of a run to repeat.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from genmcp.core.task import Task
from genmcp.testing import connect
from tests.tasks.engine_apps import ENGINES, LEASE, mux_of
from tests.tasks.engine_bench import EngineBench, JobLog

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

JOBS: Final = int(os.environ.get("CHAOS_JOBS", "20"))
ITEMS: Final = 4
SETTLED: Final = 240.0  # seconds after the last kill within which all jobs must have ended
SERVER: Final = [sys.executable, "-m", "genmcp", "worker", "tests.tasks.engine_apps:mux"]


@pytest.fixture(params=ENGINES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EngineBench]:
    bench = EngineBench(request.param, tmp_path, own_store=True)
    try:
        await bench.open()
        yield bench
    finally:
        bench.end()


class Fleet:
    """Two processes of genmcp, two workers of an engine, and its broker, to be killed."""

    def __init__(self, bench: EngineBench) -> None:
        self.bench = bench
        self.servers: list[subprocess.Popen[bytes]] = [bench.start(SERVER) for _ in range(2)]
        for _ in range(2):
            bench.start_worker()
        self.kills = Counter[str]()

    async def kill(self, what: str, random: Random) -> None:
        """Kill one process, and start another in its place."""
        self.kills[what] += 1
        match what:
            case "genmcp":
                server = random.choice(self.servers)
                self.servers.remove(server)
                self.bench.kill(server)
                self.servers.append(self.bench.start(SERVER))
            case "worker":
                self.bench.kill_worker(random.choice(self.bench.workers))
                self.bench.start_worker()
            case _:
                await self.bench.kill_broker()
                await asyncio.sleep(random.uniform(0, 1.5))
                await self.bench.broker.start()

    def supervise(self) -> None:
        """Start another worker for each that has ended: Celery's may, if its broker is killed."""
        for worker in [each for each in self.bench.workers if each.poll() is not None]:
            self.bench.kill_worker(worker)
            self.bench.start_worker()

    def end(self) -> None:
        for server in self.servers:
            self.bench.kill(server)


async def begin(bench: EngineBench, log: JobLog) -> list[str]:
    """Call the tools, and return the ids of the tasks; every other job may not run again."""
    mux = mux_of(bench.app(), bench.store_url)
    tools = ["works" if number % 2 else "works_once" for number in range(JOBS)]
    arguments = {"folder": log.folder, "items": ITEMS, "pause": 0.3}
    async with connect(mux) as client:
        ids = [(await client.call_task(tool, arguments)).id for tool in tools]
    await mux.aclose()
    return [id for id in ids if id is not None]


async def ended(fleet: Fleet, ids: list[str]) -> list[Task]:
    """Return the tasks when all have ended."""
    async with fleet.bench.service(fleet.bench.app()) as service:
        for _ in range(int(2 * SETTLED)):
            fleet.supervise()
            tasks = [await service.records.get(id) for id in ids]
            if all(task.ended for task in tasks):
                return tasks
            await asyncio.sleep(0.5)
    raise AssertionError(f"not ended: {[task for task in tasks if not task.ended]}")


async def test_jobs_survive_kills(bench: EngineBench, tmp_path: Path) -> None:
    """None is lost, none runs against its `on_worker_lost`, and none has two results.

    A job that runs again continues from what it saved.
    """
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    random, log = Random(seed), JobLog(tmp_path)
    ids = await begin(bench, log)
    fleet = Fleet(bench)
    try:
        await log.until(lambda log: log.lines("started"))
        for _ in range(max(2, JOBS // 10)):
            for what in random.sample(("genmcp", "worker", "broker"), 3):
                await asyncio.sleep(random.uniform(0.2, 2.0))
                await fleet.kill(what, random)
        tasks = await ended(fleet, ids)
        await asyncio.sleep(2 * LEASE)  # late writes would have been made by then
        assert await ended(fleet, ids) == tasks
    except BaseException:
        print(f"CHAOS_SEED={seed}", bench.output()[-5000:])  # noqa: T201
        raise
    finally:
        fleet.end()
    check(tasks, log)


def check(tasks: list[Task], log: JobLog) -> None:
    """Check the results, and the log of the attempts."""
    attempts, cancelled = defaultdict[str, list[int]](list), Counter[str]()
    for id, _, saved in log.lines("started"):
        attempts[id].append(int(saved))
    for id, _ in log.lines("cancelled"):
        cancelled[id] += 1
    for task in tasks:
        job, text = f"{task.id}.1", (task.result or b"").decode()
        assert task.end == "completed", task
        if "WorkerLost" in text or "process" in text:
            assert task.tool == "works_once", task
        else:
            result = msgspec.json.decode(task.result or b"")["content"][0]["text"]
            assert msgspec.json.decode(result)[0] == job
        if task.tool == "works_once":
            # An attempt that was cancelled has ended in an orderly way.
            assert len(attempts[job]) <= 1 + cancelled[job], log.lines("started")
        assert attempts[job] == sorted(attempts[job]), "an attempt has lost what was saved"
    items = Counter(map(tuple, log.lines("saved")))
    repeated = [each for each, count in items.items() if count > 1]
    assert not repeated, "an item was done again after it was saved"
