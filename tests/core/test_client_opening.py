"""Negotiation of the revision: each case of 2026-07-28, basic/versioning."""

from typing import Any

import pytest

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, TransportFailure
from genmcp.core.client.events import (
    Connected,
    ConnectionFailed,
    HandshakeTimeout,
    LateAnswer,
    MessageDropped,
    NoCommonRevision,
    PeerFault,
    RestartTransport,
    SendMessage,
)
from genmcp.errors import LocalIllegalTransition, McpError
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    Implementation,
    SamplingCapability,
    ServerCapabilities,
    ToolsCapability,
)
from tests.core.client_lines import (
    DISCOVERED,
    UNSUPPORTED,
    WELCOME,
    error,
    is_initialize,
    machine,
    message,
    result,
    said,
    versions,
)

SERVED = Implementation("served", "2")
TOOLS = ServerCapabilities(tools=ToolsCapability())


def refused(client: ClientDispatch, id: int, code: int, **data: Any) -> list[Any]:
    return client.received(error(id, code, data=data), 0)


@pytest.mark.parametrize("per_message", [True, False])
def test_client_opening_discovers_the_server_first(per_message: bool) -> None:
    """A new client sends server/discover of its newest revision, on any transport."""
    client = machine(per_message=per_message, capabilities=ClientCapabilities(roots={}))

    (send,) = client.begin(0)

    assert isinstance(send, SendMessage)
    assert (
        send.id,
        send.method,
        send.name,
        send.revision,
    ) == (1, "server/discover", None, "2026-07-28")
    assert said([send])[0] == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "tester", "version": "1.0"},
                "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
            }
        },
    }
    assert ConnectionState.PROBING is client.state
    with pytest.raises(LocalIllegalTransition):
        client.begin(0)


def test_client_opening_discover_result_connects() -> None:
    """stdio, first outcome: a DiscoverResult, and the newest revision of both is spoken."""
    client = machine()
    client.begin(0)

    (connected,) = client.received(result(1, DISCOVERED), 0)

    assert Connected("2026-07-28", SERVED, TOOLS, "Be kind.") == connected == client.server
    assert client.state is ConnectionState.READY
    assert client.pending == 0


@pytest.mark.parametrize("meta", [{}, {"io.modelcontextprotocol/serverInfo": "me"}])
def test_client_opening_server_need_not_say_who_it_is(meta: dict[str, Any]) -> None:
    """Members for display may be missing or malformed; so may all others but the versions."""
    client = machine()
    client.begin(0)

    (connected,) = client.received(
        result(1, {"supportedVersions": ["2026-07-28"], "_meta": meta}), 0
    )

    assert connected == Connected("2026-07-28", None, ServerCapabilities(), None)


@pytest.mark.parametrize("per_message", [True, False])
@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, 0])
def test_client_opening_any_other_error_means_an_older_server(code: int, per_message: bool) -> None:
    """The fallback is keyed to no error code in particular."""
    client = machine(per_message=per_message)
    client.begin(0)

    assert is_initialize(client.received(error(1, code), 0))
    assert ConnectionState.INITIALIZING is client.state


def test_client_opening_error_without_an_id_is_about_the_probe() -> None:
    """An older server may respond without the id: no other request was sent."""
    client = machine()
    client.begin(0)

    assert is_initialize(client.received(error(None, -32600), 0))


@pytest.mark.parametrize(
    "body", [result(1, {}), result(1, []), result(1, {"supportedVersions": 1}), message(id=1)]
)
def test_client_opening_bad_discover_result_means_older_server(body: bytes) -> None:
    """Anything that is neither a DiscoverResult nor a modern error is of the era before."""
    client = machine()
    client.begin(0)

    assert is_initialize(client.received(body, 0))


def test_client_opening_silence_on_stdio_means_an_older_server() -> None:
    """stdio, third outcome: no response within a reasonable time."""
    client = machine(probe_timeout=5)
    client.begin(10)

    assert client.next_check == 15
    assert client.check_timeouts(14.9) == []
    assert is_initialize(client.check_timeouts(15))


def test_client_opening_silence_over_http_is_no_answer() -> None:
    """With HTTP statuses, silence does not mean an older server."""
    client = machine(per_message=True, connect_timeout=60)
    client.begin(0)

    (failed,) = client.check_timeouts(60)

    assert isinstance(failed, ConnectionFailed)
    assert str(failed.error) == "no response to server/discover within 60 s"
    assert ConnectionState.FAILED is client.state


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 422, 500, 501])
def test_client_opening_bare_http_error_means_an_older_server(status: int) -> None:
    """Streamable HTTP: a body that is empty, or not a modern error, falls back to initialize."""
    client = machine(per_message=True)
    client.begin(0)

    assert is_initialize(client.failed(1, TransportFailure(ValueError("no"), status), 0))


@pytest.mark.parametrize("status", [None, 401, 403, 407, 408, 425, 429, 502, 503, 504])
def test_client_opening_ends_at_a_response_of_no_era(status: int | None) -> None:
    """No connection, or who asks, or how often: initialize would fare no better."""
    client, why = machine(per_message=True), ValueError("no")
    client.begin(0)

    assert [ConnectionFailed(why)] == client.failed(1, TransportFailure(why, status), 0)
    assert why is client.reason


def test_client_opening_message_with_such_a_status_ends_it_too() -> None:
    """A JSON-RPC error under 503 does not show the era; under 401 it belongs to the transport."""
    client = machine(per_message=True)
    client.begin(0)

    assert client.received(error(1, -32600), 0, about=1, status=401) == []
    (failed,) = client.received(error(1, -32603), 0, about=1, status=503)

    assert isinstance(failed, ConnectionFailed)


@pytest.mark.parametrize("code", [-32020, -32021])
def test_client_opening_modern_error_never_falls_back(code: int) -> None:
    """A recognized modern error identifies a modern server; there is nothing to correct."""
    client = machine()
    client.begin(0)

    (failed,) = refused(client, 1, code)

    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, McpError)
    assert code == failed.error.code


def test_client_opening_unsupported_version_is_negotiated_again() -> None:
    """Even with the same: a server may have meant something else."""
    client = machine()
    client.begin(0)

    (send,) = client.received(error(1, UNSUPPORTED, **versions("2026-07-28", "1999-01-01", 5)), 0)

    assert isinstance(send, SendMessage)
    assert (send.id, send.method, send.revision) == (2, "server/discover", "2026-07-28")
    assert client.received(result(2, DISCOVERED), 0) == [
        Connected("2026-07-28", SERVED, TOOLS, "Be kind.")
    ]


def test_client_opening_gives_up_after_three_version_errors() -> None:
    """The probe is sent three times."""
    client = machine()
    client.begin(0)
    for id in (1, 2):
        (sent,) = said(client.received(error(id, UNSUPPORTED, **versions("2026-07-28")), 0))
        assert sent["method"] == "server/discover"

    (failed,) = client.received(error(3, UNSUPPORTED, **versions("2026-07-28")), 0)

    assert isinstance(failed, ConnectionFailed)


def test_client_opening_offered_older_version_is_initialized() -> None:
    """The newest that both speak, by the means that version has."""
    offered = machine()
    offered.begin(0)
    assert is_initialize(
        offered.received(error(1, UNSUPPORTED, **versions("2024-11-05", "2025-06-18")), 0),
        "2025-06-18",
    )

    discovered = machine()
    discovered.begin(0)
    assert is_initialize(
        discovered.received(result(1, DISCOVERED | {"supportedVersions": ["2025-03-26"]}), 0),
        "2025-03-26",
    )


@pytest.mark.parametrize("more", [{}, {"data": 5}, {"data": {"supported": "x"}}, versions(1)])
def test_client_opening_keeps_a_refusal_that_names_no_version(more: dict[str, Any]) -> None:
    """The server's error is raised: this client knows no more."""
    client = machine()
    client.begin(0)

    (failed,) = client.received(error(1, UNSUPPORTED, "not that", **more), 0)

    assert isinstance(failed, ConnectionFailed)
    assert str(failed.error) == "not that"


@pytest.mark.parametrize("supported", [[], ["2031-01-01"]])
def test_client_opening_discovery_without_common_version_fails(supported: Any) -> None:
    """The error names the versions of both."""
    client = machine()
    client.begin(0)

    (failed,) = client.received(result(1, DISCOVERED | {"supportedVersions": supported}), 0)

    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, NoCommonRevision)
    assert "2026-07-28" in str(failed.error)
    assert failed.error.supported == tuple(supported)


@pytest.mark.parametrize("pinned", [None, "2025-11-25"])
def test_client_opening_names_the_versions_of_a_refusal(pinned: str | None) -> None:
    """Only a client that pins a revision is advised not to."""
    client = machine(revision=pinned)
    client.begin(0)

    (failed,) = client.received(error(1, UNSUPPORTED, "not that", **versions("1999-01-01")), 0)

    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, NoCommonRevision)
    assert "the server supports 1999-01-01, this client" in str(failed.error)
    assert ("ClientOptions(revision=...)" in str(failed.error)) is (pinned is not None)


def test_client_opening_handshake_is_initialize_then_initialized() -> None:
    """2025-11-25, lifecycle: both sides identify themselves, and the client confirms."""
    client = machine(
        capabilities=ClientCapabilities(
            sampling=SamplingCapability(), extensions={TASKS: {}, "com.example/x": {}}
        )
    )
    client.begin(0)
    (sent,) = said(client.received(error(1, -32601), 0))
    assert sent == {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"sampling": {}, "extensions": {"com.example/x": {}}},
            "clientInfo": {"name": "tester", "version": "1.0"},
        },
    }

    send, connected = client.received(result(2, WELCOME), 0)

    assert isinstance(send, SendMessage)
    assert said([send])[0] == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (
        send.id,
        send.method,
        send.revision,
    ) == (None, "notifications/initialized", "2025-11-25")
    assert connected == Connected("2025-11-25", SERVED, TOOLS, "Be kind.")


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
def test_client_opening_older_answer_counts(version: str) -> None:
    """The server may answer with another version than the one proposed; it is spoken then."""
    client = machine()
    client.begin(0)
    client.received(error(1, -32601), 0)

    _, connected = client.received(result(2, WELCOME | {"protocolVersion": version}), 0)

    assert isinstance(connected, Connected)
    assert version == connected.revision


def test_client_opening_answer_without_a_version_is_taken() -> None:
    """The proposed revision is used then; the server need not identify itself."""
    client = machine(revision="2025-06-18")
    client.begin(0)

    _, connected = client.received(result(1, {}), 0)

    assert connected == Connected("2025-06-18", None, ServerCapabilities(), None)


@pytest.mark.parametrize("version", ["1999-01-01", "2026-07-28"])
def test_client_opening_response_with_an_unknown_version_fails(version: str) -> None:
    """2025-11-25, lifecycle: the client SHOULD disconnect. The error names the version."""
    client = machine(revision="2025-11-25")
    client.begin(0)

    (failed,) = client.received(result(1, WELCOME | {"protocolVersion": version}), 0)

    assert isinstance(failed, ConnectionFailed)
    assert version in str(failed.error)
    assert ConnectionState.FAILED is client.state


def test_client_opening_welcome_that_is_none_fails() -> None:
    """The error blames the peer."""
    client = machine(revision="2025-11-25")
    client.begin(0)

    (failed,) = client.received(result(1, {"capabilities": 5}), 0)

    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, PeerFault)


def test_client_opening_refused_or_silent_initialize_fails() -> None:
    """The error is the server's, or has the elapsed time; no cancellation is sent."""
    client = machine()
    client.begin(0)
    client.received(error(1, -32601), 0)
    (failed,) = client.received(error(2, -32603, "broken"), 0)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, McpError)
    assert (failed.error.code, failed.error.message) == (-32603, "broken")

    client = machine(connect_timeout=30)
    client.begin(0)
    client.received(error(1, -32601), 1)
    (failed,) = client.check_timeouts(31)
    assert isinstance(failed, ConnectionFailed)
    assert isinstance(failed.error, HandshakeTimeout)


def test_client_opening_initialize_that_cannot_be_sent_fails() -> None:
    """At any status: every fallback has been tried."""
    client, why = machine(per_message=True), ValueError("no")
    client.begin(0)
    client.failed(1, TransportFailure(ValueError("no"), 404), 0)

    assert [ConnectionFailed(why)] == client.failed(2, TransportFailure(why, 404), 0)


def test_client_opening_slow_modern_server_is_probed_again() -> None:
    """A modern server that was slow to start rejects `initialize`, and answers the second probe."""
    client = machine()
    client.begin(0)
    client.check_timeouts(5)

    (late,) = client.received(result(1, DISCOVERED), 8)
    assert isinstance(late, MessageDropped)
    assert isinstance(late.fault, LateAnswer)
    (sent,) = said(client.received(error(2, -32601), 8))
    assert sent["method"] == "server/discover"
    (connected,) = client.received(result(3, DISCOVERED), 8)

    assert isinstance(connected, Connected)
    assert connected.revision == "2026-07-28"
    assert client.pending == 0


@pytest.mark.parametrize("late", [error(1, -32601), result(1, {}), message(id=1)])
def test_client_opening_late_response_to_the_probe_is_dropped(late: bytes) -> None:
    """An older server that was slow to start answers both, too."""
    client = machine()
    client.begin(0)
    client.check_timeouts(5)

    (dropped,) = client.received(late, 8)
    _, connected = client.received(result(2, WELCOME), 8)

    assert isinstance(dropped, MessageDropped)
    assert isinstance(connected, Connected)
    assert connected.revision == "2025-11-25"


def test_client_opening_modern_initialize_error_probes_again() -> None:
    """It SHOULD name supported revisions; else the probe was lost, or the cached era is wrong."""
    client = machine()
    client.begin(0)
    client.check_timeouts(5)

    (sent,) = said(client.received(error(2, UNSUPPORTED, **versions("2026-07-28")), 6))
    assert sent["method"] == "server/discover"
    (connected,) = client.received(result(3, DISCOVERED), 7)

    assert isinstance(connected, Connected)


def test_client_opening_such_a_server_is_not_asked_for_ever() -> None:
    """One that refuses the one and leaves the other unanswered is given up."""
    client = machine()
    client.begin(0)
    now, sent = 0.0, 1
    while client.state is not ConnectionState.FAILED:
        now += 5
        sent += len(said(client.check_timeouts(now)))
        sent += len(said(client.received(error(sent, UNSUPPORTED, **versions("2026-07-28")), now)))

    assert sent == 6


def test_client_opening_server_that_exits_on_probe_is_restarted() -> None:
    """2026-07-28, stdio, "Backward Compatibility": it is initialized then, and nothing else."""
    client, why = machine(), ValueError("it has ended")
    client.begin(0)

    assert [RestartTransport(why)] == client.closed(why)
    assert is_initialize(client.begin(1))
    (_, connected) = client.received(result(2, WELCOME), 1)

    assert isinstance(connected, Connected)
    assert ConnectionState.READY is client.state


@pytest.mark.parametrize("slow", [True, False])
def test_client_opening_server_that_exits_twice_is_given_up(slow: bool) -> None:
    """It is started once more, also where it was slow to read the first request."""
    client, why = machine(probe_timeout=5), ValueError("it has ended")
    client.begin(0)
    if slow:
        assert is_initialize(client.check_timeouts(5))

    assert [RestartTransport(why)] == client.closed(why)
    client.begin(6)

    assert [ConnectionFailed(why)] == client.closed(why)
    assert why is client.reason


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"revision": "2026-07-28"}, ConnectionState.PROBING),
        ({"revision": "2025-11-25"}, ConnectionState.INITIALIZING),
        ({"per_message": True}, ConnectionState.PROBING),
    ],
)
def test_client_opening_server_is_not_restarted_in_vain(
    options: dict[str, Any], state: ConnectionState
) -> None:
    """That is, where there is no other handshake, or no process."""
    client, why = machine(**options), ValueError("it has ended")
    client.begin(0)
    assert state is client.state

    assert [ConnectionFailed(why)] == client.closed(why)
