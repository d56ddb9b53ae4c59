"""How a process over a file notices writes of others: by inotify, or by polling."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.sqlite.watch import InotifyWatch
from tests.support.asgi import until

BOUND = 5.0

needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")

Opened = Callable[[], SQLiteStore]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens the store, as often as wanted: two are to each other as two processes."""
    stores: list[SQLiteStore] = []

    def opened() -> SQLiteStore:
        stores.append(SQLiteStore(tmp_path / "store.db"))
        return stores[-1]

    yield opened
    for store in stores:
        await store.aclose()


def switches(name: str) -> int:
    """Return how often the threads of that name have gone to sleep."""
    ids = [each.native_id for each in threading.enumerate() if each.name == name]
    status = [Path(f"/proc/self/task/{id}/status").read_text() for id in ids]
    return sum(int(each.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for each in status)


@needs_inotify
async def test_idle_process_hardly_wakes(opened: Opened) -> None:
    """It used to poll 50 times a second."""
    with opened().deliveries.news() as news:
        await news.wait()
        news.clear()
        await asyncio.sleep(0.1)
        before = switches("genmcp-sqlite-read")
        await asyncio.sleep(1.0)

        assert switches("genmcp-sqlite-read") - before < 10


@needs_inotify
async def test_write_of_another_process_wakes_who_waits(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports it: no polling meanwhile."""
    monkeypatch.setattr("genmcp.stores.sqlite.database._POLL_INTERVAL_ARMED", BOUND * 10)
    here, there = opened(), opened()
    with here.deliveries.news() as news:
        for id in ("a", "b", "c"):
            await here.deliveries.lost("", ())
            news.clear()
            await there.deliveries.put(id)
            async with asyncio.timeout(BOUND):
                await news.wait()


@pytest.mark.parametrize("refusal", ["another system", "no instance", "no watch"])
async def test_process_looks_where_the_system_tells_nothing(
    refusal: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS and Windows, or where a user has no more instances of inotify."""

    class Library:
        def __init__(self, *_: object, **__: object) -> None: ...

        def inotify_init1(self, flags: int) -> int:
            return -1 if refusal == "no instance" else os.open(os.devnull, os.O_RDONLY)

        def inotify_add_watch(self, watch: int, file: bytes, mask: int) -> int:
            return -1

    monkeypatch.setattr("genmcp.stores.sqlite.watch.ctypes.CDLL", Library)
    if refusal == "another system":
        monkeypatch.setattr("genmcp.stores.sqlite.watch.sys", SimpleNamespace(platform="win32"))
    here, there = opened(), opened()
    with here.deliveries.news() as news:
        await here.deliveries.lost("", ())
        news.clear()
        await there.deliveries.put("a")
        async with asyncio.timeout(BOUND):
            await news.wait()


@needs_inotify
async def test_alarm_ends_with_its_file(tmp_path: Path) -> None:
    """It is logged, with a last wake-up: each user makes another watch."""
    file = tmp_path / "file"
    file.touch()
    rings: list[int] = []
    found = InotifyWatch(file, lambda: rings.append(1), pause=0.001)
    with file.open("ab", buffering=0) as opened:
        opened.write(b".")
        await until(lambda: len(rings) == 1, pause=0.01)
    assert found.armed
    file.unlink()
    await until(lambda: not found.armed, pause=0.01)
    found.close()


@needs_inotify
async def test_alarm_that_is_closed_ends_its_thread(tmp_path: Path) -> None:
    """A second time changes nothing."""
    (tmp_path / "file").touch()
    found = InotifyWatch(tmp_path / "file", lambda: None, pause=0.001)
    for _ in range(2):
        found.close()
    await until(
        lambda: "genmcp-sqlite-alarm" not in {each.name for each in threading.enumerate()},
        pause=0.01,
    )
