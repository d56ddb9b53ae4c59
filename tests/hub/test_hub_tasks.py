"""Long calls through a hub: a task of the hub, whatever form the call has behind it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from genmcp import Accepted, Channel, Continue, Outcome, Suite, Tool, ToolRequest, elicit
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent
from tests.hub.far import TIME

NEW, OLD = "2026-07-28", "2025-11-25"


class Bake(Tool):
    """Bakes bread, which takes long."""

    name = "bake"

    def __init__(self, task: Literal["never", "always"]) -> None:
        self.task = task
        self.began, self.done = asyncio.Event(), asyncio.Event()
        self.cancelled = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        """Wait until it is done."""
        self.began.set()
        await self.done.wait()
        return "bread"

    async def on_cancel(self, channel: Channel) -> None:
        """Record the cancellation."""
        self.cancelled.set()


class Ask(Tool):
    """Asks before it answers, as a task."""

    name = "ask"
    task = "always"

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        """Ask once `may` is set."""
        await self.may.wait()
        return Continue("asked", elicit("Sure?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        """Answer."""
        return str(outcome)


class Human(ClientHandler):
    """Agrees to everything."""

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Agree."""
        return Accepted({})


#: A forwarded call that takes longer than a moment becomes a task.
EAGER = 0.001


def options(revision: str = NEW) -> ClientOptions:
    """Return the options of a client of *revision*."""
    return ClientOptions(revision=revision)


@pytest.mark.parametrize("behind", [NEW, OLD])
@pytest.mark.parametrize("task", ["always", "never"])
async def test_long_call_becomes_a_task(task: Literal["never", "always"], behind: str) -> None:
    """Whether or not it is a task of the server behind the hub."""
    bake = Bake(task)
    suite = Suite(name="bakery", version="1", tools=[bake])
    async with asyncio.timeout(TIME), Hub(options=options(behind), promote_after=EAGER) as hub:
        await hub.add(ServerConfig("a", target=suite))
        async with Client(hub.server(), options=options()) as client:
            handle = await client.call_task("a/bake")
            assert handle.id is not None
            assert (await handle.status()).status == "working"
            bake.done.set()
            assert (await handle.wait()).content == [TextContent("bread")]


@pytest.mark.parametrize("behind", [NEW, OLD])
@pytest.mark.parametrize("task", ["always", "never"])
async def test_cancelled_task_cancels_the_call(
    task: Literal["never", "always"], behind: str
) -> None:
    """And its task at the server behind the hub, if there is one."""
    bake = Bake(task)
    suite = Suite(name="bakery", version="1", tools=[bake])
    async with asyncio.timeout(TIME), Hub(options=options(behind), promote_after=EAGER) as hub:
        await hub.add(ServerConfig("a", target=suite))
        async with Client(hub.server(), options=options()) as client:
            handle = await client.call_task("a/bake")
            await bake.began.wait()
            await handle.cancel()
            await bake.cancelled.wait()
            assert (await handle.status()).status == "cancelled"


@pytest.mark.parametrize("behind", [NEW, OLD])
async def test_questions_of_a_task_are_forwarded(behind: str) -> None:
    """As questions of the hub's task."""
    ask = Ask()
    suite = Suite(name="bakery", version="1", tools=[ask])
    async with asyncio.timeout(TIME), Hub(options=options(behind), promote_after=EAGER) as hub:
        server = hub.server()
        await hub.add(ServerConfig("a", target=suite))
        async with Client(server, handler=Human(), options=options()) as client:
            handle = await client.call_task("a/ask")
            assert handle.id is not None
            ask.may.set()
            assert "Accepted" in str((await handle.wait()).content)
