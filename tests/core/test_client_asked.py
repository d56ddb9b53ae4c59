"""Requests of the server: pings in every state, questions when the client is ready."""

from typing import Any

import msgspec
import pytest

from genmcp.core.client.dispatch import ConnectionState, Timeouts
from genmcp.core.client.events import (
    Answered,
    CloseResponse,
    MessageDropped,
    PeerIllegalTransition,
    ReceivedRequestCancelled,
    RequestReceived,
    SendMessage,
)
from genmcp.errors import (
    InvalidParams,
    McpError,
)
from genmcp.protocol.client_features import ElicitRequestParams, ElicitResult, ListRootsResult, Root
from tests.core.client_lines import (
    EVERYTHING,
    asks,
    called,
    cancelled,
    in_state,
    legacy,
    message,
    modern,
    said,
    told,
)


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_answers_a_ping_of_the_server(state: ConnectionState) -> None:
    """2025-11-25, ping: promptly and with an empty result, by the machine itself."""
    outcomes = asks(in_state(state), "ping", 7)

    if state in (ConnectionState.CLOSED, ConnectionState.FAILED):
        (dropped,) = outcomes
        assert isinstance(dropped.fault, PeerIllegalTransition)
    else:
        (send,) = outcomes
        assert said([send])[0] == {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert ("2025-11-25" if state is ConnectionState.READY else None) == send.revision


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_accepts_questions_when_ready(state: ConnectionState) -> None:
    """Before that they are rejected where possible, after the end they are dropped."""
    client = in_state(state)
    outcomes = asks(client, "roots/list")

    if state is ConnectionState.READY:  # this client has not declared roots
        assert said(outcomes)[0]["error"]["code"] == -32601
        return
    assert isinstance(outcomes[-1], MessageDropped)
    assert isinstance(outcomes[-1].fault, PeerIllegalTransition)
    refused = said(outcomes)
    if state in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
        assert (refused[0]["id"], refused[0]["error"]["code"]) == ("q", -32600)
    else:
        assert refused == []


@pytest.mark.parametrize("method", ["ping", "roots/list", "com.example/x"])
def test_client_rejects_requests_of_a_2026_server(method: str) -> None:
    """The server MUST NOT send requests, and the client MUST NOT send responses."""
    (dropped,) = asks(modern(capabilities=EVERYTHING), method)

    assert isinstance(dropped, MessageDropped)
    assert isinstance(dropped.fault, PeerIllegalTransition)
    assert "2026-07-28" in str(dropped.fault)


def test_client_question_is_answered_once() -> None:
    """With the id of the server."""
    client = legacy(capabilities=EVERYTHING)
    form = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}

    (asked,) = asks(client, "elicitation/create", 1, **form)

    params = ElicitRequestParams("Go on?", {"type": "object", "properties": {}})
    assert RequestReceived(1, "elicitation/create", params, frozenset()) == asked
    (send,) = client.answer(1, ElicitResult("accept", {"a": 1}))
    assert isinstance(send, SendMessage)
    assert (send.id, send.method, send.revision) == (None, None, "2025-11-25")
    assert said([send])[0] == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"action": "accept", "content": {"a": 1}},
    }
    assert client.answer(1, ElicitResult("cancel")) == []
    assert client.refuse(1, McpError("late")) == []


def test_client_question_can_be_rejected() -> None:
    """With the error's own code and message."""
    client = legacy(capabilities=EVERYTHING)
    asks(client, "roots/list")

    (sent,) = said(client.refuse("q", McpError("User rejected", code=-1)))

    assert sent["error"] == {"code": -1, "message": "User rejected"}
    assert client.answer("q", {"roots": []}) == []


def test_client_question_of_an_unknown_method_is_passed_on() -> None:
    """The handler decides; a mapping is an answer, too."""
    client = legacy()

    (asked,) = asks(client, "com.example/x", a=1)

    assert asked == RequestReceived("q", "com.example/x", {"a": 1}, frozenset())
    assert said(client.answer("q", {"b": 2}))[0]["result"] == {"b": 2}


@pytest.mark.parametrize(
    ("version", "method", "params", "code"),
    [
        ("2025-11-25", "sampling/createMessage", {}, -32601),
        ("2025-03-26", "elicitation/create", {}, -32601),
        ("2025-11-25", "elicitation/create", {}, InvalidParams.code),
        ("2025-11-25", "elicitation/create", {"message": "m", "mode": "url"}, InvalidParams.code),
        ("2025-11-25", "roots/list", {"_meta": 5}, InvalidParams.code),
    ],
)
def test_client_question_that_is_not_allowed_is_rejected(
    version: str, method: str, params: dict[str, Any], code: int
) -> None:
    """Undeclared capabilities, methods that the revision lacks, and malformed params."""
    send, dropped = asks(legacy(version, capabilities=EVERYTHING), method, **params)

    assert ("q", code) == (said([send])[0]["id"], said([send])[0]["error"]["code"])
    assert isinstance(dropped, MessageDropped)


def test_client_question_with_a_pending_id_is_dropped() -> None:
    """The two answers could not be distinguished."""
    client = legacy(capabilities=EVERYTHING)
    asks(client, "roots/list")

    (dropped,) = asks(client, "roots/list")

    assert isinstance(dropped, MessageDropped)
    assert "'q' again" in str(dropped.fault)


def test_client_questions_past_the_limit_are_rejected() -> None:
    """At most `max_asked` of them are pending; the server may retry."""
    client = legacy(capabilities=EVERYTHING, max_asked=1)
    asks(client, "roots/list", 1)

    (sent,) = said(asks(client, "roots/list", 2))
    assert (sent["error"]["code"], sent["error"]["data"]) == (-32603, {"retryAfter": 1})

    client.answer(1, ListRootsResult([Root("file:///a")]))
    assert isinstance(asks(client, "roots/list", 3)[0], RequestReceived)


def test_client_question_can_be_withdrawn() -> None:
    """The server cancels it, and gets no answer. Its ids are independent of this side's."""
    client = legacy(capabilities=EVERYTHING)
    id = called(client)
    asks(client, "roots/list", id)

    assert [ReceivedRequestCancelled(id, "enough")] == client.received(
        cancelled(id, reason="enough"), 0
    )
    assert client.answer(id, ListRootsResult([])) == []
    assert isinstance(client.received(cancelled(id), 0)[0], MessageDropped)
    assert client.is_pending(id)


def test_client_question_ends_with_its_request() -> None:
    """It ends with the last request that it may belong to; the server gets an error."""
    client = legacy(capabilities=EVERYTHING)
    asks(client, "roots/list", "before")
    first, second = called(client), called(client)
    asks(client, "roots/list", "q")

    assert told(client.cancel(first)) == []
    outcomes = client.cancel(second, "enough")

    assert told(outcomes) == [ReceivedRequestCancelled("q", "enough")]
    (cancelled, refused) = said(outcomes)
    assert second == cancelled["params"]["requestId"]
    assert (refused["id"], refused["error"]["code"]) == ("q", -32603)
    assert client.answer("q", ListRootsResult([])) == []
    assert client.answer("before", ListRootsResult([])) != []


def test_client_question_on_a_response_belongs_to_its_request() -> None:
    """Over HTTP the stream identifies the request."""
    client = legacy(capabilities=EVERYTHING, per_message=True)
    first, second = called(client), called(client)
    client.received(message(id="q", method="roots/list"), 0, about=first)

    assert told(client.cancel(second)) == []
    assert told(client.cancel(first)) == [ReceivedRequestCancelled("q", None)]


def test_client_question_stops_timeouts_of_earlier_requests() -> None:
    """A user may take time to answer; a request that is sent later cannot depend on that."""
    client = legacy(capabilities=EVERYTHING)
    before = called(client, timeouts=Timeouts(idle=5, total=None))
    asks(client, "roots/list")
    later = called(client, timeouts=Timeouts(idle=5, total=None))

    assert [later] == [each.id for each in told(client.check_timeouts(5))]
    client.answer("q", ListRootsResult([]))
    assert [before] == [each.id for each in told(client.check_timeouts(10))]


@pytest.mark.parametrize("per_message", [True, False])
def test_client_subscription_can_be_ended_by_the_server(per_message: bool) -> None:
    """2026-07-28, cancellation: for a subscriptions/listen, and for no other purpose."""
    client = modern(per_message=per_message)
    call = called(client)
    id, _ = client.request("subscriptions/listen", {"notifications": {}}, now=0)

    for other in (call, 99, "x"):
        assert isinstance(client.received(cancelled(other), 0)[0], MessageDropped)
    outcomes = client.received(cancelled(id, reason="bye"), 0)

    assert [Answered(id, None, msgspec.Raw())] == told(outcomes)
    assert ([CloseResponse(id)] if per_message else []) == outcomes[:-1]
    assert client.is_pending(call)
    assert not client.is_pending(id)
