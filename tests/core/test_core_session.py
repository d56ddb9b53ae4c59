"""Legacy sessions as values: 2025-11-25, transports, "Session Management"."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.request import Client
from genmcp.core.session import Session, begin
from genmcp.errors import SessionGone
from genmcp.protocol.capabilities import TASKS, ClientCapabilities, SamplingCapability
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.revisions.chain import LEGACY, REVISIONS
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams


def asked(version: str, capabilities: ClientCapabilities | None = None) -> InitializeRequestParams:
    return InitializeRequestParams(
        protocol_version=version,
        capabilities=capabilities or ClientCapabilities(),
        client_info=Implementation(name="client", version="1.2"),
    )


@pytest.mark.parametrize("version", [revision.version for revision in LEGACY])
def test_session_speaks_the_version_asked_for(version: str) -> None:
    """2025-11-25, lifecycle, "Version Negotiation": one that is supported is agreed to."""
    session = begin(asked(version), key="k", now=7.0)

    assert ("k", 7.0, version) == (session.key, session.issued, session.version)
    assert REVISIONS[version] is session.revision


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", "2099-01-01", ""])
def test_session_speaks_the_newest_version_if_another_is_asked_for(version: str) -> None:
    """ "Otherwise, the server must respond with another": the newest with a handshake."""
    assert "2025-11-25" == begin(asked(version), key="k", now=0.0).version


@given(
    st.text(),
    st.floats(0, 1e12),
    st.sampled_from([revision.version for revision in LEGACY]),
    st.text(),
    st.text(),
    st.sampled_from([ClientCapabilities(), ClientCapabilities(sampling=SamplingCapability())]),
)
def test_session_unpacks_as_it_was_packed(
    key: str, issued: float, version: str, name: str, client: str, capabilities: ClientCapabilities
) -> None:
    """A session is all in its id: what is packed comes back."""
    session = Session(key, issued, version, name, client, capabilities)

    assert session == Session.unpack(session.pack())


def test_session_knows_its_client() -> None:
    """What the client said of itself in initialize is known to each request."""
    capabilities = ClientCapabilities(sampling=SamplingCapability())
    session = begin(asked("2025-06-18", capabilities), key="k", now=0.0)

    assert session.client == Client(
        "2025-06-18", Implementation(name="client", version="1.2"), capabilities
    )


def test_session_does_not_count_the_tasks_extension() -> None:
    """The extension counts on 2026-07-28 and later only."""
    capabilities = ClientCapabilities(extensions={TASKS: {}, "com.example/x": {}})

    session = begin(asked("2025-11-25", capabilities), key="k", now=0.0)

    assert {"com.example/x": {}} == session.capabilities.extensions


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
def test_session_of_another_release_is_gone(packed: bytes) -> None:
    """What cannot be read any more is a 404, upon which the client begins anew (point 4)."""
    with pytest.raises(SessionGone, match="Session not found") as caught:
        Session.unpack(packed)

    assert 404 == caught.value.status
