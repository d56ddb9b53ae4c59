"""A disk that is full for a while, as the clients of a server see it."""

import asyncio
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.callers import ENDS, Caller, Message, Refused, is_end
from tests.chaos.processes import Fleet, running

FULL = 4.0  # seconds: two leases
BOUND = 20.0  # seconds for a task
TOOLS = ("rerun", "fail")
TMPFS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'


class Filled:
    """A small file system, which nobody else sees, filled up by a file."""

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
    """A process that may not write to any file."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store.db"
        self.before: list[str] = []

    def fill(self, pid: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))

    def free(self, pid: int) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def may_mount(folder: Path) -> bool:
    if shutil.which(TMPFS[0]) is None:
        return False
    tried = subprocess.run([*TMPFS, MOUNT, str(folder / "tried"), "true"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.parametrize("kind", [Filled, Limited])
async def test_full_disk_loses_no_task(tmp_path: Path, kind: type[Filled | Limited]) -> None:
    """What has a handle goes on and ends right once there is room, and nothing else gets one."""
    if kind is Filled and not may_mount(tmp_path):
        pytest.skip("this process may not mount a file system")
    disk = kind(tmp_path)
    fleet = Fleet(tmp_path, servers=1, workers=0, store=disk.store, before=disk.before)
    async with running(fleet), httpx.AsyncClient(timeout=20) as http:
        try:
            await filled_and_freed(disk, fleet, Caller(http, fleet, Random(0)))
        except BaseException as error:
            error.add_note(fleet.said())
            raise


async def filled_and_freed(disk: Filled | Limited, fleet: Fleet, caller: Caller) -> None:
    (server,) = fleet.servers
    pid = server.lives[0].pid
    tasks: dict[int, Message] = {}
    for n in range(8):  # these ask, soon
        tasks[n] = await caller.begin(n, TOOLS[n % 2])
    for n in range(4):
        await asks(caller, tasks[n])
    for n in range(8, 16):  # and these are at work
        tasks[n] = await caller.begin(n, TOOLS[n % 2], seconds=0.5)

    disk.fill(pid)
    await full(caller, tasks)
    disk.free(pid)

    for n, task in tasks.items():
        last = await ended(caller, n, task)
        assert is_end(n, TOOLS[n % 2], last["result"]["structuredContent"]), last
        assert "lost" not in last["result"]["structuredContent"], last


async def full(caller: Caller, tasks: dict[int, Message]) -> None:
    """Do what clients do while there is no room: some of it may find room."""
    until = asyncio.get_running_loop().time() + FULL
    refused = 0
    while asyncio.get_running_loop().time() < until:
        for n, task in [*tasks.items()]:
            now = await caller.task(task["taskId"])  # none is gone
            if now["status"] == "input_required":
                try:
                    await caller.answer(n, now)
                except Refused as error:
                    check_error(error)
                    refused += 1
        n = len(tasks)
        try:
            tasks[n] = await caller.begin(n, TOOLS[n % 2])
        except Refused as error:
            check_error(error)
            refused += 1
        await asyncio.sleep(0.1)
    assert refused


def check_error(refused: Refused) -> None:
    print(refused)


async def asks(caller: Caller, task: Message) -> Message:
    async with asyncio.timeout(BOUND):
        while (now := await caller.task(task["taskId"]))["status"] != "input_required":
            await asyncio.sleep(0.02)
    return now


async def ended(caller: Caller, n: int, task: Message) -> Message:
    """Go on with a task to its end."""
    async with asyncio.timeout(BOUND):
        while (now := await caller.task(task["taskId"]))["status"] not in ENDS:
            if now["status"] == "input_required":
                await caller.answer(n, now)
            await asyncio.sleep(0.02)
    return now
