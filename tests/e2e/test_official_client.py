"""The official Python client, of both eras, against a real uvicorn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ImageContent
from starlette.applications import Starlette

from genmcp import Channel, Image, Tool, ToolError, ToolRequest, tool
from tests.support.asgi import PATIENCE, serving
from tests.support.serving import serve

MODES = ["auto", "legacy"]


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def work(channel: Channel, steps: int = 3) -> str:
    """Reports progress and log messages."""
    for step in range(steps):
        await channel.progress(step + 1, steps, f"step {step + 1}")
        await channel.log("warning", {"step": step})
    return "done"


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("out of paper")


@tool
async def picture() -> Image:
    """Draws."""
    return Image(b"\x89PNG\r\n\x1a\n")


@tool
async def poll(channel: Channel) -> str:
    """Gives up its connection and answers later."""
    await channel.log("warning", "before")
    channel.release(retry=10)
    await channel.log("warning", "after")
    return "polled"


class Held(Tool):
    """Waits until it is cancelled."""

    name = "held"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waits = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.loop.call_soon_threadsafe(self.waits.set)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(self.cancelled.set)
            raise
        return ""


@pytest.fixture
async def held() -> Held:
    return Held()


@pytest.fixture
async def url(held: Held) -> AsyncIterator[str]:
    endpoint = serving(add, work, fail, picture, poll, held)
    async with serve(Starlette(routes=[endpoint.route("/mcp")])) as base:
        yield f"{base}/mcp"


def text_of(result: Any) -> str:
    found: str = result.content[0].text
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_lists_and_calls(url: str, mode: Any) -> None:
    """Tools are listed and called in the era that was requested."""
    async with Client(url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("add", {"a": 1, "b": 2})
        drawn = await client.call_tool("picture", {})
        version = client.session.protocol_version

    assert [each.name for each in tools] == ["add", "work", "fail", "picture", "poll", "held"]
    assert text_of(result) == "3"
    (image,) = drawn.content
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_hears_progress_and_log_messages(url: str, mode: Any) -> None:
    """In their order, before the result."""
    heard: list[Any] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append((params.level, params.data))

    async with Client(url, mode=mode, logging_callback=log, log_level="info") as client:
        result = await client.call_tool("work", {"steps": 2}, progress_callback=report)

    assert text_of(result) == "done"
    assert heard == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert logged == [("warning", {"step": 0}), ("warning", {"step": 1})]


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_reads_failures(url: str, mode: Any) -> None:
    """ToolError and invalid arguments are results; an unknown tool is an error."""
    async with Client(url, mode=mode) as client:
        failed = await client.call_tool("fail", {})
        wrong = await client.call_tool("add", {"a": "x", "b": 2})
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("sing", {})
        fine = await client.call_tool("add", {"a": 1, "b": 2})

    assert (failed.is_error, text_of(failed)) == (True, "out of paper")
    assert wrong.is_error
    assert "/a" in text_of(wrong)
    assert text_of(fine) == "3"


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_cancels(url: str, held: Held, mode: Any) -> None:
    """Who gives a call up cancels it: by closing the connection, or by a notification."""
    async with Client(url, mode=mode) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def leave() -> None:
                    await held.waits.wait()
                    scope.cancel()

                group.start_soon(leave)
                await client.call_tool("held", {})
        async with asyncio.timeout(PATIENCE):
            await held.cancelled.wait()
        fine = await client.call_tool("add", {"a": 1, "b": 2})

    assert text_of(fine) == "3"


async def test_official_client_comes_back_for_its_answer(url: str) -> None:
    """A released connection is resumed by Last-Event-ID: nothing is lost, nothing comes twice."""
    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append(params.data)

    async with Client(url, mode="legacy", logging_callback=log) as client:
        result = await client.call_tool("poll", {})

    assert text_of(result) == "polled"
    assert logged == ["before", "after"]


@pytest.mark.parametrize("mode", MODES)
async def test_official_clients_do_not_disturb_each_other(url: str, mode: Any) -> None:
    """Ten clients at a time, each with calls of its own at a time."""

    async def one(number: int) -> list[str]:
        async with Client(url, mode=mode) as client:
            calls = [client.call_tool("add", {"a": number, "b": b}) for b in range(5)]
            return [text_of(result) for result in await asyncio.gather(*calls)]

    answers = await asyncio.gather(*(one(number) for number in range(10)))

    assert [[str(n + b) for b in range(5)] for n in range(10)] == answers


@pytest.mark.filterwarnings("ignore:.*deprecated as of 2026-07-28")
async def test_official_client_sets_levels_and_pings(url: str) -> None:
    """Features that exist in sessions only."""
    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append(params.data)

    async with Client(url, mode="legacy", logging_callback=log) as client:
        await client.session.send_ping()
        await client.session.set_logging_level("error")
        await client.call_tool("work", {})

    assert logged == []
