"""The seventh chapter: tasks, the handles of calls that outlive their request and their server."""

import asyncio
from pathlib import Path

import pytest

from genmcp import Channel, Client, Continue, Mux, Run, Suite, Tool, ToolRequest, job
from genmcp.client.errors import TaskCancelled

pytestmark = pytest.mark.slow

door: list[asyncio.Event] = []  # the last one ends the job


@job
async def develop(run: Run, film: str) -> str:
    await run.progress(0, 1, "in the dark")
    await door[-1].wait()
    return f"36 pictures of {film}"


class Develop(Tool):
    """Develops a film."""

    name = "develop"
    on_worker_lost = "rerun"  # the job may run again in another process

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return develop.job("Porto").then(self.developed)

    async def developed(self, request: ToolRequest, pictures: str, channel: Channel) -> str:
        return pictures


suite = Suite(name="tutorial", version="1.0", tools=[Develop()])


@pytest.fixture(autouse=True)
def opened() -> asyncio.Event:
    """Return the event that the job waits for."""
    door.append(asyncio.Event())
    return door[-1]


async def test_call_that_waits_for_a_job_is_a_task(opened: asyncio.Event) -> None:
    """`call_task` returns the handle when the server has sent it."""
    async with Client(suite) as client:
        task = await client.call_task("develop")
        status = (await task.status()).status
        opened.set()
        result = await task.wait()

    assert (status, result.text) == ("working", "36 pictures of Porto")


async def test_call_waits_for_its_task(opened: asyncio.Event) -> None:
    """`call` returns the result, and does not show the task."""
    opened.set()
    async with Client(suite) as client:
        result = await client.call("develop")

    assert result.text == "36 pictures of Porto"


async def test_task_can_be_cancelled() -> None:
    """The job is cancelled wherever it runs."""
    async with Client(suite) as client:
        task = await client.call_task("develop")
        await task.cancel()
        with pytest.raises(TaskCancelled):
            await task.wait()


async def test_task_survives_its_server(tmp_path: Path, opened: asyncio.Event) -> None:
    """A new process with the same store and secret continues it. The client needs only the id."""
    store, secret = f"sqlite:///{tmp_path}/tasks.db", b"s" * 32
    first = Mux(suite, store=store, secret=secret)
    async with Client(first) as client:
        id = (await client.call_task("develop")).id
    await first.aclose()
    opened.set()

    second = Mux(suite, store=store, secret=secret)
    async with Client(second) as client:
        assert id is not None
        result = await client.task(id).wait()
    await second.aclose()

    assert result.text == "36 pictures of Porto"
