"""Params within legacy sessions, and of notifications."""

from typing import Any

import msgspec
import pytest

from genmcp.core.request import notification_params, session_params
from genmcp.errors import MalformedParams
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

SESSION = REVISIONS["2025-11-25"]
CALL = SESSION.methods["tools/call"]


def raw(params: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(params))


@pytest.mark.parametrize(
    ("meta", "usable"),
    [
        (5, {}),
        ([1], {}),
        ({"progressToken": {}}, {}),
        ({"progressToken": 1, "a/b": 2}, {"progressToken": 1, "a/b": 2}),
        ({"progressToken": 1, "traceparent": 2}, {"progressToken": 1}),
        ({"io.modelcontextprotocol/logLevel": "loud", "a/b": [2]}, {"a/b": [2]}),
        ({"io.modelcontextprotocol/clientInfo": 1, "traceparent": 2}, {}),
    ],
)
def test_session_params_ignore_unusable_meta(meta: Any, usable: dict[str, Any]) -> None:
    """2025-11-25, basic, "_meta": keys that the revision does not define mean nothing."""
    params, kept = session_params(CALL, raw({"name": "add", "_meta": meta}))

    assert isinstance(params, CallToolRequestParams)
    assert params.name == "add"
    assert usable.get("progressToken") == params.meta.progress_token
    assert {"name": "add", "_meta": usable} == msgspec.json.decode(kept)


@pytest.mark.parametrize(
    "params",
    [
        {"name": "add", "_meta": {"io.genmcp/idempotencyKey": 5}},
        {"name": "add", "_meta": {"io.genmcp/caller": 5}},
        {"name": 5, "_meta": 5},
        {"name": 5},
        [1],
        5,
    ],
)
def test_session_params_must_fit_otherwise(params: Any) -> None:
    """A key that makes a call run once, and whose it is, are not dropped in silence."""
    with pytest.raises(MalformedParams) as caught:
        session_params(CALL, raw(params))

    assert caught.value.data["faults"]


def test_session_params_that_nest_too_deeply_are_rejected() -> None:
    """They cannot be decoded to look for `_meta` either."""
    with pytest.raises(MalformedParams):
        session_params(CALL, msgspec.Raw(b'{"_meta":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))


def message(method: str, params: Any = msgspec.UNSET) -> Message:
    given = b"" if params is msgspec.UNSET else b',"params":' + msgspec.json.encode(params)
    body = b'{"jsonrpc":"2.0","method":"' + method.encode() + b'"' + given + b"}"
    decoded = jsonrpc.parse(body)
    assert isinstance(decoded, Message)
    return decoded


@pytest.mark.parametrize(
    ("version", "method", "params"),
    [
        ("2025-11-25", "notifications/initialized", msgspec.UNSET),
        ("2025-11-25", "notifications/initialized", None),
        ("2025-11-25", "notifications/cancelled", {"requestId": 1}),
        ("2025-11-25", "notifications/cancelled", {}),
        ("2025-11-25", "notifications/unheard_of", {"a": 1}),
        ("2025-11-25", "tools/call", {"a": 1}),
        ("2026-07-28", "notifications/cancelled", {"requestId": "x"}),
    ],
)
def test_notification_params_that_fit_are_decoded(version: str, method: str, params: Any) -> None:
    """2025-11-25 lets `requestId` be absent."""
    assert notification_params(REVISIONS[version], message(method, params)) is not None


@pytest.mark.parametrize(
    ("version", "method", "params"),
    [
        ("2025-11-25", "notifications/initialized", 5),
        ("2025-11-25", "notifications/cancelled", {"requestId": {}}),
        ("2025-11-25", "notifications/progress", {"progress": 1}),
        ("2025-11-25", "notifications/unheard_of", [1]),
        (LATEST.version, "notifications/cancelled", {}),
    ],
)
def test_notification_params_that_do_not_fit_are_400(
    version: str, method: str, params: Any
) -> None:
    """2025-11-25 and 2026-07-28, transports, "Sending Messages": an HTTP error status."""
    with pytest.raises(MalformedParams) as caught:
        notification_params(REVISIONS[version], message(method, params))

    assert caught.value.status == 400
