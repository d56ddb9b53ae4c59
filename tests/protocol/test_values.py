"""Properties that all values share, and the inputs that some of them reject."""

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
    """The only exception is `_meta`."""
    assert name == wire_name(field)


def test_values_send_no_member_that_is_absent() -> None:
    """None and UNSET are left out; JSON null is sent."""
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
    """The arguments of a tool stay encoded; absent ones are false."""
    decode = decoder_for(CallToolRequestParams).decode

    assert bytes(decode(b'{"name": "add", "arguments": {"a": 1.0}}').arguments) == b'{"a": 1.0}'
    assert not decode(b'{"name": "add"}').arguments
    assert msgspec.json.encode(CallToolRequestParams("add")) == b'{"name":"add"}'


def test_values_of_meta_are_known_by_their_long_names() -> None:
    """Prefixed members of the specification are attributes with short names; others are dropped."""
    sent = (
        b'{"_meta":{"progressToken":7,"io.modelcontextprotocol/logLevel":"error",'
        b'"io.genmcp/idempotencyKey":"k","io.genmcp/caller":"c","traceparent":"00-ab","com.example/a":1}}'
    )

    params = decoder_for(RequestParams).decode(sent)

    assert params.meta == RequestMeta(
        progress_token=7,
        log_level="error",
        idempotency_key="k",
        caller="c",
        traceparent="00-ab",
    )
    assert all_meta(sent)["com.example/a"] == 1
    assert all_meta(b"{}") == {}


@pytest.mark.parametrize("both", [{}, {"text": "a", "blob": "YQ=="}])
def test_values_of_a_resource_are_text_or_blob(both: dict[str, Any]) -> None:
    """Contents with both or neither are rejected."""
    with pytest.raises(ValueError, match="either `text` or `blob`"):
        ResourceContents("file:///a", **both)
    with pytest.raises(msgspec.ValidationError, match="either `text` or `blob`"):
        msgspec.convert({"uri": "file:///a", **both}, ResourceContents)


@pytest.mark.parametrize(
    "members",
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
def test_values_of_elicitation_are_a_form_or_a_url(members: dict[str, object]) -> None:
    """A question is either a form or a URL, and its `mode` agrees."""
    with pytest.raises(msgspec.ValidationError, match="a form has a `requestedSchema`"):
        msgspec.convert({"message": "?", **members}, ElicitRequestParams)


@pytest.mark.parametrize(
    ("declared", "forms", "urls"),
    [({}, True, False), ({"form": {}}, True, False), ({"url": {}}, False, True)],
)
def test_values_of_elicitation_capabilities_default_to_forms(
    declared: dict[str, object], forms: bool, urls: bool
) -> None:
    """An empty capability means forms only, since forms were there first."""
    capability = msgspec.convert(declared, ElicitationCapability)

    assert (capability.takes_forms, capability.takes_urls) == (forms, urls)


def test_values_of_log_levels_are_ordered() -> None:
    """From `debug` to `emergency`."""
    assert SEVERITY["debug"] < SEVERITY["warning"] < SEVERITY["error"] < SEVERITY["emergency"]
    assert len(SEVERITY) == 8
