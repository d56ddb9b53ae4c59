"""The server's machine: each state of a connection with each kind of message."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from genmcp.core.request import RouteFacts
from genmcp.core.server import (
    ANONYMOUS,
    Accept,
    CancelRequest,
    DeliverResponse,
    OpenSession,
    Reject,
    ServerAction,
    ServerConnection,
    SessionReady,
    StartRequest,
    is_offered,
)
from genmcp.core.server_dispatch import Era
from genmcp.core.session import Session
from genmcp.errors import InvalidRequest, McpError, MethodNotFound, ToolNotFound
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    ResourcesCapability,
    ServerCapabilities,
)
from genmcp.protocol.methods import Method
from genmcp.protocol.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from genmcp.protocol.revisions.chain import LATEST, LEGACY, REVISIONS
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
CLIENT = {"name": "c", "version": "1"}
HEADERS: Mapping[bytes, bytes] = {
    b"mcp-protocol-version": b"2026-07-28",
    b"mcp-method": b"tools/list",
}


class Offer:
    """Offers every method but `resources/list`, and the tool `add`."""

    def offers(self, method: str) -> bool:
        return method != "resources/list"

    def added(self, method: str) -> Method | None:
        return None

    def find(self, method: str, key: str) -> RouteFacts | None:
        return RouteFacts() if key == "add" else None


def session(version: str = "2025-11-25") -> Session:
    return Session("key", 0.0, version, "c", "1", ClientCapabilities())


def message(**members: Any) -> Message:
    decoded = jsonrpc.decode(json.dumps({"jsonrpc": "2.0", **members}).encode())
    assert isinstance(decoded, Message)
    return decoded


def notification(method: str, **params: Any) -> Message:
    return message(method=method, params=params)


def request(method: str, id: int | str = 1, **params: Any) -> Message:
    return message(method=method, id=id, params=params)


def cancelled(**params: Any) -> Message:
    return notification("notifications/cancelled", **params)


INITIALIZE = request("initialize", protocolVersion="2025-11-25", clientInfo=CLIENT, capabilities={})
RESPONSE = message(id="asked", result={})
MODERN_LIST = request("tools/list", _meta=META)
LIST = request("tools/list")
PING = request("ping")
READY = notification("notifications/initialized")


_DROPPED = ("drop -32602", "drop -32600", "drop -32602")


def pipe(opened: Session | None = None, *, modern: bool = True) -> ServerConnection:
    return ServerConnection(Offer(), opened, modern=modern)


def unexpected(error: Exception) -> McpError:
    raise AssertionError("the catalog has a defect") from error


def outline(action: ServerAction) -> str:
    """Return the kind of *action*, and the member that identifies it."""
    match action:
        case StartRequest(request=request):
            return f"start {request.method} {request.revision.version}"
        case CancelRequest(id=id):
            return f"cancel {id}"
        case Reject(error=error, responds=answered):
            return f"{'respond' if answered else 'drop'} {error.code}"
        case _:
            return type(action).__name__


@pytest.mark.parametrize(
    ("given", "before", "within", "sessions_only"),
    [
        # Openings: `initialize` at any time, also repeated; a request that names its revision.
        (INITIALIZE, "OpenSession", "OpenSession", "OpenSession"),
        (request("initialize"), "respond -32602", "respond -32602", "respond -32602"),
        (
            MODERN_LIST,
            "start tools/list 2026-07-28",
            "start tools/list 2026-07-28",
            "respond -32600",
        ),
        # 2025-11-25, lifecycle, "Initialization": before it, nothing but pings.
        (PING, "start ping 2025-11-25", "start ping 2025-11-25", "start ping 2025-11-25"),
        (LIST, "respond -32600", "start tools/list 2025-11-25", "respond -32600"),
        (request("unknown"), "respond -32600", "respond -32601", "respond -32600"),
        (request("resources/list"), "respond -32600", "respond -32601", "respond -32600"),
        (request("tools/call"), "respond -32600", "respond -32602", "respond -32600"),
        # Notifications get no response, even if they are malformed.
        (READY, "Accept", "SessionReady", "Accept"),
        (notification("initialize"), "Accept", "Accept", "Accept"),
        (cancelled(requestId=7), "cancel 7", "cancel 7", "cancel 7"),
        (cancelled(requestId="a"), "cancel a", "cancel a", "cancel a"),
        # 2025-11-25 permits a cancellation without a request; it has none of its tasks here.
        (cancelled(), "drop -32602", "Accept", "drop -32602"),
        (cancelled(requestId=[]), "drop -32602", "drop -32602", "drop -32602"),
        (notification("notifications/unknown"), "Accept", "Accept", "Accept"),
        (message(method="notifications/unknown", params=[]), *["drop -32602"] * 3),
        # A response answers a request of the server, which it sends within a session only.
        (RESPONSE, "drop -32600", "DeliverResponse", "drop -32600"),
        (
            message(error={"code": 1, "message": "no"}),
            "drop -32600",
            "DeliverResponse",
            "drop -32600",
        ),
    ],
)
def test_server_decides_by_session_and_message(
    given: Message, before: str, within: str, sessions_only: str
) -> None:
    """On a connection without headers: before `initialize` and after it, and without 2026-07-28."""
    assert before == outline(pipe().receive(given))
    assert within == outline(pipe(session()).receive(given))
    assert sessions_only == outline(pipe(modern=False).receive(given))


@pytest.mark.parametrize(
    ("given", "modern", "handshake", "in_session"),
    [
        (MODERN_LIST, "start tools/list 2026-07-28", "respond -32602", "start tools/list"),
        (LIST, "respond -32602", "respond -32602", "start tools/list"),
        (INITIALIZE, "respond -32602", "OpenSession", "start initialize"),
        (RESPONSE, "drop -32600", "drop -32600", "DeliverResponse"),
        # 2026-07-28, Streamable HTTP: a client cancels by closing the connection.
        (cancelled(requestId=7), "Accept", "drop -32600", "cancel 7"),
        (cancelled(requestId=[]), "drop -32602", "drop -32600", "drop -32602"),
        (cancelled(), "drop -32602", "drop -32600", "Accept"),
        (READY, "Accept", "drop -32600", "SessionReady"),
        (notification("initialize"), "Accept", "drop -32600", "Accept"),
        (notification("notifications/unknown"), "Accept", "drop -32600", "Accept"),
        (message(method="notifications/unknown", params=[]), *_DROPPED),
        (
            message(error={"code": 1, "message": "no"}),
            "drop -32600",
            "drop -32600",
            "DeliverResponse",
        ),
        # Without `_meta` a request does not belong to 2026-07-28, whatever its method.
        (PING, "respond -32602", "respond -32602", "start ping"),
        (request("unknown"), "respond -32602", "respond -32602", "respond -32601"),
        (request("resources/list"), "respond -32602", "respond -32602", "respond -32601"),
        (request("tools/call"), "respond -32602", "respond -32602", "respond -32602"),
        (request("initialize"), "respond -32602", "respond -32602", "respond -32602"),
    ],
)
def test_server_decides_by_era_and_message(
    given: Message, modern: str, handshake: str, in_session: str
) -> None:
    """Over HTTP, where headers decide the era."""

    def over_http(era: Era) -> str:
        opened = session() if era is Era.SESSION else None
        connection = ServerConnection(Offer(), opened, headers=HEADERS)
        return outline(connection.receive(given, era))

    assert modern == over_http(Era.MODERN)
    assert handshake == over_http(Era.HANDSHAKE)
    assert over_http(Era.SESSION).startswith(in_session)


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (LIST, "start tools/list 2025-03-26"),
        (MODERN_LIST, "start tools/list 2025-03-26"),
        (PING, "start ping 2025-03-26"),
        (request("unknown"), "respond -32601"),
        (request("resources/list"), "respond -32601"),
        (request("tools/call"), "respond -32602"),
        (READY, "SessionReady"),
        (cancelled(requestId=7), "cancel 7"),
        (cancelled(), "Accept"),
        (cancelled(requestId=[]), "drop -32602"),
        (notification("notifications/unknown"), "Accept"),
        (notification("initialize"), "Accept"),
        (RESPONSE, "DeliverResponse"),
    ],
)
def test_server_decides_on_members_of_a_batch(given: Message, action: str) -> None:
    """2025-03-26, basic, "Batching": within a session, over HTTP or a pipe, and never without."""
    opened = session("2025-03-26")

    for headers in (None, HEADERS):
        connection = ServerConnection(Offer(), opened, headers=headers)
        assert action == outline(connection.receive_batch([given], unexpected)[0])


def test_server_opens_a_session_with_the_params() -> None:
    """The transport creates the session and stores it: in an id, in a store or in memory."""
    connection = pipe()

    action = connection.receive(INITIALIZE)

    assert isinstance(action, OpenSession)
    assert (action.id, action.params.protocol_version) == (1, "2025-11-25")
    assert None is connection.session
    connection.session = session("2025-03-26")
    started = connection.receive(LIST)
    assert isinstance(started, StartRequest)
    assert (started.request.session, started.request.revision.version) == ("key", "2025-03-26")


def test_server_serves_both_eras_on_one_connection() -> None:
    """2026-07-28, stdio, "Backward Compatibility": each request names its own revision."""
    connection = pipe(session())

    modern, legacy = connection.receive(MODERN_LIST), connection.receive(LIST)

    assert isinstance(modern, StartRequest)
    assert isinstance(legacy, StartRequest)
    assert (modern.request.revision, modern.request.session) == (LATEST, None)
    assert (REVISIONS["2025-11-25"], "key") == (legacy.request.revision, legacy.request.session)


def test_server_rejects_with_the_id_and_method_of_the_request() -> None:
    """The client finds the request by its id, and telemetry counts it by its method."""
    action = pipe(session()).receive(request("tools/call", "mine", name="no"))

    assert isinstance(action, Reject)
    assert (action.id, action.method, action.responds) == ("mine", "tools/call", True)
    assert isinstance(action.error, ToolNotFound)


def test_server_delivers_a_response_within_its_session() -> None:
    """The runtime checks that the request was sent within the same session."""
    action = pipe(opened := session()).receive(RESPONSE)

    assert isinstance(action, DeliverResponse)
    assert (opened, RESPONSE) == (action.session, action.response)


def test_server_ping_before_initialize_needs_no_session() -> None:
    """It is answered like any ping, in the newest revision that has the method."""
    action = pipe().receive(PING)

    assert isinstance(action, StartRequest)
    assert (ANONYMOUS.key, LEGACY[0]) == ("", action.request.revision)


def test_server_names_the_ways_to_begin() -> None:
    """The error states both, or the only one that the transport has."""
    either, only = pipe().receive(LIST), pipe(modern=False).receive(LIST)

    assert isinstance(either, Reject)
    assert isinstance(only, Reject)
    assert "send initialize first, or speak 2026-07-28" in str(either.error)
    assert str(only.error) == "Send initialize first"


@pytest.mark.parametrize("version", [None, *(revision.version for revision in LEGACY)])
def test_server_takes_batches_of_2025_03_26_only(version: str | None) -> None:
    """2025-03-26, basic, "Batching"; earlier revisions leave it to JSON-RPC, later ones end it."""
    connection = pipe(None if version is None else session(version))

    if version is not None and REVISIONS[version].batches:
        assert connection.receive_batch([], unexpected) == []
    else:
        with pytest.raises(InvalidRequest):
            connection.receive_batch([], unexpected)


def test_server_members_of_a_batch_belong_to_its_session() -> None:
    """A faulty member is rejected for itself; none opens a session or names a revision."""
    connection = pipe(session("2025-03-26"))
    faulty = InvalidRequest("Not a JSON-RPC message")
    faulty.id = 3

    batch: list[Message | InvalidRequest] = [faulty, MODERN_LIST, cancelled(requestId=7)]
    rejected, started, cancels = connection.receive_batch(batch, unexpected)

    assert Reject(faulty, True, 3) == rejected
    assert isinstance(started, StartRequest)
    assert started.request.revision.version == "2025-03-26"
    assert cancels == CancelRequest(7)


class NoHandshake(Offer):
    """A mux offers `initialize` neither."""

    def offers(self, method: str) -> bool:
        return method != "initialize"


def test_server_batch_has_no_initialize() -> None:
    """2025-03-26, lifecycle, "Initialization": it MUST NOT be part of a batch."""
    connection = ServerConnection(NoHandshake(), session("2025-03-26"))

    (action,) = connection.receive_batch([INITIALIZE], unexpected)

    assert isinstance(action, Reject)
    assert isinstance(action.error, MethodNotFound)


def test_server_error_of_a_catalog_is_raised() -> None:
    """A defect of the server does not reject the message: the transport logs it."""

    class Broken(Offer):
        def find(self, method: str, key: str) -> RouteFacts | None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ServerConnection(Broken(), session()).receive(request("tools/call", name="add"))


def test_server_actions_without_content_are_shared() -> None:
    """A notification without an effect allocates nothing."""
    assert pipe().receive(READY) == Accept()
    assert pipe(session()).receive(READY) == SessionReady()


LOGGING = ServerCapabilities(logging={})
RESOURCES = ServerCapabilities(resources=ResourcesCapability())
SUBSCRIBED = ServerCapabilities(resources=ResourcesCapability(subscribe=True))
WITH_TASKS = ServerCapabilities(extensions={TASKS: {}})


@pytest.mark.parametrize(
    ("method", "capabilities", "changes", "offered"),
    [
        ("logging/setLevel", LOGGING, None, True),
        ("logging/setLevel", RESOURCES, None, False),
        ("subscriptions/listen", RESOURCES, object(), True),
        ("subscriptions/listen", RESOURCES, None, False),
        *[(f"tasks/{each}", WITH_TASKS, None, True) for each in ("get", "update", "cancel")],
        *[(f"tasks/{each}", LOGGING, None, False) for each in ("get", "update", "cancel")],
        ("resources/subscribe", SUBSCRIBED, None, True),
        ("resources/unsubscribe", SUBSCRIBED, None, True),
        ("resources/subscribe", RESOURCES, None, False),
        ("resources/unsubscribe", LOGGING, None, False),
        ("ping", LOGGING, None, True),
        ("tools/list", LOGGING, None, True),
        ("prompts/list", LOGGING, None, False),
    ],
)
def test_server_offers_the_methods_of_its_capabilities(
    method: str, capabilities: ServerCapabilities, changes: object | None, offered: bool
) -> None:
    """The mux answers the methods of the first lines itself, where the server declares them."""
    server = SimpleNamespace(capabilities=capabilities, changes=changes, methods=("tools/list",))

    assert offered is is_offered(server, method)
