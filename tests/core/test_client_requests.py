"""Requests and notifications of a client, in the form of either era."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState
from genmcp.core.client.events import RequestTimedOut, SendMessage
from genmcp.core.client.lifecycle import Timeouts
from genmcp.errors import (
    LocalIllegalTransition,
    MethodNotFound,
)
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.params import (
    PaginatedRequestParams,
    ProgressNotificationParams,
    RequestMeta,
    RequestParams,
)
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    CompletionArgument,
    GetPromptRequestParams,
    PromptReference,
)
from genmcp.protocol.resources import ReadResourceRequestParams
from genmcp.protocol.revisions.v2025_11_25 import SubscribeRequestParams
from genmcp.protocol.tools import CallToolRequestParams
from tests.core.client_lines import (
    CALL,
    EVERYTHING,
    either_era,
    in_state,
    legacy,
    modern,
    said,
)


def test_client_request_of_2026_is_self_contained() -> None:
    """It has version, name and capabilities, and the values of the headers."""
    client = modern(capabilities=EVERYTHING)

    id, (send,) = client.request("tools/call", CALL, now=0, param_headers=((b"mcp-param-a", b"1"),))

    assert isinstance(send, SendMessage)
    assert (
        id,
        send.method,
        send.name,
        send.revision,
        send.param_headers,
    ) == (2, "tools/call", "add", "2026-07-28", ((b"mcp-param-a", b"1"),))
    assert said([send])[0] == {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1.0"},
                "io.modelcontextprotocol/clientCapabilities": {
                    "roots": {},
                    "elicitation": {},
                    "extensions": {TASKS: {}},
                },
            },
            "name": "add",
            "arguments": {"a": 1},
        },
    }


def test_client_request_of_an_older_revision_has_no_metadata() -> None:
    """Nor answers to questions, nor a name in a header."""
    client = legacy()
    params = CallToolRequestParams(
        name="add", input_responses={"a": 1}, request_state="s", arguments=msgspec.Raw(b"{}")
    )

    _, (send,) = client.request("tools/call", params, now=0)

    assert isinstance(send, SendMessage)
    assert (send.name, send.revision) == (None, "2025-11-25")
    assert said([send])[0]["params"] == {"name": "add", "arguments": {}}


@pytest.mark.parametrize(
    ("method", "params", "wire"),
    [
        ("tools/list", None, None),
        ("tools/list", PaginatedRequestParams(cursor="c"), {"cursor": "c"}),
        (
            "tools/call",
            {"name": "add", "arguments": {"a": 1}},
            {"name": "add", "arguments": {"a": 1}},
        ),
        ("resources/list", PaginatedRequestParams(), None),
        ("resources/read", ReadResourceRequestParams(uri="a:b"), {"uri": "a:b"}),
        ("resources/templates/list", {}, None),
        ("resources/subscribe", SubscribeRequestParams(uri="a:b"), {"uri": "a:b"}),
        ("resources/unsubscribe", {"uri": "a:b"}, {"uri": "a:b"}),
        ("prompts/list", None, None),
        ("prompts/get", GetPromptRequestParams(name="p"), {"name": "p"}),
        (
            "completion/complete",
            CompleteRequestParams(
                ref=PromptReference("p"), argument=CompletionArgument(name="a", value="b")
            ),
            {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "b"}},
        ),
        ("logging/setLevel", {"level": "info"}, {"level": "info"}),
        ("ping", None, None),
        ("com.example/anything", {"a": [1]}, {"a": [1]}),
    ],
)
def test_client_request_can_be_any_method(method: str, params: Any, wire: Any) -> None:
    """Every method of the revision, and those of unknown extensions."""
    client = legacy()

    id, outcomes = client.request(method, params, now=0)

    (sent,) = said(outcomes)
    assert (id, method, wire) == (sent["id"], sent["method"], sent.get("params"))
    assert client.is_pending(id)


@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/call", {"name": "add"}, "add"),
        ("tools/call", {}, None),
        ("tools/call", None, None),
        ("tools/call", RequestParams(), None),
        ("resources/read", ReadResourceRequestParams(uri="a:ö"), "a:ö"),
        ("prompts/get", {"name": "p"}, "p"),
        ("tasks/get", {"taskId": "t"}, "t"),
        ("tools/list", {"name": "add"}, None),
        ("com.example/x", {"name": "add"}, None),
    ],
)
def test_client_request_has_the_value_of_its_name_header(
    method: str, params: Any, name: Any
) -> None:
    """2026-07-28, "Standard Request Headers": the member depends on the method."""
    _, (send,) = modern().request(method, params, now=0)

    assert isinstance(send, SendMessage)
    assert name == send.name


@pytest.mark.parametrize(
    "params",
    [
        RequestParams(meta=RequestMeta(traceparent="t")),
        {"_meta": {"traceparent": "t"}},
    ],
)
@either_era
def test_client_request_keeps_other_metadata(
    made: Callable[..., ClientDispatch], params: Any
) -> None:
    """The progress token is the id."""
    client = made()

    id, outcomes = client.request(
        "tools/list",
        params,
        now=0,
        progress=True,
    )

    meta = said(outcomes)[0]["params"]["_meta"]
    others = {
        key: value for key, value in meta.items() if not key.startswith("io.modelcontextprotocol/")
    }
    assert {"traceparent": "t", "progressToken": id} == others
    assert (len(meta) > len(others)) is (made is modern)


def test_client_request_cannot_override_its_version() -> None:
    """The client itself sets the members that 2026-07-28 reserves."""
    meta = {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}
    _, outcomes = modern().request("tools/list", {"_meta": meta}, now=0)

    meta = said(outcomes)[0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


@pytest.mark.parametrize(
    "state", [state for state in ConnectionState if state is not ConnectionState.READY]
)
def test_client_request_is_allowed_when_ready_only(state: ConnectionState) -> None:
    """Before and after, the error has the reason of the state as its cause."""
    client = in_state(state)

    for send in (
        lambda: client.request("tools/list", now=0),
        lambda: client.notify("notifications/roots/list_changed"),
    ):
        with pytest.raises(LocalIllegalTransition) as caught:
            send()
        assert client.reason is caught.value.__cause__
    assert client.state is not ConnectionState.READY


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_ping_is_allowed_while_initializing(state: ConnectionState) -> None:
    """2025-11-25, lifecycle: nothing else before the server has answered."""
    client = in_state(state)

    if state in (ConnectionState.INITIALIZING, ConnectionState.READY):
        _, outcomes = client.request("ping", now=0)
        assert said(outcomes)[0]["method"] == "ping"
    else:
        with pytest.raises(LocalIllegalTransition):
            client.request("ping", now=0)


@pytest.mark.parametrize(
    ("made", "method"),
    [(modern, "ping"), (modern, "resources/subscribe"), (legacy, "subscriptions/listen")],
)
def test_client_request_of_another_revision_is_not_sent(
    made: Callable[..., ClientDispatch], method: str
) -> None:
    """The server would reject it; `speaks` answers that beforehand."""
    client = made()

    assert not client.supports(method)
    with pytest.raises(MethodNotFound):
        client.request(method, now=0)
    assert client.pending == 0


def test_client_request_that_is_no_json_is_not_pending() -> None:
    """The caller gets the error, and no id waits for an answer."""
    client = modern()

    with pytest.raises(TypeError):
        client.request("tools/call", {"name": object()}, now=0)

    assert client.pending == 0


def test_client_notification_is_sent_where_it_is_defined() -> None:
    """Changes of roots are sent before 2026-07-28 only; unknown methods are sent."""
    (send,) = legacy().notify("notifications/roots/list_changed")
    assert isinstance(send, SendMessage)
    assert (
        send.id,
        send.method,
        send.revision,
    ) == (None, "notifications/roots/list_changed", "2025-11-25")
    progress = ProgressNotificationParams(progress_token="t", progress=1, message="half")
    (sent,) = said(legacy("2024-11-05").notify("notifications/progress", progress))
    assert sent["params"] == {"progressToken": "t", "progress": 1}

    assert modern().notify("notifications/roots/list_changed") == []
    assert said(modern().notify("com.example/x", {"a": 1}))[0] == {
        "jsonrpc": "2.0",
        "method": "com.example/x",
        "params": {"a": 1},
    }


def test_client_log_level_is_metadata() -> None:
    """2026-07-28: a member of `_meta` from now on."""
    client = modern()
    client.request("tools/list", now=0)
    client.set_log_level("warning")
    for meta in ({}, {"io.modelcontextprotocol/logLevel": "debug", "a": 1}):
        _, outcomes = client.request("tools/list", {"_meta": meta}, now=0)
        got = said(outcomes)[0]["params"]["_meta"]["io.modelcontextprotocol/logLevel"]
        assert got == "warning"


def test_client_pauses_the_timeouts_of_a_request() -> None:
    """A request that waits for the user to log in continues where its timeouts stopped."""
    client = modern()
    id, _ = client.request("tools/call", CALL, now=0, timeouts=Timeouts(idle=10, total=20))
    client.pause(id, 4)
    client.pause(id, 5)  # without effect, as for an unknown id:
    client.pause(99, 5)

    assert client.check_timeouts(1000) == []
    assert client.next_check is None

    client.resume(id, 1004)
    client.resume(id, 2000)
    client.resume(99, 2000)
    assert client.next_check == 1010
    assert client.check_timeouts(1009) == []
    [*_, timed_out] = client.check_timeouts(1010)
    assert isinstance(timed_out, RequestTimedOut)
    assert timed_out.silent
