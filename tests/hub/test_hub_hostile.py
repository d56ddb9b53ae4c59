"""A member of a hub with hostile lists and schemas does not affect the other members."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from genmcp import Client, Hub, Mux, ServerConfig, Suite, tool
from genmcp._schema.document import Document
from genmcp.client import tool_catalog
from genmcp.client.errors import ServerError
from genmcp.client.options import ClientOptions
from genmcp.composite.server import CompositeServer
from genmcp.core.client.events import SendMessage
from genmcp.hub import relay
from genmcp.question.form import form_of_schema
from genmcp.server import Route
from tests.hub.far import NEW, OLD, TIME, Far, User, said
from tests.support.client_bounds import bounds
from tests.support.held_loop import MAX_HELD, HeldLoop

LIST = "tools/list"
HEADER = {"type": "string", "x-mcp-header": "Region"}


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def offering(*schemas: Any) -> Far:
    """Return a server with a tool for each of *schemas*: t0, t1 and so on."""
    tools = [{"name": f"t{n}", "inputSchema": each} for n, each in enumerate(schemas)]

    async def listed(far: Far, message: SendMessage) -> Any:
        return {"tools": tools}

    async def called(far: Far, message: SendMessage) -> Any:
        return said("called")

    return Far(**{LIST: listed, **{each["name"]: called for each in tools}})


async def texts_of_calls(evil: Far, *names: str, options: ClientOptions) -> list[str]:
    """Return the results of calls of *names* at a hub with *evil* and a good member."""
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        served = Mux(hub.server())
        await hub.add(ServerConfig("evil", target=evil))
        await hub.add(ServerConfig("good", target=Suite(name="good", version="1", tools=[add])))
        async with Client(served, options=OLDER) as client:
            await client.tools()
            return [(await client.call(name, {"a": 1, "b": 2})).text for name in names]


OLDER = ClientOptions(revision=OLD)


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://a/b", "properties": {"x": {"$id": "http://["}, "r": HEADER}},
        {"allOf": [{"$ref": "#/allOf/" + "9" * 5_000}], "properties": {"r": HEADER}},
        {"properties": {"A" * 9_000: {"properties": {f"k{n}": HEADER for n in range(4_900)}}}},
        {"properties": {"r": HEADER, "p": {"pattern": r"\S" * 90_000}}},
    ],
)
async def test_hostile_schema_costs_only_its_headers(schema: Any) -> None:
    """The tool is listed and can be called, without headers that repeat its arguments."""
    evil = offering({"type": "object", **schema})

    assert await texts_of_calls(evil, "good/add", "evil/t0", options=OLDER) == ["3", "called"]


async def test_defect_of_the_reader_costs_one_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema may fail to decode with any error: the other tools of the hub are listed."""

    def read(schema: Any, origin: str, limits: Any) -> Document:
        if "bad" in schema["properties"]:
            raise RuntimeError("a defect")
        return Document(schema, origin, limits)

    monkeypatch.setattr(tool_catalog, "Document", read)
    bad, good = ({"type": "object", "properties": {name: HEADER}} for name in ("bad", "r"))

    found = await texts_of_calls(
        offering(bad, good), "good/add", "evil/t0", "evil/t1", options=OLDER
    )

    assert found == ["3", "called", "called"]


async def test_large_schemas_leave_the_event_loop_free() -> None:
    """A hundred tools with 4,990 properties each stopped the loop for 6 seconds."""
    schema = {"type": "object", "properties": {f"k{n}": HEADER for n in range(1_990)}}
    evil = offering(*[schema] * 100)

    with bounds(max_list_bytes=1 << 25):
        async with HeldLoop.watch() as held:
            assert await texts_of_calls(evil, "good/add", options=OLDER) == ["3"]

        # Most of it is the decoding of a list of 9 MB.
        assert held.longest < 20 * MAX_HELD


async def test_list_that_is_too_long_is_left_out() -> None:
    """The member is registered without its tools."""
    evil = offering(*[{"type": "object"}] * 50)
    options = ClientOptions(revision=OLD)

    with bounds(max_list_items=49):
        assert await texts_of_calls(evil, "good/add", options=options) == ["3"]


def route_of_tool(server: CompositeServer, name: str) -> Route:
    """Return the route of the member that has the tool *name*."""
    route = server.find("tools/call", name)
    assert route is not None
    return route.alternatives[0].route


async def test_changed_list_keeps_routes_of_other_members() -> None:
    """A member with a list that changes all the time causes no work for others."""
    evil, good = offering({"type": "object"}), offering({"type": "object"})
    async with asyncio.timeout(TIME), Hub(options=OLDER) as hub:
        server = hub.server()
        await hub.add(ServerConfig("evil", target=evil))
        await hub.add(ServerConfig("good", target=good))
        before = [route_of_tool(server, f"{name}/t0") for name in ("evil", "good")]
        async with Client(Mux(server)) as client, client.listen(tools=True) as changes:
            evil.answers[LIST] = offering({"type": "object"}, {"type": "object"}).answers[LIST]
            evil.questions.put_nowait({"method": "notifications/tools/list_changed"})
            async for _ in changes:
                break
        after = [route_of_tool(server, f"{name}/t0") for name in ("evil", "good")]
        assert server.find("tools/call", "evil/t1") is not None

    assert before[0] is not after[0]
    assert before[1] is after[1]


async def test_unchanged_list_is_the_same_object() -> None:
    """A mux encodes it once. Another list of the same server does not change that."""
    server_of_tools = offering({"type": "object"})
    async with asyncio.timeout(TIME), Hub(options=OLDER) as hub:
        server = hub.server()
        await hub.add(ServerConfig("one", target=server_of_tools))
        channel: Any = SimpleNamespace(context=SimpleNamespace(give=lambda assigns: None))
        pages = [await server.listed("tools/list", None, channel) for _ in range(2)]
        await hub.add(ServerConfig("two", target=offering({"type": "object"})))
        other = await server.listed("tools/list", None, channel)

    assert pages[0] is pages[1]
    assert [each.name for each in other.tools] == ["one/t0", "two/t0"]  # type: ignore[attr-defined]


@asynccontextmanager
async def hub_with_form(schema: Mapping[str, Any], user: User) -> AsyncIterator[Client]:
    """Connect to a hub of a good member and one whose tool `quick` has a form of *schema*."""

    async def ask(far: Far, message: SendMessage) -> Any:
        if b"inputResponses" in message.message:
            return said("asked")
        form = {"message": "?", "requestedSchema": schema}
        asked = {"q": {"method": "elicitation/create", "params": form}}
        return {"resultType": "input_required", "inputRequests": asked}

    good = Suite(name="good", version="1", tools=[add])
    options = ClientOptions(revision=NEW)
    async with asyncio.timeout(TIME), Hub(options=options) as hub:
        server = hub.server()
        await hub.add(ServerConfig("evil", target=Far(quick=ask)))
        await hub.add(ServerConfig("good", target=good))
        async with Client(server, handler=user, options=options) as client:
            yield client


def form_of(properties: int) -> Mapping[str, Any]:
    """Return the schema of a form with so many fields."""
    return {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(properties)},
    }


async def test_form_that_is_too_large_is_refused() -> None:
    """A form for a person is smaller; the error names the limit, and the user sees no question."""
    user = User("Ann")
    async with hub_with_form(form_of(1_400), user) as client:
        with pytest.raises(ServerError, match="forwards at most 32768 bytes"):
            await client.call("evil/quick")
        assert (await client.call("good/add", {"a": 1, "b": 2})).text == "3"

    assert user.asked == []


async def test_invalid_form_is_rejected() -> None:
    """2026-07-28, client/elicitation, "Requested Schema": one level of texts and numbers."""
    user = User("Ann")
    async with hub_with_form({"type": "object"}, user) as client:
        with pytest.raises(ServerError, match="requestedSchema") as failed:
            await client.call("evil/quick")

    assert failed.value.code == -32602
    assert user.asked == []


async def test_large_form_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is compiled, calls of other members are answered."""
    loop = asyncio.get_running_loop()
    began, answered = asyncio.Event(), threading.Event()

    def compile_slowly(schema: Mapping[str, Any]) -> Any:
        loop.call_soon_threadsafe(began.set)
        assert answered.wait(TIME)
        return form_of_schema(schema)

    monkeypatch.setattr(relay, "form_of_schema", compile_slowly)
    user = User("Ann")
    async with hub_with_form(form_of(300), user) as client:
        asking = asyncio.ensure_future(client.call("evil/quick"))
        await began.wait()
        assert (await client.call("good/add", {"a": 1, "b": 2})).text == "3"
        answered.set()
        assert (await asking).text == "asked"

    assert user.asked == ["?"]
