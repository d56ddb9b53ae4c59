"""Prompts: the attributes of a class, its arguments, and its return values."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, TypedDict

import msgspec
import pydantic
import pytest
from typing_extensions import TypeVar

from genmcp.channel import Channel
from genmcp.client.errors import ServerError
from genmcp.content import Image, assistant, embedded_resource, resource_link, result, user
from genmcp.core.request import ClientInfo, PromptRequest
from genmcp.errors import ConfigurationError, ContractError, InvalidParams
from genmcp.prompts.prompt import Prompt, PromptRoute
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import ImageContent, TextContent
from genmcp.protocol.prompts import (
    GetPromptRequestParams,
    GetPromptResult,
    PromptArgument,
    PromptMessage,
)
from genmcp.protocol.revisions.chain import LATEST
from genmcp.suite.suite import Suite
from genmcp.testing import connect
from tests.support.channels import at_once, channel_of

T = TypeVar("T")


async def get(
    prompt: Prompt[Any],
    arguments: Mapping[str, str] | None = None,
    threads: Callable[..., Any] = at_once,
) -> GetPromptResult:
    """Get a prompt as a suite does."""
    route = PromptRoute.of(prompt)
    params = GetPromptRequestParams(name=prompt.name, arguments=arguments)
    request = PromptRequest(
        id=1,
        method="prompts/get",
        params=params,
        raw=msgspec.Raw(b"{}"),
        revision=LATEST,
        client=ClientInfo(LATEST.version),
        route=route,
    )
    got = await route.handle(request, channel_of(request, threads=threads))
    assert isinstance(got, GetPromptResult)
    return got


def definition(prompt: Prompt[Any]) -> Any:
    return PromptRoute.of(prompt).definition


class Plain(Prompt):
    """Returns a greeting."""

    name = "plain"

    async def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> Any:
        return f"Hello {request.arguments}"


def returning(value: Any) -> Prompt[Any]:
    """Make a prompt that returns `value`."""

    async def got(self: Any, request: Any, channel: Channel) -> Any:
        return value

    made: Prompt[Any] = type("Odd", (Prompt,), {"name": "odd", "get": got})()
    return made


async def test_prompt_text_becomes_a_message_of_the_user() -> None:
    """A str is one user message, and a call without `arguments` works."""
    got = await get(Plain())

    assert got.messages == [PromptMessage("user", TextContent("Hello {}"))]


def test_prompt_attributes_are_listed() -> None:
    """Each attribute is a member of the definition; the docstring is the description."""

    class Full(Plain):
        """Does it all."""

        name = "a name with spaces"
        title = "Full"
        icons = [Icon("https://example.com/i.png")]
        meta = {"com.example/cost": 3}
        arguments = [PromptArgument("code", required=True)]

    assert msgspec.to_builtins(definition(Full())) == {
        "name": "a name with spaces",
        "title": "Full",
        "description": "Does it all.",
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"com.example/cost": 3},
        "arguments": [{"name": "code", "required": True}],
    }
    assert msgspec.to_builtins(definition(Plain())) == {
        "name": "plain",
        "description": "Returns a greeting.",
    }


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"name": ""}, "Odd.name is blank"),
        ({"name": 5}, "Odd.name must be a text, not 5"),
        ({"title": " "}, "Odd.title is blank"),
        ({"icons": "x"}, "Odd.icons must be a list of Icon"),
        ({"arguments": ["code"]}, "Odd: arguments: 'code' is not a PromptArgument"),
        ({"arguments": [PromptArgument("")]}, "Odd: arguments: each needs a name of its own"),
        (
            {"arguments": [PromptArgument("a"), PromptArgument("a")]},
            "Odd: arguments: each needs a name of its own, not 'a'",
        ),
        ({"arguments": 5}, "Odd: arguments: expected a type or a JSON Schema, not 5"),
        ({"arguments": list[int]}, "Odd: arguments: list[int] is not read from a JSON object"),
        ({"cache_ttl": -1}, "Odd.cache_ttl must be a number of seconds, not -1"),
        ({"cache_ttl": True}, "Odd.cache_ttl must be a number of seconds, not True"),
        ({"cache_ttl": float("inf")}, "Odd.cache_ttl must be a number of seconds, not inf"),
        ({"cache_scope": "shared"}, "Odd.cache_scope must be 'public' or 'private'"),
        ({"completions": ["a"]}, "Odd.completions must be lists of texts by argument"),
        ({"completions": {"a": "xyz"}}, "Odd.completions must be lists of texts by argument"),
        ({"completions": {"a": [1]}}, "Odd.completions must be lists of texts by argument"),
    ],
)
def test_prompt_class_is_checked_when_it_is_defined(attributes: dict[str, Any], error: str) -> None:
    """A wrong attribute is rejected when the class is made, with class and attribute."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        type("Odd", (Plain,), attributes)


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"get": Plain.get}, "Odd has no name"),
        ({"name": "odd"}, "Odd has no get"),
        ({"name": "odd", "get": lambda self, request, channel: (yield)}, "Odd.get yields"),
        (
            {"name": "odd", "get": Plain.get, "completions": {"a": ["b"]}},
            "Odd.completions: there is no argument 'a'",
        ),
        ({"name": "odd", "get": Plain.get, "meta": {"a": {1j}}}, "Odd cannot be listed"),
        ({"name": "odd", "get": Plain.get, "title": property(lambda self: 5)}, "Odd.title must be"),
    ],
)
def test_prompt_is_checked_at_registration(attributes: dict[str, Any], error: str) -> None:
    """A fault that only an instance can show is raised when it is registered."""
    with pytest.raises(ConfigurationError, match=re.escape(error)):
        PromptRoute.of(type("Odd", (Prompt,), attributes)())


class Language(Enum):
    PYTHON = "python"
    RUST = "rust"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Options(msgspec.Struct):
    """Types that are decoded from texts."""

    code: Annotated[str, msgspec.Meta(description="What to review.", title="The code")]
    language: Language = Language.PYTHON
    lines: int = 10
    ratio: float | None = None
    strict: bool = False
    tags: list[str] = []
    level: Level = Level.LOW
    note: str | int = ""
    flag: bool | int = 0
    style: Literal["", "short"] = "short"
    anything: Any = None


class Echo(Prompt[Options]):
    """Stores its arguments."""

    name = "echo"
    got: Options

    async def get(self, request: PromptRequest[Options], channel: Channel) -> str:
        self.got = request.arguments
        return "ok"


def test_prompt_lists_the_fields_of_its_type() -> None:
    """Names, titles, descriptions and whether they are required come from the type."""
    listed = definition(Echo()).arguments

    assert listed is not None
    assert listed[0] == PromptArgument("code", "The code", "What to review.", True)
    assert listed[1] == PromptArgument("language")
    assert [*Options.__struct_fields__] == [argument.name for argument in listed]


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"code": "1"}, "code", "1"),
        ({"code": ""}, "code", ""),
        ({"language": "rust"}, "language", Language.RUST),
        ({"lines": " 5 "}, "lines", 5),
        ({"lines": ""}, "lines", 10),
        ({"ratio": "0.5"}, "ratio", 0.5),
        ({"ratio": "null"}, "ratio", None),
        ({"strict": "True"}, "strict", True),
        ({"strict": "1"}, "strict", True),
        ({"strict": "off"}, "strict", False),
        ({"tags": '["a", "b"]'}, "tags", ["a", "b"]),
        ({"level": "2"}, "level", Level.HIGH),
        ({"note": "5"}, "note", "5"),
        ({"flag": "1"}, "flag", 1),
        ({"flag": "yes"}, "flag", True),
        ({"style": ""}, "style", ""),
        ({"anything": "[1]"}, "anything", "[1]"),
        ({"unknown": "x"}, "lines", 10),
    ],
)
async def test_texts_are_decoded_to_the_type_of_a_prompt(
    given: dict[str, str], field: str, value: Any
) -> None:
    """A text is decoded to the type of the field; where that is a text, it is unchanged."""
    prompt = Echo()
    await get(prompt, {"code": "x", **given})

    assert value == getattr(prompt.got, field)
    assert type(value) is type(getattr(prompt.got, field))


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        ({}, ["/code: missing, and required"]),
        ({"code": "x", "lines": "three"}, ['/lines: expected an integer, got the string "three"']),
        (
            {"code": "x", "language": "perl"},
            ['/language: expected "python" or "rust"; got the string "perl"'],
        ),
        ({"code": "x", "strict": "perhaps"}, ["/strict: expected a boolean, got the string"]),
        ({"code": "x", "tags": "a, b"}, ["/tags: expected an array, got the string"]),
        (
            {"code": "x", "lines": "1", "tags": "[1]", "level": "9"},
            ["/tags/0: expected a string, got the number 1", "/level: expected 1 or 2"],
        ),
    ],
)
async def test_fault_names_the_argument_of_a_prompt(
    given: dict[str, str], faults: list[str]
) -> None:
    """A missing or unreadable argument is -32602, each fault naming its argument."""
    with pytest.raises(InvalidParams, match=r"^Invalid arguments for prompt echo:\n- ") as caught:
        await get(Echo(), given)

    assert caught.value.code == -32602
    assert caught.value.data["name"] == "echo"
    found = [f"{each['pointer']}: {each['message']}" for each in caught.value.data["faults"]]
    for fault, came in zip(sorted(faults), sorted(found), strict=True):
        assert came.startswith(fault)


async def test_prompt_with_listed_arguments_gets_texts() -> None:
    """Without a type the arguments are a dict of texts."""

    class Listed(Plain):
        arguments = [PromptArgument("a", required=True), PromptArgument("b")]

    assert text(await get(Listed(), {"a": "1"})) == "Hello {'a': '1'}"
    with pytest.raises(InvalidParams, match="/a: missing, and required"):
        await get(Listed(), {"b": "1"})


def text(got: GetPromptResult) -> str:
    (message,) = got.messages
    assert isinstance(message.content, TextContent)
    return message.content.text


@dataclass
class Point:
    x: int


class Row(TypedDict, total=False):
    x: int


class Model(pydantic.BaseModel):
    x: int
    a_word: Literal["q"] = pydantic.Field("q", alias="aWord", title="Word", description="one")


@pytest.mark.parametrize(
    ("kind", "got"), [(Point, Point(1)), (Row, {"x": 1}), (Model, Model.model_validate({"x": 1}))]
)
async def test_prompt_accepts_every_type_of_a_tool(kind: type, got: Any) -> None:
    """Dataclasses, TypedDicts and pydantic models do as well as structs."""
    kept: list[Any] = []

    class Keeps(Plain):
        arguments = kind

        async def get(self, request: PromptRequest[Any], channel: Channel) -> str:
            kept.append(request.arguments)
            return ""

    await get(Keeps(), {"x": "1"})

    assert [got] == kept


def test_prompt_lists_a_pydantic_model_without_made_up_titles() -> None:
    """Pydantic makes a title of each name; only explicit ones are listed."""
    prompt = type("Odd", (Plain,), {"arguments": Model})()

    assert definition(prompt).arguments == [
        PromptArgument("x", required=True),
        PromptArgument("aWord", title="Word", description="one"),
    ]


def test_prompt_type_may_come_through_a_generic_class() -> None:
    """`Prompt[T]` may be inherited through a class or a container."""

    class Between(Prompt[T], Generic[T]):
        """Leaves it open."""

    class Wrapped(msgspec.Struct, Generic[T]):
        value: T

    class Nested(Prompt[Wrapped[T]], Generic[T]):
        """Leaves it open within."""

    class Narrow(Between[Point]):
        """Returns a text."""

    class Deep(Nested[int]):
        """Returns a text, too."""

    class AnyDict(Prompt[dict[str, str]]):
        """No type at all."""

    class Other(Narrow, Generic[T]):
        """Returns an earlier text."""

    assert None is Between.arguments
    assert Point is Narrow.arguments
    assert Wrapped[int] == Deep.arguments
    assert None is AnyDict.arguments
    assert Point is Other.arguments


def test_prompt_type_is_given_once_and_not_by_name() -> None:
    """Two descriptions are rejected, and so is the name of a type."""
    with pytest.raises(ConfigurationError, match=r"Twice: its arguments are described twice"):

        class Twice(Prompt[Point]):
            arguments = [PromptArgument("x")]

    with pytest.raises(ConfigurationError, match=r"Named: give Prompt\[...\] the type itself"):

        class Named(Prompt["Point"]):
            """Not resolved."""


async def test_prompt_def_runs_in_a_thread() -> None:
    """A `def get` may block; its awaitable result is awaited."""

    class Blocking(Plain):
        def get(self, request: PromptRequest[dict[str, str]], channel: Channel) -> Any:
            return Plain.get(self, request, channel)

    ran: list[Callable[..., Any]] = []

    async def thread(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        ran.append(function)
        return function(*arguments)

    prompt = Blocking()

    assert text(await get(prompt, threads=thread)) == "Hello {}"
    assert [prompt.get] == ran


IMAGE = ImageContent("eA==", "image/png")


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        (Image(b"x"), [PromptMessage("user", IMAGE)]),
        ((b"x", "image/png"), [PromptMessage("user", IMAGE)]),
        (resource_link("a://b", "b"), [PromptMessage("user", resource_link("a://b", "b"))]),
        (assistant("yes"), [PromptMessage("assistant", TextContent("yes"))]),
        (assistant(Image(b"x")), [PromptMessage("assistant", IMAGE)]),
        (
            ["a", embedded_resource("a://b", "c"), user("d"), (b"x", "image/png")],
            [
                PromptMessage("user", TextContent("a")),
                PromptMessage("user", embedded_resource("a://b", "c")),
                PromptMessage("user", TextContent("d")),
                PromptMessage("user", IMAGE),
            ],
        ),
        (("a", assistant("b")), [user("a"), assistant("b")]),
        ([], []),
    ],
)
async def test_prompt_return_values_become_messages(value: Any, messages: list[Any]) -> None:
    """Texts and content belong to the user; messages are unchanged."""
    assert messages == (await get(returning(value))).messages


async def test_prompt_result_is_unchanged() -> None:
    """A GetPromptResult may have a description, and no message."""
    given = GetPromptResult(messages=[], description="Empty.")

    assert given is await get(returning(given))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "returned NoneType is no message"),
        ({"role": "user", "content": "x"}, "returned dict is no message"),
        (5, "returned int is no message"),
        (result("x"), "returned CallToolResult is no message"),
        ([["a"]], "returned list is no message"),
        (((b"x", "image/png"), (1, 2)), "is not content"),
        ((b"x", "text/plain"), "is neither image nor audio"),
    ],
)
async def test_value_that_is_no_message_is_an_error(value: Any, error: str) -> None:
    """A forgotten `return`, or data, is a defect of the prompt, and names it."""
    with pytest.raises(ContractError, match=re.escape(error)) as caught:
        await get(returning(value))

    assert str(caught.value).startswith("Odd.get (prompt 'odd') returned ")


def test_message_has_one_content() -> None:
    """Several contents are several messages."""
    with pytest.raises(ContractError, match="a message has one content, not 2"):
        assistant((Image(b"x"), Image(b"y")))


class Letters(msgspec.Struct):
    language: Literal["English", "French"] = "English"


async def test_invalid_choice_is_described_as_text() -> None:
    """An invalid choice is described as a string, also if it looks like a number."""

    class Letter(Prompt[Letters]):
        name = "letter"

        def get(self, request: PromptRequest[Letters], channel: Channel) -> str:
            return request.arguments.language

    async with connect(Suite(name="test", version="1", prompts=[Letter])) as client:
        with pytest.raises(ServerError, match='got the string "1"'):
            await client.prompt("letter", {"language": "1"})
