"""Sessions: sealed into their ids, and ended for good."""

import time

import pytest

from genmcp import Limits, Mux, Suite
from genmcp.core.client_key import LOCAL, ClientKey
from genmcp.core.session import Session
from genmcp.errors import Overloaded, SessionGone
from genmcp.mux import sessions
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams

PARAMS = InitializeRequestParams(
    protocol_version="2025-11-25",
    capabilities=ClientCapabilities(),
    client_info=Implementation(name="test", version="1"),
)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def made(**limits: float) -> sessions.Sessions:
    suite = Suite(name="test", version="1")
    return Mux(suite, limits=Limits(**limits)).sessions  # type: ignore[arg-type]


def begin(found: sessions.Sessions, clock: Clock) -> tuple[Session, str]:
    clock.now += 1
    return found.begin(PARAMS, None)


def is_open(found: sessions.Sessions, id: str) -> bool:
    try:
        found.open(id, None)
    except SessionGone:
        return False
    return True


def test_session_comes_back_from_its_id(clock: Clock) -> None:
    """Nothing is kept here, and two sessions share nothing."""
    found = made()
    session, id = begin(found, clock)
    other, _ = begin(found, clock)

    assert found.open(id, None) == session
    assert session.key != other.key


def test_session_that_has_ended_stays_ended(clock: Clock) -> None:
    """For as long as it would have lived."""
    found = made(session=100)
    session, id = begin(found, clock)

    found.end(session.key, session.issued, LOCAL)
    assert not is_open(found, id)
    clock.now += 99
    assert not is_open(found, id)
    clock.now += 100
    assert not is_open(found, id)


def test_ended_sessions_are_forgotten_once_they_would_have_run_out(clock: Clock) -> None:
    """What is remembered is bounded by time as well."""
    found = made(session=10)
    for _ in range(5):
        session, _ = begin(found, clock)
        found.end(session.key, session.issued, LOCAL)
    clock.now += 100
    session, _ = begin(found, clock)
    found.end(session.key, session.issued, LOCAL)

    assert 1 == len(found._revoked.places)


def test_ended_sessions_have_shares(clock: Clock) -> None:
    """A client past its own ends no more: neither its sessions nor those of others."""
    found = made(revoked_of_address=2, session=1000)
    one, other = ClientKey(None, None, "192.0.2.1"), ClientKey(None, None, "192.0.2.2")
    _, oldest_id = begin(found, clock)
    ended = [begin(found, clock) for _ in range(2)]
    for session, _ in ended:
        found.check_end(one)
        found.end(session.key, session.issued, one)

    with pytest.raises(Overloaded, match=r"limit: revoked_of_address") as raised:
        found.check_end(one)
    found.check_end(other)

    assert 429 == raised.value.status
    assert is_open(found, oldest_id)
    assert [False, False] == [is_open(found, id) for _, id in ended]
    clock.now += 1000
    found.check_end(one)  # those sessions would have run out


def test_session_that_is_ended_twice_is_counted_once(clock: Clock) -> None:
    """Another process may tell of it again."""
    found = made(revoked_of_address=2)
    session, _ = begin(found, clock)
    for _ in range(3):
        found.end(session.key, session.issued, ClientKey(None, None, ""))

    found.check_end(ClientKey(None, None, ""))


async def test_level_is_the_sessions_own(clock: Clock) -> None:
    """ "info" until it is set."""
    found = made()

    assert await found.level("a") == "info"
    await found.set_level("a", "error")
    assert (await found.level("a"), await found.level("b")) == ("error", "info")


def test_session_that_was_just_opened_still_gets_too_old(clock: Clock) -> None:
    """That it was found good a moment ago does not make it live longer."""
    found = made(session=10)
    _, id = begin(found, clock)
    clock.now += 9
    assert is_open(found, id)

    clock.now += 2

    assert not is_open(found, id)
