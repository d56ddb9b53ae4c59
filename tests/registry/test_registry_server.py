"""A registry as one server: serving it, its names, and the settings of its members."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Continue,
    Done,
    Endpoint,
    Mux,
    PromptTemplate,
    Provider,
    Registry,
    Resource,
    Suite,
    Tool,
    elicit,
    serve_stdio,
    tool,
)
from genmcp.client.errors import ServerError
from genmcp.errors import ContractError, InternalError, InvalidParams
from genmcp.protocol import ResourceDefinition
from genmcp.protocol.prompts import PromptReference, ResourceTemplateReference
from genmcp.registry import RegistryEndpoint, SessionRegistries
from genmcp.resources import ResourceRepo
from genmcp.testing import connect
from tests.support.asgi import PATIENCE, Client


@tool
async def where(channel: Channel) -> str:
    """Returns its place."""
    return str(channel.assigns.get("place"))


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Books(ResourceRepo):
    """Books of the place where they are."""

    name = "book"

    def __init__(self, scheme: str) -> None:
        self.template = f"{scheme}://books/{{id}}"
        self.scheme = scheme

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition(f"{self.scheme}://books/1", str(channel.assigns.get("place")))]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        return str(channel.assigns.get("place"))

    async def complete(self, name: str, value: str, context: Any, channel: Channel, /) -> Any:
        return [str(channel.assigns.get("place"))]


class Ask(Tool):
    """Asks, and returns its place afterwards."""

    name = "ask"

    async def call(self, request: Any, channel: Channel) -> Any:
        channel.assigns["own"] = "kept"
        return Continue("asked", elicit("Go on?", {"type": "object", "properties": {}}))

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        assert isinstance(outcome, Done)
        return f"{channel.assigns['place']}, {channel.assigns['own']}"


class Local(Provider):
    """Has tools with the name of their place."""

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [tool(name=f"in_{assigns.get('place')}")(where_function)]


async def where_function(channel: Channel) -> str:
    """Returns its place."""
    return str(channel.assigns.get("place"))


def suite(name: str, *tools: Any, **components: Any) -> Suite:
    return Suite(name=name, version="1", tools=tools, **components)


def placed() -> Registry:
    """Return two servers with different places, and one without."""
    parts = [
        suite(name, where, Ask(), resources=[Books(name)], providers=[Local()])
        for name in ("north", "south", "nowhere")
    ]
    north, south, nowhere = parts
    muxes = [Mux(north, assigns={"place": "Oslo"}), Mux(south, assigns={"place": "Rome"})]
    return Registry([*muxes, nowhere])


# The settings of the members.


async def test_composite_uses_assigns_of_each_mux() -> None:
    """The hooks of a member see them; other members do not."""
    async with connect(placed().server()) as client:
        called = [(await client.call(f"{each}/where")).text for each in ("north", "south")]
        nowhere = await client.call("nowhere/where")
        late = await client.call("south/in_Rome")
        (read,) = (await client.read("south://books/1")).contents
        listed = [each.name for each in await client.resources()]
        tools = [each.name for each in await client.tools() if "/in_" in each.name]
        reference = ResourceTemplateReference("south://books/{id}")
        completed = await client.complete(reference, "id")

    assert (called, nowhere.text) == (["Oslo", "Rome"], "None")
    assert (late.text, read.text, completed.values) == ("Rome", "Rome", ["Rome"])
    assert listed == ["Oslo", "Rome", "None"]
    assert tools == ["north/in_Oslo", "south/in_Rome", "nowhere/in_None"]


async def test_assigns_of_the_outer_mux_are_defaults() -> None:
    """They apply where a member has none of its own."""
    mux = Mux(placed().server(), assigns={"place": "Earth"})
    async with connect(mux) as client:
        told = [(await client.call(f"{name}/where")).text for name in ("north", "nowhere")]

    assert told == ["Oslo", "Earth"]


async def test_resumed_call_has_assigns_of_its_mux() -> None:
    """Beside those that the call itself has set."""
    endpoint = Endpoint(placed().server())
    client = await Client.begin(endpoint, capabilities={"elicitation": {}})
    asked = (await client.send(client.call("south/ask", id=1))).json["result"]
    (key,) = asked["inputRequests"]
    again = client.call("south/ask", id=2)
    again["params"] |= {
        "requestState": asked["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {}}},
    }
    answered = (await client.send(again)).json["result"]

    assert answered["content"][0]["text"] == "Rome, kept"


async def test_composite_forwards_subscriptions() -> None:
    """To the member that has the resource."""
    heard: list[tuple[str, str]] = []

    class Distant(Suite):
        @asynccontextmanager
        async def watch_resources(self, uris: Collection[str]) -> AsyncIterator[Collection[str]]:
            heard.extend((self.info.name, uri) for uri in uris)
            yield [uri for uri in uris if not uri.endswith("/2")]

    parts = [Distant(name=each, version="1", resources=[Books(each)]) for each in ("a", "b")]
    uris = ["a://books/1", "b://books/1", "b://books/2", "c://books/1"]
    async with Registry(parts).server().watch_resources(uris) as told:
        assert set(told) == {"a://books/1", "b://books/1"}

    assert [("a", uris[0]), ("b", uris[1]), ("b", uris[2])] == sorted(heard)


# One that does not answer.


class Broken(Suite):
    """Cannot list anything."""

    error: Exception | None = None

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
        if self.error is None:
            await asyncio.Event().wait()
        raise self.error or AssertionError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InternalError("no backend"), "no backend"),
        (InvalidParams("no such page"), "no such page"),
        (ValueError("a defect"), "a defect"),
        (None, "took longer than 0.05 s (list_timeout)"),
    ],
)
async def test_composite_leaves_out_a_failing_server(
    error: Exception | None,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a warning in the log."""
    broken = Broken(name="broken", version="1", tools=[add])
    broken.error = error
    registry = Registry([broken, suite("math", add)], list_timeout=0.05)
    async with connect(registry.server()) as client:
        tools = await asyncio.wait_for(client.tools(), PATIENCE)

    assert [each.name for each in tools] == ["math/add"]
    assert "server broken left out of tools/list" in caplog.text
    assert said in caplog.text


async def test_composite_rejects_a_cursor_unknown_to_its_server() -> None:
    """The client has to begin anew: to leave the rest out would look like the end."""

    class Changed(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            if cursor is not None:
                raise InvalidParams("no such page any more")
            return await super().listed(method, cursor, channel)

    server = Changed(name="changed", version="1", tools=[add, where], page_size=1)
    async with connect(Registry([server]).server()) as client:
        with pytest.raises(ServerError, match="no such page any more"):
            await client.tools()


# How it is served.


async def test_registry_serves_all_as_one() -> None:
    """It may change while it is served."""
    live = Registry([suite("math", add)])
    together = live.server(name="all", version="3")
    async with connect(together) as client:
        before = [each.name for each in await client.tools()]
        live.add(suite("more", add))
        after = [each.name for each in await client.tools()]
    async with connect(Registry([suite("math", add)]).server()) as client:
        three = await client.call("math/add", {"a": 1, "b": 2})

    assert (before, after) == (["math/add"], ["math/add", "more/add"])
    assert (together.info.name, together.info.version) == ("all", "3")
    assert three.text == "3"


async def test_registry_is_not_a_server() -> None:
    """The error names `server()` and `RegistryEndpoint`."""
    with pytest.raises(ConfigurationError, match=r"server\(\).* RegistryEndpoint"):
        Endpoint(Registry())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"server\(\).* RegistryEndpoint"):
        await serve_stdio(Registry())  # type: ignore[arg-type]


async def test_registry_endpoint_may_be_closed_twice() -> None:
    """By a lifespan, or by their creator."""
    endpoint = RegistryEndpoint(Registry([suite("math", add)]))
    await endpoint.aclose()
    await endpoint.aclose()


# Names.


@pytest.mark.parametrize("name", ["my server", "..", ".", "x?y", "ä", "a%2Fb", "a\n", 5])
def test_registry_rejects_invalid_names(name: Any) -> None:
    """At once, with their purpose and the remedy."""
    with pytest.raises(ConfigurationError, match=r"names of its tools.*add\(server, name"):
        Registry().add(suite("math", add), name=name)
    if name == "my server":
        with pytest.raises(ConfigurationError, match="my server"):
            Registry([suite(name)])


@pytest.mark.parametrize("separator", ["__", ".", "-", "/"])
async def test_composite_separator(separator: str) -> None:
    """Some models reject a slash. Names of servers may contain the separator."""
    names = ["my__math", "my.math", "my-math"]
    greet = PromptTemplate(name="greet", messages="Hello {x}", completions={"x": ["y"]})
    registry = Registry([suite(each, add, prompts=[greet]) for each in names])
    async with connect(registry.server(separator=separator)) as client:
        tools = [each.name for each in await client.tools()]
        sums = [(await client.call(each, {"a": 1, "b": 2})).text for each in tools]
        prompts = [each.name for each in await client.prompts()]
        for each in prompts:
            await client.prompt(each, {"x": "y"})
            assert (await client.complete(PromptReference(each), "x")).values == ["y"]

    assert [f"{each}{separator}add" for each in names] == tools
    assert [f"{each}{separator}greet" for each in names] == prompts
    assert sums == ["3", "3", "3"]


@pytest.mark.parametrize("separator", ["", " ", "::", None])
def test_composite_rejects_invalid_separators(separator: Any) -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError, match="separator"):
        Registry().server(separator=separator)
    with pytest.raises(ConfigurationError, match="separator"):
        RegistryEndpoint(Registry(), separator=separator)


# Values that are not a registry, and not a message.


def test_session_registries_reject_other_types() -> None:
    """The error names the value."""
    with pytest.raises(ConfigurationError, match="a Registry is needed"):
        SessionRegistries().set("Ada", suite("math"))  # type: ignore[arg-type]


async def test_session_shares_a_registry() -> None:
    """It is that one, not a copy."""
    sessions, live = SessionRegistries(), Registry([suite("math", add)])
    sessions.set("Ada", live)
    live.toggle("math", False)

    assert not (await sessions.status("Ada"))["math"].enabled


async def test_registry_rejects_messages_that_are_not_json() -> None:
    """The error names the fault; text that can be decoded is answered."""
    registry = Registry([suite("math", add)])
    with pytest.raises(ContractError, match=r"not JSON: .*object"):
        await registry.handle_message("math", {"jsonrpc": "2.0", "x": object()})
    with pytest.raises(ContractError, match="not JSON"):
        await registry.call_tool_by_name("add", {"a": {1, object()}})
    answer = await registry.handle_message("math", '{"jsonrpc": "\ud800"}')

    assert answer["error"]["code"] == -32700


async def test_shared_resource_belongs_to_the_first_server() -> None:
    """It is listed once."""

    class Note(Resource):
        uri = "note://today"

        def __init__(self, name: str) -> None:
            self.name = name

        async def read(self, uri: str, channel: Channel) -> str:
            return f"of {self.name}"

    servers = [Suite(name=each, version="1", resources=[Note(each)]) for each in ("a", "b")]
    async with connect(Registry(servers).server()) as client:
        listed = [(each.uri, each.name) for each in await client.resources()]
        (read,) = (await client.read("note://today")).contents

    assert listed == [("note://today", "a")]
    assert read.text == "of a"
