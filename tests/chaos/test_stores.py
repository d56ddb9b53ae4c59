"""Servers, workers and their store under faults, over each kind of store.

Processes are killed and suspended; the server of the store is killed twice and suspended once.

CHAOS_SEED repeats the random choices of a failed run. CHAOS_CALLS is the number of calls, few by
default: with 300, there are 20 faults of processes.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.chaos.clients import Client, random_of
from tests.chaos.faults import LEASE
from tests.chaos.processes import Fleet, Place, running, until
from tests.chaos.runs import Seen, called, check_jobs, check_tasks
from tests.chaos.stored import check_store
from tests.support.stores import KINDS, SharedStore, shared_store

pytestmark = pytest.mark.chaos

CALLS = int(os.environ.get("CHAOS_CALLS", "60"))
FAULTS = CALLS // 15
AT_ONCE = 16
EVERY = 0.2  # seconds between the starts of two calls
PAUSE = 10.0  # seconds for which the server of the store is suspended
SETTLED = 3.0  # seconds between two faults of the store


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    """Every acknowledged task has a correct result, and no step counts twice."""
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(4)))
    random, seen = Random(seed), Seen()
    async with shared_store(kind, tmp_path, own_server=True) as store:
        fleet = Fleet(tmp_path, servers=3, workers=2, url=store.url)
        async with running(fleet):
            try:
                limits = httpx.Limits(max_keepalive_connections=0, max_connections=None)
                async with httpx.AsyncClient(limits=limits, timeout=None) as http:
                    supervising = asyncio.create_task(supervise(fleet))
                    try:
                        await run_under_faults(fleet, store, http, random, seen)
                    finally:
                        supervising.cancel()
                        await asyncio.wait([supervising])
                    await restart_ended_workers(fleet)
                    await check_tasks(fleet, http, random, seen)
                    check_jobs(fleet, seen)
                    assert not seen.faults, "\n".join(seen.faults)
                    caller = Client(http, fleet, random)
                    unanswered = seen.unacknowledged
                    assert await check_store(fleet.url, caller, unanswered) > 0
                    await check_owners(caller, seen)
            except BaseException as error:
                error.add_note(f"CHAOS_SEED={seed}: {len(seen.ended)} calls ended")
                raise


async def run_under_faults(
    fleet: Fleet, store: SharedStore, http: httpx.AsyncClient, random: Random, seen: Seen
) -> None:
    """Make all calls while faults happen."""
    room = asyncio.Semaphore(AT_ONCE)

    async def call(n: int, client: Client) -> None:
        async with room:
            await called(n, "mixed", client, seen)

    async with asyncio.TaskGroup() as group:
        group.create_task(harm_processes(fleet, random_of(random), seen))
        if store.server is not None:
            fleet.store_fails = True
            group.create_task(harm_store(store.server, fleet, random_of(random), seen))
        for n in range(CALLS):
            group.create_task(call(n, Client(http, fleet, random_of(random))))
            await asyncio.sleep(EVERY)


async def harm_processes(fleet: Fleet, random: Random, seen: Seen) -> None:
    """Kill and restart servers and workers; suspend others for longer than a lease."""
    async with asyncio.TaskGroup() as group:
        for number in range(FAULTS):
            await asyncio.sleep(random.uniform(0.5, 1.5) * EVERY * CALLS / FAULTS)
            # One server stays up, so that calls can continue.
            up = await until(lambda: [each for each in fleet.places if each.life])
            places = up if len(fleet.up) > 1 else [each for each in up if each in fleet.workers]
            if not places:
                continue
            place = random.choice(places)
            seen.hurt.add(place.lives[-1].pid)
            if number % 2:
                place.send(signal.SIGSTOP)
                await asyncio.sleep(1.5 * LEASE)
                place.send(signal.SIGCONT)
            else:
                await place.kill()
                group.create_task(restart_later(place, random.uniform(0, 1)))


async def restart_later(place: Place, pause: float) -> None:
    """Restart a killed process after a pause."""
    await asyncio.sleep(pause)
    await place.start()


async def supervise(fleet: Fleet) -> None:
    """Restart each worker that ended because its store was down at the start."""
    while True:
        await asyncio.sleep(EVERY)
        await restart_ended_workers(fleet)


async def restart_ended_workers(fleet: Fleet) -> None:
    """Restart the workers that have ended by themselves."""
    for place in fleet.workers:
        if place.life is not None and place.life.process.returncode is not None:
            assert "StoreUnavailable" in place.logs(), place.logs()
            place.life = None
            await place.start()


async def harm_store(server: Any, fleet: Fleet, random: Random, seen: Seen) -> None:
    """Kill and restart the server of the store twice, and suspend it once."""
    for fault in random.sample(["kill", "kill", "pause"], 3):
        await asyncio.sleep(random.uniform(0.5, 1.0) * SETTLED)
        # No process can renew its leases in the meantime: each may lose its work.
        seen.hurt |= {place.lives[-1].pid for place in fleet.places}
        if fault == "kill":
            await _done(server.kill())
            await asyncio.sleep(random.uniform(0, LEASE))
            await _done(server.start())
        else:
            await _done(server.pause())
            await asyncio.sleep(PAUSE)
            await _done(server.resume())
        seen.hurt |= {place.lives[-1].pid for place in fleet.places}


async def _done(result: Awaitable[None] | None) -> None:
    """Await the result of a server's method if it is a coroutine; some servers are synchronous."""
    if inspect.isawaitable(result):
        await result


async def check_owners(client: Client, seen: Seen) -> None:
    """Check that a principal cannot find the tasks of another."""
    for n, id in seen.tasks:
        if n % 3 == 2:  # keyed, and therefore with a principal
            assert not await client.finds(id, "mallory"), f"task {id} is shown to others"
