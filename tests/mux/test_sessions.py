"""Sessions: sealed into their ids, and ended for good."""

import pytest

from genmcp import Limits, Mux, Suite
from genmcp.core.client_key import LOCAL, ClientKey
from genmcp.core.session import Session
from genmcp.errors import Overloaded, SessionNotFound
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams
from tests.support.clock import Clock

PARAMS = InitializeRequestParams(
    protocol_version="2025-11-25",
    capabilities=ClientCapabilities(),
    client_info=Implementation(name="test", version="1"),
)


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def made(clock: Clock, **limits: float) -> Mux:
    suite = Suite(name="test", version="1")
    return Mux(suite, limits=Limits(**limits), clock=clock)  # type: ignore[arg-type]


def begin(mux: Mux, clock: Clock) -> tuple[Session, str]:
    clock.now += 1
    return mux.sessions.open_new(PARAMS, None)


def is_open(mux: Mux, id: str) -> bool:
    try:
        mux.sessions.open(id, None)
    except SessionNotFound:
        return False
    return True


def test_session_comes_back_from_its_id(clock: Clock) -> None:
    """Nothing is kept here, and two sessions share nothing."""
    mux = made(clock)
    session, id = begin(mux, clock)
    other, _ = begin(mux, clock)

    assert mux.sessions.open(id, None) == session
    assert session.key != other.key


async def test_session_that_has_ended_stays_ended(clock: Clock) -> None:
    """For as long as it would have lived."""
    mux = made(clock, session_ttl=100)
    session, id = begin(mux, clock)

    await mux.end_session(session, LOCAL)
    assert not is_open(mux, id)
    clock.now += 99
    assert not is_open(mux, id)
    clock.now += 100
    assert not is_open(mux, id)


async def test_ended_sessions_are_forgotten_after_their_lifetime(clock: Clock) -> None:
    """The memory of sessions is bounded by time as well."""
    mux = made(clock, session_ttl=10)
    for _ in range(5):
        session, _ = begin(mux, clock)
        await mux.end_session(session, LOCAL)
    clock.now += 100
    session, _ = begin(mux, clock)
    await mux.end_session(session, LOCAL)

    assert len(mux.sessions.places) == 1


async def test_ended_sessions_have_shares(clock: Clock) -> None:
    """A client past its own ends no more: neither its sessions nor those of others."""
    mux = made(clock, client_share=0.0002, session_ttl=1000)
    one, other = ClientKey(None, None, "192.0.2.1"), ClientKey(None, None, "192.0.2.2")
    oldest, oldest_id = begin(mux, clock)
    others, _ = begin(mux, clock)
    ended = [begin(mux, clock) for _ in range(2)]
    for session, _ in ended:
        await mux.end_session(session, one)

    with pytest.raises(Overloaded, match=r"of one address: 2 .limit: client_share") as raised:
        await mux.end_session(oldest, one)
    await mux.end_session(others, other)

    assert raised.value.status == 429
    assert is_open(mux, oldest_id)
    assert [is_open(mux, id) for _, id in ended] == [False, False]
    clock.now += 1000
    await mux.end_session(begin(mux, clock)[0], one)  # those sessions would have expired


async def test_session_that_is_ended_twice_is_counted_once(clock: Clock) -> None:
    """Another process may send its end again."""
    mux = made(clock, client_share=0.0002)
    session, _ = begin(mux, clock)
    for _ in range(3):
        await mux.end_session(session, ClientKey(None, None, ""))

    assert len(mux.sessions.places) == 1


async def test_level_is_the_sessions_own(clock: Clock) -> None:
    """ "info" until it is set."""
    mux = made(clock)

    assert await mux.sessions.level("a") == "info"
    await mux.sessions.set_level("a", "error")
    assert (await mux.sessions.level("a"), await mux.sessions.level("b")) == ("error", "info")


def test_session_that_was_just_opened_still_gets_too_old(clock: Clock) -> None:
    """That it was found good a moment ago does not make it live longer."""
    mux = made(clock, session_ttl=10)
    _, id = begin(mux, clock)
    clock.now += 9
    assert is_open(mux, id)

    clock.now += 2

    assert not is_open(mux, id)
