"""The life of a call: every pair of phase and event, and the invariants of each path."""

from collections.abc import Iterator
from itertools import product
from typing import get_args, get_type_hints

import pytest

from genmcp.core.call import (
    LATE,
    TRANSITIONS,
    AccessRecord,
    AskClient,
    CallAction,
    CallEvent,
    CallPhase,
    CallState,
    Cancel,
    CancelTask,
    ClientAnswered,
    Follow,
    Found,
    Interrupted,
    Leave,
    Promote,
    RecordDeleted,
    Refused,
    Returned,
    RouteResolved,
    StepStored,
    StopServer,
    StoreFailed,
    Suspend,
    Transition,
    WorkCancelled,
    Written,
)
from genmcp.core.continuation import Continuation
from genmcp.errors import LocalIllegalTransition
from genmcp.protocol.tools import CallToolResult

EXPECTED = {
    CallPhase.RUNNING: """
        RouteResolved -> RUNNING START_TIMER
        Suspend -> RUNNING
        AskClient -> ASKING
        AccessRecord -> STORING
        Follow -> FOLLOWING NOTE_FOLLOWED
        Promote -> PROMOTING WRITE_RECORD
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.ASKING: """
        ClientAnswered -> RUNNING
        Promote -> ASKING RESTART_TIMER
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.STORING: """
        Follow -> FOLLOWING NOTE_FOLLOWED
        Promote -> STORING RETRY_SOON
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.PROMOTING: """
        Suspend -> PROMOTING
        Promote -> late
        Written -> TASK REGISTER_TASK SEND_HANDLE UPDATE_STEP
        StoreFailed -> RUNNING RETRY_LATER
        Refused -> RUNNING
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND
        Interrupted -> OVER
    """,
    CallPhase.TASK: """
        Suspend -> TASK WRITE_STEP
        RouteResolved, AskClient, ClientAnswered, AccessRecord, Follow -> late
        Promote, Cancel, Leave -> late
        CancelTask -> CANCELLED_TASK CANCEL_HOOK
        StopServer -> TASK CANCEL_HOOK
        Returned -> OVER WRITE_RESULT UNREGISTER_TASK
        StepStored -> OVER UNREGISTER_TASK
        Interrupted -> OVER LEAVE_RECORD UNREGISTER_TASK
    """,
    CallPhase.CANCELLED_TASK: """
        Suspend -> CANCELLED_TASK WRITE_STEP
        RouteResolved, AskClient, ClientAnswered, AccessRecord, Follow -> late
        Promote, Cancel, Leave -> late
        CancelTask, StopServer -> CANCELLED_TASK CANCEL_HOOK
        Returned, StepStored, Interrupted -> OVER UNREGISTER_TASK NOTIFY_TOOL
    """,
    CallPhase.FOLLOWING: """
        AskClient -> RELAYING
        Promote -> READING READ_RECORD
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.RELAYING: """
        ClientAnswered -> FOLLOWING
        Promote -> RELAYING RESTART_TIMER
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.READING: """
        Promote -> late
        Found -> HANDED_OVER SEND_HANDLE CANCEL_HOOK
        StoreFailed -> FOLLOWING RETRY_LATER
        Refused -> FOLLOWING
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND
        Interrupted -> OVER
    """,
    CallPhase.HANDED_OVER: """
        Suspend, AskClient, ClientAnswered, AccessRecord, Follow -> late
        Promote, Cancel, Leave -> late
        StopServer -> HANDED_OVER CANCEL_HOOK
        Returned, Interrupted -> OVER DELETE_RECORD
    """,
    CallPhase.CANCELLED: """
        Suspend, AskClient, AccessRecord, Follow -> CANCELLED
        RouteResolved, ClientAnswered, Promote -> late
        Written, Found, StoreFailed, Refused -> late
        Cancel, Leave, StopServer -> CANCELLED CANCEL_HOOK
        Returned, Interrupted -> OVER NO_RESPONSE CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
    """,
    CallPhase.LEFT: """
        Suspend, AskClient, AccessRecord, Follow -> LEFT
        RouteResolved, ClientAnswered, Promote -> late
        Written, Found, StoreFailed, Refused -> late
        Cancel -> CANCELLED CANCEL_HOOK
        Leave, StopServer -> LEFT CANCEL_HOOK
        Returned -> OVER RESPOND CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
        Interrupted -> OVER NO_RESPONSE CANCEL_WORK NOTIFY_TOOL DELETE_RECORD
    """,
    CallPhase.STOPPING: """
        Suspend, AskClient, AccessRecord, Follow -> STOPPING
        RouteResolved, ClientAnswered, Promote -> late
        Written, Found, StoreFailed, Refused -> late
        Cancel -> CANCELLED CANCEL_HOOK
        Leave -> LEFT CANCEL_HOOK
        StopServer -> STOPPING CANCEL_HOOK
        Returned -> OVER RESPOND DELETE_RECORD
        Interrupted -> OVER REJECT DELETE_RECORD
    """,
    CallPhase.OVER: """
        Promote, Cancel, CancelTask, Leave, StopServer -> late
        Written, Found, StoreFailed, Refused -> OVER DELETE_RECORD
        WorkCancelled, RecordDeleted -> OVER
    """,
}
"""What each event leads to: the next phase and the actions. Events not named are impossible."""

STEP = Continuation("id", 1, "tool", "tag", {})
HANDLE, RESULT = CallToolResult(content=[]), CallToolResult(content=[])
EVENTS: tuple[CallEvent, ...] = (
    *(RouteResolved(), Suspend(STEP), AskClient(STEP), ClientAnswered(), AccessRecord("job")),
    *(Follow("followed", "own"), Promote("promoted")),
    *(Written("task", 7, HANDLE), Found(HANDLE), StoreFailed("promoted"), Refused()),
    *(Cancel(), CancelTask(), Leave(), StopServer()),
    *(
        Returned(RESULT),
        StepStored(),
        Interrupted(),
        WorkCancelled("run", runs_elsewhere=False),
        RecordDeleted(),
    ),
)
"""One event of each kind."""

ENDS = (Returned, StepStored, Interrupted)
ACCESS_ENDS: tuple[type[CallEvent], ...] = (Written, Found, StoreFailed, Refused)
FIELDS = [each for each in CallState.__struct_fields__ if each != "phase"]


def verdict(phase: CallPhase, event: CallEvent) -> str:
    """Return the line of EXPECTED for a pair, or "impossible"."""
    for line in EXPECTED[phase].strip().splitlines():
        events, _, leads_to = line.strip().partition(" -> ")
        if type(event).__name__ in events.split(", "):
            return leads_to
    return "impossible"


def data_of(state: CallState) -> dict[str, object]:
    """Return the data of a call, without its phase."""
    return {name: getattr(state, name) for name in FIELDS}


def filled(phase: CallPhase) -> CallState:
    """Return a call in *phase* with data in each field."""
    return CallState(phase, STEP, "old", 1, "old", "old", "old", HANDLE, RESULT)


def test_there_is_an_event_of_each_kind() -> None:
    """Otherwise the table of this module would leave one out."""
    assert [type(each) for each in EVENTS] == CallEvent.__subclasses__()


@pytest.mark.parametrize(
    ("phase", "event"),
    list(product(CallPhase, EVENTS)),
    ids=lambda each: getattr(each, "name", type(each).__name__),
)
def test_each_event_in_each_phase(phase: CallPhase, event: CallEvent) -> None:
    """A transition, a race that is ignored, or a defect that is reported."""
    expected = verdict(phase, event)
    call = filled(phase)
    before = data_of(call)
    if expected == "impossible":
        with pytest.raises(
            LocalIllegalTransition,
            match=f"{type(event).__name__} is not allowed in state {phase.name}",
        ):
            call.advance(event)
    elif expected == "late":
        assert call.advance(event) == ()
    else:
        to, *names = expected.split()
        assert [each.name for each in call.advance(event)] == names
        assert to == call.phase.name
        if (phase, type(event)) not in DROPPED:
            before |= {name: getattr(event, name) for name in event.__struct_fields__}
    assert before == data_of(call)
    assert expected not in ("impossible", "late") or phase is call.phase


DROPPED: set[tuple[CallPhase, type[CallEvent]]] = {
    # No record is begun with the id of the event.
    (CallPhase.ASKING, Promote),
    (CallPhase.RELAYING, Promote),
    (CallPhase.STORING, Promote),
    (CallPhase.FOLLOWING, Promote),
    # The record is deleted, by its id.
    *((CallPhase.OVER, each) for each in ACCESS_ENDS),
}
"""The pairs in which the data of the event are not kept."""


def test_the_fields_of_events_are_those_of_the_state() -> None:
    """`advance` sets them by their names; their types fit."""
    types = get_type_hints(CallState)
    for kind in CallEvent.__subclasses__():
        for name, of_field in get_type_hints(kind).items():
            assert name in FIELDS
            assert {*get_args(of_field), of_field} & {*get_args(types[name]), types[name]}


def test_late_pairs_have_no_transition() -> None:
    """A pair has one verdict."""
    assert not LATE & set(TRANSITIONS)


@pytest.mark.parametrize("transition", TRANSITIONS.values())
def test_response_comes_before_slow_actions(transition: Transition) -> None:
    """A client that closes its pipe reads for a moment only, and `on_cancel` may take long."""
    responses = {CallAction.RESPOND, CallAction.REJECT, CallAction.NO_RESPONSE}

    assert not responses & {*transition.actions[1:]}


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
        for event in EVENTS:
            if isinstance(event, ENDS) and "ended" in facts:
                continue
            if isinstance(event, ACCESS_ENDS):
                begun = "reading" if isinstance(event, Found) else "writing"
                if begun not in facts and not (
                    isinstance(event, StoreFailed | Refused) and "reading" in facts
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
    if isinstance(event, ENDS):
        known.add("ended")
    if isinstance(event, Written):
        known.add("record")
    if isinstance(event, ACCESS_ENDS):
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
        (state[0], type(event))
        for state, event, (phase, facts) in reachable(CallPhase.RUNNING)
        if phase is CallPhase.OVER and isinstance(event, ENDS) and "response" not in facts
    }

    assert {CallPhase.CANCELLED} == {phase for phase, event in silent if event is not Interrupted}
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
    assert CallAction.CANCEL_HOOK in CallState(phase=phase).advance(StopServer())


def test_state_is_named_in_its_text() -> None:
    """For logs and debuggers."""
    assert repr(CallState()) == "<CallState RUNNING>"
