"""The queues of jobs, and the slots that each of them has in a process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Continue,
    JobOptions,
    MemoryStore,
    Mux,
    Suite,
    gather,
    tool,
)
from genmcp.core.waiting import Working
from genmcp.errors import ConfigurationError
from genmcp.tasks.jobs import Run, job
from genmcp.testing import connect
from tests.tasks.bench import BOUND, STORES, Bench, ended, made, opened


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


started: "asyncio.Queue[str]"
release: asyncio.Event


@pytest.fixture(autouse=True)
async def _signals() -> None:
    global started, release
    started, release = asyncio.Queue(), asyncio.Event()


@job
async def held(run: Run) -> str:
    started.put_nowait(run.id)
    await release.wait()
    return "done"


@job
async def quick(run: Run) -> str:
    return "quick"


@job(queue="own")
async def elsewhere(run: Run) -> str:
    return "elsewhere"


async def test_queue_has_slots_of_its_own(bench: Bench) -> None:
    """A backlog of slow jobs neither takes more slots nor delays another queue."""
    jobs = bench.jobs(queues={"heavy": 1, "default": 1})
    for id in ("h1", "h2"):
        await jobs.create(made(Working(held.options(queue="heavy").job()), id=id), b"")
    async with asyncio.timeout(BOUND):
        assert await started.get() == "h1.0"

    await jobs.create(made(Working(quick.job()), id="q"), b"")
    await ended(jobs, "q")

    assert started.empty()
    release.set()
    await ended(jobs, "h2")


@tool(queue="mine")
async def waits() -> Continue:
    """Waits for jobs in several queues."""
    return gather(quick.job(), elsewhere.job()).then(waited)


@waits.step
async def waited(found: tuple[str, str]) -> str:
    return ", ".join(found)


@pytest.mark.parametrize("queues", [["mine", "own"], {"mine": 1, "own": 1}])
async def test_tool_has_a_queue_for_its_jobs(queues: Any) -> None:
    """A job that names a queue of its own stays there. No process serves the default queue."""
    suite = Suite(name="s", version="1.0", tools=[waits])
    mux = Mux(suite, store=MemoryStore(), jobs=JobOptions(queues=queues))
    async with asyncio.timeout(BOUND), connect(mux) as client:
        assert (await client.call("waits")).text == "quick, elsewhere"
    await mux.aclose()


@pytest.mark.parametrize("queues", [{}, {"a": 0}, "default", []])
def test_wrong_queues_are_rejected(queues: Any) -> None:
    """The message shows both forms."""
    with pytest.raises(ConfigurationError, match=r"JobOptions\.queues"):
        JobOptions(queues=queues)


@pytest.mark.parametrize("queue", ["", 5])
def test_wrong_queue_of_a_tool_is_rejected(queue: Any) -> None:
    """When it is defined."""
    with pytest.raises(ConfigurationError, match="queue must be the name of a queue"):

        @tool(queue=queue)
        async def other() -> str:
            """Does nothing."""
            return ""
