"""Legacy sessions as values: 2025-11-25, transports, "Session Management"."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.request import ClientInfo
from genmcp.core.session import Session, new_session
from genmcp.errors import SessionNotFound
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    Implementation,
    SamplingCapability,
)
from genmcp.protocol.revisions.chain import LEGACY, REVISIONS
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams


def asked(version: str, capabilities: ClientCapabilities | None = None) -> InitializeRequestParams:
    return InitializeRequestParams(
        protocol_version=version,
        capabilities=capabilities or ClientCapabilities(),
        client_info=Implementation(name="client", version="1.2"),
    )


@pytest.mark.parametrize("version", [revision.version for revision in LEGACY])
def test_session_has_the_requested_version(version: str) -> None:
    """2025-11-25, lifecycle, "Version Negotiation": a supported one is accepted."""
    session = new_session(asked(version), key="k", now=7.0)

    assert ("k", 7.0, version) == (session.key, session.issued, session.version)
    assert REVISIONS[version] is session.revision


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", "2099-01-01", ""])
def test_session_falls_back_to_the_newest_version(version: str) -> None:
    """ "Otherwise, the server must respond with another": the newest with a handshake."""
    assert new_session(asked(version), key="k", now=0.0).version == "2025-11-25"


@given(
    st.text(),
    st.floats(0, 1e12),
    st.sampled_from([revision.version for revision in LEGACY]),
    st.text(),
    st.text(),
    st.sampled_from([ClientCapabilities(), ClientCapabilities(sampling=SamplingCapability())]),
)
def test_session_survives_packing(
    key: str, issued: float, version: str, name: str, client: str, capabilities: ClientCapabilities
) -> None:
    """The id contains the whole session."""
    session = Session(key, issued, version, name, client, capabilities)

    assert session == Session.unpack(session.pack())


def test_session_has_the_info_of_its_client() -> None:
    """Each request of the session has the client info of `initialize`."""
    capabilities = ClientCapabilities(sampling=SamplingCapability())
    session = new_session(asked("2025-06-18", capabilities), key="k", now=0.0)

    assert session.client == ClientInfo(
        "2025-06-18", Implementation(name="client", version="1.2"), capabilities
    )


def test_session_ignores_the_tasks_extension() -> None:
    """The extension applies to 2026-07-28 and later only."""
    capabilities = ClientCapabilities(extensions={TASKS: {}, "com.example/x": {}})

    session = new_session(asked("2025-11-25", capabilities), key="k", now=0.0)

    assert session.capabilities.extensions == {"com.example/x": {}}


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["k", 0.0]),
        msgspec.msgpack.encode({"key": "k"}),
        Session("k", 0.0, "2026-07-28", "c", "1", ClientCapabilities()).pack(),
        Session("k", 0.0, "1999-01-01", "c", "1", ClientCapabilities()).pack(),
    ],
)
def test_session_of_another_release_is_not_found(packed: bytes) -> None:
    """It cannot be decoded: a 404, after which the client begins a new session (point 4)."""
    with pytest.raises(SessionNotFound, match="Session not found") as caught:
        Session.unpack(packed)

    assert caught.value.status == 404
