"""The record of a login: its text form, and the secrets that it does not show."""

import msgspec
import pytest
from msgspec.structs import replace

from genmcp.core.auth.record import (
    Record,
    RegisteredClient,
    decode_record,
    encode_record,
    record_key,
)

RECORD = Record(
    issuer="https://login.example.com",
    token_endpoint="https://login.example.com/token",
    client=RegisteredClient(id="c-17", secret="the-secret", method="client_secret_post"),
    access_token="the-access-token",
    refresh_token="the-refresh-token",
    expires=1790000000.5,
    scopes=("a", "b"),
    dpop_key="the-key",
)


def test_record_is_decoded_as_encoded() -> None:
    """All fields survive; members that a newer release has added are ignored."""
    assert decode_record(encode_record(RECORD)) == RECORD
    more = {**msgspec.to_builtins(RECORD), "added": 1}
    assert decode_record(msgspec.json.encode(more)) == RECORD


def test_repr_shows_no_secret() -> None:
    """A record may end up in a log or a traceback."""
    assert "the-" not in repr(RECORD)
    assert "c-17" in repr(RECORD)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b'{"issuer": 1}'],
)
def test_damaged_record_counts_as_absent(data: bytes) -> None:
    """A client that fails on it would fail at each start, and a new login is all it takes."""
    assert decode_record(data) is None


@pytest.mark.parametrize(
    ("lifetime", "expires", "now", "due"),
    [
        (3600.0, 3600.0, 3539.0, False),
        (3600.0, 3600.0, 3540.0, True),
        (100.0, 100.0, 89.0, False),
        (100.0, 100.0, 90.0, True),
        (None, 100.0, 99.0, False),
        (None, 100.0, 100.0, True),
        (None, None, 1e12, False),
    ],
)
def test_token_is_renewed_ahead_of_expiry(
    lifetime: float | None, expires: float | None, now: float, due: bool
) -> None:
    """A tenth of its life ahead, at most a minute: also tokens of a few seconds can be used."""
    assert replace(RECORD, lifetime=lifetime, expires=expires).due(now) is due


def test_registration_outlives_the_tokens() -> None:
    """After a refused refresh token, the client id stays."""
    kept = RECORD.without_tokens()

    assert (kept.access_token, kept.refresh_token, kept.expires) == (None, None, None)
    assert kept.client == RECORD.client


@pytest.mark.parametrize(("expires", "expired"), [(None, False), (5.0, True), (6.0, False)])
def test_registration_expires_with_its_secret(expires: float | None, expired: bool) -> None:
    """RFC 7591, 3.2.1: `client_secret_expires_at`."""
    assert RegisteredClient(id="c", secret_expires=expires).expired(5.0) is expired


def test_clients_at_one_server_have_a_record_each() -> None:
    """Two programs of one user may ask for different scopes."""
    assert record_key("https://h/mcp") == "https://h/mcp"
    assert record_key("https://h/mcp", "a") != record_key("https://h/mcp", "b")
