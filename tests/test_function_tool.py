"""`@tool`: the metadata taken from a function, and the use of the function afterwards."""

import functools
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from threading import Lock
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar

import msgspec
import pytest
from pydantic import Field

from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Continue,
    Image,
    Prompt,
    Suite,
    Tool,
    elicit,
    tool,
)
from genmcp.component import attributes_of
from genmcp.decorator import (
    FunctionTool,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    function_component,
)
from genmcp.protocol.tools import CallToolResult, ToolAnnotations, ToolDefinition
from genmcp.resources import ResourceRepo
from genmcp.testing import connect
from genmcp.tools import ToolRoute
from tests.support import postponed
from tests.support.handlers import AcceptingHandler

T = TypeVar("T")


def suite(*tools: Any) -> Suite:
    return Suite(name="test", version="1", tools=tools)


def definition(function: Any) -> ToolDefinition:
    return ToolRoute.of(function_component(FunctionTool, function)).definition


async def call(function: Any, **arguments: Any) -> CallToolResult:
    async with connect(suite(function)) as client:
        return await client.call(definition(function).name, arguments)


def test_function_tool_takes_name_docstring_and_hints() -> None:
    """The listing has the function's name, docstring and parameters."""

    @tool
    async def forecast(
        city: Annotated[str, msgspec.Meta(description="As people call it.", min_length=1)],
        days: int = 3,
        *,
        unit: Literal["C", "F"] = "C",
    ) -> str:
        """Tells the weather.

        Of the next days.
        """
        return f"{city} {days} {unit}"

    made = definition(forecast)

    assert (made.name, made.description) == ("forecast", "Tells the weather.\n\nOf the next days.")
    assert made.input_schema["required"] == ["city"]
    assert made.input_schema["properties"] == {
        "city": {"type": "string", "description": "As people call it.", "minLength": 1},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
    }
    assert None is made.output_schema


async def test_function_tool_passes_arguments_and_defaults() -> None:
    """Positional, default and keyword-only parameters are all passed by name."""

    @tool
    async def show(a: int, b: str = "b", *, c: float = 0.5, d: list[int] | None = None) -> Any:
        return [a, b, c, d]

    assert (await call(show, a=1)).content[0].text == '[1,"b",0.5,null]'  # type: ignore[union-attr]
    given = await call(show, a=1, b="x", c=2, d=[3])
    assert given.content[0].text == '[1,"x",2.0,[3]]'  # type: ignore[union-attr]


async def test_function_tool_stays_a_function() -> None:
    """It can still be called, and keeps its name and docstring."""

    @tool(name="other")
    def double(number: int) -> int:
        """Doubles."""
        return 2 * number

    assert double(2) == 4
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    assert (await call(double, number=2)).content[0].text == "4"  # type: ignore[union-attr]


class Unit(Enum):
    C = "C"


@dataclass
class Point:
    x: int = 0


@pytest.mark.parametrize(
    ("default", "listed"),
    [([1], [1]), ({"a": 1}, {"a": 1}), ([], []), (Unit.C, "C"), (Point(), {"x": 0}), ((1,), [1])],
)
async def test_function_tool_defaults_are_not_shared(default: Any, listed: Any) -> None:
    """A default of any kind is listed as JSON, and each call gets a new copy."""
    got: list[Any] = []

    @tool
    async def take(value: Any = default) -> None:
        got.append(value)

    async with connect(suite(take)) as client:
        await client.call("take")
        await client.call("take")
        (made,) = await client.tools()

    assert [default, default] == got
    if isinstance(default, list | dict | Point):
        assert got[0] is not got[1]
        assert got[0] is not default
    assert listed == made.input_schema["properties"]["value"]["default"]


@pytest.mark.parametrize("kind", ["plain", "optional", "postponed"])
async def test_function_tool_channel_is_found_by_its_annotation(kind: str) -> None:
    """The name of the parameter and the spelling of the annotation do not matter."""

    @tool
    async def plain(a: int, line: Channel) -> str:
        return f"{a} {line.client.revision}"

    @tool
    async def optional(a: int, line: Channel | None = None) -> str:
        return f"{a} {line.client.revision if line else None}"

    function = {"plain": plain, "optional": optional, "postponed": postponed.ask}[kind]

    result = await call(function, a=1)

    assert result.content[0].text == "1 2026-07-28"  # type: ignore[union-attr]
    assert list(definition(function).input_schema["properties"]) == ["a"]


async def test_function_tool_without_parameters_takes_an_empty_object() -> None:
    """A function without parameters takes no arguments; others are rejected."""

    @tool
    async def now() -> str:
        return "now"

    assert (await call(now)).content[0].text == "now"  # type: ignore[union-attr]
    refused = await call(now, a=1)
    assert refused.is_error
    assert "/a: unexpected property" in refused.content[0].text  # type: ignore[union-attr]


async def test_function_tool_arguments_are_checked() -> None:
    """The schema is made of the type hints: invalid arguments do not reach the function."""

    @tool
    async def take(a: int) -> None: ...

    result = await call(take, a="x")

    assert result.is_error
    assert "/a: expected an integer" in result.content[0].text  # type: ignore[union-attr]


async def test_function_tool_def_runs_in_a_thread_and_async_does_not() -> None:
    """A `def` may block; an `async def` runs on the event loop of the server."""

    @tool
    def blocking() -> str:
        return threading.current_thread().name

    @tool
    async def awaiting() -> str:
        return threading.current_thread().name

    here = threading.current_thread().name
    assert ToolRoute.of(function_component(FunctionTool, awaiting)).is_async
    assert (await call(blocking)).content[0].text.startswith("genmcp")  # type: ignore[union-attr]
    assert here == (await call(awaiting)).content[0].text  # type: ignore[union-attr]


class Order(msgspec.Struct):
    id: int


class OrderDict(TypedDict):
    id: int


class Box(msgspec.Struct, Generic[T]):
    id: T


@pytest.mark.parametrize("kind", [Order, OrderDict, Box[int]])
async def test_function_tool_return_type_is_the_output_schema(kind: Any) -> None:
    """If the annotation is an object type, results are validated as one."""

    @tool
    async def order(wrong: bool = False) -> kind:
        return {"id": "x"} if wrong else {"id": 1}

    schema = definition(order).output_schema
    assert schema is not None
    assert schema["properties"] == {"id": {"type": "integer"}}
    assert (await call(order)).structured_content == {"id": 1}
    async with connect(suite(order)) as client:
        with pytest.raises(Exception, match="Internal error"):
            await client.call("order", {"wrong": True})


@pytest.mark.parametrize(
    "kind",
    [
        CallToolResult,
        Image,
        str,
        str | None,
        Literal["a"],
        date,
        list[Image],
        bytes,
        None,
        Any,
        Lock,
    ],
)
def test_function_tool_return_type_of_content_is_no_schema(kind: Any) -> None:
    """Texts, images, ready-made results and types without a schema have no output schema."""

    @tool
    def give() -> kind: ...

    assert None is definition(give).output_schema


def test_function_tool_takes_attributes_of_a_tool() -> None:
    """Options of the decorator take precedence over the metadata of the function."""

    @tool(
        name="shout",
        title="Shout",
        description="Shouts.",
        annotations={"readOnlyHint": True},
        meta={"a": 1},
        output_schema={"type": "string"},
        on_disconnect="cancel",
    )
    def whisper(text: str) -> str:
        """Whispers."""
        return text.upper()

    made = definition(whisper)

    assert (made.name, made.title, made.description) == ("shout", "Shout", "Shouts.")
    assert made.annotations == ToolAnnotations(read_only_hint=True)
    assert (made.meta, made.output_schema) == ({"a": 1}, {"type": "string"})
    assert ToolRoute.of(function_component(FunctionTool, whisper)).on_disconnect == "cancel"


def takes_rest(*rest: int) -> None: ...
def takes_any(**rest: int) -> None: ...
def takes_position(a: int, /) -> None: ...
def takes_unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def takes_object(a: threading.Lock) -> None: ...
async def yields() -> AsyncIterator[int]:
    yield 1


def waits() -> str | Continue: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            takes_rest,
            "takes_rest: parameter *rest: int: each argument needs a name it can be passed by",
        ),
        (
            takes_any,
            "takes_any: parameter **rest: int: each argument needs a name it can be passed by",
        ),
        (
            takes_position,
            "takes_position: parameter a: int: each argument needs a name it can be passed by",
        ),
        (takes_unknown, "takes_unknown: its type hints cannot be read: name 'Nowhere'"),
        (takes_object, "takes_object: "),
        (yields, "yields yields; return one result"),
        (lambda: 1, "<lambda>.name must be"),
        (Order, "@tool is for functions, not for <class"),
        (functools.partial(print), "@tool is for functions, not for functools.partial"),
        (print, "@tool is for functions, not for <built-in"),
    ],
)
def test_function_tool_is_refused_where_it_is_decorated(function: Any, message: str) -> None:
    """A function that cannot be a tool is rejected when it is decorated; the error has its name."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        tool(function)


def test_function_that_waits_needs_a_step() -> None:
    """Checked at registration: the step may be defined below the function."""
    waiting = tool(waits)

    with pytest.raises(
        ConfigurationError, match=r"it has no step in which to continue: decorate a function"
    ):
        Suite(name="test", version="1", tools=[waiting])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"nmae": "x"}, "fine: @tool takes no nmae"),
        ({"input_schema": {}}, "input_schema: arguments are an object; the root of the schema"),
        ({"input_schema": int}, "fine: input_schema is a JSON Schema, not <class 'int'>; types"),
        ({"title": " "}, "fine.title is blank"),
        ({"name": "a b"}, "fine.name must be 1 to 128"),
    ],
)
def test_function_tool_attributes_are_checked(attributes: Any, message: str) -> None:
    """The error for an invalid attribute has the function's name."""

    def fine() -> None: ...

    with pytest.raises(ConfigurationError, match=re.escape(message)):
        tool(**attributes)(fine)


def test_function_tool_blank_docstring_is_none() -> None:
    """An empty docstring is not a description."""

    @tool
    def silent() -> None:
        """ """

    assert None is definition(silent).description


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    async def buy(self, item: str) -> str:
        """Buys."""
        return f"{item} of {self.name}"

    @classmethod
    @tool(name="count_shops")
    def count(cls, start: int) -> str:
        return f"{start} {cls.__name__}"

    @staticmethod
    @tool
    def hours() -> str:
        return "9 to 5"


async def test_function_tool_may_be_a_method() -> None:
    """The method of an instance is registered. Methods of two instances are two tools."""
    shop = Shop("Ann's")

    assert (await call(shop.buy, item="nuts")).content[0].text == "nuts of Ann's"  # type: ignore[union-attr]
    assert (await call(Shop.count, start=1)).content[0].text == "1 Shop"  # type: ignore[union-attr]
    assert (await call(Shop.hours)).content[0].text == "9 to 5"  # type: ignore[union-attr]
    assert list(definition(shop.buy).input_schema["properties"]) == ["item"]
    with pytest.raises(ConfigurationError, match=r"Shop\.buy is a method: give that of an inst"):
        suite(Shop.buy)


async def test_function_tool_may_be_a_closure() -> None:
    """A nested function keeps its variables."""

    def make(word: str) -> Any:
        @tool(name=word)
        def say() -> str:
            return word

        return say

    async with connect(suite(make("one"), make("two"))) as client:
        blocks = [(await client.call(name)).content[0] for name in ("one", "two")]

    assert [block.text for block in blocks] == ["one", "two"]  # type: ignore[union-attr]


async def test_function_tool_under_another_decorator_runs_decorated() -> None:
    """The registered object runs, even if it is a wrapper around the function."""

    def shouting(function: Any) -> Any:
        @functools.wraps(function)
        def shout(*args: Any, **kwargs: Any) -> Any:
            async def wait() -> str:
                result: str = (await function(*args, **kwargs)).upper()
                return result

            return wait()

        return shout

    @shouting
    @tool(title="Say")
    async def say(word: str) -> str:
        return word

    assert definition(say).title == "Say"
    assert (await call(say, word="hi")).content[0].text == "HI"  # type: ignore[union-attr]


def test_function_that_is_not_decorated_is_no_tool() -> None:
    """The error lists the accepted values."""

    def plain() -> None: ...

    with pytest.raises(ConfigurationError, match="is not a tool: give a Tool class, an instance"):
        suite(plain)


def test_function_tool_channel_must_be_annotated() -> None:
    """A `channel` without annotation would become an argument of the model."""
    with pytest.raises(ConfigurationError, match="annotate channel as Channel"):

        @tool
        def count(channel) -> None: ...  # type: ignore[no-untyped-def]


def test_function_tool_parameter_may_be_described_by_a_text() -> None:
    """`Annotated[int, "a text"]` makes the text the description of the parameter."""

    @tool
    def add(a: Annotated[int, "What to add."]) -> int:
        return a

    assert definition(add).input_schema["properties"]["a"]["description"] == "What to add."


def test_function_tool_rejects_an_unknown_constraint() -> None:
    """A constraint that neither msgspec nor pydantic understands is rejected."""
    with pytest.raises(ConfigurationError, match=r"add: parameter a: 3 would be ignored"):

        @tool
        def add(a: Annotated[int, 3]) -> int:
            return a


@pytest.mark.parametrize(
    ("options", "kind", "hooks", "signature"),
    [
        (ToolOptions, Tool, {"visible", "on_cancel"}, set()),
        (PromptOptions, Prompt, {"visible", "complete"}, {"arguments"}),
        (ResourceOptions, ResourceRepo, {"visible", "list", "complete"}, {"prefix", "template"}),
    ],
)
def test_decorator_takes_every_option_of_the_class(
    options: type, kind: type, hooks: set[str], signature: set[str]
) -> None:
    """Except those that the signature defines. Hooks without `self` are options, too."""
    assert set(options.__annotations__) == {*attributes_of(kind), *hooks} - signature


async def test_second_tool_of_a_function_is_another_one() -> None:
    """The first one stays as it is; the other has its steps and options, such as scopes."""

    @tool(scopes=["parts"], title="Part")
    async def part(number: str, *, count: int = 2) -> Continue:
        """Finds a part."""
        return elicit("Sure?", {"type": "object", "properties": {}}).then(found)

    @part.step
    async def found(answer: dict[str, Any], number: str, count: int) -> str:
        return f"{count} {number}"

    kb_part = tool(name="kb_part")(part)

    assert [definition(each).name for each in (part, kb_part)] == ["part", "kb_part"]
    routes = [ToolRoute.of(function_component(FunctionTool, each)) for each in (part, kb_part)]
    assert [(each.definition.title, *each.scopes) for each in routes] == [("Part", "parts")] * 2
    access = Access(subject="ann", scopes=frozenset({"parts"}))
    served = suite(part, kb_part)
    async with connect(served, handler=AcceptingHandler(), access=access) as client:
        for name in ("part", "kb_part"):
            assert (await client.call(name, {"number": "M6"})).text == "2 M6"


async def test_docstring_describes_the_parameters() -> None:
    """Google style: the section leaves the description, and annotations take precedence."""

    @tool
    async def book(
        room: str,
        nights: Annotated[int, msgspec.Meta(ge=1)] = 1,
        *,
        guest: Annotated[str, "Who stays."] = "",
        price: Annotated[float, Field(ge=0)] = 0.0,
        tags: list[str] = Field(default_factory=list, description="Free words."),  # noqa: B008
        channel: Channel,
    ) -> str:
        """Books a room.

        Takes a moment.

        Args:
            room (str): the number of the room,
                or its name: "blue".

            nights: how many
            guest (str, optional): not this one
            price (dict[str, int]): at most
            tags: nor this one
            channel: is no argument

        Returns:
            the number of the booking
        """
        return room

    listed = definition(book)

    assert listed.description == (
        "Books a room.\n\nTakes a moment.\n\nReturns:\n    the number of the booking"
    )
    texts = {name: each["description"] for name, each in listed.input_schema["properties"].items()}
    assert texts == {
        "room": 'the number of the room, or its name: "blue".',
        "nights": "how many",
        "guest": "Who stays.",
        "price": "at most",
        "tags": "Free words.",
    }
    assert listed.input_schema["properties"]["nights"]["minimum"] == 1


@pytest.mark.parametrize(
    "section",
    [
        "Args:\n    room: the room\n    nights: is none",
        "Args:\n    The room, as people call it.",
        "Args: room, the room",
    ],
)
def test_docstring_with_other_arguments_stays_as_it_is(section: str) -> None:
    """A section that is not about the parameters may be of use to the model."""

    def book(room: str) -> str:
        return room

    book.__doc__ = f"Books a room.\n\n{section}"
    listed = definition(tool(book))

    assert listed.description == book.__doc__
    assert "description" not in listed.input_schema["properties"]["room"]


def test_docstring_may_have_arguments_alone() -> None:
    """The description of an option takes the place of the rest."""

    def book(room: str) -> str:
        return room

    book.__doc__ = """
    Args:
        room: the room
    """
    assert definition(tool(book)).description is None
    assert definition(tool(description="Books a room.")(book)).description == "Books a room."
