"""Every event in every state of a client's connection: a transition, or an error and its side."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.client.events import PeerFault, PeerIllegalTransition
from genmcp.core.client.lifecycle import ConnectionState, ConnectionStep, Lifecycle
from genmcp.errors import IllegalTransition, LocalIllegalTransition

NEW, PROBING, INITIALIZING, READY, CLOSING, CLOSED, FAILED = ConnectionState
PEER = {ConnectionStep.ASKED, ConnectionStep.PINGED, ConnectionStep.TOLD}

PATHS: dict[ConnectionState, list[ConnectionStep]] = {
    NEW: [],
    PROBING: [ConnectionStep.BEGIN],
    INITIALIZING: [ConnectionStep.BEGIN, ConnectionStep.HANDSHAKE],
    READY: [ConnectionStep.BEGIN, ConnectionStep.CONNECT],
    CLOSING: [ConnectionStep.CLOSE],
    CLOSED: [ConnectionStep.CLOSE, ConnectionStep.LOSE],
    FAILED: [ConnectionStep.FAIL],
}

#: In the words of the checklists and the specification rather than of the table: for each step,
#: where it may be taken from, and where it leads.
MOVES: dict[ConnectionStep, dict[ConnectionState, ConnectionState]] = {
    ConnectionStep.BEGIN: {NEW: PROBING},
    ConnectionStep.PROBE: {PROBING: PROBING, INITIALIZING: PROBING},
    ConnectionStep.HANDSHAKE: {PROBING: INITIALIZING},
    ConnectionStep.CONNECT: {PROBING: READY, INITIALIZING: READY},
    ConnectionStep.RENEW: {READY: PROBING},
    ConnectionStep.RESTART: {PROBING: NEW, INITIALIZING: NEW},
    ConnectionStep.REQUEST: {READY: READY},
    ConnectionStep.PING: {INITIALIZING: INITIALIZING, READY: READY},
    ConnectionStep.NOTIFY: {READY: READY},
    ConnectionStep.FAIL: dict.fromkeys(ConnectionState, FAILED),
    ConnectionStep.CLOSE: {**dict.fromkeys(ConnectionState, CLOSING), CLOSED: CLOSED},
    ConnectionStep.LOSE: {
        **dict.fromkeys([NEW, PROBING, INITIALIZING, FAILED], FAILED),
        **dict.fromkeys([READY, CLOSING, CLOSED], CLOSED),
    },
    ConnectionStep.ASKED: {READY: READY},
    ConnectionStep.PINGED: {state: state for state in (NEW, PROBING, INITIALIZING, READY, CLOSING)},
    ConnectionStep.TOLD: {state: state for state in (PROBING, INITIALIZING, READY, CLOSING)},
}


def brought_to(state: ConnectionState) -> Lifecycle:
    lifecycle = Lifecycle()
    for step in PATHS[state]:
        lifecycle.take(step)
    assert state is lifecycle.state
    return lifecycle


@pytest.mark.parametrize(("state", "step"), [*product(ConnectionState, ConnectionStep)])
def test_client_lifecycle_takes_a_step_or_blames_a_side(
    state: ConnectionState, step: ConnectionStep
) -> None:
    """Each pair is a transition, or an error with step, state and side that changes nothing."""
    lifecycle = brought_to(state)
    expected = MOVES[step].get(state)

    if expected is not None:
        lifecycle.take(step)
        assert expected is lifecycle.state
        return
    kind = PeerIllegalTransition if step in PEER else LocalIllegalTransition
    with pytest.raises(kind) as caught:
        lifecycle.take(step)
    said = f"{step.name} is not allowed in state {state.name}; caused by this side"
    assert ("the server sent a" if step in PEER else said) in str(caught.value)
    assert state is lifecycle.state
    assert (step in PEER) is isinstance(caught.value, PeerFault)


@given(st.lists(st.sampled_from(ConnectionStep)))
def test_client_lifecycle_never_leaves_its_states(steps: list[ConnectionStep]) -> None:
    """Any sequence of steps ends in a state, and each state can be closed."""
    lifecycle = Lifecycle()
    for step in steps:
        try:
            lifecycle.take(step)
        except IllegalTransition:
            continue

    lifecycle.take(ConnectionStep.CLOSE)
    lifecycle.take(ConnectionStep.LOSE)

    assert lifecycle.state is CLOSED


def test_client_lifecycle_keeps_its_first_reason() -> None:
    """The first failure is the reason; a rejected step has it as its cause."""
    lifecycle, why = brought_to(READY), ValueError("why")
    lifecycle.take(ConnectionStep.FAIL, why)
    lifecycle.take(ConnectionStep.LOSE, ValueError("and then"))

    with pytest.raises(LocalIllegalTransition) as caught:
        lifecycle.take(ConnectionStep.REQUEST)
    assert why is lifecycle.reason is caught.value.__cause__


def test_client_lifecycle_has_no_reason_after_a_local_close() -> None:
    """A close is not an error."""
    assert brought_to(CLOSED).reason is None
