"""Streams at an orderly shutdown: calls that wait for jobs are answered by another process."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genmcp import Channel, Continue, Done, Endpoint, JobOptions, Mux, Run, Suite, Tool, job
from tests.support.asgi import MODERN, Client, until
from tests.support.stores import KINDS, shared_store

begun: list[int] = []


class Gate:
    """Ends the job when it is opened."""

    opened: asyncio.Event


@job(name="handed_on.work")
async def work(run: Run) -> str:
    begun.append(run.attempt)
    await run.progress(run.attempt)
    await Gate.opened.wait()
    return f"attempt {run.attempt}"


class Work(Tool):
    """Has a job done; the first message of its response is the progress of the job."""

    name = "work"

    async def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return str(outcome.value if isinstance(outcome, Done) else outcome.error)


class Holds(Tool):
    """Runs in its own process."""

    name = "holds"

    async def call(self, request: Any, channel: Channel) -> str:
        await channel.progress(1)
        await asyncio.Event().wait()
        return ""


@asynccontextmanager
async def process(
    folder: Path, store: str | None = None, *, result_tool: bool = True
) -> AsyncIterator[Endpoint]:
    """Serve as a process of its own would; calls and jobs have no time to end."""
    mux = Mux(
        Suite(name="test", version="1", tools=[Work, Holds], result_tool=result_tool),
        store=store or f"sqlite:///{folder}/test.db",
        secret="a secret of all processes",
        jobs=JobOptions(lease=600, shutdown_grace=0),
    )
    endpoint = Endpoint(mux, grace=0)
    try:
        yield endpoint
    finally:
        await endpoint.aclose()
        await mux.aclose()


@pytest.fixture(autouse=True)
def gate() -> None:
    begun.clear()
    Gate.opened = asyncio.Event()


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_stream_of_a_job_is_continued_by_another_process(
    version: str, tmp_path: Path
) -> None:
    """It ends without an answer; its client resumes it, and gets the result. The job runs on."""
    async with process(tmp_path) as first:
        client = await Client.begin(first, version)
        async with client.open(client.call("work", progressToken=7)) as call:
            await call.message()  # the client has seen an event
            await first.aclose()
            await call.over()
        assert [each.get("method") for each in call.messages] == ["notifications/progress"]
        assert call.ids

    async with process(tmp_path) as second:
        client.app = second
        async with client.listen(after=call.ids[-1]) as resumed:
            await until(lambda: begun == [1, 2])
            Gate.opened.set()
            await resumed.over()

    result = resumed.messages[-1]
    assert result["id"] == 1
    assert result["result"]["content"][0]["text"] == "attempt 2"


async def test_stream_that_has_only_begun_is_continued(tmp_path: Path) -> None:
    """2025-11-25: the client gets an event to resume from, and nothing before it."""
    async with process(tmp_path) as first:
        client = await Client.begin(first, "2025-11-25")
        async with client.open(client.call("work")) as call:
            await until(lambda: begun)
            await first.aclose()
            await call.over()
        assert (call.messages, len(call.ids)) == ([], 1)

    async with process(tmp_path) as second:
        client.app = second
        async with client.listen(after=call.ids[-1]) as resumed:
            Gate.opened.set()
            await resumed.over()
    assert resumed.messages[-1]["result"]["content"][0]["text"] == "attempt 2"


@pytest.mark.parametrize(
    ("version", "tool", "store"),
    [
        (MODERN, "holds", None),
        ("2025-11-25", "holds", None),  # its own code has ended
        ("2025-11-25", "work", "memory://"),  # the job ends with the process
    ],
)
async def test_other_calls_end_with_an_error(
    version: str, tool: str, store: str | None, tmp_path: Path
) -> None:
    """No other process could answer; the client may repeat the call."""
    async with process(tmp_path, store) as first:
        client = await Client.begin(first, version)
        async with client.open(client.call(tool)) as call:
            if tool == "work":
                await until(lambda: begun)
            else:
                await until(lambda: len(first.mux.waiting_calls))
            await first.aclose()
            await call.over()
    assert "shutting down" in call.messages[-1]["error"]["message"]
    assert call.messages[-1]["error"]["data"]["retryAfter"] == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [MODERN, "2025-06-18"])  # neither has an event to resume from
@pytest.mark.parametrize("ends", ["the server", "its host"])
async def test_call_that_cannot_be_resumed_is_fetched(
    ends: str, version: str, kind: str, tmp_path: Path
) -> None:
    """If it were repeated, its job would run twice: it continues in another process."""
    async with shared_store(kind, tmp_path) as store:
        async with process(tmp_path, store.url) as first:
            client = await Client.begin(first, version)
            async with client.open(client.call("work")) as call:
                await until(lambda: begun)
                if ends == "its host":  # as uvicorn does after `timeout_graceful_shutdown`
                    call.task.cancel()
                    await asyncio.wait([call.task])
                else:
                    await first.aclose()
                    await call.over()
        result = call.messages[-1]["result"]
        assert result["isError"]
        text = result["content"][0]["text"]
        assert "get_call_result" in text
        found = re.search(r"as call ([\w-]+)", text)
        assert found is not None

        async with process(tmp_path, store.url) as second:
            client.app = second
            Gate.opened.set()
            answer: Any = {"isError": True}
            while answer.get("isError"):
                message = client.call("get_call_result", {"id": found[1]}, id=2)
                answer = (await client.send(message)).messages[-1]["result"]
    assert answer["content"][0]["text"] == "attempt 2"
    assert begun == [1, 2]  # the second after an orderly shutdown: `Tool.on_worker_lost`


async def test_call_without_the_result_tool_is_not_to_be_repeated(tmp_path: Path) -> None:
    """An error without `retryAfter`, and without a status after which clients repeat a request."""
    async with process(tmp_path, result_tool=False) as first:
        client = Client(first)
        async with client.open(client.call("work")) as call:
            await until(lambda: begun)
            await first.aclose()
            await call.over()
    assert call.status == 200
    assert "retry-after" not in call.headers
    error = call.json["error"]
    assert "It continues as call" in error["message"]
    assert "data" not in error
