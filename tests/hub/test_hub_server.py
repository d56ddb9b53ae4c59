"""A hub as a server: the servers behind it are usable as if they were connected directly."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Channel,
    Continue,
    McpError,
    Mux,
    Outcome,
    PromptTemplate,
    Resource,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    elicit_url,
    roots,
    sample,
    tool,
)
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import AlreadyRegistered
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.hub.relay import ForwardedCall, QuestionLimiter, RelayingHandler, SuspendedCalls
from genmcp.protocol.client_features import CreateMessageRequestParams, Root
from genmcp.protocol.content import TextContent
from genmcp.protocol.prompts import PromptReference, ResourceTemplateReference
from genmcp.protocol.tools import CallToolResult
from genmcp.question.sampling import RootsQuestion
from genmcp.resources import ResourceRepo
from tests.hub.far import NOBODY

REVISIONS = ["2026-07-28", "2025-11-25", "2025-06-18"]
TIME = 10.0


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("out of paper")


@tool
async def refuse() -> None:
    """Answers with an error of its own."""
    raise McpError("not today", {"try": "tomorrow"}, code=-5)


@tool
async def count(channel: Channel) -> str:
    """Sends progress notifications."""
    for step in range(3):
        await channel.progress(step + 1, 3, f"step {step + 1}")
    return "counted"


class Ask(Tool):
    """Asks questions of every kind, one at a time and several together."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        """Ask for a form."""
        return Continue("form", elicit("Who?", {"type": "object", "properties": NAME}))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        """Ask the other questions, and return the answers."""
        channel.assigns[tag] = str(outcome)
        if tag == "form":
            return Continue(
                "rest", {"url": elicit_url("Go?", "https://example.test/"), "roots": roots()}
            )
        if tag == "rest":
            return Continue("model", sample("Say hello."))
        return "\n".join(str(channel.assigns[each]) for each in ("form", "rest", "model"))


NAME = {"name": {"type": "string"}}


class Note(Resource):
    """A note."""

    name = "note"
    uri = "note://today"

    async def read(self, uri: str, channel: Channel) -> str:
        """Return it."""
        return f"{uri}: buy milk"


class Books(ResourceRepo):
    """Books by their shelves."""

    name = "book"
    template = "book://{shelf}"

    async def read(self, key: dict[str, str], channel: Channel) -> str:
        """Return it."""
        return f"read {key['shelf']}"

    async def complete(
        self, argument: str, value: str, context: Mapping[str, str], channel: Channel
    ) -> list[str]:
        """Return all shelves."""
        return [value + "op"]


class Human(ClientHandler):
    """Agrees to everything."""

    async def handle_list_roots(self) -> Any:
        """Return a root."""
        return [Root("file:///home")]

    async def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
        """Greet."""
        return {"role": "assistant", "content": {"type": "text", "text": "Hello."}, "model": "m"}

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Fill in a name."""
        return Accepted({"name": "Ada"})

    async def handle_url_elicitation(self, message: str, url: str) -> Any:
        """Go there."""
        return Accepted()


def first() -> Suite:
    """Return a server of everything."""
    greet = PromptTemplate(name="greet", messages="Hello {name}.")
    tools = [add, fail, refuse, count, Ask]
    return Suite(name="first", version="1", tools=tools, resources=[Note, Books], prompts=[greet])


def text(result: CallToolResult) -> str:
    """Return the text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def client_of(hub: Hub, revision: str, handler: ClientHandler | None = None) -> Client:
    """Return a client of the hub's composite server."""
    options = ClientOptions(revision=revision)
    return Client(Mux(hub.server(name="all")), handler=handler, options=options)


def stdio(revision: str) -> tuple[ServerConfig, ClientOptions]:
    """Return a server over stdio, and options that make it speak that revision."""
    path = str(Path(__file__).with_name("stdio_server.py"))
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    config = ServerConfig("far", command=sys.executable, args=[path], env=env)
    return config, ClientOptions(revision=revision)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_components_of_members_are_served(revision: str) -> None:
    """Tools and prompts by qualified names, resources by their URIs."""
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=first()))
        await hub.add(
            ServerConfig(
                "b", target=Suite(name="second", version="1", tools=[add], resources=[Note])
            )
        )
        async with client_of(hub, revision) as client:
            names = [each.name for each in await client.tools()]
            own = ["a/add", "a/fail", "a/refuse", "a/count", "a/ask", "a/get_call_result"]
            assert names == [*own, "b/add"]
            assert text(await client.call("b/add", {"a": 1, "b": 2})) == "3"
            failed = await client.call("a/fail")
            assert (failed.is_error, text(failed)) == (True, "out of paper")
            with pytest.raises(ServerError, match="not today") as refused:
                await client.call("a/refuse")
            assert (refused.value.code, refused.value.data) == (-5, {"try": "tomorrow"})

            assert [each.uri for each in await client.resources()] == ["note://today"]
            assert [each.uri_template for each in await client.templates()] == ["book://{shelf}"]
            for uri, said in (("note://today", "buy milk"), ("book://top", "read top")):
                assert said in str((await client.read(uri)).contents)
            assert [each.name for each in await client.prompts()] == ["a/greet"]
            prompted = await client.prompt("a/greet", {"name": "Ada"})
            assert prompted.messages[0].content == TextContent("Hello Ada.")


async def test_unknown_components_are_rejected() -> None:
    """As by any server."""
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=first()))
        async with client_of(hub, REVISIONS[0]) as client:
            for request in (
                client.call("a/nothing"),
                client.call("add"),
                client.prompt("b/greet"),
                client.prompt("a/nothing"),
                client.read("other://thing"),
            ):
                with pytest.raises(ServerError) as error:
                    await request
                assert error.value.code == -32602
            with pytest.raises(ServerError, match="Unknown prompt: a/nothing"):
                await client.complete(PromptReference("a/nothing"), "name")
            with pytest.raises(ServerError, match="cursor"):
                await client.request("tools/list", {"cursor": "x"})


async def test_hub_server_without_servers_is_empty() -> None:
    """Its lists are empty."""
    async with Hub() as hub, client_of(hub, REVISIONS[0]) as client:
        assert await client.tools() == []
        with pytest.raises(ServerError):
            await client.read("note://today")


@pytest.mark.parametrize("revision", REVISIONS)
async def test_progress_is_forwarded(revision: str) -> None:
    """If the client requested it."""
    seen: list[Any] = []
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=first()))
        async with client_of(hub, revision) as client:
            result = await client.call("a/count", progress=lambda *step: seen.append(step))
            assert text(await client.call("a/count")) == "counted"

    assert text(result) == "counted"
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@pytest.mark.parametrize("behind", REVISIONS[:2])
@pytest.mark.parametrize("before", REVISIONS[:2])
async def test_questions_are_forwarded(before: str, behind: str) -> None:
    """Of all kinds, several at a time, with every pair of revisions."""
    async with Hub(options=ClientOptions(revision=behind)) as hub:
        client = client_of(hub, before, Human())
        await hub.add(ServerConfig("a", target=first()))
        async with client:
            form, rest, model = text(await client.call("a/ask")).split("\n")

    assert form == "Done(value=Accepted(content={'name': 'Ada'}))"
    assert "'url': Accepted(content=None)" in rest
    assert "file:///home" in rest
    assert "Hello." in model


@pytest.mark.parametrize("behind", REVISIONS[:2])
async def test_questions_go_to_the_caller(behind: str) -> None:
    """Two clients that call one tool at a time each get their own question."""

    class Named(Human):
        def __init__(self, name: str) -> None:
            self.name = name

        async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
            await both.wait()
            return Accepted({"name": self.name})

    both = asyncio.Barrier(2)
    async with Hub(options=ClientOptions(revision=behind)) as hub:
        server = hub.server()
        await hub.add(ServerConfig("a", target=first()))
        async with (
            asyncio.timeout(TIME),
            Client(server, handler=Named("Ada")) as one,
            Client(server, handler=Named("Bob")) as other,
        ):
            answers = await asyncio.gather(one.call("a/ask"), other.call("a/ask"))

    assert ["Ada" in text(answers[0]), "Bob" in text(answers[1])] == [True, True]


async def test_missing_capability_is_an_error_for_the_server() -> None:
    """The caller may not have declared it."""
    async with Hub() as hub:
        client = client_of(hub, REVISIONS[1])
        await hub.add(ServerConfig("a", target=first()))
        async with client:
            with pytest.raises(ServerError, match="elicitation"):
                await client.call("a/ask")


async def test_handler_of_the_hub_answers_questions() -> None:
    """A hub with a handler does not forward them."""
    async with Hub(handler=Human()) as hub:
        client = client_of(hub, REVISIONS[0])
        await hub.add(ServerConfig("a", target=first()))
        async with client:
            assert "Ada" in text(await client.call("a/ask"))


async def test_completion_is_forwarded() -> None:
    """For prompts by qualified names, for templates by their own."""
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=first()))
        async with client_of(hub, REVISIONS[0]) as client:
            found = await client.complete(ResourceTemplateReference("book://{shelf}"), "shelf", "t")
            assert found.values == ["top"]
            assert (await client.complete(PromptReference("a/greet"), "name", "A")).values == []


@pytest.mark.parametrize("revision", REVISIONS[:2])
async def test_changed_lists_are_announced(revision: str) -> None:
    """Because a server has other tools, or was added or removed."""
    suite = first()
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=suite))
        async with (
            asyncio.timeout(TIME),
            client_of(hub, revision) as client,
            client.listen(tools=True) as changes,
        ):

            @tool
            async def late() -> str:
                """Comes later."""
                return "late"

            suite.add(late)
            change = await anext(changes)
            assert change.method == "notifications/tools/list_changed"
            assert "a/late" in [each.name for each in await client.tools()]
            await hub.remove("a")
            await anext(changes)
            assert await client.tools() == []


async def test_cancellation_is_forwarded() -> None:
    """The server behind the hub is notified."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> str:
        """Never answers."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with asyncio.timeout(TIME), Hub() as hub:
        await hub.add(ServerConfig("a", target=Suite(name="s", version="1", tools=[hang])))
        async with client_of(hub, REVISIONS[0]) as client:
            call = asyncio.ensure_future(client.call("a/hang"))
            await begun.wait()
            call.cancel()
            await stopped.wait()


async def test_question_over_stdio_goes_to_the_only_call() -> None:
    """A legacy server does not state which call a question is about."""
    config, options = stdio("2025-11-25")
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        client = client_of(hub, REVISIONS[0], Human())
        await hub.add(config)
        async with client:
            assert text(await client.call("far/ask")) == "agreed"


async def test_ambiguous_question_over_stdio_is_rejected(
    tmp_path: Path,
) -> None:
    """With two calls running it goes to neither client."""
    config, options = stdio("2025-11-25")
    config = ServerConfig(
        "far", command=config.command, args=[*config.args, str(tmp_path)], env=config.env
    )
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        client = client_of(hub, REVISIONS[0], Human())
        await hub.add(config)
        async with client:
            other = asyncio.ensure_future(client.call("far/hang", {"mark": "called"}))
            while not (tmp_path / "called").exists():  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(0.01)
            assert "refused: Failed" in text(await client.call("far/ask"))
            other.cancel()


async def test_lost_server_is_an_error() -> None:
    """For a tool a result with `isError`, for other requests an error."""
    config, options = stdio("2025-11-25")
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        await hub.add(config)
        async with client_of(hub, REVISIONS[0]) as client:
            crashed = await client.call("far/crash")
            assert crashed.is_error
            assert "may or may not have done this" in text(crashed)
            assert sys.executable not in text(crashed)


async def test_removal_during_a_call_is_an_unknown_outcome() -> None:
    """It may have been carried out."""
    begun = asyncio.Event()

    @tool
    async def hang() -> None:
        """Never answers."""
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(TIME), Hub() as hub:
        await hub.add(ServerConfig("a", target=Suite(name="s", version="1", tools=[hang])))
        async with client_of(hub, REVISIONS[0]) as client:
            call = asyncio.ensure_future(client.call("a/hang"))
            await begun.wait()
            await hub.remove("a")
            result = await call
    assert result.is_error
    assert "may or may not have done this" in text(result)


async def test_unlisted_resource_is_searched() -> None:
    """At one member after another, until one has it."""

    class Hidden(ResourceRepo):
        """Resources that are not listed."""

        name = "hidden"
        prefix = "hidden://"

        async def read(self, key: str, channel: Channel) -> str:
            """Return it."""
            return f"found {key}"

    second = Suite(name="second", version="1", resources=[Note, Hidden])
    async with Hub() as hub:
        await hub.add(ServerConfig("a", target=first()))
        await hub.add(ServerConfig("b", target=second))
        async with client_of(hub, REVISIONS[0]) as client:
            assert "found hidden://x" in str((await client.read("hidden://x")).contents)
            with pytest.raises(ServerError) as error:
                await client.read("other://x")
    assert error.value.code == -32602


class Waiting(Human):
    """Never answers; sets an event when a question arrives."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Wait."""
        self.asked.set()
        await asyncio.Event().wait()


async def test_cancellation_withdraws_the_question() -> None:
    """The server behind the hub is notified."""
    cancelled = asyncio.Event()

    class Stopped(Ask):
        """Asks, and records its cancellation."""

        name = "stopped"

        async def on_cancel(self, channel: Channel) -> None:
            """Record the cancellation."""
            cancelled.set()

    suite = Suite(name="s", version="1", tools=[Stopped])
    human = Waiting()
    async with asyncio.timeout(TIME), Hub(options=ClientOptions(revision="2025-11-25")) as hub:
        client = client_of(hub, "2025-11-25", human)
        await hub.add(ServerConfig("a", target=suite))
        async with client:
            call = asyncio.ensure_future(client.call("a/stopped"))
            await human.asked.wait()
            call.cancel()
            await cancelled.wait()


async def test_suspended_call_expires() -> None:
    """It is cancelled, and an answer that comes later is rejected."""
    cancelled = asyncio.Event()

    async def work(call: ForwardedCall) -> CallToolResult:
        try:
            await call.ask(RootsQuestion())
        finally:
            cancelled.set()
        raise AssertionError

    call = ForwardedCall(NOBODY, work, QuestionLimiter())
    async with asyncio.timeout(TIME):
        await call.step()
        suspended = SuspendedCalls()
        key = suspended.add(call, timeout=0)
        await cancelled.wait()

    assert suspended.pop(key) is None


async def test_question_without_a_call_is_rejected() -> None:
    """No client of the hub can answer it."""
    handler = RelayingHandler(lambda: ((), ()), lambda: None)

    with pytest.raises(McpError, match="No client can answer"):
        await handler.handle_list_roots()


async def test_hub_separator() -> None:
    """Some models reject a slash; prefixes of names stay unambiguous."""
    async with asyncio.timeout(TIME), Hub(separator="__") as hub:
        await hub.add(ServerConfig("a", target=first()))
        with pytest.raises(AlreadyRegistered):
            await hub.add(ServerConfig("a__b", target=first()))
        async with client_of(hub, REVISIONS[0]) as client:
            listed = [each.name for each in await client.tools()]
            sums = [(await each.call("a__add", {"a": 1, "b": 2})).text for each in (hub, client)]
            prompts = [await each.prompt("a__greet", {"name": "Ada"}) for each in (hub, client)]

    assert listed[0] == "a__add"
    assert sums == ["3", "3"]
    assert [each.messages[0].content for each in prompts] == [TextContent("Hello Ada.")] * 2
