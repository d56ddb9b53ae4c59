"""Fixtures and markers of all tests: Hypothesis settings, a free port, checks for leaked tasks and
processes.

A socket, file or event loop that is left open needs no check: it is a ResourceWarning, and warnings
are errors (pyproject.toml).
"""

import asyncio
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

# Markers of whole folders and modules (pyproject.toml). `scripts/test --quick` leaves them out.
_MARKERS = {
    "tests/e2e": "e2e",
    "tests/e2e/test_fastmcp_tasks.py": "peers",
    "tests/e2e/test_hub_of_strangers.py": "peers",
    "tests/e2e/test_issuer_conformance.py": "peers",
    "tests/e2e/test_login_peers.py": "peers",
    "tests/e2e/test_mcp_1.py": "peers",
    "tests/e2e/test_npm_servers.py": "peers",
    "tests/e2e/test_official_client.py": "peers",
    "tests/e2e/test_service_peers.py": "peers",
    "tests/e2e/test_typescript_server.py": "peers",
    "tests/client/test_client_peers.py": "peers",
    "tests/chaos": "chaos",
    "tests/fuzz": "fuzz",
    "tests/client/test_fuzzed_peers.py": "fuzz",
    "tests/cli/test_remote.py": "slow",
    "tests/cli/test_serve.py": "slow",
    "tests/cli/test_target.py": "slow",
    "tests/cli/test_terminal.py": "slow",
    "tests/cli/test_worker.py": "slow",
    "tests/client/test_client_closing.py": "slow",
    "tests/client/test_client_in_time.py": "slow",
    "tests/client/test_client_leaks.py": "slow",
    "tests/client/test_client_polls.py": "slow",
    "tests/client/test_client_processes.py": "slow",
    "tests/client/test_http_legacy.py": "slow",
    "tests/client/test_http_transport.py": "slow",
    "tests/client/test_notification_stream.py": "slow",
    "tests/client/test_sse_transport.py": "slow",
    "tests/client/test_stdio_transport.py": "slow",
    "tests/conformance/test_runner.py": "slow",
    "tests/continuations/test_awaitables.py": "slow",
    "tests/continuations/test_questions_modern.py": "slow",
    "tests/continuations/test_resumed_elsewhere.py": "slow",
    "tests/continuations/test_rolling_deploys.py": "slow",
    "tests/continuations/test_two_processes.py": "slow",
    "tests/core/test_pair.py": "slow",
    "tests/example_app/test_workshop_login.py": "slow",
    "tests/example_app/test_workshop_pages.py": "slow",
    "tests/example_app/test_workshop_resources.py": "slow",
    "tests/example_app/test_workshop_review.py": "slow",
    "tests/example_app/test_workshop_tools.py": "slow",
    "tests/fundamentals/test_7_tasks.py": "slow",
    "tests/hub/test_hub_http.py": "slow",
    "tests/hub/test_hub_processes.py": "slow",
    "tests/hub/test_hub_questions.py": "slow",
    "tests/protocol/test_definitions.py": "slow",
    "tests/resources/test_uri_template.py": "slow",
    "tests/schema/test_schema_verdicts.py": "slow",
    "tests/stores/test_redis_store.py": "slow",
    "tests/stores/test_sqlite_store.py": "slow",
    "tests/tasks/test_celery.py": "slow",
    "tests/tasks/test_jobs.py": "slow",
    "tests/tasks/test_jobs_blocking.py": "slow",
    "tests/tasks/test_jobs_processes.py": "slow",
    "tests/tasks/test_jobs_writes.py": "slow",
    "tests/tasks/test_temporal.py": "slow",
    "tests/test_documentation.py": "slow",
    "tests/transports/test_attack.py": "slow",
    "tests/transports/test_bounds.py": "slow",
    "tests/transports/test_disconnect_soak.py": "slow",
    "tests/transports/test_job_garbage.py": "slow",
    "tests/transports/test_malformed_messages.py": "slow",
    "tests/transports/test_pending_calls.py": "slow",
    "tests/transports/test_shutdown.py": "slow",
    "tests/transports/test_shutdown_of_jobs.py": "slow",
    "tests/transports/test_stdio.py": "slow",
    "tests/typing/test_checkers.py": "slow",
}
_TOP = Path(__file__).parent.parent

# A busy machine is not a fault of the code: no deadline. On CI the same examples every time.
settings.register_profile("genmcp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("genmcp")


def pytest_report_header() -> list[str]:
    """Report marked folders and modules that were moved: their tests have lost the marker."""
    missing = [path for path in _MARKERS if not (_TOP / path).exists()]
    return [f"tests/conftest.py marks paths that do not exist: {missing}"] if missing else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the markers of its folder and module."""
    for item in items:
        path = item.path.relative_to(_TOP)
        for each in (path, *path.parents):
            if marker := _MARKERS.get(each.as_posix()):
                item.add_marker(marker)


@pytest.fixture(scope="session", autouse=True)
def _leaves_no_orphan() -> Iterator[None]:
    """Fail a run that leaves processes behind.

    A child of the tests that is not waited for needs no check: it is a ResourceWarning. This finds
    those whose parent, a process of the tests, has ended before them.
    """
    os.environ["GENMCP_TEST_RUN"] = run = secrets.token_hex(8)
    yield
    deadline = time.monotonic() + 10  # such as for workers of a server that was killed just now
    while orphans := _orphans(f"GENMCP_TEST_RUN={run}".encode()):
        if time.monotonic() > deadline:
            pytest.fail(f"processes were left running: {orphans}")
        time.sleep(0.1)


def _orphans(variable: bytes) -> dict[int, str]:
    """Return the command lines of processes with *variable* whose parent does not belong to them.

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
    for _ in range(10):  # tasks that were cancelled last need an iteration or two of the loop
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
