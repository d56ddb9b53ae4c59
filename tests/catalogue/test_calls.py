"""A call by `call_tool` is the call of the tool: every rule of a direct call holds for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Access,
    Channel,
    Continue,
    Endpoint,
    Hub,
    Image,
    InvalidParams,
    JobOptions,
    Middleware,
    Mux,
    Registry,
    Run,
    ServerConfig,
    Suite,
    Telemetry,
    Tool,
    ToolError,
    ToolRequest,
    elicit,
    job,
    tool,
)
from genmcp.catalogue import SearchTools
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.extensions import Extension, Method, RequestParams
from genmcp.protocol import CallToolResult, Result
from genmcp.server import Request, Server
from genmcp.testing import connect
from tests.auth.scoped import WRITE, granted
from tests.catalogue.office import office
from tests.support.asgi import ALL, MODERN, PATIENCE, TASKS
from tests.support.asgi import Client as AsgiClient
from tests.support.asking import YES
from tests.support.handlers import AcceptingHandler

NO_FIELDS: Any = {"type": "object", "properties": {}}
SEEN: list[str] = []
OPEN: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    SEEN.clear()
    OPEN.append(asyncio.Event())
    yield
    OPEN.clear()


@dataclass
class Point:
    """A place."""

    x: int
    y: float = 0.5


@tool
def move(to: Point, name: str = "pen") -> Point:
    """Moves something."""
    SEEN.append(name)
    return to


@tool
def draw() -> Image:
    """Draws a picture."""
    return Image(b"png", "image/png")


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("out of ink")


class Even(Tool):
    """Takes even numbers."""

    name = "even"
    input_schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}}

    def validate(self, request: ToolRequest, channel: Channel) -> ToolRequest:
        if request.arguments["n"] % 2:
            raise InvalidParams("n must be even", {"n": request.arguments["n"]})
        return request

    async def call(self, request: ToolRequest, channel: Channel) -> int:
        return int(request.arguments["n"]) // 2


@tool
async def count(channel: Channel) -> str:
    """Counts, and tells its client."""
    for done in (1, 2):
        await channel.progress(done, 2)
    await channel.log("info", "counted")
    return channel.request.key


class Sign(Tool):
    """Asks twice, and keeps something for the steps."""

    name = "sign"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return elicit(f"Sign {request.arguments['paper']}?", NO_FIELDS).then(self.again)

    async def again(self, request: ToolRequest, value: Any, channel: Channel) -> Continue:
        channel.assigns["asked"] = "twice"
        return elicit("Really?", NO_FIELDS).then(self.signed)

    async def signed(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return f"{request.name} {request.arguments['paper']}, asked {channel.assigns['asked']}"


@job
async def dry(run: Run, paint: str) -> str:
    await OPEN[-1].wait()
    return f"dry {paint}"


class Paint(Tool):
    """Waits for a job."""

    name = "paint"
    on_worker_lost = "rerun"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return dry.job(request.arguments["colour"]).then(self.dried)

    async def dried(self, request: ToolRequest, value: str, channel: Channel) -> str:
        return f"{request.name}: {value}"

    async def on_cancel(self, channel: Channel) -> None:
        SEEN.append(f"cancelled {channel.request.arguments['colour']}")


@tool(idempotency_key="order")
async def pay(order: str) -> str:
    """Pays once."""
    SEEN.append(order)
    return f"{len(SEEN)} payments"


def studio() -> Suite:
    """Return a suite of all of them."""
    return Suite("studio", tools=[move, draw, fail, Even, count, Sign, Paint, pay])


CALLS: list[tuple[str, Any]] = [
    ("move", {"to": {"x": 1}}),
    ("move", {"to": {"x": "1"}, "nme": "ink"}),
    ("move", None),
    ("draw", {}),
    ("draw", {"size": 3}),
    ("fail", {}),
    ("even", {"n": 4}),
    ("even", {"n": 3}),
    ("sign", {"paper": "lease"}),
    ("paint", {"colour": "red"}),
]
CALLED = [each for each in CALLS if each[1] is not None]


async def both(
    client: Client, name: str, arguments: Mapping[str, Any] | None
) -> tuple[CallToolResult, CallToolResult]:
    """Return the results of a direct call, and of one by `call_tool`."""
    named = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return await client.call(name, arguments), await client.call("call_tool", named)


@pytest.mark.parametrize("revision", ALL)
async def test_results_are_those_of_a_direct_call(revision: str) -> None:
    """Content, structure, errors with their data, answers and jobs, on each revision."""
    OPEN[-1].set()
    handler = AcceptingHandler()
    async with connect(SearchTools(studio()), revision=revision, handler=handler) as client:
        results = [await both(client, *each) for each in CALLS]

    assert [by_search for _, by_search in results] == [direct for direct, _ in results]
    assert results[-1][1].text == "paint: dry red"
    if revision >= "2025-06-18":  # before, clients could not be asked
        assert results[-2][1].text == "sign lease, asked twice"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, 'missing required property "name"'),
        ({"name": 3}, "expected a string"),
        ({"name": "move", "to": {"x": 1}}, "unknown field `to`"),
        ({"name": "move", "arguments": '{"to": {"x": 1}}'}, "/arguments: expected an object"),
        ({"name": "mov"}, "There is no tool 'mov'. Find one with search_tools."),
        ({"name": "call_tool"}, "There is no tool 'call_tool'"),
    ],
)
async def test_mistake_in_the_call_is_told_to_the_model(arguments: Any, fault: str) -> None:
    """A result with `isError`, which a model reads, and what to do instead."""
    async with connect(SearchTools(studio())) as client:
        result = await client.call("call_tool", arguments)

    assert (result.is_error, SEEN) == (True, [])
    assert fault in result.text


async def test_name_of_a_tool_is_bounded() -> None:
    """As that of a direct call, which the client cannot make longer either."""
    async with connect(SearchTools(studio())) as client:
        with pytest.raises(ServerError, match="2048 bytes"):
            await client.call("call_tool", {"name": "x" * 3000})


async def test_progress_and_logs_reach_the_caller() -> None:
    """With the token of its request; the hook sees the name of the tool."""
    async with connect(SearchTools(studio())) as client:
        result = await client.call("call_tool", {"name": "count"})

        assert result.text == "count"
        assert [each.progress for each in client.progress] == [1, 2]
        assert [each.data for each in client.logs] == ["counted"]


async def test_task_of_a_call_survives_its_server(tmp_path: Path) -> None:
    """Its record is that of a direct call, so that a server without the search continues it."""
    store, secret = f"sqlite:///{tmp_path}/tasks.db", b"s" * 32
    jobs = JobOptions(shutdown_grace=0.05)  # the job waits for an event
    first = Mux(SearchTools(studio()), store=store, secret=secret, jobs=jobs)
    async with Client(first) as client:
        arguments = {"name": "paint", "arguments": {"colour": "blue"}}
        id = (await client.call_task("call_tool", arguments)).id
    await first.aclose()
    OPEN[-1].set()

    second = Mux(studio(), store=store, secret=secret)
    async with Client(second) as client:
        assert id is not None
        result = await client.task(id).wait()
    await second.aclose()

    assert result.text == "paint: dry blue"


async def test_cancelled_task_is_cancelled_at_its_tool() -> None:
    """`on_cancel` runs with the arguments of the tool."""
    async with Client(SearchTools(studio())) as client:
        arguments = {"name": "paint", "arguments": {"colour": "red"}}
        task = await client.call_task("call_tool", arguments)
        await task.cancel()

    assert SEEN == ["cancelled red"]


async def test_tool_for_results_of_long_calls_is_listed() -> None:
    """Clients without tasks are told to call it by its name."""
    async with connect(SearchTools(studio())) as client:
        listed = [each.name for each in await client.tools()]

    assert listed == ["get_call_result", "search_tools", "call_tool"]


async def test_arguments_need_no_headers() -> None:
    """A client repeats arguments in headers for tools that are listed."""
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}}
    place = tool(name="place", input_schema=schema)(lambda region: region)
    client = AsgiClient(Endpoint(SearchTools(Suite("places", tools=[place]))))
    arguments = {"name": "place", "arguments": {"region": "north"}}
    result = (await client.send(client.call("call_tool", arguments))).json["result"]

    assert result["content"][0]["text"] == "north"


class StockLevel(RequestParams):
    """The params of a method of an extension."""

    part: str


class Stock(Extension):
    """Adds a method to the protocol."""

    name = "com.example/stock"
    methods = (Method("stock/level", StockLevel, Result),)

    async def handle(self, request: Request, channel: Channel) -> Result:
        SEEN.append(request.params.part)  # type: ignore[attr-defined]
        return Result()


async def test_extensions_of_the_server_are_served() -> None:
    """Their methods and what they declare are those of the inner server."""
    server = SearchTools(Suite("shop", tools=[draw], extensions=[Stock()]))
    async with Client(server, extensions=[Stock()]) as client:
        await client.request("stock/level", StockLevel(part="bolt"))
        drawn = await client.call("call_tool", {"name": "draw"})

    assert (SEEN, drawn.is_error) == (["bolt"], False)


async def test_idempotency_key_is_that_of_the_tool() -> None:
    """A call that is sent again runs once, whichever way it comes."""
    server, ann = SearchTools(studio()), Access(subject="ann")
    async with connect(server, access=ann) as client:
        results = await both(client, "pay", {"order": "7"})

    assert [each.text for each in results] == ["1 payments"] * 2
    assert SEEN == ["7"]


@tool(scopes=WRITE)
def reorder(part: str) -> str:
    """Orders more of a part."""
    SEEN.append(part)
    return f"ordered {part}"


class AsksLater(Tool):
    """Works as a task, which then asks a question."""

    name = "asks_later"
    scopes = WRITE
    on_worker_lost = "rerun"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return dry.job("ink").then(self.ask)

    async def ask(self, request: ToolRequest, value: Any, channel: Channel) -> Continue:
        return elicit("Sure?", NO_FIELDS).then(self.after)

    async def after(self, request: ToolRequest, value: Any, channel: Channel) -> str:
        return "worked"


@pytest.fixture
async def shop() -> AsyncIterator[AsgiClient]:
    """A client of a server whose tools need a scope, behind a host that authenticates."""
    mux = Mux(SearchTools(Suite("shop", tools=[reorder, AsksLater])))
    able = {**TASKS, "elicitation": {"form": {}}}
    yield AsgiClient(Endpoint(mux), capabilities=able, user=granted("parts:read"))
    await mux.aclose()


async def test_scopes_of_the_tool_are_needed(shop: AsgiClient) -> None:
    """HTTP 403 with the challenge of a direct call; nothing runs."""
    client = shop
    arguments = {"name": "reorder", "arguments": {"part": "M6"}}
    by_search = await client.send(client.call("call_tool", arguments))
    direct = await client.send(client.call("reorder", {"part": "M6"}))
    client.scope["user"] = granted("parts:write")
    allowed = await client.send(client.call("call_tool", arguments))

    assert (by_search.status, direct.status, allowed.status) == (403, 403, 200)
    assert by_search.headers["www-authenticate"] == direct.headers["www-authenticate"]
    assert SEEN == ["M6"]


async def test_answer_to_a_task_needs_the_scopes_of_its_tool(shop: AsgiClient) -> None:
    """Another client of the user must not accept a call that it could not begin."""
    OPEN[-1].set()
    client = shop
    client.scope["user"] = granted(*WRITE)
    made = await client.send(client.call("call_tool", {"name": "asks_later"}))
    id = made.json["result"]["taskId"]
    get = client.request("tasks/get", {"taskId": id})
    async with asyncio.timeout(PATIENCE):
        while not (asked := (await client.send(get)).json["result"].get("inputRequests")):
            pass
        answers = {"taskId": id, "inputResponses": dict.fromkeys(asked, YES)}
        client.scope["user"] = granted("parts:read")
        refused = await client.send(client.request("tasks/update", answers))
        client.scope["user"] = granted(*WRITE)
        await client.send(client.request("tasks/update", answers))
        while (task := (await client.send(get)).json["result"])["status"] != "completed":
            pass

    assert refused.status == 403
    assert task["result"]["content"][0]["text"] == "worked"


class Watching(Middleware):
    """Notes the requests that it forwards."""

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        SEEN.append(request.key)
        return await self.inner.handle(request, channel)


class Naming(Telemetry):
    """Notes the names of requests that have ended."""

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        SEEN.append(f"ended {request.key}")


async def test_middleware_and_telemetry_see_the_tool() -> None:
    """Both middleware around the search and within it; figures belong to the tools."""
    server = Watching(SearchTools(Watching(studio())))
    mux = Mux(server, telemetry=Naming())
    async with connect(mux) as client:
        await client.call("call_tool", {"name": "draw"})
    await mux.aclose()

    assert [each for each in SEEN if "draw" in each] == ["draw", "draw", "ended draw"]


@asynccontextmanager
async def of_hub(*, inside: bool) -> AsyncIterator[tuple[Server, str, str]]:
    """Serve a hub, whose member or which itself is searched; yield it and two prefixes."""
    async with Hub() as hub:
        server = hub.server(name="all")
        member = SearchTools(studio()) if inside else studio()
        await hub.add(ServerConfig("a", target=member))
        yield (server, "a/", "") if inside else (SearchTools(server), "", "a/")


@asynccontextmanager
async def of_registry(*, inside: bool) -> AsyncIterator[tuple[Server, str, str]]:
    """Serve a registry in the same ways."""
    registry = Registry()
    registry.add(SearchTools(studio()) if inside else studio(), name="a")
    server = registry.server(name="all")
    yield (server, "a/", "") if inside else (SearchTools(server), "", "a/")


@pytest.mark.parametrize("revision", [MODERN, "2025-11-25"])
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("many", [of_hub, of_registry])
async def test_search_of_many_servers(many: Any, inside: bool, revision: str) -> None:
    """Results, progress, questions and jobs, of a hub or registry, or of one of its members."""
    OPEN[-1].set()
    async with (
        many(inside=inside) as (server, prefix, name),
        connect(server, revision=revision, handler=AcceptingHandler()) as client,
    ):
        query = {"query": "draws a picture"}
        found = (await client.call(f"{prefix}search_tools", query)).structured
        results = [
            await client.call(f"{prefix}call_tool", {"name": name + each, "arguments": arguments})
            for each, arguments in CALLED
        ]
        direct = [
            await client.call(f"{prefix}{name}{each}", arguments)
            for each, arguments in CALLED
            if not (inside and many is of_hub)
        ]
        counted = await client.call(f"{prefix}call_tool", {"name": f"{name}count"})
        unknown = await client.call(f"{prefix}call_tool", {"name": f"{name}nothing"})

    assert found["tools"][0]["name"] == f"{name}draw"
    assert direct in ([], results)
    failed = [each for each, result in zip(CALLED, results, strict=True) if result.is_error]
    assert [name for name, _ in failed] == ["move", "draw", "fail", "even"]
    assert results[-2].text.endswith("sign lease, asked twice")
    assert results[-1].text.endswith("paint: dry red")
    assert counted.text.endswith("count")
    assert [each.progress for each in client.progress if each.total == 2] == [1, 2]
    assert f"There is no tool '{name}nothing'" in unknown.text


async def test_tool_of_a_thousand_is_called() -> None:
    """What a model does: it searches, and calls what it has found."""
    async with connect(SearchTools(office())) as client:
        found = await client.call("search_tools", {"query": "a new bill"})
        name = found.structured["tools"][0]["name"]
        called = await client.call("call_tool", {"name": name, "arguments": {"id": "7"}})

    assert called.text == "create_invoice 7"
