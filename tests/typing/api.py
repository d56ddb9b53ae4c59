"""Uses of the public API with the types that checkers infer. Checked by test_checkers, not run."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, assert_type

from msgspec import Struct

from genmcp import (
    Access,
    Channel,
    Endpoint,
    Mux,
    Outcome,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    resource,
    result,
    tool,
)
from genmcp.channel import SendStatus
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.server import Middleware, Request, Server
from genmcp.testing import connect

A = TypeVar("A")


class City(Struct):
    name: str


@dataclass
class Street:
    name: str


class House(TypedDict):
    number: int


class Asynchronous(Tool[City]):
    name = "asynchronous"
    annotations = ToolAnnotations(read_only_hint=True)
    output_schema = City

    async def validate(self, request: ToolRequest[City], channel: Channel) -> ToolRequest[City]:
        assert_type(request.replace(City("Oslo")), ToolRequest[City])
        return request.replace(City("Oslo"))

    async def call(self, request: ToolRequest[City], channel: Channel) -> City:
        assert_type(request.arguments, City)
        assert_type(request.meta, Mapping[str, Any])
        assert_type(await channel.progress(1, 2), SendStatus)
        assert_type(await channel.log("info", "x"), SendStatus)
        assert_type(channel.principal, str | None)
        assert_type(channel.access, Access | None)
        return request.arguments


class Synchronous(Tool[Street]):
    name = "synchronous"
    annotations = {"readOnlyHint": True}

    def validate(self, request: ToolRequest[Street], channel: Channel) -> ToolRequest[Street]:
        return request

    def call(self, request: ToolRequest[Street], channel: Channel) -> str:
        assert_type(request.arguments, Street)
        assert_type(channel.in_loop(channel.progress(1)), SendStatus)
        return request.arguments.name

    def continue_(self, tag: str, outcome: Outcome, channel: Channel[ToolRequest[Street]]) -> str:
        assert_type(channel.request.arguments, Street)
        assert_type(channel.request.name, str)
        return channel.request.arguments.name

    def on_cancel(self, channel: Channel[ToolRequest[Street]]) -> None:
        assert_type(channel.request, ToolRequest[Street])


class Typed(Tool[House]):
    name = "typed"

    async def call(self, request: ToolRequest[House], channel: Channel) -> CallToolResult:
        assert_type(request.arguments["number"], int)
        return result("x", data={"a": 1})


class Untyped(Tool):
    name = "untyped"
    input_schema = {"type": "object"}

    async def call(self, request: ToolRequest, channel: Channel) -> None:
        assert_type(request.arguments, dict[str, Any])
        assert_type(channel.request, Request)

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> None:
        assert_type(channel.request, Request)


class Between(Tool[A], Generic[A]):
    title = "Between"


class Below(Between[City]):
    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, request: ToolRequest[City], channel: Channel) -> str:
        assert_type(request.arguments, City)
        return request.arguments.name


@tool
async def plain(a: int, *, b: str = "") -> str:
    return b * a


@tool(name="other", annotations={"readOnlyHint": True}, output_schema={"type": "integer"})
def named(a: int) -> int:
    return a


@resource("stock://{part}", mime_type="text/plain", list=lambda cursor, channel: [])
async def stock(part: int) -> str:
    return "x" * part


class Shop:
    @tool
    def buy(self, item: str) -> str:
        return item


async def functions_keep_their_signatures() -> None:
    assert_type(await plain(1, b="x"), str)
    assert_type(named(1), int)
    assert_type(Shop().buy("x"), str)
    assert_type(await stock(3), str)
    kept: Callable[[int], Coroutine[Any, Any, str]] = plain
    await kept(1)


async def wrong_use_is_seen() -> None:
    await stock("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await elicit("Sure?")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    await plain("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tool(nmae="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Endpoint(Untyped)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def suites_take_classes_instances_and_functions() -> Suite:
    return Suite(
        name="typing",
        version="1",
        tools=[Asynchronous, Synchronous(), Typed, Untyped, Below("x"), plain, named, Shop().buy],
    )


async def servers_are_served() -> None:
    suite = suites_take_classes_instances_and_functions()
    assert_type(Middleware(suite).inner, Server)
    Endpoint(Mux(Middleware(suite)), copy_assigns=["user"])
    async with connect(suite) as client:
        assert_type(await client.call("plain", {"a": 1}), CallToolResult)
