"""Results: how the return values of hooks are sent in each revision."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from genmcp import (
    Audio,
    Channel,
    Continue,
    Done,
    ExternalJob,
    Failed,
    Image,
    Run,
    Suite,
    Tool,
    ToolRequest,
    WorkerLost,
    elicit,
    embedded_resource,
    job,
    resource_link,
    result,
    tool,
    user,
)
from genmcp.content import contents_of, to_result
from genmcp.errors import ContractError
from genmcp.protocol.client_features import InputRequiredResult
from genmcp.protocol.content import Annotations, TextContent
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.tools import CallToolResult, ListToolsResult, ToolDefinition
from genmcp.testing import connect
from tests.support.asgi import MODERN
from tests.support.speaking import VERSIONS, Answer, speak

OBJECTS = ["2025-06-18", "2025-11-25"]
"""The revisions whose structured content is an object."""


class Order(msgspec.Struct):
    id: int
    day: date = date(2026, 7, 28)


@dataclass
class OrderData:
    id: int


class OrderModel(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId")


async def returned(value: Any, version: str = MODERN, schema: Any = None) -> Answer:
    """Return the result that a client gets from a tool that returns this value."""

    class Give(Tool):
        name = "give"
        output_schema = schema

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return value() if isinstance(value, Callable) else value  # type: ignore[arg-type]

    async with speak(Suite(name="test", version="1", tools=[Give]), version) as client:
        return await client.call("give")


def texts(answer: Answer) -> list[str]:
    return [block["text"] for block in answer.result["content"]]


@pytest.mark.parametrize("version", VERSIONS)
async def test_content_of_a_text_is_a_text_block(version: str) -> None:
    """A str is one text block, and never structured content."""
    answer = await returned("hello", version)

    assert answer.result["content"] == [{"type": "text", "text": "hello"}]
    assert not {"structuredContent", "isError"} & answer.result.keys()


@pytest.mark.parametrize("version", VERSIONS)
async def test_content_of_none_is_empty(version: str) -> None:
    """None is a success without content."""
    answer = await returned(None, version)

    assert answer.result["content"] == []
    assert not {"structuredContent", "isError"} & answer.result.keys()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": 1}, {"id": 1}),
        (Order(1), {"id": 1, "day": "2026-07-28"}),
        (OrderData(1), {"id": 1}),
        (OrderModel(orderId=1), {"orderId": 1}),
        (UserDict(id=1), {"id": 1}),
        (
            {"orders": [Order(1), OrderModel(orderId=2)]},
            {"orders": [{"id": 1, "day": "2026-07-28"}, {"orderId": 2}]},
        ),
    ],
)
async def test_content_of_an_object_is_structured(value: Any, expected: Any, version: str) -> None:
    """An object is structured content from 2025-06-18 on, and also JSON text."""
    answer = await returned(value, version)

    assert expected == msgspec.json.decode(answer.text)
    structured = version == MODERN or version in OBJECTS
    assert (expected if structured else None) == answer.result.get("structuredContent")


@pytest.mark.parametrize("value", [[1, 2], [], 5, 2.5, True, ["a", "b"]])
async def test_content_of_another_value_is_its_json(value: Any) -> None:
    """Without an output schema, a list, number or bool is sent as JSON text."""
    answer = await returned(value)

    assert value == msgspec.json.decode(answer.text)
    assert "structuredContent" not in answer.result


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([1, 2], {"type": "array"}),
        ([1, 2], list[int]),
        (5, {"type": "integer"}),
        ("x", {"type": "string"}),
        (None, {"type": "null"}),
    ],
)
async def test_content_of_another_value_with_a_schema_is_structured(
    value: Any, schema: Any, version: str
) -> None:
    """Before SEP-2106 structured content was always an object: other values are wrapped."""
    answer = await returned(value, version, schema)

    assert answer.text == (value if value == "x" else msgspec.json.encode(value).decode())
    if version == MODERN:
        assert answer.result["structuredContent"] == value
    elif version < "2025-06-18":
        assert "structuredContent" not in answer.result
    else:
        assert answer.result["structuredContent"] == {"result": value}


class Color(Enum):
    RED = 'the "red" one'


STRINGS: list[tuple[Any, str]] = [
    (date(2026, 1, 4), "2026-01-04"),
    (Color.RED, 'the "red" one'),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Decimal("1.50"), "1.50"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("value", "text"), STRINGS)
async def test_content_of_a_json_string_has_no_quotes(value: Any, text: str, version: str) -> None:
    """A date or an enum is a text for people and models, as a str is."""
    plain = await returned(value, version)
    assert (plain.text, plain.result.get("structuredContent")) == (text, None)

    with_schema = await returned(value, version, {"type": "string"})
    assert with_schema.text == text
    if version == MODERN:
        assert with_schema.result["structuredContent"] == text


@pytest.mark.parametrize(("value", "text"), STRINGS)
async def test_json_string_has_no_quotes_after_a_wait(value: Any, text: str) -> None:
    """A step returns as the tool itself does, also the value of a job."""

    @job(name="content.day")
    async def compute(run: Run) -> Any:
        return value

    @tool
    async def due() -> Continue:
        return compute.job().then(found)

    @due.step
    async def found(day: Any) -> Any:
        return msgspec.convert(day, type(value))

    async with connect(Suite("days", tools=[due])) as client:
        assert (await client.call("due")).text == text


def test_json_string_as_data_of_a_result_has_no_quotes() -> None:
    """`result` makes the text for its data by the same rule."""
    made = result("Due:", data=date(2026, 1, 4))

    assert made.text == "Due:\n2026-01-04"
    assert bytes(made.structured_content) == b'"2026-01-04"'


@pytest.mark.parametrize(
    ("declared", "contents"),
    [
        (None, ("2026-01-04", "text/plain")),
        ("text/markdown", ("2026-01-04", "text/markdown")),
        ("application/json", ('"2026-01-04"', "application/json")),
    ],
)
def test_contents_of_a_json_string_have_no_quotes(declared: Any, contents: Any) -> None:
    """A resource that is a date is a text, unless it is declared to be JSON."""
    (made,) = contents_of(date(2026, 1, 4), "shop://day", declared)

    assert (made.text, made.mime_type) == contents


async def test_content_blocks_stay_as_they_are() -> None:
    """Blocks, images, audio, bytes with a type, links and resources, alone or in a list."""
    answer = await returned(
        [
            TextContent("a", Annotations(priority=1)),
            Image(b"\x89", annotations=Annotations(audience=["user"])),
            Audio(b"\x01", "audio/ogg"),
            (b"\x02", "image/gif"),
            (b"\x03", "audio/wav"),
            resource_link("file:///a", "a", mime_type="text/plain"),
            embedded_resource("file:///b", "text", "text/plain"),
            embedded_resource("file:///c", b"\x04"),
            "plain",
        ]
    )

    assert answer.result["content"] == [
        {"type": "text", "text": "a", "annotations": {"priority": 1}},
        {
            "type": "image",
            "data": "iQ==",
            "mimeType": "image/png",
            "annotations": {"audience": ["user"]},
        },
        {"type": "audio", "data": "AQ==", "mimeType": "audio/ogg"},
        {"type": "image", "data": "Ag==", "mimeType": "image/gif"},
        {"type": "audio", "data": "Aw==", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"},
        {
            "type": "resource",
            "resource": {"uri": "file:///b", "text": "text", "mimeType": "text/plain"},
        },
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "BA=="}},
        {"type": "text", "text": "plain"},
    ]


@pytest.mark.parametrize("value", [Image(b"\x89"), (b"\x89", "image/png")])
async def test_content_may_be_one_block(value: Any) -> None:
    """One image need not be in a list."""
    answer = await returned(value)

    (block,) = answer.result["content"]
    assert (block["type"], block["data"]) == ("image", "iQ==")


async def test_content_result_is_sent_as_it_is() -> None:
    """A CallToolResult is sent unchanged. Its structured content may be a struct."""
    given = CallToolResult(
        content=[TextContent("a")],
        structured_content=Order(1),
        is_error=False,
        meta={"com.example/a": 1},
    )

    answer = await returned(given)

    assert answer.text == "a"
    assert answer.result["structuredContent"] == {"id": 1, "day": "2026-07-28"}
    assert answer.result["_meta"]["com.example/a"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        object(),
        {"a": object()},
        {1, object()},
        b"bytes",
        (b"%PDF", "application/pdf"),
        ["a", Image(b""), {"b": 1}],
        int,
        {"a": OrderModel},
    ],
)
async def test_content_that_cannot_be_sent_is_an_internal_error(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets -32603 with a reference; the log names the tool and the type."""
    answer = await returned(lambda: wrong)

    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert answer.error["data"]["reference"] in caplog.text
    assert f"Give.call (tool 'give') returned {type(wrong).__name__}: " in caplog.text


@job
async def sweep(run: Run, room: str) -> str:
    return room


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (elicit("Sure?", Order), "return elicit(...).then("),
        ({"one": elicit("Sure?", Order)}, "return elicit(...).then("),
        (sweep.job(room="attic"), "return sweep.job(...).then("),
        ([sweep.job(room="attic")], "return sweep.job(...).then("),
        (ExternalJob("celery", "1"), "return wait_for(...).then("),
        (InputRequiredResult(request_state="x"), "put a question into a Continue"),
        (Done(3), "return what it holds"),
        (Failed(WorkerLost()), "return what it holds"),
        (user("hi"), "return what it holds"),
        (ListToolsResult(tools=[], ttl_ms=0, cache_scope="private"), "return what it holds"),
        (GetPromptResult(messages=[]), "return what it holds"),
        ([CallToolResult([])], "return it by itself"),
    ],
)
async def test_content_that_directs_the_call_is_rejected(
    value: Any, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """E.g. a job without a Continue: as a success, it would show the client the job's arguments."""
    answer = await returned(lambda: value)

    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert advice in caplog.text
    assert "attic" not in str(answer.message)


async def test_content_that_describes_a_tool_is_data() -> None:
    """A tool may return definitions of tools, as a hub's search does."""
    answer = await returned([ToolDefinition("add", {"type": "object"})])

    assert "add" in answer.text


# The output schema.

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1},
        Order(1),
        result("One.", data={"id": 1}),
        CallToolResult([], {"id": 1}),
        result(error="no"),
    ],
)
async def test_content_that_fits_its_output_schema_is_sent(value: Any) -> None:
    """A valid result is sent. An error result needs no structured content."""
    answer = await returned(value, schema=ORDER)

    assert "result" in answer.message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"id": "x"}, "it does not fit output_schema: /id: expected an integer"),
        ({}, "it does not fit output_schema: (root): missing required property"),
        ("text", "it does not fit output_schema: (root): expected an object"),
        (None, "it does not fit output_schema: (root): expected an object"),
        (Image(b""), "output_schema needs structured content"),
        (result("text"), "output_schema needs structured content"),
        (CallToolResult([], Order("x")), "output_schema: /id: expected an integer"),  # type: ignore[arg-type]
    ],
)
async def test_content_that_violates_its_output_schema_is_not_sent(
    value: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """This is a fault of the server: the log lists the violations."""
    answer = await returned(value, schema=ORDER)

    assert (answer.status, answer.error["code"]) == (500, -32603)
    assert message in caplog.text


@pytest.mark.parametrize("kind", [Order, OrderData, OrderModel])
async def test_content_schema_may_be_a_type(kind: Any) -> None:
    """The schema of the type is listed, and its values are valid."""
    value = kind(orderId=1) if kind is OrderModel else kind(1)

    answer = await returned(value, schema=kind)

    assert 1 in answer.result["structuredContent"].values()


@pytest.mark.parametrize("version", VERSIONS)
async def test_content_schema_is_listed_where_the_revision_has_it(version: str) -> None:
    """Output schemas exist from 2025-06-18 on; before 2026-07-28 they describe objects only."""

    class Objects(Tool):
        name = "objects"
        output_schema = ORDER

        async def call(self, request: ToolRequest, channel: Channel) -> Any: ...

    class Numbers(Objects):
        name = "numbers"
        output_schema = {"type": "integer"}

    class Either(Objects):
        name = "either"
        output_schema = {"type": ["integer", "object"]}

    suite = Suite(name="t", version="1", tools=[Objects, Numbers, Either])
    async with speak(suite, version) as client:
        tools = (await client.request("tools/list", {})).result["tools"]

    listed = [tool["name"] for tool in tools if "outputSchema" in tool]
    expected = {
        MODERN: ["objects", "numbers", "either"],
        **{each: ["objects", "numbers"] for each in OBJECTS},
    }
    assert expected.get(version, []) == listed


# result(...)


async def test_content_builder_keeps_the_order_of_its_parts() -> None:
    """Parts become blocks in order. A dict becomes structured content, and text in its place."""
    answer = await returned(result("first", {"a": 1}, ["second", Image(b"")], "last"))

    kinds = [block["type"] for block in answer.result["content"]]
    assert kinds == ["text", "text", "text", "image", "text"]
    assert answer.result["content"][1] == {"type": "text", "text": '{"a":1}'}
    assert answer.result["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(("as_text", "expected"), [(True, ["x", "[1]"]), (False, ["x"])])
async def test_content_builder_takes_data_with_or_without_its_text(
    as_text: bool, expected: list[str]
) -> None:
    """`data=` of any type is structured content, and also text unless `as_text=False`."""
    answer = await returned(result("x", data=[1], as_text=as_text))

    assert expected == texts(answer)
    assert answer.result["structuredContent"] == [1]


async def test_content_builder_takes_null_as_data() -> None:
    """`data=None` is the JSON value null, unlike no `data` at all."""
    answer = await returned(result(data=None))

    assert None is answer.result["structuredContent"]
    assert texts(answer) == ["null"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: result({"a": 1}, {"b": 2}),
        lambda: result({"a": 1}, data=1),
        lambda: result(Order(1)),
        lambda: result(5),
        lambda: result(data=object()),
        lambda: result(error=ValueError("x")),  # type: ignore[arg-type]
        lambda: result(error=1),  # type: ignore[arg-type]
    ],
)
async def test_content_builder_rejects_invalid_combinations(build: Any) -> None:
    """Two structured contents, data as content, or an `error` that is neither bool nor text."""
    with pytest.raises(ContractError):
        build()

    answer = await returned(build)

    assert answer.error["code"] == -32603


@pytest.mark.parametrize(
    ("error", "is_error", "expected"),
    [
        (False, None, ["x"]),
        (None, None, ["x"]),
        (True, True, ["x"]),
        ("It broke.", True, ["x", "It broke."]),
        ("", True, ["x"]),
    ],
)
async def test_content_builder_marks_an_error(
    error: Any, is_error: bool | None, expected: list[str]
) -> None:
    """`error=True`, or a text. A successful result has no `isError`."""
    answer = await returned(result("x", error=error))

    assert is_error is answer.result.get("isError")
    assert expected == texts(answer)


def test_content_builder_makes_an_empty_result() -> None:
    """Without parts, the content is empty."""
    assert result() == CallToolResult(content=[])


async def test_content_of_a_success_is_no_error_in_python() -> None:
    """2026-07-28, CallToolResult: an absent `isError` means false."""
    assert result("x").is_error is False
    assert CallToolResult(content=[]).is_error is False


async def test_content_builder_takes_meta() -> None:
    """Given `_meta` is merged with that of the server."""
    answer = await returned(result("x", meta={"com.example/a": 1}))

    assert answer.result["_meta"]["com.example/a"] == 1


def test_content_is_encoded_once() -> None:
    """Text and structured content are the same bytes, those that were validated."""
    made = to_result(Order(1), structured=False)

    assert made.structured_content == msgspec.Raw(b'{"id":1,"day":"2026-07-28"}')
    assert made.content == [TextContent('{"id":1,"day":"2026-07-28"}')]
    assert made is to_result(made, structured=True)
