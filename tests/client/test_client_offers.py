"""The client's knowledge of a server's tools."""

import logging
from typing import Any

import pytest

from genmcp.client.errors import ProtocolError
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.protocol.tools import CallToolResult, ToolDefinition

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def annotated(name: str, property_: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name, {"type": "object", "properties": {"a": property_}})


async def test_offers_repeat_annotated_arguments_in_headers() -> None:
    """Texts, integers and booleans become headers, encoded if needed."""
    schema = {
        "type": "object",
        "properties": {
            "place": {"type": "string", "x-mcp-header": "Place"},
            "inner": {
                "type": "object",
                "properties": {"n": {"type": "integer", "x-mcp-header": "N"}},
            },
            "sure": {"type": "boolean", "x-mcp-header": "Sure"},
            "absent": {"type": "string", "x-mcp-header": "Absent"},
            "none": {"type": "string", "x-mcp-header": "None"},
        },
    }
    offers = ToolCatalog("there", mirrors=True)
    await offers.update([ToolDefinition("t", schema)])
    given = {"place": "Zürich", "inner": {"n": -7}, "sure": True, "none": None}
    assert dict(offers.headers("t", given)) == {
        b"mcp-param-place": b"=?base64?WsO8cmljaA==?=",
        b"mcp-param-n": b"-7",
        b"mcp-param-sure": b"true",
    }


@pytest.mark.parametrize(
    "property_",
    [
        {"type": "string", "x-mcp-header": ""},
        {"type": "number", "x-mcp-header": "A"},
        {"type": "object", "x-mcp-header": "A"},
        {"type": "string", "x-mcp-header": "a b"},
        {"type": "string", "x-mcp-header": "a\r\nb"},
        {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}},
    ],
)
async def test_offers_leave_out_a_tool_with_an_invalid_annotation(
    property_: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Such a tool is not listed, the others are, and the log names it; it cannot be called."""
    offers = ToolCatalog("there", mirrors=True)
    good = ToolDefinition("good", {"type": "object"})
    with caplog.at_level(logging.WARNING):
        assert await offers.update([annotated("bad", property_), good]) == [good]
    assert "'bad' is left out: inputSchema" in caplog.text
    with pytest.raises(ProtocolError, match="'bad' cannot be called"):
        offers.headers("bad", {})


async def test_offers_ignore_annotations_without_mirrored_headers() -> None:
    """Over other transports annotations are ignored, valid or not."""
    offers = ToolCatalog("there", mirrors=False)
    tool = annotated("t", {"type": "number", "x-mcp-header": "A"})
    assert await offers.update([tool]) == [tool]
    assert offers.headers("t", {"a": 1}) == ()


async def test_offers_of_a_tool_that_was_not_listed_have_no_headers() -> None:
    """Nothing is known of it, so nothing is mirrored and nothing checked."""
    offers = ToolCatalog("there", mirrors=True)
    assert offers.headers("t", {"a": 1}) == ()
    await offers.check("t", CallToolResult([], structured_content=1))


async def test_offers_take_a_schema_that_is_not_annotated_as_it_is() -> None:
    """A remote reference in a schema does not concern a client that mirrors no argument."""
    tool = ToolDefinition("t", {"type": "object", "$ref": "https://elsewhere.test/schema"})
    assert await ToolCatalog("there", mirrors=True).update([tool]) == [tool]


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (CallToolResult([], structured_content={"n": "one"}), "/n: "),
        (CallToolResult([]), "there is no structured content"),
    ],
)
async def test_offers_find_a_result_that_does_not_fit(result: CallToolResult, fault: str) -> None:
    """A structured result that is missing, or does not fit the output schema, is a fault."""
    offers = ToolCatalog("there", mirrors=False)
    await offers.update([ToolDefinition("t", {"type": "object"}, output_schema=NUMBER)])
    with pytest.raises(ProtocolError, match=fault):
        await offers.check("t", result)


async def test_offers_take_a_result_that_fits_or_says_it_failed() -> None:
    """A matching result is accepted; a failure need not match."""
    offers = ToolCatalog("there", mirrors=False)
    await offers.update([ToolDefinition("t", {"type": "object"}, output_schema=NUMBER)])
    await offers.check("t", CallToolResult([], structured_content={"n": 1}))
    await offers.check("t", CallToolResult([], is_error=True))


async def test_offers_forget_an_output_schema_that_changed() -> None:
    """A tool that is listed anew is checked by its new schema, or not at all."""
    offers = ToolCatalog("there", mirrors=False)
    await offers.update([ToolDefinition("t", {"type": "object"}, output_schema=NUMBER)])
    await offers.check("t", CallToolResult([], structured_content={"n": 1}))
    await offers.update([ToolDefinition("t", {"type": "object"}, output_schema={"type": "array"})])
    await offers.check("t", CallToolResult([], structured_content=[]))
    await offers.update([ToolDefinition("t", {"type": "object"})])
    await offers.check("t", CallToolResult([]))


async def test_offers_warn_of_an_output_schema_that_cannot_be_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its results are not checked, which is logged once."""
    offers = ToolCatalog("there", mirrors=False)
    schema = {"$ref": "https://elsewhere.test/schema"}
    await offers.update([ToolDefinition("t", {"type": "object"}, output_schema=schema)])
    for _ in range(2):
        await offers.check("t", CallToolResult([], structured_content=1))
    assert caplog.text.count("cannot be checked") == 1


async def test_offers_are_those_of_the_last_list() -> None:
    """A tool that is not listed any more is not known: a server may have others every day."""
    offers = ToolCatalog("there", mirrors=True)
    for number in range(3):
        tool = annotated(f"t{number}", {"type": "string", "x-mcp-header": "A"})
        await offers.update(
            [tool, annotated(f"bad{number}", {"type": "number", "x-mcp-header": "A"})]
        )
    assert offers.headers("t2", {"a": "x"}) != ()
    with pytest.raises(ProtocolError):
        offers.headers("bad2", {"a": "x"})
    assert offers.headers("t0", {"a": "x"}) == ()
    assert offers.headers("bad0", {"a": "x"}) == ()
