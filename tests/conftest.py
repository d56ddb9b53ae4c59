"""Fixtures of all tests: Hypothesis settings, a free port, checks for leaked tasks and
processes.

A socket, file or event loop that is left open needs no check: it is a ResourceWarning, and warnings
are errors (pyproject.toml).
"""

import asyncio
import gc
import inspect
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.redis_server import RedisServer

# A busy machine is not a fault of the code: no deadline. On CI the same examples every time.
settings.register_profile("genmcp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("genmcp")


# Tests of whole programs, under load or by random input. Coverage counts what other tests take: it
# would slow these most, and a line that only chance reaches is not tested.
_WITHOUT_COVERAGE = ("e2e", "peers", "chaos", "fuzz", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of `_WITHOUT_COVERAGE` out of the measurement, if there is one."""
    for item in items:
        if any(item.get_closest_marker(name) for name in _WITHOUT_COVERAGE):
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all collections of garbage: each would look at all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _leaves_no_orphan() -> Iterator[None]:
    """Fail a run that leaves processes behind.

    A child of the tests that was not awaited needs no check: it is a ResourceWarning. This finds
    grandchildren whose parent, a process of the tests, ended first.
    """
    os.environ["GENMCP_TEST_RUN"] = run = secrets.token_hex(8)
    yield
    deadline = time.monotonic() + 10  # e.g. workers of a server that was killed just now
    while orphans := _orphans(f"GENMCP_TEST_RUN={run}".encode()):
        if time.monotonic() > deadline:
            pytest.fail(f"processes were left running: {orphans}")
        time.sleep(0.1)


def _orphans(variable: bytes) -> dict[int, str]:
    """Return the command lines of processes with *variable* whose parent is not one of them.

    Empty on systems without /proc.
    """
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(OSError):  # it has just ended, or belongs to another user
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    known = {os.getpid(), *parents}
    return {pid: commands[pid] for pid, parent in parents.items() if parent not in known}


@pytest.fixture(autouse=True)
def _leaves_no_task(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_tasks_end")


@pytest.fixture
async def _tasks_end() -> AsyncIterator[None]:
    """Fail a test that leaves an asyncio.Task running."""
    yield
    for _ in range(
        10
    ):  # a task that was just cancelled needs an iteration or two of the loop to end
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            return
    pytest.fail(f"tasks were left running: {left}")


@pytest.fixture
def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a Redis server that the tests of this process share, each with its own prefix.

    The variable GENMCP_TEST_REDIS_URL names another server. A test that kills or pauses a server
    starts one of its own.
    """
    if url := os.environ.get("GENMCP_TEST_REDIS_URL"):
        yield url
        return
    # It is never killed, and an fsync for each write would take most of the time of the tests.
    server = RedisServer({"appendfsync": "everysec"})
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(server.start())
        yield server.url
    finally:
        server.end()
