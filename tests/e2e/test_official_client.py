"""The official Python client, in both eras, with a real uvicorn server.

Also with three servers over one store, behind a balancer without affinity: each server has its own
mux, event loop and connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, ImageContent
from starlette.applications import Starlette

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    Image,
    Mux,
    Outcome,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    tool,
)
from genmcp.resources import ResourceRepo
from tests.support.asgi import PATIENCE
from tests.support.balancer import Balancer
from tests.support.serving import serve
from tests.support.stores import KINDS, shared_store

pytestmark = [pytest.mark.e2e, pytest.mark.peers]

MODES = ["auto", "legacy"]
NOTE = "note://today"


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


class Sure(msgspec.Struct):
    sure: bool


class Asks(Tool):
    """Asks its user."""

    name = "asks"

    def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("asked", elicit("Are you sure?", Sure))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        match outcome:
            case Done(Accepted(Sure(sure))):
                return f"sure: {sure}"
            case _:
                return repr(outcome)


class Notes(ResourceRepo):
    """A note for every URI."""

    name = "notes"
    template = "note://{+path}"

    async def read(self, key: dict[str, str], channel: Channel) -> str | None:
        return key["path"]


def suite_of(held: Held) -> Suite:
    """Return a suite with a tool that changes a resource."""
    tools = [add, work, fail, picture, poll, held, Asks()]
    suite = Suite(name="test", version="1", tools=tools, resources=[Notes()])

    @tool
    async def change(channel: Channel) -> str:
        """Changes a note."""
        channel.changes.resource_updated(NOTE)
        return "changed"

    suite.add(change)
    return suite


@asynccontextmanager
async def replicas(store: str, held: Held, count: int) -> AsyncIterator[Balancer]:
    async with AsyncExitStack() as stack:
        bases = []
        for _ in range(count):
            mux = Mux(suite_of(held), store=store, secret="known to all of the replicas")
            app = Starlette(routes=[Endpoint(mux).route("/mcp")], lifespan=closing(mux))
            bases.append(await stack.enter_async_context(serve(app, lifespan="on")))
        yield await stack.enter_async_context(Balancer(bases))


def closing(mux: Mux) -> Callable[[Any], Any]:
    """Return a lifespan that closes *mux* and its store, on the event loop that used them."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await mux.aclose()

    return lifespan


@pytest.fixture(params=["one", *KINDS])
async def url(request: pytest.FixtureRequest, held: Held, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of one server with a store in memory, or of three over a store of each kind."""
    if request.param == "one":
        endpoint = Endpoint(suite_of(held))
        async with serve(Starlette(routes=[endpoint.route("/mcp")])) as base:
            yield f"{base}/mcp"
        return
    async with (
        shared_store(request.param, tmp_path) as store,
        replicas(store.url, held, 3) as balancer,
    ):
        yield f"{balancer.url}/mcp"
        assert min(balancer.sent) > 0, balancer.sent


def text_of(result: Any) -> str:
    found: str = result.content[0].text
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_lists_and_calls(url: str, mode: Any) -> None:
    """In the era that the client requests."""
    async with Client(url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("add", {"a": 1, "b": 2})
        drawn = await client.call_tool("picture", {})
        version = client.session.protocol_version

    assert [each.name for each in tools][:6] == ["add", "work", "fail", "picture", "poll", "held"]
    assert text_of(result) == "3"
    (image,) = drawn.content
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert version == ("2026-07-28" if mode == "auto" else "2025-11-25")


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_gets_progress_and_log_messages(url: str, mode: Any) -> None:
    """They arrive in order, before the result."""
    reports: list[Any] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append((params.level, params.data))

    async with Client(url, mode=mode, logging_callback=log, log_level="info") as client:
        result = await client.call_tool("work", {"steps": 2}, progress_callback=report)

    assert text_of(result) == "done"
    assert reports == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert logged == [("warning", {"step": 0}), ("warning", {"step": 1})]


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_reads_failures(url: str, mode: Any) -> None:
    """A ToolError and invalid arguments are results; an unknown tool is an error."""
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
    """A cancelled call closes its connection, or sends a notification, by era."""
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


async def test_official_client_resumes_a_released_connection(url: str) -> None:
    """A released connection is resumed by Last-Event-ID: each message arrives exactly once."""
    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append(params.data)

    async with Client(url, mode="legacy", logging_callback=log) as client:
        result = await client.call_tool("poll", {})

    assert text_of(result) == "polled"
    assert logged == ["before", "after"]


@pytest.mark.parametrize("mode", MODES)
async def test_official_clients_do_not_disturb_each_other(url: str, mode: Any) -> None:
    """Ten clients with concurrent calls."""

    async def one(number: int) -> list[str]:
        async with Client(url, mode=mode) as client:
            calls = [client.call_tool("add", {"a": number, "b": b}) for b in range(5)]
            return [text_of(result) for result in await asyncio.gather(*calls)]

    answers = await asyncio.gather(*(one(number) for number in range(10)))

    assert [[str(n + b) for b in range(5)] for n in range(10)] == answers


@pytest.mark.filterwarnings("ignore:.*deprecated as of 2026-07-28")
async def test_official_client_sets_levels_and_pings(url: str) -> None:
    """Features of sessions, which 2026-07-28 does not have."""
    logged: list[Any] = []

    async def log(params: Any) -> None:
        logged.append(params.data)

    async with Client(url, mode="legacy", logging_callback=log) as client:
        await client.session.send_ping()
        await client.session.set_logging_level("error")
        await client.call_tool("work", {})

    assert logged == []


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_answers_questions(url: str, mode: Any) -> None:
    """By a retry, or by a response that may reach another replica than the call."""
    questions: list[str] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"sure": True})

    async with Client(url, mode=mode, elicitation_callback=answer) as client:
        results = [text_of(await client.call_tool("asks", {})) for _ in range(4)]

    assert results == ["sure: True"] * 4
    assert questions == ["Are you sure?"] * 4


@pytest.mark.filterwarnings("ignore:.*removed as of 2026-07-28")
async def test_official_client_of_a_session_is_notified_of_changes(url: str) -> None:
    """The listening stream, the subscription and the change are at different replicas."""
    updated = asyncio.Queue[str]()

    async def received(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            updated.put_nowait(str(message.params.uri))

    async with Client(url, mode="legacy", message_handler=received) as client:
        await client.subscribe_resource(NOTE)
        uri = None
        async with asyncio.timeout(PATIENCE):
            while uri is None:  # the stream may start after the first change
                await client.call_tool("change", {})
                with suppress(TimeoutError):
                    uri = await asyncio.wait_for(updated.get(), 0.05)

    assert uri == NOTE


async def test_official_client_listens_for_changes(url: str) -> None:
    """The stream is at one replica, and the change at another."""
    async with (
        asyncio.timeout(PATIENCE),
        Client(url) as client,
        client.listen(resource_subscriptions=[NOTE]) as changes,
    ):
        for _ in range(3):
            await client.call_tool("change", {})
        event = await anext(aiter(changes))

    assert NOTE in repr(event)
