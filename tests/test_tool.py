"""Tools: the attributes of a class, its hooks, and the conversion of results."""

import asyncio
import functools
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Optional, TypedDict, TypeVar, Union

import msgspec
import pydantic
import pytest

from genmcp import (
    Channel,
    ConfigurationError,
    Continue,
    InvalidParams,
    McpError,
    Outcome,
    ServerError,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    wait_for,
)
from genmcp.core.request import Request
from genmcp.errors import ContractError
from genmcp.protocol.capabilities import Icon
from genmcp.protocol.tools import ToolAnnotations, ToolDefinition
from genmcp.testing import connect
from genmcp.tools import ToolRoute
from tests.support.speaking import VERSIONS, speak

T = TypeVar("T")
U = TypeVar("U")


class Pair(msgspec.Struct):
    """Two numbers."""

    a: int
    b: int = 2


async def echo(self: Any, request: ToolRequest[Any], channel: Channel) -> Any:
    """The `call` hook of most tools in this file."""
    return {"got": request.arguments}


class Echo(Tool):
    """Says it again."""

    name = "echo"
    call = echo


def suite(*tools: Any) -> Suite:
    return Suite(name="test", version="1", tools=tools)


def definition(tool: Tool[Any]) -> ToolDefinition:
    return ToolRoute.of(tool).definition


def declare(**attributes: Any) -> type[Tool]:
    """Return a tool class named Odd."""
    return type("Odd", (Echo,), attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": ""}, "Odd.name is blank"),
        ({"name": " \t"}, "Odd.name is blank"),
        ({"name": "two words"}, "Odd.name must be 1 to 128 letters"),
        ({"name": "naïve"}, "Odd.name must be 1 to 128 letters"),
        ({"name": "a" * 129}, "Odd.name must be 1 to 128 letters"),
        ({"name": 5}, "Odd.name must be a text, not 5"),
        ({"title": ""}, "Odd.title is blank"),
        ({"title": 5}, "Odd.title must be a text, not 5"),
        ({"description": "  "}, "Odd.description is blank"),
        ({"description": ["x"]}, "Odd.description must be a text, not ['x']"),
        ({"annotations": True}, "Odd.annotations must be ToolAnnotations or a mapping"),
        ({"annotations": {"readonlyHint": True}}, "Odd.annotations: 'readonlyHint' is not one of"),
        ({"annotations": {"readOnlyHint": "no"}}, "Odd.annotations: Expected `bool | null`"),
        ({"icons": "icon.png"}, "Odd.icons must be a list of Icon, not 'icon.png'"),
        ({"icons": [{"src": "x"}]}, "Odd.icons must be a list of Icon, not of {'src': 'x'}"),
        ({"meta": "x"}, "Odd.meta must be a mapping, not 'x'"),
        ({"formats": "uri"}, "Odd.formats must be True, False or a mapping"),
        ({"on_disconnect": "wait"}, "Odd.on_disconnect must be 'finish' or 'cancel', not 'wait'"),
        ({"input_schema": {"type": "array"}}, "Odd: input_schema: arguments are an object"),
        ({"input_schema": {"type": "object", "minProperties": "x"}}, "Odd: input_schema"),
        ({"input_schema": 5}, "Odd: input_schema: expected a type or a JSON Schema, not 5"),
        ({"output_schema": {"type": "objekt"}}, "Odd: output_schema"),
    ],
)
def test_tool_is_refused_when_its_class_is_made(attributes: dict[str, Any], message: str) -> None:
    """An invalid attribute is an error of the class statement, with the class and the attribute."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        declare(**attributes)


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 128])
def test_tool_may_have_any_name_of_the_specification(name: str) -> None:
    """2026-07-28, server/tools, "Tool Names": letters, digits, `_`, `-`, `.`; 1 to 128."""
    assert name == definition(declare(name=name)()).name


def test_tool_without_name_or_call_is_rejected_on_registration() -> None:
    """An intermediate class may leave both to its subclasses; a registered tool needs them."""

    class Nameless(Tool):
        title = "Nameless"

    class Idle(Nameless):
        name = "idle"

    with pytest.raises(ConfigurationError, match=r"^Nameless has no name$"):
        suite(Nameless)
    with pytest.raises(ConfigurationError, match=r"^Idle has no call$"):
        suite(Idle)


def test_tool_in_between_is_checked_too() -> None:
    """A blank title is rejected in the abstract class itself, not in its subclass."""
    with pytest.raises(ConfigurationError, match=r"^Between\.title is blank$"):

        class Between(Tool):
            title = " "


async def test_tool_attributes_are_listed() -> None:
    """Each attribute is a member of the listed definition."""

    class Full(Echo):
        """Does it all."""

        name = "full"
        title = "Full"
        annotations = ToolAnnotations(read_only_hint=True)
        icons = [Icon("https://example.com/i.png", sizes=["48x48"])]
        meta = {"com.example/cost": 3}
        input_schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        output_schema = {"type": "object"}

    async with speak(suite(Full)) as client:
        (tool,) = (await client.request("tools/list", {})).result["tools"]

    assert tool == {
        "name": "full",
        "title": "Full",
        "description": "Does it all.",
        "annotations": {"readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png", "sizes": ["48x48"]}],
        "_meta": {"com.example/cost": 3},
        "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "outputSchema": {"type": "object"},
    }


async def test_tool_without_attributes_lists_few_members() -> None:
    """None is left out of the listing; a tool without a schema accepts any arguments."""

    class Plain(Tool):
        name = "plain"

        async def call(self, request: ToolRequest, channel: Channel) -> None: ...

    async with speak(suite(Plain)) as client:
        (tool,) = (await client.request("tools/list", {})).result["tools"]

    assert tool == {"name": "plain", "inputSchema": {"type": "object", "properties": {}}}


def test_tool_description_is_its_docstring() -> None:
    """Without its indentation. The `description` or docstring of the nearest class is used."""

    class Long(Echo):
        """Says it.

        And again.
        """

    class Given(Echo):
        """For programmers."""

        description = "For models."

    class Heir(Given):
        pass

    class Newer(Given):
        """Returns another text."""

    assert definition(Long()).description == "Says it.\n\nAnd again."
    assert definition(Given()).description == "For models."
    assert definition(Heir()).description == "For models."
    assert definition(Newer()).description == "Returns another text."


def test_tool_annotations_may_be_a_mapping() -> None:
    """A mapping with the names of the specification is the same as the struct."""
    given = declare(annotations={"readOnlyHint": True, "title": "Reads"})()

    expected = ToolAnnotations(read_only_hint=True, title="Reads")
    assert expected == definition(given).annotations


def test_tool_attributes_may_be_properties() -> None:
    """A property is read and checked when the tool is registered."""

    class Named(Echo):
        def __init__(self, city: str) -> None:
            self.city = city

        @property
        def name(self) -> str:  # type: ignore[override]
            return f"weather_{self.city}"

        @property
        def description(self) -> str:  # type: ignore[override]
            return f"Tells the weather of {self.city}."

        @property
        def input_schema(self) -> Mapping[str, Any]:  # type: ignore[override]
            return {"type": "object", "title": self.city}

    made = definition(Named("oslo"))

    assert (made.name, made.description) == ("weather_oslo", "Tells the weather of oslo.")
    assert made.input_schema["title"] == "oslo"
    with pytest.raises(ConfigurationError, match=r"^Named\.name must be 1 to 128 letters"):
        definition(Named("são paulo"))


async def test_tool_class_may_be_mounted_twice() -> None:
    """Attributes of an instance override those of the class, for this instance only."""

    class Greet(Tool):
        """Greets."""

        def __init__(self, name: str, word: str) -> None:
            self.name = name
            self.title = word
            self.word = word

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            return self.word

    async with connect(suite(Greet("hello", "Hello"), Greet("bye", "Goodbye"))) as client:
        listed = [(tool.name, tool.title) for tool in await client.tools()]
        blocks = [(await client.call(name)).content[0] for name, _ in listed]

    assert listed == [("hello", "Hello"), ("bye", "Goodbye")]
    assert [block.text for block in blocks] == ["Hello", "Goodbye"]  # type: ignore[union-attr]


def test_tool_instance_is_checked_as_its_class_is() -> None:
    """An invalid attribute of an instance is rejected when it is registered."""
    tool = Echo()
    tool.title = " "

    with pytest.raises(ConfigurationError, match=r"^Echo\.title is blank$"):
        suite(tool)


def test_tool_that_cannot_be_listed_is_refused() -> None:
    """Metadata must be JSON at every depth."""
    with pytest.raises(ConfigurationError, match=r"^Odd cannot be listed: .*object"):
        suite(declare(meta={"a": object()}))
    with pytest.raises(ConfigurationError, match=r"^Odd cannot be listed: .*readOnlyHint"):
        suite(declare(annotations=ToolAnnotations(read_only_hint="x")))  # type: ignore[arg-type]


async def test_tool_listing_is_a_copy_of_the_attributes() -> None:
    """Attributes are copied: changing a dict afterwards does not change the tool that is served."""
    meta = {"a": 1}
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    served = suite(declare(meta=meta, input_schema=schema))
    meta["a"] = 2
    schema["properties"]["b"] = {"type": "string"}

    async with connect(served) as client:
        (tool,) = await client.tools()
        result = await client.call("echo", {"b": 5})

    assert (tool.meta, tool.input_schema["properties"]) == ({"a": 1}, {})
    assert result.structured_content == {"got": {"b": 5}}


async def test_tool_may_have_attributes_of_its_own() -> None:
    """Attributes unknown to `Tool` are ignored."""

    class Own(Echo):
        instructions = ["not", "a suite's"]

        def __init__(self) -> None:
            self.website_url = 5

    assert definition(Own()).name == "echo"


def test_tool_that_yields_is_refused() -> None:
    """A hook returns one result. It reports progress through the channel."""

    class Stream(Tool):
        name = "stream"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            yield 1

    with pytest.raises(ConfigurationError, match="Stream yields; return one result"):
        suite(Stream)


# Calls that continue in `continue_`.


def returning(hint: Any) -> Any:
    """Return a `call` hook that is annotated to return *hint*."""

    async def call(self: Any, request: "Nowhere", channel: Channel) -> Any:  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    call.__annotations__["return"] = hint
    return call


WAITING = [
    Continue,
    str | Continue,
    Optional[Continue],  # noqa: UP045  # as it may be written
    Union[str, "Continue"],
    Annotated[Continue, "waits"],
    Awaitable[str | Continue],
    "Continue",
    "str | Continue | None",
]


@pytest.mark.parametrize("hint", WAITING)
def test_tool_annotated_to_wait_is_refused_without_a_continue_(hint: Any) -> None:
    """However the annotation is spelt, the class is rejected when it is made."""
    with pytest.raises(
        ConfigurationError,
        match=r"^Odd\.call is annotated to return Continue, but it has no continue_",
    ):
        declare(call=returning(hint))


@pytest.mark.parametrize("hint", WAITING)
def test_tool_annotated_to_wait_may_inherit_its_continue_(hint: Any) -> None:
    """The class itself may define it, or an intermediate class."""

    async def continue_(self: Any, tag: str, outcome: Outcome, channel: Channel) -> str:
        return tag

    between = declare(continue_=continue_)

    assert issubclass(type("Odd", (between,), {"call": returning(hint)}), Tool)


@pytest.mark.parametrize(
    "call",
    [
        returning("str | Continue | Nowhere"),
        returning("not a type"),
        returning("str"),
        functools.partial(returning(Continue)),
    ],
)
def test_tool_annotation_that_cannot_be_read_is_ignored(call: Any) -> None:
    """A name that exists only for type checkers does not make a class invalid."""
    assert issubclass(declare(call=call), Tool)


async def test_tool_that_waits_without_continue_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A Continue without a `continue_` fails that call; its awaitable never starts."""
    waited: list[Any] = []

    class Waits(Tool):
        name = "wait"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            waited.append(echo(self, request, channel))
            return Continue("never", waited[-1])

    async with connect(suite(Waits)) as client:
        with pytest.raises(ServerError, match="Internal error") as caught:
            await client.call("wait")

    assert caught.value.code == -32603
    assert "Waits.call (tool 'wait') returned Continue: it has no continue_: write" in caplog.text
    assert inspect.getcoroutinestate(waited[0]) == inspect.CORO_CLOSED


@pytest.mark.parametrize("validates", [False, True])
async def test_hooks_get_the_request_of_the_channel(validates: bool) -> None:
    """Each hook of a call gets `channel.request`, with the same arguments."""
    requests: list[Request] = []

    class Waits(Tool):
        name = "wait"

        async def call(self, request: ToolRequest, channel: Channel) -> Continue:
            requests.extend([request, channel.request])
            return wait_for(asyncio.sleep(0)).then(self.woken)

        async def woken(self, request: ToolRequest, value: Any, channel: Channel) -> Continue:
            requests.extend([request, channel.request])
            return Continue("echoed", asyncio.sleep(0))

        async def continue_(
            self, tag: str, outcome: Outcome, channel: Channel[ToolRequest]
        ) -> list[Any]:
            requests.append(channel.request)
            return [channel.request.name, channel.request.arguments["a"]]

    if validates:
        Waits.validate = lambda self, request, channel: request.replace({"a": 2})  # type: ignore[method-assign]
    async with connect(suite(Waits)) as client:
        answer = await client.call("wait", {"a": 1})

    assert json.loads(answer.content[0].text) == ["wait", 2 if validates else 1]  # type: ignore[union-attr]
    assert len(requests) == 5
    assert all(each is requests[0] for each in requests)


async def test_continue_that_returns_none_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A `match` without a matching case is an error that names the tag, not an empty success."""

    class Waits(Tool):
        name = "wait"

        async def call(self, request: ToolRequest, channel: Channel) -> Continue:
            return Continue("echoed", echo(self, request, channel))

        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> None: ...

    async with connect(suite(Waits)) as client:
        with pytest.raises(ServerError, match="Internal error"):
            await client.call("wait")

    assert (
        "Waits.continue_ (tool 'wait') returned None for tag 'echoed' and Done: "
        "add a case for them, or return [] for an empty result"
    ) in caplog.text


# Arguments as a type of the tool.


@dataclass
class PairData:
    a: int
    b: int = 2


class PairDict(TypedDict):
    a: int


class PairModel(pydantic.BaseModel):
    a: int
    b: int = 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Pair, Pair(1)),
        (PairData, PairData(1)),
        (PairModel, PairModel(a=1)),
        (PairDict, {"a": 1}),
        (dict[str, int], {"a": 1}),
        (dict, {"a": 1}),
        (dict[str, Any], {"a": 1}),
    ],
)
async def test_tool_arguments_arrive_as_its_type(kind: Any, expected: Any) -> None:
    """`call` gets an instance of T of `Tool[T]`."""
    got = []

    class Take(Tool[kind]):
        name = "take"

        async def call(self, request: ToolRequest[Any], channel: Channel) -> None:
            got.append(request.arguments)

    async with connect(suite(Take)) as client:
        await client.call("take", {"a": 1})

    assert [expected] == got
    assert type(expected) is type(got[0])


def test_tool_subclass_keeps_the_arguments() -> None:
    """A subclass of Tool[A] gets an A, unless it declares another type."""

    class First(Tool[Pair]):
        name = "first"
        call = echo

    class Second(First):
        name = "second"

    class Third(First):
        name = "third"
        input_schema = {"type": "object", "title": "Third"}

    class Fourth(Third):
        name = "fourth"

    assert Pair is Second.input_schema
    assert definition(Fourth()).input_schema["title"] == "Third"


def test_tool_between_may_be_generic() -> None:
    """An intermediate generic class passes the argument type on, among other type parameters."""

    class Page(msgspec.Struct, Generic[T]):
        items: list[T]

    class Through(Tool[T], Generic[T]):
        call = echo

    class Swapped(Through[U], Generic[T, U]):
        pass

    class Paged(Tool[Page[T]], Generic[T]):
        call = echo

    class Closed(Through[Pair], Generic[T]):
        pass

    class Other(Generic[T]):
        pass

    class A(Other[int], Through[Pair]):
        name = "a"

    class B(Swapped[str, Pair]):
        name = "b"

    class C(Paged[int]):
        name = "c"

    class D(Closed[int]):
        name = "d"

    class E(Through):  # type: ignore[type-arg]
        name = "e"

    assert [Pair, Pair, Page[int], Pair, None] == [kind.input_schema for kind in (A, B, C, D, E)]


def test_tool_argument_must_be_one_object_type() -> None:
    """A type that is not an object, an unresolved name, and two types are rejected."""
    with pytest.raises(ConfigurationError, match=r"Numbers: .*is not read from a JSON object"):

        class Numbers(Tool[list[int]]): ...

    with pytest.raises(ConfigurationError, match=r"Late: give Tool\[\.\.\.\] the type itself"):

        class Late(Tool["Pair"]): ...

    with pytest.raises(ConfigurationError, match="Twice: its arguments are described twice"):

        class Twice(Tool[Pair]):
            input_schema = {"type": "object"}


def test_tool_typed_dict_may_have_a_schema_of_its_own() -> None:
    """A TypedDict is a dict at runtime, so it can type the arguments of a hand-written schema."""

    class Typed(Tool[PairDict]):
        name = "typed"
        input_schema = {"type": "object", "title": "Mine"}
        call = echo

    assert definition(Typed()).input_schema["title"] == "Mine"


async def test_tool_dict_arguments_get_the_schemas_defaults() -> None:
    """Defaults of the schema are filled in where the call has no value."""
    tool = declare(
        input_schema={
            "type": "object",
            "properties": {"limit": {"type": "integer", "default": 10}, "q": {"default": "x"}},
        }
    )

    async with connect(suite(tool)) as client:
        result = await client.call("echo", {"q": "y"})

    assert result.structured_content == {"got": {"limit": 10, "q": "y"}}


@pytest.mark.parametrize("version", VERSIONS)
async def test_tool_arguments_that_are_missing_are_empty(version: str) -> None:
    """A call without `arguments` is one with an empty object."""
    async with speak(suite(Echo), version) as client:
        answer = await client.call("echo")

    assert answer.text == '{"got":{}}'


@pytest.mark.parametrize("arguments", [[], "x", 5, True])
async def test_tool_arguments_that_are_no_object_are_malformed(arguments: Any) -> None:
    """The request is rejected with an error; there is no result."""
    async with speak(suite(Echo)) as client:
        answer = await client.call("echo", arguments)

    assert (answer.status, answer.error["code"]) == (400, -32602)
    assert "arguments must be an object" in answer.error["message"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_tool_arguments_that_do_not_fit_are_explained(version: str) -> None:
    """SEP-1303, in every revision: the faults are text for the model, and parts for programs."""

    class Add(Tool[Pair]):
        name = "add"
        call = echo

    async with speak(suite(Add), version) as client:
        answer = await client.call("add", {"b": "x"})

    faults = [
        '(root): missing required property "a"',
        "/b: expected an integer",
    ]
    assert answer.result["isError"]
    assert answer.text.startswith("Invalid arguments for tool add:\n- ")
    assert all(fault in answer.text for fault in faults)
    data = answer.result["_meta"]["io.genmcp/error"]
    assert (data["name"], [each["pointer"] for each in data["faults"]]) == ("add", ["", "/b"])


async def test_tool_explains_at_most_twenty_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are counted."""
    monkeypatch.setattr("genmcp._schema.explain.SECONDS", float("inf"))  # coverage is slow
    tool = declare(input_schema={"type": "object", "additionalProperties": {"type": "integer"}})

    async with speak(suite(tool)) as client:
        answer = await client.call("echo", {f"k{n}": "x" for n in range(30)})

    lines = answer.text.splitlines()[1:]
    assert sum("expected an integer" in line for line in lines) == 20
    assert "10 more" in lines[-1]


@pytest.mark.parametrize(
    ("formats", "day", "refused"),
    [
        (True, "soon", True),
        (False, "soon", False),
        ({"date": lambda text: text == "soon"}, "soon", False),
        ({"date": lambda text: text == "soon"}, "2026-07-28", True),
    ],
)
async def test_tool_decides_about_formats(formats: Any, day: str, refused: bool) -> None:
    """Formats are checked, unless the tool turns that off or brings its own checkers."""
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    tool = declare(input_schema=schema, formats=formats)

    async with connect(suite(tool)) as client:
        result = await client.call("echo", {"day": day})

    assert refused is bool(result.is_error)


async def test_result_format_is_not_checked() -> None:
    """The values of results are the server's own, and other servers send such values."""
    schema = {"type": "object", "properties": {"got": {"properties": {"day": {"format": "date"}}}}}

    async with speak(suite(declare(output_schema=schema))) as client:
        assert "result" in (await client.call("echo", {"day": "soon"})).message


async def test_tool_arguments_may_be_mirrored_in_headers() -> None:
    """2026-07-28, `x-mcp-header`: a call without the header is rejected."""
    region = {"type": "string", "x-mcp-header": "Region"}
    tool = declare(input_schema={"type": "object", "properties": {"region": region}})

    async with speak(suite(tool)) as client:
        answer = await client.call("echo", {"region": "north"})

    assert (answer.status, answer.error["code"]) == (400, -32020)


# validate


class Validating(Tool[Pair]):
    name = "validating"

    def __init__(self, hook: Callable[[ToolRequest[Pair]], Any]) -> None:
        self.hook = hook

    def validate(self, request: ToolRequest[Pair], channel: Channel) -> Any:
        return self.hook(request)

    async def call(self, request: ToolRequest[Pair], channel: Channel) -> str:
        return f"{request.id}: {request.arguments.a} {request.arguments.b}"


async def later(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "hook",
    [
        lambda request: request.replace(Pair(request.arguments.a * 10)),
        lambda request: later(request.replace(Pair(request.arguments.a * 10))),
    ],
)
async def test_tool_validate_may_rewrite_the_call(hook: Any) -> None:
    """`call` gets the request that `validate` returns. Both `def` and `async def` work."""
    async with speak(suite(Validating(hook))) as client:
        answer = await client.call("validating", {"a": 4})

    assert answer.text == "7: 40 2"


@pytest.mark.parametrize("version", VERSIONS)
async def test_tool_validate_may_refuse_the_call(version: str) -> None:
    """The message of its InvalidParams is a result for the model, like a fault of the schema."""

    def refuse(request: ToolRequest[Pair]) -> None:
        raise InvalidParams("a and b must differ", {"a": 2})

    async with speak(suite(Validating(refuse)), version) as client:
        answer = await client.call("validating", {"a": 2})

    expected = "Invalid arguments for tool validating:\n- a and b must differ"
    assert answer.status == 200
    assert answer.result["isError"]
    assert expected == answer.text
    assert answer.result["_meta"]["io.genmcp/error"] == {"a": 2}


@pytest.mark.parametrize("wrong", [None, {"a": 1}, Pair(1)])
async def test_tool_validate_must_return_the_call(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other value is -32603 with a reference; the log has its type."""
    async with speak(suite(Validating(lambda request: wrong))) as client:
        answer = await client.call("validating", {"a": 2})

    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert answer.error["data"]["reference"] in caplog.text
    expected = f"Validating.validate (tool 'validating') returned {type(wrong).__name__}: return"
    assert expected in caplog.text


async def test_tool_validate_has_a_default_to_call() -> None:
    """`super().validate()` accepts every call."""

    class Careful(Tool):
        name = "careful"

        def validate(self, request: ToolRequest, channel: Channel) -> Any:
            return super().validate(request, channel)

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return request.meta["com.example/a"]

    async with speak(suite(Careful)) as client:
        assert (await client.call("careful", **{"com.example/a": "here"})).text == "here"


async def test_tool_validate_gets_only_valid_arguments() -> None:
    """It is called only if the arguments match the schema."""
    validated: list[Any] = []

    async with connect(suite(Validating(validated.append))) as client:
        result = await client.call("validating", {"a": "x"})

    assert result.is_error
    assert validated == []


# Exceptions of a hook.


class Raising(Tool):
    name = "raising"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        raise self.error


class RaisingInThread(Raising):
    def call(self, request: ToolRequest, channel: Channel) -> Any:
        raise self.error


@pytest.mark.parametrize("version", VERSIONS)
async def test_tool_error_is_for_the_model(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """A ToolError is a result with its text, and is not logged."""
    async with speak(suite(Raising(ToolError("no such city"))), version) as client:
        answer = await client.call("raising")

    assert (answer.result["isError"], answer.text) == (True, "no such city")
    assert caplog.text == ""


@pytest.mark.parametrize("kind", [Raising, RaisingInThread])
@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), StopIteration()])
async def test_tool_exception_keeps_its_text_to_the_log(
    kind: type[Raising], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a reference, under which the log has the exception."""
    async with speak(suite(kind(error))) as client:
        answer = await client.call("raising")

    assert answer.result["isError"]
    assert "secret" not in answer.text
    reference = re.search(r"\(reference (\w+)\)", answer.text)
    assert reference is not None
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert reference[1] in record.getMessage()
    assert type(error).__name__ in caplog.text


async def test_tool_call_has_no_default() -> None:
    """`super().call()` is an error."""

    class Lost(Tool):
        name = "lost"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return super().call(request, channel)

    async with connect(suite(Lost)) as client:
        assert (await client.call("lost")).is_error


async def test_tool_mcp_error_is_sent_unchanged() -> None:
    """The response has its code, status, message and data."""
    error = McpError("Payment required", {"cost": 3}, code=-32042, status=402)

    async with speak(suite(Raising(error))) as client:
        answer = await client.call("raising")

    assert answer.status == 402
    assert answer.error == {"code": -32042, "message": "Payment required", "data": {"cost": 3}}


async def test_tool_invalid_params_from_call_are_an_error() -> None:
    """Raised by `call` instead of `validate`, it is an error response."""
    async with speak(suite(Raising(InvalidParams("the city is closed")))) as client:
        answer = await client.call("raising")

    assert (answer.error["code"], answer.error["message"]) == (-32602, "the city is closed")


@pytest.mark.parametrize(
    ("error", "code"), [(McpError("Sold out", code=-32050), -32050), (ContractError("x"), -32603)]
)
async def test_tool_error_after_progress_ends_the_stream(error: Exception, code: int) -> None:
    """If the response is already an event stream, the error is its last event."""

    class Late(Tool):
        name = "late"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            await channel.progress(1)
            raise error

    async with speak(suite(Late)) as client:
        answer = await client.call("late", progressToken=1)

    assert [each["method"] for each in answer.notifications] == ["notifications/progress"]
    assert (200, code) == (answer.status, answer.error["code"])


async def test_tool_failure_affects_one_request_only() -> None:
    """The next call is served."""
    async with speak(suite(Raising(ValueError()), Echo)) as client:
        assert (await client.call("raising")).result["isError"]
        assert (await client.call("echo")).text == '{"got":{}}'
