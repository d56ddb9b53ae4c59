"""What the type checkers see of the public API. Read by mypy and pyright, never run."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, assert_type

from msgspec import Struct

from genmcp import (
    Call,
    Channel,
    Continue,
    Declined,
    Dismissed,
    Done,
    Endpoint,
    Job,
    Mux,
    Outcome,
    Question,
    Run,
    SendStatus,
    Suite,
    Tool,
    elicit,
    job,
    result,
    roots,
    tool,
    wait_for,
)
from genmcp.protocol.roots import Root
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.server import Server, Wrapper
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

    async def validate(self, request: Call[City], channel: Channel) -> Call[City]:
        assert_type(request.replace(City("Oslo")), Call[City])
        return request.replace(City("Oslo"))

    async def call(self, request: Call[City], channel: Channel) -> City:
        assert_type(request.arguments, City)
        assert_type(request.meta, Mapping[str, Any])
        assert_type(await channel.progress(1, 2), SendStatus)
        assert_type(await channel.log("info", "x"), SendStatus)
        assert_type(channel.principal, str | None)
        return request.arguments


class Synchronous(Tool[Street]):
    name = "synchronous"
    annotations = {"readOnlyHint": True}

    def validate(self, request: Call[Street], channel: Channel) -> Call[Street]:
        return request

    def call(self, request: Call[Street], channel: Channel) -> str:
        assert_type(request.arguments, Street)
        assert_type(channel.in_loop(channel.progress(1)), SendStatus)
        return request.arguments.name


class Typed(Tool[House]):
    name = "typed"

    async def call(self, request: Call[House], channel: Channel) -> CallToolResult:
        assert_type(request.arguments["number"], int)
        return result("x", data={"a": 1})


class Untyped(Tool):
    name = "untyped"
    input_schema = {"type": "object"}

    async def call(self, request: Call, channel: Channel) -> None:
        assert_type(request.arguments, dict[str, Any])


class Between(Tool[A], Generic[A]):
    title = "Between"


class Below(Between[City]):
    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, request: Call[City], channel: Channel) -> str:
        assert_type(request.arguments, City)
        return request.arguments.name


@job
async def look_up(run: Run, city: str) -> House:
    return {"number": 1}


@job
def count(run: Run) -> int:
    return 1


class Continues(Tool[City]):
    name = "continues"

    async def call(self, request: Call[City], channel: Channel) -> Continue:
        assert_type(elicit("Where?", Street), Question[Street])
        assert_type(elicit("Sure?"), Question[dict[str, Any]])
        assert_type(look_up.job("Oslo"), Job[House])
        assert_type(count.job(), Job[int])
        elicit("Where?", Street).then(self.found, self.not_found)
        look_up.job("Oslo").then(self.built)
        wait_for(self.later()).then(self.counted)
        count.job().then(self.counted)
        count.job().then(self.any_outcome)
        elicit("Where?", Street).then(self.counted)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        wait_for(self.later()).then(self.found)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        count.job().then(self.built)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return roots().then(self.listed)

    async def later(self) -> int:
        return 1

    async def found(self, request: Call[City], street: Street, channel: Channel) -> str:
        return street.name

    def not_found(
        self, request: Call[City], answer: Declined | Dismissed, channel: Channel
    ) -> None: ...

    def built(self, request: Call[City], house: House, channel: Channel) -> int:
        return house["number"]

    def counted(self, request: Call[City], number: int, channel: Channel) -> int:
        return number

    def any_outcome(self, request: Call[City], outcome: Outcome, channel: Channel) -> int:
        assert_type(Done(1).result(), int)
        return 0

    def listed(self, request: Call[City], found: list[Root], channel: Channel) -> str:
        return found[0].uri


@tool
async def plain(a: int, *, b: str = "") -> str:
    return b * a


@tool(task="always")
async def wanders(city: str) -> Continue:
    elicit("Where?", Street).then(no_street)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return elicit("Where?", Street).then(street_found)


@wanders.step
async def street_found(street: Street, city: str, channel: Channel) -> str:
    return f"{street.name}, {city}"


@wanders.step
async def no_street(number: int) -> str:
    return str(number)


@tool(name="other", annotations={"readOnlyHint": True}, output_schema={"type": "integer"})
def named(a: int) -> int:
    return a


class Shop:
    @tool
    def buy(self, item: str) -> str:
        return item


async def functions_keep_their_signatures() -> None:
    assert_type(await wanders("Oslo"), Continue)
    assert_type(await no_street(1), str)
    assert_type(await plain(1, b="x"), str)
    assert_type(named(1), int)
    assert_type(Shop().buy("x"), str)
    kept: Callable[[int], Coroutine[Any, Any, str]] = plain
    await kept(1)


async def wrong_use_is_seen() -> None:
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
    assert_type(Wrapper(suite).inner, Server)
    Endpoint(Mux(Wrapper(suite)), copy_assigns=["user"])
    async with connect(suite) as client:
        assert_type(await client.call("plain", {"a": 1}), CallToolResult)
