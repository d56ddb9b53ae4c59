"""Common properties of all values, and inputs that some of them reject."""

from typing import Any

import msgspec
import pytest

from genmcp.protocol.capabilities import ElicitationCapability
from genmcp.protocol.client_features import ElicitRequestParams
from genmcp.protocol.content import ResourceContents, TextContent
from genmcp.protocol.params import (
    SEVERITY,
    LoggingMessageNotificationParams,
    RequestMeta,
    RequestParams,
    all_meta,
)
from genmcp.protocol.tools import CallToolRequestParams, CallToolResult
from genmcp.protocol.value import decoder_for, wire_name


@pytest.mark.parametrize(
    ("field", "name"),
    [("meta", "_meta"), ("uri", "uri"), ("mime_type", "mimeType"), ("ttl_ms", "ttlMs")],
)
def test_values_have_camel_case_on_the_wire(field: str, name: str) -> None:
    """The one exception is `_meta`."""
    assert name == wire_name(field)


def test_values_send_no_member_that_is_absent() -> None:
    """None is absent, and so is UNSET; null is not."""
    assert msgspec.json.encode(TextContent("hi")) == b'{"type":"text","text":"hi"}'
    assert msgspec.json.encode(CallToolResult([])) == b'{"content":[]}'
    assert (
        msgspec.json.encode(CallToolResult([], structured_content=None))
        == b'{"content":[],"structuredContent":null}'
    )
    assert (
        msgspec.json.encode(LoggingMessageNotificationParams("info", None))
        == b'{"level":"info","data":null}'
    )


def test_values_keep_arguments_as_they_came() -> None:
    """A tool's arguments are not decoded with the params; absent ones are false."""
    decode = decoder_for(CallToolRequestParams).decode

    assert bytes(decode(b'{"name": "add", "arguments": {"a": 1.0}}').arguments) == b'{"a": 1.0}'
    assert not decode(b'{"name": "add"}').arguments
    assert msgspec.json.encode(CallToolRequestParams("add")) == b'{"name":"add"}'


def test_values_of_meta_are_known_by_their_long_names() -> None:
    """A member with a prefix is one with a short name here; a stranger's is not kept."""
    sent = (
        b'{"_meta":{"progressToken":7,"io.modelcontextprotocol/logLevel":"error",'
        b'"io.genmcp/idempotencyKey":"k","traceparent":"00-ab","com.example/a":1}}'
    )

    params = decoder_for(RequestParams).decode(sent)

    assert params.meta == RequestMeta(
        progress_token=7, log_level="error", idempotency_key="k", traceparent="00-ab"
    )
    assert all_meta(sent)["com.example/a"] == 1
    assert all_meta(b"{}") == {}


@pytest.mark.parametrize("both", [{}, {"text": "a", "blob": "YQ=="}])
def test_values_of_a_resource_are_text_or_blob(both: dict[str, Any]) -> None:
    """Contents that are neither are refused, and so are those that are both."""
    with pytest.raises(ValueError, match="either `text` or `blob`"):
        ResourceContents("file:///a", **both)
    with pytest.raises(msgspec.ValidationError, match="either `text` or `blob`"):
        msgspec.convert({"uri": "file:///a", **both}, ResourceContents)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"mode": "form"},
        {"mode": "url"},
        {"url": "https://a.b"},
        {"mode": "form", "url": "https://a.b"},
        {"mode": "url", "url": "https://a.b", "requestedSchema": {}},
        {"requestedSchema": {}, "url": "https://a.b"},
    ],
)
def test_values_that_ask_ask_one_thing(asked: dict[str, object]) -> None:
    """A question is a form or a URL, and is tagged as such."""
    with pytest.raises(msgspec.ValidationError, match="a form has a `requestedSchema`"):
        msgspec.convert({"message": "?", **asked}, ElicitRequestParams)


@pytest.mark.parametrize(
    ("declared", "forms", "urls"),
    [({}, True, False), ({"form": {}}, True, False), ({"url": {}}, False, True)],
)
def test_values_of_elicitation_say_what_may_be_asked(
    declared: dict[str, object], forms: bool, urls: bool
) -> None:
    """Nothing declared is forms, as before there was anything else."""
    capability = msgspec.convert(declared, ElicitationCapability)

    assert (capability.takes_forms, capability.takes_urls) == (forms, urls)


def test_values_of_log_levels_are_ordered() -> None:
    """From `debug` to `emergency`."""
    assert SEVERITY["debug"] < SEVERITY["warning"] < SEVERITY["error"] < SEVERITY["emergency"]
    assert len(SEVERITY) == 8
