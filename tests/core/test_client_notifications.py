"""Notifications of a server, and requests that the client cancels or that time out."""

from collections.abc import Callable
from typing import Any

import pytest

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, Timeouts
from genmcp.core.client.events import (
    CloseResponse,
    MessageDropped,
    NotificationReceived,
    PeerIllegalTransition,
    ProgressReceived,
    RequestTimedOut,
)
from genmcp.protocol.client_features import ListRootsResult
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    NotificationParams,
)
from tests.core.client_lines import (
    ANSWER,
    EVERYTHING,
    called,
    either_era,
    in_state,
    legacy,
    message,
    modern,
    result,
    said,
)


@either_era
def test_client_notification_is_decoded(made: Callable[..., ClientDispatch]) -> None:
    """Those of extensions are mappings."""
    client = made()

    def got(method: str, **params: Any) -> Any:
        (notified,) = client.received(message(method=method, params=params), 0)
        assert isinstance(notified, NotificationReceived)
        assert method == notified.method
        return notified.params

    log = LoggingMessageNotificationParams("info", {"a": 1})
    assert log == got("notifications/message", level="info", data={"a": 1})
    assert got("notifications/tools/list_changed") == NotificationParams()
    assert got("com.example/told", a=1) == {"a": 1}
    # One that only clients send has no meaning here, but is not lost.
    assert got("notifications/initialized") == {}
    (notified,) = client.received(message(method="com.example/told"), 0)
    assert notified.params == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("id", "found"), [(5, 5), ("5", "5"), (True, None), (None, None), (5.5, None)]
)
def test_client_notification_has_its_subscription(id: Any, found: Any) -> None:
    """2026-07-28, "Receiving Notifications": by its `_meta`, and the response it came on."""
    client = modern(per_message=True)
    params = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}

    (notified,) = client.received(
        message(method="notifications/tools/list_changed", params=params), 0, about=7
    )

    assert isinstance(notified, NotificationReceived)
    assert (found, 7) == (notified.subscription, notified.about)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/message", {}),
        ("notifications/progress", {"progress": 1}),
        ("notifications/cancelled", {}),
        ("notifications/tools/list_changed", {"_meta": 5}),
        ("com.example/x", []),
    ],
)
def test_client_invalid_notification_is_dropped(method: str, params: Any) -> None:
    """The error names the method and the fault."""
    (dropped,) = legacy().received(message(method=method, params=params), 0)

    assert isinstance(dropped, MessageDropped)
    assert method in str(dropped.fault)


@pytest.mark.parametrize("state", list(ConnectionState))
def test_client_notification_needs_a_connection(state: ConnectionState) -> None:
    """A server may log before it is initialized, but not before the client has sent anything."""
    (outcome,) = in_state(state).received(
        message(method="notifications/message", params={"level": "info", "data": 1}), 0
    )

    if state in (ConnectionState.NEW, ConnectionState.CLOSED, ConnectionState.FAILED):
        assert isinstance(outcome, MessageDropped)
        assert isinstance(outcome.fault, PeerIllegalTransition)
    else:
        assert isinstance(outcome, NotificationReceived)


@either_era
def test_client_progress_belongs_to_its_request(made: Callable[..., ClientDispatch]) -> None:
    """By its id, while the request is pending, and only if it was requested."""
    client = made()
    id, silent = called(client, progress=True), called(client)

    def told_of(token: Any) -> Any:
        params = {"progressToken": token, "progress": 1.5, "total": 3, "message": "half"}
        (outcome,) = client.received(message(method="notifications/progress", params=params), 0)
        return outcome

    assert ProgressReceived(id, 1.5, 3, "half") == told_of(id)
    for token in (silent, 99, str(id), "x"):
        assert isinstance(told_of(token), MessageDropped)
    client.received(result(id, ANSWER), 0)
    assert isinstance(told_of(id), MessageDropped)


@pytest.mark.parametrize(
    ("made", "per_message", "notified", "hung_up"),
    [
        (modern, False, True, False),
        (modern, True, False, True),
        (legacy, False, True, False),
        (legacy, True, True, True),
    ],
)
def test_client_cancellation_depends_on_the_transport(
    made: Callable[..., ClientDispatch], per_message: bool, notified: bool, hung_up: bool
) -> None:
    """2026-07-28, "Transport-Specific Cancellation": over HTTP only by a disconnect."""
    client = made(per_message=per_message)
    id = called(client)

    outcomes = client.cancel(id, "no need")

    expected = {"requestId": id, "reason": "no need"}
    assert ([expected] if notified else []) == [each["params"] for each in said(outcomes)]
    assert ([CloseResponse(id)] if hung_up else []) == [
        each for each in outcomes if isinstance(each, CloseResponse)
    ]
    assert not client.is_pending(id)
    assert client.cancel(id) == []


def test_client_cancellation_of_initialize_is_not_sent() -> None:
    """2025-11-25, cancellation: initialize MUST NOT be cancelled."""
    client = in_state(ConnectionState.INITIALIZING)

    assert client.cancel(2) == []
    assert client.is_pending(2)


@pytest.mark.parametrize(
    ("timeouts", "deadline"),
    [
        (Timeouts(), 30),
        (Timeouts(idle=5, total=3), 3),
        (Timeouts(idle=5, total=5), 5),
        (Timeouts(idle=None, total=7), 7),
        (Timeouts(idle=2.5, total=None), 2.5),
        (Timeouts(idle=None, total=None), None),
    ],
)
def test_client_timeout_is_at_its_deadline_and_not_before(
    timeouts: Timeouts, deadline: float | None
) -> None:
    """At the deadline itself the request is cancelled; a late answer is dropped."""
    client = modern()
    id = called(client, timeouts=timeouts)
    assert deadline == client.next_check

    if deadline is None:
        assert client.check_timeouts(10**9) == []
        return
    assert client.check_timeouts(deadline - 0.001) == []
    send, timed_out = client.check_timeouts(deadline)

    assert said([send])[0]["method"] == "notifications/cancelled"
    silent = timeouts.total is None or timeouts == Timeouts()
    assert RequestTimedOut(id, "tools/call", deadline, silent) == timed_out
    assert isinstance(client.received(result(id, ANSWER), deadline)[0], MessageDropped)
    assert client.check_timeouts(10**9) == []
    assert client.next_check is None


def test_client_idle_timeout_restarts_with_progress() -> None:
    """2026-07-28, "Timeouts": this is allowed, with a maximum."""
    client = modern()
    id = called(client, progress=True, timeouts=Timeouts(idle=10, total=25))
    for now in (9, 18):
        params = {"progressToken": id, "progress": now}
        client.received(message(method="notifications/progress", params=params), now)
        assert client.check_timeouts(now + 6) == []
    assert client.next_check == 25

    assert RequestTimedOut(id, "tools/call", 25, silent=False) == client.check_timeouts(25)[-1]


def test_client_timeout_applies_to_the_whole_call() -> None:
    """A call may take several requests; the caller set one timeout."""
    client = modern()
    id = called(client, timeouts=Timeouts(total=0.25, whole=10))

    assert RequestTimedOut(id, "tools/call", 10, silent=False) == client.check_timeouts(0.25)[-1]


def test_client_idle_timeout_is_paused_by_a_question() -> None:
    """A user may take as long as the whole request may take."""
    client = legacy(capabilities=EVERYTHING)
    called(client, timeouts=Timeouts(idle=10, total=100))
    client.received(message(id="q", method="roots/list"), 0)
    for now in (10, 20, 30):
        assert client.check_timeouts(now) == []
    client.answer("q", ListRootsResult([]))
    assert client.check_timeouts(39) == []

    assert isinstance(client.check_timeouts(40)[-1], RequestTimedOut)


def test_client_timeout_of_one_leaves_the_others() -> None:
    """The next check is at the next deadline."""
    client = modern()
    first = called(client, timeouts=Timeouts(idle=1))
    second = called(client, timeouts=Timeouts(idle=2))

    ended = RequestTimedOut(first, "tools/call", 1, silent=True)
    assert ended == client.check_timeouts(1)[-1]
    assert client.is_pending(second)
    assert client.next_check == 2
