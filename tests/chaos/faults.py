"""Faults of processes that serve and work. Each fault lasts longer than a lease."""

import asyncio
import resource
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from random import Random
from typing import Final, TypeAlias

from tests.chaos.processes import Fleet, Life

LEASE: Final = 2.0  # the lease of tests.chaos.app, which cannot be imported here
LONG: Final = 1.5 * LEASE

Fault: TypeAlias = Callable[[Fleet, Random, set[int]], Awaitable[None]]
"""Does its harm, and undoes it. Processes that may lose work are added to the set before they lose
it, since calls are checked meanwhile."""


async def lock(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Hold the lock of the SQLite file, as a backup or an administrator's transaction does."""

    def held(seconds: float) -> sqlite3.Connection:
        connection = sqlite3.connect(fleet.store, timeout=20, check_same_thread=False)
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        return connection

    with closing(await asyncio.to_thread(held, LONG)) as connection:
        await asyncio.sleep(LONG)
        connection.execute("ROLLBACK")


async def freeze(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Suspend all processes at once, then resume them, as when a laptop sleeps."""
    lives = _lives(fleet)
    for life in lives:
        life.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(LONG)
    for life in lives:
        life.process.send_signal(signal.SIGCONT)


async def freeze_one(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Suspend one process for longer than a lease: the others consider it dead."""
    life = random.choice(_lives(fleet))
    hurt.add(life.pid)
    life.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(LONG)
    life.process.send_signal(signal.SIGCONT)


async def clock(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Set the machine's clock forward and back by more than a lease."""
    for offset in random.sample([40.0, 7200.0, -3600.0, -40.0], 2):
        fleet.set_clocks(offset)
        await asyncio.sleep(LONG / 2)
    fleet.set_clocks(0.0)


async def skew(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Set the clocks of the processes 45 seconds apart, as on machines without NTP."""
    fleet.set_clocks(0.0, 45.0)
    await asyncio.sleep(LONG)
    fleet.set_clocks(0.0)


async def writes(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Let all writes to files fail, as on a full or read-only disk."""
    lives = _lives(fleet)
    soft, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    for life in lives:
        resource.prlimit(life.pid, resource.RLIMIT_FSIZE, (0, most))
    await asyncio.sleep(LONG)
    for life in lives:
        resource.prlimit(life.pid, resource.RLIMIT_FSIZE, (soft, most))


async def kill(fleet: Fleet, random: Random, hurt: set[int]) -> None:
    """Kill processes with SIGKILL, and restart them."""
    for _ in range(3):
        place = random.choice([each for each in fleet.places if each.life])
        hurt.add(place.lives[-1].pid)
        await place.kill()
        await asyncio.sleep(random.uniform(0, LONG / 3))
        await place.start()


FAULTS: Final[Mapping[str, Fault]] = {
    each.__name__: each for each in (lock, freeze, freeze_one, clock, skew, writes, kill)
}


def _lives(fleet: Fleet) -> list[Life]:
    return [place.life for place in fleet.places if place.life]
