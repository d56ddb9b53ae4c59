"""Responses of a server: results, questions, tasks, errors, and malformed ones."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState
from genmcp.core.client.events import (
    Answered,
    InputNeeded,
    LateAnswer,
    MessageDropped,
    NotificationReceived,
    PeerFault,
    RequestFailed,
    RequestRejected,
    SendMessage,
    TaskCreated,
)
from genmcp.errors import (
    GenmcpError,
)
from genmcp.protocol.client_features import ElicitRequest, ElicitRequestParams
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult, ListToolsResult
from tests.core.client_lines import (
    ANSWER,
    EVERYTHING,
    called,
    either_era,
    error,
    in_state,
    legacy,
    message,
    modern,
    result,
)


@either_era
def test_client_answer_is_a_value_and_its_json(made: Callable[..., ClientDispatch]) -> None:
    """It comes under the id of its request, and is over then."""
    client = made()
    id = called(client)

    (answered,) = client.received(result(id, ANSWER), 0)

    assert isinstance(answered, Answered)
    assert answered.result == CallToolResult([TextContent("3")])
    assert msgspec.json.decode(answered.raw) == ANSWER
    assert not client.is_pending(id)
    assert client.pending == 0


@pytest.mark.parametrize(
    "kind",
    [{}, {"resultType": "complete"}, {"a": {"resultType": "task"}, "resultType": "complete"}],
)
def test_client_answer_without_a_type_is_complete(kind: dict[str, Any]) -> None:
    """2026-07-28, basic, "ResultType"."""
    client = modern()
    (answered,) = client.received(result(called(client), kind | ANSWER), 0)

    assert isinstance(answered, Answered)


def test_client_answer_of_an_older_revision_has_no_type() -> None:
    """A result without `resultType` is complete, with any other members."""
    client = legacy(capabilities=EVERYTHING)
    (answered,) = client.received(result(called(client), ANSWER | {"resultType": "task"}), 0)

    assert isinstance(answered, Answered)


@either_era
def test_client_cacheable_answer_is_equal_in_both_eras(
    made: Callable[..., ClientDispatch],
) -> None:
    """2026-07-28, "Caching": without a time to live nothing may be cached."""
    client = made()
    id, _ = client.request("tools/list", now=0)

    (answered,) = client.received(result(id, {"tools": [], "nextCursor": "c"}), 0)

    assert isinstance(answered, Answered)
    expected = ListToolsResult(tools=[], next_cursor="c", ttl_ms=0, cache_scope="private")
    assert expected == answered.result


def test_client_answer_has_its_time_to_live() -> None:
    """If one of the two members is missing, the other applies."""
    client = modern()
    for given, scope in (
        ({"ttlMs": 5, "cacheScope": "public"}, "public"),
        ({"ttlMs": 5}, "private"),
    ):
        id, _ = client.request("resources/read", {"uri": "a:b"}, now=0)
        (answered,) = client.received(result(id, {"contents": [], "ttlMs": 5, **given}), 0)
        assert isinstance(answered, Answered)
        assert (5, scope) == (answered.result.ttl_ms, answered.result.cache_scope)


def test_client_answer_of_an_unknown_method_is_a_mapping() -> None:
    """A method of an extension has no type here, nor has that of a notification."""
    client = modern()
    for method in ("com.example/x", "notifications/cancelled"):
        id, _ = client.request(method, now=0)
        (answered,) = client.received(result(id, {"a": [1]}), 0)
        assert isinstance(answered, Answered)
        assert answered.result == {"a": [1]}


@pytest.mark.parametrize(
    "bad",
    [
        {"content": 5},
        {"resultType": 5},
        {"resultType": "partial", "content": []},
        {"resultType": "task", "taskId": "t"},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {"a": {"method": "x"}}},
        [],
    ],
)
def test_client_invalid_answer_fails_its_request(bad: Any) -> None:
    """The error blames the peer and states the fault; the request may have run."""
    client = modern(capabilities=EVERYTHING)
    id = called(client)

    (failed,) = client.received(result(id, bad), 0)

    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, PeerFault)
    assert "result of tools/call" in str(failed.error)
    assert (id, True) == (failed.id, failed.may_have_run)
    assert not client.is_pending(id)


@pytest.mark.parametrize(
    ("method", "kind"),
    [("tools/list", "input_required"), ("com.example/x", "input_required"), ("tools/call", "task")],
)
def test_client_answer_must_have_an_allowed_type(method: str, kind: str) -> None:
    """Only some requests may be answered with questions; tasks have to be declared."""
    client = modern()
    id, _ = client.request(method, now=0)

    (failed,) = client.received(result(id, {"resultType": kind, "requestState": "s"}), 0)

    assert isinstance(failed, RequestFailed)
    assert kind in str(failed.error)


def test_client_answer_can_be_questions() -> None:
    """2026-07-28, "Multi Round-Trip Requests": the questions, and the state unchanged."""
    client = modern(capabilities=EVERYTHING)
    form = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}
    asked = {"a": {"method": "elicitation/create", "params": form}}
    request = ElicitRequest(ElicitRequestParams(form["message"], form["requestedSchema"]))  # type: ignore[arg-type]

    for given, requests, state in (
        ({"inputRequests": asked, "requestState": " s"}, {"a": request}, " s"),
        ({"inputRequests": asked}, {"a": request}, None),
        ({"requestState": ""}, {}, ""),
    ):
        id = called(client)
        outcomes = client.received(result(id, {"resultType": "input_required", **given}), 0)
        assert [InputNeeded(id, requests, state)] == outcomes
        assert not client.is_pending(id)


def test_client_answer_can_be_a_task() -> None:
    """SEP-2663: the handle in place of the result."""
    client = modern(capabilities=EVERYTHING)
    task = {
        "taskId": "t",
        "status": "working",
        "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z",
        "ttlMs": None,
    }

    (created,) = client.received(result(called(client), {"resultType": "task", **task}), 0)

    assert isinstance(created, TaskCreated)
    assert created.task.task_id == "t"


@either_era
def test_client_error_has_the_members_of_the_server(made: Callable[..., ClientDispatch]) -> None:
    """Code, message and data, and the HTTP status; the machine stays READY."""
    client = made()
    id = called(client)

    (refused,) = client.received(error(id, -32602, "bad", data={"a": 1}), 0, about=id, status=400)

    assert isinstance(refused, RequestRejected)
    assert (id, -32602, "bad", {"a": 1}, 400) == (
        refused.id,
        refused.error.code,
        refused.error.message,
        refused.error.data,
        refused.error.status,
    )
    assert client.state is ConnectionState.READY
    assert not client.is_pending(id)


@pytest.mark.parametrize(
    ("made", "method", "code"),
    [
        (legacy, "resources/read", -32602),
        (modern, "resources/read", -32002),
        (legacy, "tools/call", -32002),
    ],
)
def test_client_error_of_a_missing_resource_has_the_2026_code(
    made: Callable[..., ClientDispatch], method: str, code: int
) -> None:
    """Before, -32002 was the code, for resources only."""
    client = made()
    id, _ = client.request(method, {"uri": "a:b"}, now=0)

    (refused,) = client.received(error(id, -32002), 0)

    assert isinstance(refused, RequestRejected)
    assert code == refused.error.code


def test_client_error_without_an_id_belongs_to_its_response() -> None:
    """Over HTTP that is known; on one channel it is not."""
    client = modern(per_message=True)
    id = called(client)

    assert isinstance(client.received(error(None, -32700), 0)[0], MessageDropped)
    (refused,) = client.received(error(None, -32700), 0, about=id, status=400)

    assert isinstance(refused, RequestRejected)


def test_http_error_with_another_id_answers_its_request() -> None:
    """mcp 1.x sends `"id": "server-error"` with HTTP 400; on another response the id counts."""
    client = modern(per_message=True)
    id = called(client)
    body = message(id="server-error", error={"code": -32600, "message": "Missing session ID"})

    assert isinstance(client.received(body, 0, about=id)[0], MessageDropped)
    (refused,) = client.received(body, 0, about=id, status=400)
    (late,) = client.received(body, 0, about=id, status=400)

    assert isinstance(refused, RequestRejected)
    assert (id, "Missing session ID") == (refused.id, refused.error.message)
    assert isinstance(late, MessageDropped)


@either_era
def test_client_answer_is_accepted_once(made: Callable[..., ClientDispatch]) -> None:
    """A second one, a late one, and one without a request are dropped and reported."""
    client = made()
    answered, cancelled = called(client), called(client)
    client.received(result(answered, ANSWER), 0)
    client.cancel(cancelled)

    for id in (answered, cancelled, 1, 99, str(answered), "x"):
        for body in (result(id, ANSWER), message(id=id, error={"code": 1, "message": "late"})):
            (dropped,) = client.received(body, 0)
            assert isinstance(dropped, MessageDropped)
            assert id == dropped.id
            known = id in (answered, cancelled, 1)
            assert isinstance(dropped.fault, LateAnswer) is known
            assert (f"request {id} has ended" if known else repr(id)) in str(dropped.fault)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"5",
        b"null",
        b"[" * 1000,
        message(id=None, method="ping"),
        message(id=99),
        message(id=2, method=5),
        b'{"id":2,"result":{},"method":"x"}',
    ],
)
@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_garbage_is_dropped_in_every_state(body: bytes, state: ConnectionState) -> None:
    """It is reported, and changes nothing."""
    client = in_state(state)

    (dropped,) = client.received(body, 0)

    assert isinstance(dropped, MessageDropped)
    assert isinstance(dropped.fault, GenmcpError)
    assert state is client.state


@pytest.mark.parametrize(
    "members", [{}, {"result": {}, "error": {"code": 1, "message": "x"}}, {"error": 5}]
)
def test_client_answer_that_is_no_message_fails_its_request(members: dict[str, Any]) -> None:
    """The caller gets the error at once, not a timeout."""
    client = modern()
    id = called(client)

    (failed,) = client.received(message(id=id, **members), 0)

    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.error, PeerFault)
    assert not client.is_pending(id)


def test_client_answer_that_is_too_long_fails_its_request() -> None:
    """Its head or its response identifies the request; the connection stays open."""
    client = modern(per_message=True)
    first, second, third = called(client), called(client), called(client)

    def too_long(head: bytes, about: int | None = None) -> Any:
        (outcome,) = client.too_long(10**9, head, now=0, about=about)
        return outcome

    failed = too_long(b'{"jsonrpc":"2.0","id":%d,"result":' % first)
    assert (RequestFailed, first) == (type(failed), failed.id)
    assert "1000000000 bytes" in str(failed.error)
    assert second == too_long(b'{"jsonrpc":"2.0","result":{"a', about=second).id
    for head in (b'{"jsonrpc":"2.0","result":{', b'{"method":"x","params":{"id":4}', b'{"id":9}'):
        assert isinstance(too_long(head), MessageDropped)
    assert isinstance(too_long(b'{"method":"x"', about=third), MessageDropped)
    assert client.is_pending(third)


def test_client_accepts_batches() -> None:
    """2025-03-26, basic, "Batching"; a faulty member does not affect the others."""
    client = legacy("2025-03-26")
    first, second = called(client), called(client)
    batch = [
        result(second, ANSWER),
        message(id="s", method="ping"),
        b"5",
        error(first, -32603),
        message(method="notifications/tools/list_changed"),
    ]

    outcomes = client.received(b"[" + b",".join(batch) + b"]", 0)

    assert [
        Answered,
        SendMessage,
        MessageDropped,
        RequestRejected,
        NotificationReceived,
    ] == [type(each) for each in outcomes]


def test_client_drops_a_batch_of_too_many_messages() -> None:
    """Each costs some microseconds, while nothing else runs; the next message is handled."""
    client = legacy("2025-03-26")
    id = called(client)

    (dropped,) = client.received(b"[" + b"{}," * 1000 + b"{}]", 0)
    (answered,) = client.received(result(id, ANSWER), 0)

    assert isinstance(dropped, MessageDropped)
    assert "more than 1000 messages" in str(dropped.fault)
    assert isinstance(answered, Answered)
