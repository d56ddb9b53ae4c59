"""Connecting to a server of a known era, or after the loss of a session."""

import pytest

from genmcp.core.client.dispatch import ConnectionState, TransportFailure
from genmcp.core.client.events import ConnectionFailed, SessionReset
from genmcp.errors import ConfigurationError
from tests.core.client_lines import (
    DISCOVERED,
    INFO,
    UNSUPPORTED,
    WELCOME,
    error,
    is_initialize,
    legacy,
    machine,
    modern,
    result,
    said,
    told,
    versions,
)


def test_client_uses_the_one_version_of_a_known_server() -> None:
    """An older one is initialized and nothing else; a newer one never falls back."""
    client = machine(revision="2025-03-26")
    assert is_initialize(client.begin(0), "2025-03-26")
    (failed,) = client.received(error(1, UNSUPPORTED, **versions("2026-07-28")), 0)
    assert isinstance(failed, ConnectionFailed)

    for body in (error(1, -32600), result(1, {}), error(1, UNSUPPORTED, **versions("2025-11-25"))):
        client = machine(revision="2026-07-28")
        client.begin(0)
        (failed,) = client.received(body, 0)
        assert isinstance(failed, ConnectionFailed)


def test_client_known_server_version_option_must_be_discovered() -> None:
    """A server that does not list it is not spoken to in another one."""
    client = machine(revision="2026-07-28")
    client.begin(0)

    (failed,) = client.received(result(1, DISCOVERED | {"supportedVersions": ["2025-11-25"]}), 0)

    assert isinstance(failed, ConnectionFailed)
    assert "supports 2025-11-25, this client 2026-07-28" in str(failed.error)


@pytest.mark.parametrize("code", [-32601, -32602])
def test_forced_revision_fails_on_older_server(code: int) -> None:
    """2026-07-28, server/discover: "servers MUST implement this RPC". One that refuses is older.

    Without `initialize` it would be used in a state in which it need not work.
    """
    client = machine(revision="2026-07-28")
    client.begin(0)

    (failed,) = client.received(error(1, code), 0)

    assert isinstance(failed, ConnectionFailed)
    assert "does not support 2026-07-28" in str(failed.error)
    assert str(code) in str(failed.error)


def test_forced_revision_fails_on_silent_server() -> None:
    """On one channel an older server need not respond to unknown requests."""
    client = machine(revision="2026-07-28", probe_timeout=5)
    client.begin(0)

    (failed,) = client.check_timeouts(5)

    assert isinstance(failed, ConnectionFailed)
    assert "does not support 2026-07-28" in str(failed.error)


def test_forced_revision_keeps_an_http_error() -> None:
    """A path that does not exist does not reveal a revision."""
    client = machine(revision="2026-07-28", per_message=True)
    client.begin(0)
    wrong = ValueError("404")

    (failed,) = client.failed(1, TransportFailure(wrong, status=404), 0)

    assert isinstance(failed, ConnectionFailed)
    assert failed.error is wrong


def test_client_known_server_unknown_version_is_a_wrong_option() -> None:
    """It fails at construction, and names those there are."""
    with pytest.raises(ConfigurationError, match="'1999-01-01' is not one of 2026-07-28"):
        machine(revision="1999-01-01")


def test_client_known_server_lost_session_is_renewed_once() -> None:
    """2025-11-25, transports, "Session Management": a rejected request did not run."""
    client, why = legacy(per_message=True), ValueError("gone")
    id, _ = client.request("tools/list", now=0)
    other, _ = client.request("tools/list", now=0)
    gone = TransportFailure(why, 404, session=True)

    failed, reset, send = client.failed(id, gone, 0)

    assert not failed.may_have_run  # type: ignore[attr-defined]
    assert SessionReset(why) == reset
    assert is_initialize([send])
    assert ConnectionState.INITIALIZING is client.state
    # Another request of the lost session: it did not run either.
    (failed,) = client.failed(other, gone, 0)
    assert not failed.may_have_run  # type: ignore[attr-defined]

    client.received(result(4, WELCOME), 0)
    id, _ = client.request("tools/list", now=0)
    assert [ConnectionFailed(why)] == client.failed(id, gone, 0)[1:]


def test_client_known_server_used_session_may_be_renewed_again() -> None:
    """Once something was answered in it, its end is as good as the first one's."""
    client = legacy(per_message=True)
    gone = TransportFailure(ValueError("gone"), 404, session=True)
    for id in (2, 5):
        client.request("tools/list", now=0)
        client.failed(id, gone, 0)
        client.received(result(id + 1, WELCOME), 0)
        assert client.state is ConnectionState.READY
        client.request("tools/list", now=0)
        client.received(result(id + 2, {"tools": []}), 0)


def test_client_known_server_lost_session_keeps_open_responses() -> None:
    """A response that is still open may yet bring its answer."""
    client = legacy(per_message=True)
    lost, open_ = (client.request("tools/list", now=0)[0] for _ in range(2))
    client.failed(lost, TransportFailure(ValueError("gone"), 404, session=True), 0)
    client.received(result(4, WELCOME), 0)

    (answered,) = client.received(result(open_, {"tools": []}), 0, about=open_)

    assert open_ == answered.id  # type: ignore[attr-defined]


def test_client_known_server_session_in_use_may_end_many_times() -> None:
    """The session was known before: this is not a server that loses every session at once."""
    client, why = legacy(per_message=True), ValueError("gone")
    for id in (2, 3, 4):
        reset, send = client.session_ended(why, 0)
        assert SessionReset(why) == reset
        assert is_initialize([send])
        assert client.session_ended(why, 0) == []  # another is begun already
        client.received(result(id, WELCOME), 0)
        assert client.state is ConnectionState.READY


def test_client_known_server_says_who_it_is_to_both_eras() -> None:
    """The client's own name is the one it was created with."""
    for client in (machine(), machine(revision="2025-11-25")):
        assert INFO.name in str(said(client.begin(0)))
    assert told(modern().notify("notifications/roots/list_changed")) == []
