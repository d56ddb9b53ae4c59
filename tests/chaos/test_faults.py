"""Faults that kill no process lose no work: no task, no stream, no job.

CHAOS_SEED repeats the random choices of a failed run. With CHAOS_RUNS each fault is tried alone, so
many times; without it, all faults happen once, one after another.
"""

import asyncio
import os
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.clients import Client, random_of
from tests.chaos.faults import FAULTS, LEASE
from tests.chaos.processes import Fleet, running
from tests.chaos.runs import Seen, called, check_jobs, check_tasks

pytestmark = pytest.mark.chaos

RUNS = int(os.environ.get("CHAOS_RUNS", "0"))
KINDS = [*FAULTS] * RUNS or ["all"]
CALLS = 24  # for each fault


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
async def test_faults_lose_nothing_that_was_acknowledged(tmp_path: Path, kind: str) -> None:
    """Every task has a result, every stream a response, and results do not change."""
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    random = Random(seed)
    seen = Seen()
    fleet = Fleet(tmp_path, servers=2, workers=1)
    fleet.set_clocks(0.0)
    async with running(fleet):
        try:
            limits = httpx.Limits(max_keepalive_connections=0, max_connections=None)
            async with httpx.AsyncClient(limits=limits, timeout=None) as http:
                for number, name in enumerate([*FAULTS] if kind == "all" else [kind]):
                    await run_under_fault(fleet, http, random, seen, name, number * CALLS)
                await check_tasks(fleet, http, random, seen)
            check_jobs(fleet, seen)
            assert not seen.faults, "\n".join(seen.faults)
        except BaseException as error:
            error.add_note(f"CHAOS_SEED={seed} {kind}: {len(seen.ended)} calls ended")
            raise


async def run_under_fault(
    fleet: Fleet, http: httpx.AsyncClient, random: Random, seen: Seen, name: str, first: int
) -> None:
    """Make calls before, during and after the fault *name*."""

    async def fault() -> None:
        await asyncio.sleep(0.5)
        await FAULTS[name](fleet, random_of(random), seen.hurt)

    async with asyncio.TaskGroup() as group:
        group.create_task(fault())
        for n in range(first, first + CALLS):
            group.create_task(called(n, name, Client(http, fleet, random_of(random)), seen))
            await asyncio.sleep(2 * LEASE / CALLS)
