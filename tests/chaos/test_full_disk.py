"""A disk that is full for a while, as clients see it."""

import asyncio
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.callers import Caller, Message, Refused, is_end
from tests.chaos.processes import Fleet, running

pytestmark = pytest.mark.chaos

FULL = 4.0  # seconds: two leases
TOOLS = ("rerun", "fail")
TMPFS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"'


class Filled:
    """A small file system that only one process sees, with room left for the write-ahead log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "disk"
        self.store = self._folder / "store.db"
        self.before = [*TMPFS, MOUNT, str(self._folder)]

    def fill(self, pid: int) -> None:
        filler = self._filler(pid)
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))

    def free(self, pid: int) -> None:
        self._filler(pid).unlink()

    def _filler(self, pid: int) -> Path:
        return Path(f"/proc/{pid}/root{self._folder}/filler")


class Limited:
    """A process that may not write to files, for machines where nothing can be mounted."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store.db"
        self.before: list[str] = []

    def fill(self, pid: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))

    def free(self, pid: int) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def may_mount() -> bool:
    """Return whether this process may mount a file system for another."""
    if shutil.which(TMPFS[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([*TMPFS, MOUNT, f"{folder}/tried", "true"], capture_output=True)
    return tried.returncode == 0


# A full disk needs the right to mount a file system; a process that may not write does not.
DISKS: list[type[Filled | Limited]] = [Filled, Limited] if may_mount() else [Limited]


@pytest.mark.parametrize("kind", DISKS)
async def test_full_disk_loses_no_task(tmp_path: Path, kind: type[Filled | Limited]) -> None:
    """Every accepted task completes once there is space; rejected calls get no handle."""
    disk = kind(tmp_path)
    fleet = Fleet(tmp_path, servers=1, workers=0, store=disk.store, before=disk.before)
    async with running(fleet), httpx.AsyncClient(timeout=20) as http:
        await filled_and_freed(disk, fleet, Caller(http, fleet, Random(0)))


async def filled_and_freed(disk: Filled | Limited, fleet: Fleet, caller: Caller) -> None:
    pid = fleet.servers[0].lives[0].pid
    tasks = [await caller.begin(n, TOOLS[n % 2]) for n in range(16)]
    for task in tasks[:4]:  # these tasks ask; the others will ask, run, or wait
        await caller.until(task["taskId"], "input_required")
    tasks += [await caller.begin(n, TOOLS[n % 2], seconds=0.5) for n in range(16, 24)]

    disk.fill(pid)
    await full(caller, tasks)
    disk.free(pid)

    async with asyncio.TaskGroup() as group:
        ending = [group.create_task(caller.finish(n, task)) for n, task in enumerate(tasks)]
    for n, last in enumerate(ending):
        value = last.result()["result"]["structuredContent"]
        assert "lost" not in value, value
        assert is_end(n, TOOLS[n % 2], value), value


async def full(caller: Caller, tasks: list[Message]) -> None:
    """Send requests while the disk is full, and record the tasks that are accepted."""

    async def begin(n: int) -> None:
        tasks.append(await caller.begin(n, TOOLS[n % 2]))

    refused = 0
    end = asyncio.get_running_loop().time() + FULL
    while asyncio.get_running_loop().time() < end:
        for n, task in enumerate(tasks):
            now = await caller.task(task["taskId"])  # raises if the task was lost
            if now["status"] == "input_required":
                refused += await is_rejected(caller.answer(n, now))
        refused += await is_rejected(begin(len(tasks)))
        await asyncio.sleep(0.1)
    assert refused


async def is_rejected(exchange: Awaitable[None]) -> bool:
    """Return whether the request is rejected with the hint that it may be retried."""
    try:
        await exchange
    except Refused as refused:
        (answer,) = refused.args
        assert (answer["error"]["code"], answer["error"]["data"]["retryAfter"]) == (-32603, 1)
        return True
    return False
