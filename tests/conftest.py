"""What every test gets: settings for Hypothesis, a free port, and a watch on what it leaves behind.

A socket, file or event loop that is left open needs no watch of its own: it is a ResourceWarning,
and warnings are errors here (pyproject.toml).
"""

import asyncio
import inspect
import os
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

# A busy machine is no fault of the code: no deadline. On CI the same examples every time.
settings.register_profile("genmcp", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("genmcp")


@pytest.fixture(autouse=True)
def _leaves_no_task(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_tasks_end")


@pytest.fixture
async def _tasks_end() -> AsyncIterator[None]:
    """Fail a test that leaves an asyncio.Task running."""
    yield
    for _ in range(10):  # what was cancelled last needs a turn or two of the loop
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            return
    pytest.fail(f"tasks were left running: {left}")


@pytest.fixture
def free_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
