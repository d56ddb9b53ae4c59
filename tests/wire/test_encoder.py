"""Messages of a server, in the form of each revision."""

import json
from typing import Any

import msgspec
import pytest

from genmcp.errors import InvalidParams, McpError, ResourceNotFound, UnsupportedVersion
from genmcp.protocol.capabilities import (
    DiscoverResult,
    Implementation,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.client_features import ElicitRequest, ElicitRequestParams, InputRequiredResult
from genmcp.protocol.content import AudioContent, ResourceLink, TextContent
from genmcp.protocol.params import SERVER_INFO, ProgressNotificationParams
from genmcp.protocol.revisions.chain import LATEST, LEGACY, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import CallToolResult, ListToolsResult, ToolDefinition
from genmcp.protocol.value import Result
from genmcp.wire import jsonrpc
from genmcp.wire.encoder import EncodedResult, Encoder
from tests.support.definitions import validator

INFO = {"name": "studio", "version": "1.0"}
ENCODER = Encoder(Implementation(name="studio", version="1.0"))

CALLED = CallToolResult(
    content=[
        TextContent("five"),
        AudioContent(data="aGk=", mime_type="audio/wav"),
        ResourceLink(uri="file:///a", name="a"),
    ],
    structured_content={"sum": 5},
)
LISTED = ListToolsResult(
    tools=[ToolDefinition("add", {"type": "object"}, title="Add", output_schema={"type": "array"})],
    ttl_ms=0,
    cache_scope="public",
)
DISCOVERED = DiscoverResult(
    supported_versions=list(REVISIONS),
    capabilities=ServerCapabilities(tools=ToolsCapability()),
    ttl_ms=0,
    cache_scope="private",
)

every_revision = pytest.mark.parametrize("revision", REVISIONS.values(), ids=REVISIONS)
every_legacy_revision = pytest.mark.parametrize("revision", LEGACY, ids=lambda each: each.version)


def encoded(revision: Revision, value: Any) -> dict[str, Any]:
    """Return the result within the response to a request."""
    response = json.loads(ENCODER.response(revision, "a", value))
    assert response == {"jsonrpc": "2.0", "id": "a", "result": response["result"]}
    assert response["result"] == json.loads(ENCODER.result(revision, value))
    result: dict[str, Any] = response["result"]
    return result


def valid(revision: Revision, definition: str, value: Any) -> None:
    validator(revision.version, definition).validate(value)


@every_revision
def test_encoder_result_of_a_call_satisfies_the_schema(revision: Revision) -> None:
    """The result of a call satisfies each revision's schema and contains the text."""
    result = encoded(revision, CALLED)

    valid(revision, "CallToolResult", result)
    assert result["content"][0] == {"type": "text", "text": "five"}
    assert ("structuredContent" in result) == (revision.version >= "2025-06-18")


@every_revision
def test_encoder_list_of_tools_satisfies_the_schema(revision: Revision) -> None:
    """Output schemas exist since 2025-06-18, of objects at first; cache hints since 2026-07-28."""
    result = encoded(revision, LISTED)

    valid(revision, "ListToolsResult", result)
    assert result["tools"][0]["name"] == "add"
    assert revision.modern == ("ttlMs" in result) == ("cacheScope" in result)
    assert ("outputSchema" in result["tools"][0]) == (revision.version >= "2025-06-18")


def test_encoder_discovery_satisfies_the_schema() -> None:
    """2026-07-28, server/discover: versions and capabilities, and in `_meta` who the server is."""
    result = encoded(LATEST, DISCOVERED)

    valid(LATEST, "DiscoverResult", result)
    assert result["_meta"] == {SERVER_INFO: INFO}


@every_legacy_revision
def test_encoder_result_of_earlier_revision_has_no_newer_members(revision: Revision) -> None:
    """Before 2026-07-28 an empty result is empty, and no result has a type."""
    assert encoded(revision, Result()) == {}
    assert not {"resultType", "_meta"} & encoded(revision, CALLED).keys()


def test_empty_result_has_type_and_server() -> None:
    """2026-07-28, basic, "Responses": every result has a type, and names the server in `_meta`."""
    result = encoded(LATEST, Result())

    assert result == {"resultType": "complete", "_meta": {SERVER_INFO: INFO}}


def test_input_required_result_has_its_type() -> None:
    """2026-07-28, "Multi Round-Trip Requests": a result that asks is of another type."""
    ask = ElicitRequest(ElicitRequestParams("Go on?", {"type": "object", "properties": {}}))
    result = encoded(LATEST, InputRequiredResult(input_requests={"go": ask}, request_state="s"))

    valid(LATEST, "InputRequiredResult", result)
    assert result["resultType"] == "input_required"
    assert result["_meta"] == {SERVER_INFO: INFO}


def test_encoder_result_of_an_extension_keeps_its_meta() -> None:
    """As a hub relays it, without its type, and with the name of its member."""
    meta = {"com.example/trace": 7, SERVER_INFO: {"name": "behind", "version": "0"}}
    value = EncodedResult(kind=dict, body=msgspec.json.encode({"level": 3, "_meta": meta}))
    result = encoded(LATEST, value)

    assert result == {
        "resultType": "complete",
        "level": 3,
        "_meta": meta,
    }


@every_revision
def test_encoder_result_keeps_its_own_meta(revision: Revision) -> None:
    """`_meta` of a handler is kept, beside the server's name where the revision has it."""
    value = CallToolResult(content=[], meta={"com.example/trace": 7})

    meta = encoded(revision, value)["_meta"]

    assert meta["com.example/trace"] == 7
    assert (INFO if revision.modern else None) == meta.get(SERVER_INFO)
    assert value.meta == {"com.example/trace": 7}


def test_encoder_result_may_have_an_empty_meta() -> None:
    """An empty `_meta` still gets the server's name."""
    assert encoded(LATEST, Result(meta={}))["_meta"] == {SERVER_INFO: INFO}


def test_encoder_result_may_name_another_server() -> None:
    """A hub forwards the names of its members."""
    other = {"name": "other", "version": "2"}

    assert encoded(LATEST, Result(meta={SERVER_INFO: other}))["_meta"] == {SERVER_INFO: other}


@every_revision
def test_members_of_a_result_are_unique(revision: Revision) -> None:
    """No name comes twice in a result."""
    for value in (Result(), CALLED, LISTED, CallToolResult(content=[], meta={"a": 1})):
        json.loads(ENCODER.result(revision, value), object_pairs_hook=unique)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


@every_revision
def test_encoder_error_satisfies_the_schema(revision: Revision) -> None:
    """An error has a code, a message and its data in every revision."""
    error = json.loads(ENCODER.error(revision, 1, InvalidParams("Unknown tool: x", {"name": "x"})))

    valid(
        revision,
        "JSONRPCErrorResponse" if revision.version > "2025-06-18" else "JSONRPCError",
        error,
    )
    assert error["error"] == {"code": -32602, "message": "Unknown tool: x", "data": {"name": "x"}}


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("2026-07-28", -32602),
        ("2025-11-25", -32002),
        ("2025-06-18", -32002),
        ("2025-03-26", -32002),
        ("2024-11-05", -32002),
    ],
)
def test_encoder_missing_resource_has_its_code(version: str, code: int) -> None:
    """-32002 became -32602 with 2026-07-28 (changelog)."""
    body = ENCODER.error(REVISIONS[version], 1, ResourceNotFound("file:///a"))

    message = jsonrpc.decode(body)

    assert isinstance(message, jsonrpc.Message)
    assert message.error is not None
    assert (message.error.code, message.error.data) == (code, {"uri": "file:///a"})


def test_encoder_error_has_the_code_it_was_raised_with() -> None:
    """An error's own code is not changed, and an id that is not known is not made up."""
    body = json.loads(ENCODER.error(LATEST, None, McpError("no", code=-32099)))

    assert body == {"jsonrpc": "2.0", "error": {"code": -32099, "message": "no"}}


def test_unsupported_version_lists_supported_ones() -> None:
    """2026-07-28, UnsupportedProtocolVersionError, as its schema wants it."""
    error = json.loads(ENCODER.error(LATEST, 1, UnsupportedVersion("1999-01-01", list(REVISIONS))))

    valid(LATEST, "UnsupportedProtocolVersionError", error)


@every_revision
def test_encoder_notification_satisfies_the_schema(revision: Revision) -> None:
    """A notification has the form of the revision: 2024-11-05 has no message in progress."""
    params = ProgressNotificationParams(progress_token=1, progress=0.5, message="half")

    notification = json.loads(ENCODER.notification(revision, "notifications/progress", params))

    valid(revision, "ProgressNotification", notification)
    assert ("message" in notification["params"]) == (revision.version != "2024-11-05")


@every_revision
def test_encoder_notification_may_have_no_params(revision: Revision) -> None:
    """A notification without params has no `params`."""
    method = "notifications/tools/list_changed"

    assert json.loads(ENCODER.notification(revision, method, None)) == {
        "jsonrpc": "2.0",
        "method": method,
    }


STORED = [
    CALLED,
    CallToolResult(content=[]),
    CallToolResult(content=[], meta={"a": 1}),
    CallToolResult(content=[TextContent('{"_meta": 1}', meta={"b": 2})], is_error=True),
]


@pytest.mark.parametrize("result", STORED)
@every_revision
def test_stored_result_is_sent_as_if_it_was_new(revision: Revision, result: CallToolResult) -> None:
    """A task has the JSON of its result, which is decoded only where that has to change."""
    stored = EncodedResult(kind=CallToolResult, body=msgspec.json.encode(result))

    assert encoded(revision, stored) == encoded(revision, result)
    assert stored.decoded == result


def test_stored_result_is_not_decoded() -> None:
    """Its bytes are in the response as they are, even those that no encoder writes."""
    stored = EncodedResult(kind=CallToolResult, body=b'{"content":[ ]}')

    assert b'"content":[ ]' in ENCODER.result(LATEST, stored)
