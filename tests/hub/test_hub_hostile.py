"""A member of a hub with hostile lists and schemas does not affect the other members."""

import asyncio
from typing import Any

import pytest

from genmcp import Client, Hub, Mux, ServerConfig, Suite, tool
from genmcp._core.client.events import SendMessage
from genmcp._schema.document import Document
from genmcp.client import tool_catalog
from genmcp.client.options import ClientOptions
from genmcp.composite.server import CompositeServer
from genmcp.server import Route
from tests.hub.far import OLD, TIME, Far, said

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
        await hub.register(ServerConfig("evil", target=evil))
        await hub.register(
            ServerConfig("good", target=Suite(name="good", version="1", tools=[add]))
        )
        async with Client(served, options=OLDER) as client:
            await client.tools()
            return [(await client.call(name, {"a": 1, "b": 2})).text for name in names]


OLDER = ClientOptions(revision=OLD, max_list_bytes=1 << 25)


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
    """Whatever decoding a schema raises, the other tools of the hub are listed."""

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
    options = OLDER
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            longest = max(longest, loop.time() - began)

    watching = asyncio.ensure_future(watch())
    try:
        assert await texts_of_calls(evil, "good/add", options=options) == ["3"]
    finally:
        watching.cancel()

    assert longest < 1.5


async def test_list_that_is_too_long_is_left_out() -> None:
    """The member is registered without its tools; the log names the setting."""
    evil = offering(*[{"type": "object"}] * 50)
    options = ClientOptions(revision=OLD, max_list_items=49)

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
        await hub.register(ServerConfig("evil", target=evil))
        await hub.register(ServerConfig("good", target=good))
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
        await hub.register(ServerConfig("one", target=server_of_tools))
        channel: Any = None
        pages = [await server.listed("tools/list", None, channel) for _ in range(2)]
        await hub.register(ServerConfig("two", target=offering({"type": "object"})))
        other = await server.listed("tools/list", None, channel)

    assert pages[0] is pages[1]
    assert [each.name for each in other.tools] == ["one/t0", "two/t0"]  # type: ignore[attr-defined]
