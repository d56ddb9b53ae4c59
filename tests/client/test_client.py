"""The client of one server, with servers of every revision in this process."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from genmcp import (
    Accepted,
    CallToolResult,
    Channel,
    Continue,
    Done,
    Failed,
    Middleware,
    Outcome,
    Resource,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    prompt,
    roots,
    tool,
)
from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp.client.client import Client
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    InputFailed,
    ProtocolError,
    RequestTimeout,
    ServerError,
)
from genmcp.client.handler import ClientHandler, Denied
from genmcp.client.options import ClientOptions
from genmcp.core.request import Request
from genmcp.protocol.client_features import Root
from genmcp.protocol.content import TextContent
from genmcp.protocol.prompts import PromptReference
from genmcp.server import Server
from tests.support.asgi import MODERN
from tests.support.client_bounds import bounds
from tests.support.speaking import VERSIONS

LEGACY = VERSIONS[:-1]


@tool
async def add(a: float, b: float) -> Any:
    """Adds two numbers."""
    return a + b


@tool
async def fail() -> str:
    """Fails."""
    raise ToolError("It broke.")


@tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
async def count(n: int) -> dict[str, int]:
    """Counts."""
    return {"n": n}


@tool
async def climb(channel: Channel) -> str:
    """Climbs, and reports progress."""
    for step in range(1, 4):
        await channel.progress(step, 3)
    return "up"


@prompt
async def greet(name: Literal["Ann", "Bob"]) -> str:
    """Greets."""
    return f"Say hello to {name}."


def suite_of(*tools: Any, **more: Any) -> Suite:
    return Suite(name="test", version="1", tools=[*tools], **more)


@asynccontextmanager
async def client_of(
    target: Server,
    revision: str = MODERN,
    handler: ClientHandler | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    client = Client(target, handler=handler, options=ClientOptions(revision=revision, **options))
    async with asyncio.timeout(20), client:
        yield client


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_speaks_every_revision(revision: str) -> None:
    """It lists and calls, and has the server's name, on every revision."""
    async with client_of(suite_of(add, fail), revision) as client:
        assert client.revision == revision
        assert client.server_info is not None
        assert (client.server_info.name, client.instructions) == ("test", None)
        assert client.capabilities.tools is not None
        assert [each.name for each in await client.tools()] == ["add", "fail"]
        result = await client.call("add", {"a": 1, "b": 2})
        assert (result.content, result.is_error) == ([TextContent("3.0")], False)
        failed = await client.call("fail")
        assert (failed.is_error, failed.text) == (True, "It broke.")
        await client.ping()
        assert revision in (await client.discover()).supported_versions


async def test_client_finds_the_newest_revision_by_itself() -> None:
    """Without a revision it asks the server."""
    async with asyncio.timeout(5), Client(suite_of(add)) as client:
        assert client.revision == MODERN


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_reads_prompts_and_completes(revision: str) -> None:
    """Resources, templates, prompts and completions come as values."""
    server = suite_of(
        resources=[
            Resource("note://today", "Rain.", name="today"),
            Resource("page://{+path}", lambda path: "# A page", name="page"),
        ],
        prompts=[greet],
    )
    async with client_of(server, revision) as client:
        assert [each.uri for each in await client.resources()] == ["note://today"]
        assert [each.name for each in await client.templates()] == ["page"]
        (contents,) = (await client.read("note://today")).contents
        assert contents.text == "Rain."
        assert [each.name for each in await client.prompts()] == ["greet"]
        (message,) = (await client.prompt("greet", {"name": "Ann"})).messages
        assert message.content == TextContent("Say hello to Ann.")
        completed = await client.complete(PromptReference("greet"), "name", "B", {"other": "x"})
        assert completed.values == ["Bob"]
        assert (await client.complete(PromptReference("greet"), "name")).values == ["Ann", "Bob"]


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_says_what_the_server_said(revision: str) -> None:
    """A JSON-RPC error is a ServerError with its code, the same on every revision."""
    async with client_of(suite_of(add, resources=[Resource("a://b", "c")]), revision) as client:
        with pytest.raises(ServerError) as found:
            await client.call("nothing")
        assert (found.value.code, found.value.message) == (-32602, "Unknown tool: nothing")
        with pytest.raises(ServerError) as found:
            await client.read("a://nothing")
        assert (found.value.code, found.value.data) == (-32602, {"uri": "a://nothing"})


async def test_client_gives_structured_results() -> None:
    """`structured` is the object, `data` the object or else the text."""
    async with client_of(suite_of(add, count)) as client:
        result = await client.call("count", {"n": 3})
        assert result.structured == {"n": 3} == result.data
        result = await client.call("add", {"a": 1, "b": 2})
        assert (result.structured, result.data) == (None, "3.0")


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_reports_progress_in_order(revision: str) -> None:
    """A callback, `def` or `async def`, has had every report when the call returns."""
    said: list[Any] = []

    async def later(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0)
        said.append((progress, total))

    async with client_of(suite_of(climb), revision) as client:
        await client.call("climb", progress=later)
        assert said == [(1, 3), (2, 3), (3, 3)]
        said.clear()
        await client.call("climb", progress=lambda *report: said.append(report))
        assert [report[0] for report in said] == [1, 2, 3]


async def test_client_does_not_mind_a_callback_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception of a callback is logged; the call continues."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no screen")

    async with client_of(suite_of(climb)) as client:
        assert (await client.call("climb", progress=broken)).data == "up"
    assert "no screen" in caplog.text


class Wish(Struct):
    city: str
    nights: Annotated[int, Meta(ge=1)] = 2


class Travel(Tool):
    """Asks where to, and then whether that is sure."""

    name = "travel"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("where", {"wish": elicit("Where to?", Wish), "from": roots()})

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "where", Done({"wish": Accepted(wish), "from": places}):
                channel.assigns["plan"] = f"{places[0].uri} to {wish.city}, {wish.nights} nights"
                return Continue("sure", elicit("Sure?"))
            case "sure", Done(Accepted()):
                return str(channel.assigns["plan"])
            case _, Failed(error):
                raise ToolError(str(error))
            case _:
                return "Nowhere."


class Traveller(ClientHandler):
    """Answers, and records the questions."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def handle_list_roots(self) -> Any:
        return [Root("file:///home")]

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        self.notes.append(message)
        return Accepted({"city": "Rome"} if schema["properties"] else {})


@pytest.mark.parametrize("revision", VERSIONS[2:])
async def test_client_answers_what_a_tool_asks(revision: str) -> None:
    """One handler answers server requests and input requests; a call hides how often it asks."""
    handler = Traveller()
    async with client_of(suite_of(Travel), revision, handler) as client:
        result = await client.call("travel")
    assert result.data == "file:///home to Rome, 2 nights"
    assert handler.notes == ["Where to?", "Sure?"]


class Sure(Tool):
    """Asks for a confirmation."""

    name = "sure"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("sure", elicit("Sure?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        if isinstance(outcome, Failed):
            raise ToolError(str(outcome.error))
        return "sure"


class Replying(ClientHandler):
    """Replies to a form with a value, or raises it."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def handle_elicitation_create(self, *_: Any) -> Any:
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


@pytest.mark.parametrize("revision", [MODERN, *LEGACY[-1:]])
@pytest.mark.parametrize(
    ("reply", "schema_size", "code", "text"),
    [
        (Denied("not today"), 1_000, -1, "not today"),
        (KeyError("crash"), 1_000, -32603, "failed to answer"),
        ("neither yes nor no", 1_000, -32603, "failed to answer"),
        (Accepted({}), 9, -32602, "more than 9"),
    ],
)
async def test_call_whose_form_is_not_answered_fails(
    reply: Any, schema_size: int, code: int, text: str, revision: str
) -> None:
    """2026-07-28 has no error response to an input request: the call itself fails.

    A server of an earlier revision receives the error. If it fails the call, it fails alike.
    """
    handler = Replying(reply)
    schemas = FOREIGN_LIMITS._replace(schema_size=schema_size)
    with bounds(schemas=schemas):
        async with client_of(suite_of(Sure), revision, handler) as client:
            with pytest.raises(InputFailed, match=text) as failed:
                await client.call("sure")
    assert isinstance(failed.value, ClientError)
    assert failed.value.code == code
    assert text in failed.value.message


class Nagging(Tool):
    """Asks again and again."""

    name = "nag"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("again", elicit("Again?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return Continue("again", elicit("Again?"))


async def test_client_answers_a_bounded_number_of_times() -> None:
    """A request that is answered with questions repeatedly fails after `max_input_rounds`."""

    class Patient(ClientHandler):
        asked = 0

        async def handle_elicitation_create(self, *_: Any) -> Any:
            self.asked += 1
            return Accepted({})

    handler = Patient()
    async with client_of(suite_of(Nagging), handler=handler) as client:
        with pytest.raises(ProtocolError, match="needs input more than 10 times"):
            await client.call("nag")
    assert handler.asked == 11


class Waiting(Tool):
    """Waits until it is released."""

    name = "wait"
    task = "never"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.go = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        return "waited"


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_cancels_a_call_whose_task_is_cancelled(revision: str) -> None:
    """Cancelling the awaiting asyncio.Task cancels the call at the server; others continue."""
    waiting = Waiting()
    async with client_of(suite_of(waiting, add), revision) as client:
        call = asyncio.create_task(client.call("wait"))
        await waiting.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(5):
            await waiting.ended.wait()
        assert (await client.call("add", {"a": 1, "b": 1})).data == "2.0"


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
async def test_client_gives_up_a_call_that_takes_too_long(revision: str, limit: str) -> None:
    """A timeout names the operation and the seconds, and cancels the call."""
    waiting = Waiting()
    async with client_of(suite_of(waiting), revision) as client:
        with pytest.raises(RequestTimeout, match=r"tools/call .* 0\.05 s at test"):
            await client.call("wait", **{limit: 0.05})  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            await waiting.ended.wait()


async def test_client_waits_longer_where_there_is_progress() -> None:
    """Progress begins the idle time anew, and the total runs on."""

    @tool
    async def walk(channel: Channel) -> str:
        """Walks."""
        for step in range(8):
            await asyncio.sleep(0.03)
            await channel.progress(step)
        return "there"

    async with client_of(suite_of(walk)) as client:
        walked = client.call("walk", progress=lambda *_: None, idle_timeout=0.15)
        assert (await walked).data == "there"
        with pytest.raises(RequestTimeout):
            await client.call("walk", progress=lambda *_: None, idle_timeout=0.15, timeout=0.1)


async def test_client_may_be_used_from_any_task_and_opened_again() -> None:
    """It is opened in one asyncio.Task, used in others, closed in another; and opened again."""
    client = Client(suite_of(add))
    async with asyncio.timeout(10):
        await asyncio.create_task(client.open())
        await asyncio.create_task(client.open())
        calls = [client.call("add", {"a": n, "b": n}) for n in range(20)]
        results = await asyncio.gather(*calls)
        assert [result.data for result in results] == [str(float(2 * n)) for n in range(20)]
        await asyncio.create_task(client.aclose())
        await client.aclose()
        with pytest.raises(ClientClosed):
            await client.tools()
        with pytest.raises(ClientClosed):
            client.revision  # noqa: B018
        await client.open()
        assert len(await client.tools()) == 1
        await client.aclose()


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
async def test_client_that_closes_fails_what_is_under_way(revision: str) -> None:
    """A call that waits when its client is closed fails with ClientClosed."""
    waiting = Waiting()
    async with client_of(suite_of(waiting), revision) as client:
        call = asyncio.create_task(client.call("wait"))
        await waiting.begun.wait()
        await client.aclose()
        with pytest.raises(ClientClosed):
            await call


async def test_client_reads_a_list_page_by_page() -> None:
    """A list is whole, however many pages it comes in."""
    tools = [named(f"tool_{n:03}") for n in range(120)]
    server = Suite(name="test", version="1", tools=tools, page_size=50)
    async with client_of(server) as client:
        assert len(await client.tools()) == 120


def named(name: str) -> Any:
    @tool(name=name)
    async def nothing() -> str:
        """Does nothing."""
        return name

    return nothing


async def test_client_sends_any_request_and_notification() -> None:
    """A request without a method of its own can be sent all the same."""
    async with client_of(suite_of(add), "2025-11-25") as client:
        listed = await client.request("tools/list", {})
        assert [each.name for each in listed.tools] == ["add"]
        await client.notify("notifications/roots/list_changed")
        with pytest.raises(ServerError) as found:
            await client.request("no/such")
        assert found.value.code == -32601


@pytest.mark.parametrize("revision", VERSIONS)
async def test_client_gets_the_log_messages_it_wants(revision: str) -> None:
    """From the level that is set on, the handler gets the server's log messages."""
    said: list[Any] = []
    came = asyncio.Event()

    class Reading(ClientHandler):
        async def handle_log(self, message: Any) -> None:
            said.append((message.level, message.data))
            came.set()

    @tool
    async def talk(channel: Channel) -> str:
        """Talks."""
        await channel.log("debug", "quiet")
        await channel.log("error", "loud")
        return "talked"

    async with client_of(suite_of(talk), revision, Reading(), log_level="debug") as client:
        await client.call("talk")
        await client.log_level("error")
        await client.call("talk")
        async with asyncio.timeout(5):
            while len(said) < 3:
                came.clear()
                await came.wait()
    assert said == [("debug", "quiet"), ("error", "loud"), ("error", "loud")]


class Lying(Middleware):
    """Logs a message, and returns a text."""

    async def handle(self, request: Request, channel: Channel) -> Any:
        if request.method == "tools/call":
            return CallToolResult([], structured_content={"n": "one"})
        return await self.inner.handle(request, channel)


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
async def test_client_checks_structured_results(revision: str) -> None:
    """A result that does not fit the tool's outputSchema is a fault of the server."""
    server = Lying(suite_of(count))
    async with client_of(server, revision) as client:
        await client.tools()  # over HTTP, 2026-07-28 lists them anyway
        with pytest.raises(ProtocolError, match="outputSchema: /n"):
            await client.call("count", {"n": 1})
    async with client_of(server, revision, check_output=False) as client:
        await client.tools()
        assert (await client.call("count", {"n": 1})).structured == {"n": "one"}


async def test_client_repr_names_its_server() -> None:
    """For a debugger or a log: without the password and the query, which may have secrets."""
    client = Client("https://ann:hidden@mcp.example.com/mcp?key=hidden")
    assert repr(client).startswith("<Client of https://")
    assert "mcp.example.com/mcp" in repr(client)
    assert "hidden" not in repr(client)

    async with Client(Suite(name="parts", version="1")) as opened:
        assert repr(opened) == "<Client of parts (in this process), open>"
    assert repr(opened) == "<Client of parts (in this process), not open>"
