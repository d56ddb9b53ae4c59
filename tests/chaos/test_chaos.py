"""Servers and workers over one store are killed repeatedly while calls run."""

import asyncio
import os
from collections import defaultdict
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.callers import Caller, Ended, Torn, is_end
from tests.chaos.processes import Fleet, Place, running, until
from tests.chaos.stored import check_store

pytestmark = pytest.mark.chaos

CALLS = 200
AT_ONCE = 16
KILLS = 20
BOUND = 45.0  # seconds for one call, faults included


class Progress:
    """The numbers of calls started and ended, which pace the killer."""

    def __init__(self) -> None:
        self.steps = 0
        self.changed = asyncio.Condition()

    async def step(self) -> None:
        async with self.changed:
            self.steps += 1
            self.changed.notify_all()

    async def reach(self, steps: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.steps >= steps)


@pytest.mark.timeout(240)
async def test_calls_end_right_while_processes_are_killed(tmp_path: Path) -> None:
    """Every call has a correct result, whichever process was killed.

    CHAOS_SEED repeats the random choices of a failed run.
    """
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    random = Random(seed)
    async with running(Fleet(tmp_path, servers=3, workers=2)) as fleet:
        try:
            # A pooled connection to a killed process would fail only on its next request.
            limits = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(limits=limits, timeout=None) as http:
                caller = Caller(http, fleet, random)
                ended, torn = await run_calls(fleet, http, random)
                for each in ended:
                    await check_end(fleet, caller, each)
                check_jobs(fleet, ended)
                assert await check_store(fleet.url, caller, torn) > 0
        except BaseException as error:
            error.add_note(f"CHAOS_SEED={seed}")
            raise


async def run_calls(
    fleet: Fleet, http: httpx.AsyncClient, random: Random
) -> tuple[list[Ended], int]:
    """Make all calls while processes are killed; return the ended ones, and how many were lost."""
    progress, room = Progress(), asyncio.Semaphore(AT_ONCE)

    async def call(n: int, random: Random) -> Ended | None:
        caller = Caller(http, fleet, random)
        way = (caller.as_task, caller.by_state, caller.in_session)[n % 3]
        async with room:
            await progress.step()
            try:
                async with asyncio.timeout(BOUND):
                    return await way(n, ("rerun", "fail")[n // 3 % 2])
            except Torn:
                return None
            finally:
                await progress.step()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill(fleet, progress, random))
        calls = [group.create_task(call(n, Random(random.random()))) for n in range(CALLS)]
    results = [each.result() for each in calls]
    return [each for each in results if each], results.count(None)


async def kill(fleet: Fleet, progress: Progress, random: Random) -> None:
    """Kill and restart processes while calls run."""
    async with asyncio.TaskGroup() as group:
        for steps in sorted(random.sample(range(AT_ONCE, 2 * CALLS - AT_ONCE), KILLS)):
            await progress.reach(steps)
            await asyncio.sleep(random.uniform(0, 0.3))
            up = await until(lambda: [each for each in fleet.places if each.life])
            place = random.choice(up)
            await place.kill()
            group.create_task(restart_later(place, random.uniform(0, 1)))


async def restart_later(place: Place, pause: float) -> None:
    """Restart a killed process after a pause."""
    await asyncio.sleep(pause)
    await place.start()


async def check_end(fleet: Fleet, caller: Caller, ended: Ended) -> None:
    """Check the result of a call, and that every server reports the same for its task."""
    assert ended.value is not None, ended
    assert is_end(ended.n, ended.tool, ended.value), ended
    for server in fleet.servers if ended.task else ():
        assert ended.last == await caller.at(server, str(ended.task))


def check_jobs(fleet: Fleet, ended: list[Ended]) -> None:
    """Check that only killed processes lost work, and that no lost work ran restart_later."""
    began: dict[tuple[int, str], list[int]] = defaultdict(list)
    for n, step, pid in fleet.notes():
        began[n, step].append(pid)
    for each in ended:
        if each.tool == "fail":
            for step in ("first", "second"):
                assert len(began[each.n, step]) <= 1, (each, began[each.n, step])
        if lost := (each.value or {}).get("lost"):
            alive = {*began[each.n, lost]} - fleet.killed
            assert not alive, f"{each} is lost, and {alive} live"
