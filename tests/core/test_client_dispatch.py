"""The end of a client's connection, and invariants of the machine."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, TransportFailure
from genmcp.core.client.events import (
    Answered,
    ConnectionFailed,
    Disconnected,
    InputNeeded,
    MessageDropped,
    PeerFault,
    RequestFailed,
    RequestRejected,
    RequestTimedOut,
    RestartTransport,
    SendMessage,
    TaskCreated,
)
from genmcp.errors import (
    LocalIllegalTransition,
)
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import ListRootsResult
from tests.core.client_lines import (
    ANSWER,
    CALL,
    EVERYTHING,
    asks,
    called,
    cancelled,
    either_era,
    error,
    in_state,
    legacy,
    machine,
    message,
    modern,
    result,
)


@either_era
@pytest.mark.parametrize("sent", [True, False])
def test_client_transport_failure_fails_its_request(
    made: Callable[..., ClientDispatch], sent: bool
) -> None:
    """It may have run, unless it was never sent; the machine stays READY."""
    client, why = made(per_message=True), ValueError("no")
    id = called(client)

    assert [RequestFailed(id, why, sent)] == client.failed(
        id, TransportFailure(why, 500, sent=sent), 0
    )
    assert client.failed(id, TransportFailure(why), 0) == []
    assert client.state is ConnectionState.READY


def test_client_answer_with_401_is_left_to_the_transport() -> None:
    """The transport reads the challenge; the request still waits."""
    client = modern(per_message=True)
    id = called(client)

    assert client.received(error(id, -32600), 0, about=id, status=401) == []
    assert client.is_pending(id)


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_lost_connection_is_closed_or_failed(state: ConnectionState) -> None:
    """Failed if there was no connection; the owner gets one event, with the reason.

    Where an older server may have exited because of an unknown request, it is started again.
    """
    client, why = in_state(state), ValueError("gone")

    outcomes = client.closed(why)

    if state is ConnectionState.READY:
        assert [Disconnected(why)] == outcomes
    elif state is ConnectionState.CLOSING:
        assert outcomes == [Disconnected(None)]
    elif state in (ConnectionState.CLOSED, ConnectionState.FAILED):
        assert outcomes == []
    elif state in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
        assert [RestartTransport(why)] == outcomes
        assert ConnectionState.NEW is client.state
        return
    else:
        assert [ConnectionFailed(why)] == outcomes
    closed = state in (ConnectionState.READY, ConnectionState.CLOSING, ConnectionState.CLOSED)
    assert (ConnectionState.CLOSED if closed else ConnectionState.FAILED) is client.state
    assert client.closed(ValueError("again")) == []


def test_client_lost_connection_fails_pending_requests() -> None:
    """Each may have run; a question of the server gets no answer."""
    client, why = legacy(capabilities=EVERYTHING), ValueError("gone")
    first, second = called(client), called(client)
    asks(client, "roots/list")

    outcomes = client.closed(why)

    assert [
        RequestFailed(first, why, True),
        RequestFailed(second, why, True),
        Disconnected(why),
    ] == outcomes
    assert why is client.reason
    assert client.answer("q", ListRootsResult([])) == []
    assert (client.pending, client.next_check) == (0, None)


def test_client_connection_that_ends_was_ended_by_the_server() -> None:
    """2026-07-28, stdio, "Shutdown": it may, by closing its output."""
    (disconnected,) = modern().closed()

    assert isinstance(disconnected, Disconnected)
    assert isinstance(disconnected.error, PeerFault)


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_close_ends_everything_in_every_state(state: ConnectionState) -> None:
    """It can be repeated; later messages are dropped."""
    client = in_state(state)
    id = called(client) if state is ConnectionState.READY else None

    outcomes = client.close()

    assert ([RequestFailed(id, None, True)] if id else []) == outcomes
    assert client.state in (ConnectionState.CLOSING, ConnectionState.CLOSED)
    assert client.close() == []
    assert isinstance(client.received(result(2, ANSWER), 0)[0], MessageDropped)
    client.closed()
    assert ConnectionState.CLOSED is client.state


def test_client_repr_has_its_state() -> None:
    """For logs and debuggers."""
    client = modern()
    called(client)

    assert repr(client) == "<ClientDispatch READY, 1 pending>"
    assert client.capabilities == ClientCapabilities()


bodies = st.sampled_from(
    [
        result(1, {"supportedVersions": ["2026-07-28"]}),
        result(2, {"protocolVersion": "2025-11-25"}),
        *(error(id, code) for id in (1, 2, 3, None) for code in (-32601, -32022)),
        *(result(id, ANSWER) for id in (2, 3, 4, "x")),
        message(id=2, method="ping"),
        message(id="q", method="roots/list"),
        message(method="notifications/progress", params={"progressToken": 3, "progress": 1}),
        *(cancelled(id) for id in (2, 3, "q")),
        message(method="notifications/tools/list_changed"),
        b"[",
    ]
)


@given(
    st.booleans(),
    st.sampled_from([None, "2026-07-28", "2025-11-25"]),
    st.lists(bodies | st.sampled_from(["call", "wait", "lose", "close", "begin"])),
)
def test_client_request_ends_once_in_any_order_of_events(
    per_message: bool, revision: str | None, steps: list[bytes | str]
) -> None:
    """No message of the peer raises; a method raises IllegalTransition or has its effect.

    No id is used twice, and each request ends exactly once when the connection has ended.
    """
    client = machine(per_message=per_message, revision=revision, capabilities=EVERYTHING)
    now, sent, ended = 0.0, list[int](), list[int]()

    def perform(outcomes: list[Any]) -> None:
        sent.extend(each.id for each in outcomes if isinstance(each, SendMessage) and each.id)
        ends = (
            Answered,
            RequestRejected,
            RequestFailed,
            RequestTimedOut,
            InputNeeded,
            TaskCreated,
        )
        ended.extend(each.id for each in outcomes if isinstance(each, ends))

    users = []
    for step in steps:
        now += 7
        try:
            match step:
                case bytes():
                    perform(client.received(step, now))
                case "call":
                    id, outcomes = client.request("tools/call", CALL, now=now, progress=True)
                    users.append(id)
                    perform(outcomes)
                case "wait":
                    perform(client.check_timeouts(now))
                case "lose":
                    perform(client.closed())
                case "close":
                    perform(client.close())
                case _:
                    perform(client.begin(now))
        except LocalIllegalTransition:
            assert not isinstance(step, bytes)
    perform(client.close())

    assert len(sent) == len(set(sent))
    assert sorted(users) == sorted(ended)
    assert client.pending == 0
