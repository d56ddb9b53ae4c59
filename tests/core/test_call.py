"""The life of a call: every pair of phase and event, and the invariants of each path."""

from collections.abc import Iterator
from itertools import product

import pytest

from genmcp._core.call import LATE, TRANSITIONS, CallAction, CallEvent, CallPhase, CallState
from genmcp.errors import LocalIllegalTransition

EXPECTED = {
    CallPhase.RUNNING: """
        SUSPEND -> RUNNING
        ASK -> ASKING
        STORE -> STORING
        FOLLOW -> FOLLOWING
        PROMOTE -> PROMOTING WRITE_RECORD
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.ASKING: """
        ANSWERED -> RUNNING
        PROMOTE -> ASKING RESTART_TIMER
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.STORING: """
        FOLLOW -> FOLLOWING
        PROMOTE -> STORING RETRY_SOON
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.PROMOTING: """
        SUSPEND -> PROMOTING
        PROMOTE -> late
        WRITTEN -> TASK SEND_HANDLE WRITE_STEP
        FAILED -> RUNNING RETRY_LATER
        REFUSED -> RUNNING
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND
        INTERRUPTED -> OVER
    """,
    CallPhase.TASK: """
        SUSPEND -> TASK WRITE_STEP
        ASK, ANSWERED, STORE, FOLLOW, PROMOTE, CANCEL, LEAVE -> late
        TASK_CANCEL -> CANCELLED_TASK CANCEL_HOOK
        SHUTDOWN -> TASK CANCEL_HOOK
        RETURNED -> OVER WRITE_OUTCOME
        STORED -> OVER
        INTERRUPTED -> OVER LEAVE_RECORD
    """,
    CallPhase.CANCELLED_TASK: """
        SUSPEND -> CANCELLED_TASK WRITE_STEP
        ASK, ANSWERED, STORE, FOLLOW, PROMOTE, CANCEL, LEAVE -> late
        TASK_CANCEL, SHUTDOWN -> CANCELLED_TASK CANCEL_HOOK
        RETURNED, STORED, INTERRUPTED -> OVER NOTIFY_TOOL
    """,
    CallPhase.FOLLOWING: """
        ASK -> RELAYING
        PROMOTE -> READING READ_RECORD
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.RELAYING: """
        ANSWERED -> FOLLOWING
        PROMOTE -> RELAYING RESTART_TIMER
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.READING: """
        PROMOTE -> late
        FOUND -> HANDED_OVER SEND_HANDLE CANCEL_HOOK
        FAILED -> FOLLOWING RETRY_LATER
        REFUSED -> FOLLOWING
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.HANDED_OVER: """
        SUSPEND, ASK, ANSWERED, STORE, FOLLOW, PROMOTE, CANCEL, LEAVE -> late
        SHUTDOWN -> HANDED_OVER CANCEL_HOOK
        RETURNED, INTERRUPTED -> OVER DELETE_RECORD
    """,
    CallPhase.CANCELLED: """
        SUSPEND, ASK, ANSWERED, STORE, FOLLOW, PROMOTE -> late
        WRITTEN, FOUND, FAILED, REFUSED -> late
        CANCEL, LEAVE, SHUTDOWN -> CANCELLED CANCEL_HOOK
        RETURNED, INTERRUPTED -> OVER CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
    """,
    CallPhase.LEFT: """
        SUSPEND, ASK, ANSWERED, STORE, FOLLOW, PROMOTE -> late
        WRITTEN, FOUND, FAILED, REFUSED -> late
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE, SHUTDOWN -> LEFT CANCEL_HOOK
        RETURNED -> OVER RESPOND CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
        INTERRUPTED -> OVER CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
    """,
    CallPhase.STOPPING: """
        SUSPEND, ASK, ANSWERED, STORE, FOLLOW, PROMOTE -> late
        WRITTEN, FOUND, FAILED, REFUSED -> late
        CANCEL -> CANCELLED CANCEL_HOOK
        LEAVE -> LEFT CANCEL_HOOK
        SHUTDOWN -> STOPPING CANCEL_HOOK
        RETURNED -> OVER RESPOND DELETE_RECORD
        INTERRUPTED -> OVER REJECT DELETE_RECORD
    """,
    CallPhase.OVER: """
        PROMOTE, FOUND, REFUSED, CANCEL, TASK_CANCEL, LEAVE, SHUTDOWN -> late
        WRITTEN, FAILED -> OVER DELETE_RECORD
    """,
}
"""What each event leads to: the next phase and the actions. Events not named are impossible."""

ENDS = (CallEvent.RETURNED, CallEvent.STORED, CallEvent.INTERRUPTED)


def verdict(phase: CallPhase, event: CallEvent) -> str:
    """Return the line of EXPECTED for a pair, or "impossible"."""
    for line in EXPECTED[phase].strip().splitlines():
        events, _, leads_to = line.strip().partition(" -> ")
        if event.name in events.split(", "):
            return leads_to
    return "impossible"


@pytest.mark.parametrize(
    ("phase", "event"),
    list(product(CallPhase, CallEvent)),
    ids=lambda each: each.name,
)
def test_each_event_in_each_phase(phase: CallPhase, event: CallEvent) -> None:
    """A transition, a race that is ignored, or a defect that is reported."""
    expected = verdict(phase, event)
    call = CallState(phase=phase)
    if expected == "impossible":
        with pytest.raises(
            LocalIllegalTransition, match=f"{event.name} is not allowed in state {phase.name}"
        ):
            call.advance(event)
        expected = phase.name
    elif expected == "late":
        assert call.advance(event) == ()
        expected = phase.name
    else:
        actions = call.advance(event)
        expected, *names = expected.split()
        assert names == [each.name for each in actions]

    assert expected == call.phase.name


def test_late_pairs_have_no_transition() -> None:
    """A pair has one verdict."""
    assert not LATE & set(TRANSITIONS)


State = tuple[CallPhase, tuple[str, ...]]


def reachable(start: CallPhase) -> Iterator[tuple[State, CallEvent, State]]:
    """Yield every step of every path, with the messages the client and the store have got so far.

    A hook ends once. A write or a read ends once after it was begun, before or after the hook.
    """
    first: State = (start, ())
    seen, ready = {first}, [first]
    while ready:
        state = ready.pop()
        phase, facts = state
        for event in CallEvent:
            if event in ENDS and "ended" in facts:
                continue
            if event in (CallEvent.WRITTEN, CallEvent.FOUND, CallEvent.FAILED, CallEvent.REFUSED):
                begun = "reading" if event is CallEvent.FOUND else "writing"
                if begun not in facts and not (
                    event in (CallEvent.FAILED, CallEvent.REFUSED) and "reading" in facts
                ):
                    continue
            call = CallState(phase=phase)
            try:
                actions = call.advance(event)
            except LocalIllegalTransition:
                continue
            after = (call.phase, learn(facts, event, actions))
            yield state, event, after
            if after not in seen:
                seen.add(after)
                ready.append(after)


def learn(
    facts: tuple[str, ...], event: CallEvent, actions: tuple[CallAction, ...]
) -> tuple[str, ...]:
    """Return *facts* after *event* and *actions*."""
    known = set(facts)
    if event in ENDS:
        known.add("ended")
    if event is CallEvent.WRITTEN:
        known.add("record")
    if event in (CallEvent.WRITTEN, CallEvent.FOUND, CallEvent.FAILED, CallEvent.REFUSED):
        known -= {"writing", "reading"}
    for action in actions:
        if action is CallAction.WRITE_RECORD:
            known.add("writing")
        elif action is CallAction.READ_RECORD:
            known.add("reading")
        elif action is CallAction.DELETE_RECORD:
            known.discard("record")
        elif action in (CallAction.RESPOND, CallAction.REJECT, CallAction.SEND_HANDLE):
            known.add("second response" if "response" in known else "response")
        if action is CallAction.SEND_HANDLE:
            known.add("handle")
    return tuple(sorted(known))


STARTS = (CallPhase.RUNNING, CallPhase.TASK)


@pytest.mark.parametrize("start", STARTS, ids=lambda each: each.name)
def test_client_gets_at_most_one_response(start: CallPhase) -> None:
    """JSON-RPC 2.0, section 5: one response object to one request."""
    assert not [step for step in reachable(start) if "second response" in step[2][1]]


def test_call_gets_a_response_unless_its_client_cancelled_it() -> None:
    """A hook that the host interrupts is answered where that arrives."""
    silent = {
        (state[0], event)
        for state, event, (phase, facts) in reachable(CallPhase.RUNNING)
        if phase is CallPhase.OVER and event in ENDS and "response" not in facts
    }

    assert {CallPhase.CANCELLED} == {
        phase for phase, event in silent if event is not CallEvent.INTERRUPTED
    }
    assert CallPhase.STOPPING not in {phase for phase, _ in silent}


def test_record_is_kept_only_for_a_client_with_its_handle() -> None:
    """Once the call is over, a record that was written is deleted unless its handle was sent."""
    for _, _, (phase, facts) in reachable(CallPhase.RUNNING):
        if phase is CallPhase.OVER and "record" in facts:
            assert "handle" in facts


def test_every_phase_is_reached_and_can_end() -> None:
    """No phase is dead, and none is a trap: the hook may end in each."""
    found = {state[0] for start in STARTS for _, _, state in reachable(start)}

    assert set(CallPhase) == found
    for phase in set(CallPhase) - {CallPhase.OVER}:
        assert any(
            TRANSITIONS[phase, end].phase is CallPhase.OVER
            for end in ENDS
            if (phase, end) in TRANSITIONS
        )


@pytest.mark.parametrize("phase", [each for each in CallPhase if each is not CallPhase.OVER])
def test_shutdown_reaches_every_hook(phase: CallPhase) -> None:
    """Otherwise the server would wait for it until the host kills the process."""
    assert CallAction.CANCEL_HOOK in CallState(phase=phase).advance(CallEvent.SHUTDOWN)


def test_state_is_named_in_its_text() -> None:
    """For logs and debuggers."""
    assert repr(CallState()) == "<CallState RUNNING>"
