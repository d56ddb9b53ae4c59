"""The response to one POST: each step in each state, and the invariants of the whole."""

import re
from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmcp.core.exchange import (
    Exchange,
    ExchangeAction,
    ExchangeEvent,
    ExchangeState,
    FullResponse,
    StreamChunk,
    StreamEnd,
    StreamHead,
    StreamRecord,
    table,
)
from genmcp.errors import LocalIllegalTransition
from genmcp.wire import sse

WAITING, STREAMING, DETACHED, DONE = ExchangeState

PRIME = StreamChunk(b"id: s/0\ndata: \n\n")
BEAT = StreamChunk(b":\n\n")
RETRY = StreamEnd(b"retry: 100\n\n")

Taken = (
    list[ExchangeAction] | bool
)  # the result of an event: actions, or whether the calls are cancelled

STEPS: dict[ExchangeEvent, Callable[[Exchange], Taken]] = {
    ExchangeEvent.BEGIN: lambda exchange: exchange.begin_stream(),
    ExchangeEvent.NOTE: lambda exchange: exchange.note(b"{}"),
    ExchangeEvent.RESPONSE: lambda exchange: exchange.respond(b"{}"),
    ExchangeEvent.LAST: lambda exchange: exchange.respond(b"{}"),
    ExchangeEvent.BEAT: lambda exchange: exchange.beat(),
    ExchangeEvent.RELEASE: lambda exchange: exchange.release(100),
    ExchangeEvent.LEAVE: lambda exchange: exchange.leave(),
}


def made(*, streams: bool, resumable: bool, cancels: bool, expected: int = 1) -> Exchange:
    """Return an exchange of 2025-11-25 if it is resumable, as then streams are primed."""
    return Exchange(
        stream="s" if resumable else None,
        primed=resumable,
        streams=streams,
        cancels=cancels,
        expected=expected,
        batch=expected > 1,
    )


def brought(exchange: Exchange, state: ExchangeState) -> bool:
    """Bring a new exchange that expects more than one answer to *state*, if it can get there."""
    if state is STREAMING:
        exchange.begin_stream()
    elif state is DETACHED:
        exchange.begin_stream()
        exchange.leave()
    elif state is DONE:
        while not exchange.closed:
            exchange.respond(b"{}")
    return exchange.state is state


def expected_move(
    state: ExchangeState, step: ExchangeEvent, streams: bool, resumable: bool, cancels: bool
) -> ExchangeState:
    """Return the state after *step*, from the words of the specification and not from the table.

    Raises:
        KeyError: the step is impossible.
    """
    if state is DONE:
        return {ExchangeEvent.BEAT: DONE, ExchangeEvent.LEAVE: DONE, ExchangeEvent.RELEASE: DONE}[
            step
        ]
    if step is ExchangeEvent.LAST:
        return DONE
    if step is ExchangeEvent.LEAVE:
        # 2026-07-28, "Cancellation"; 2025-11-25, transports, point 6.
        return DONE if cancels and state is not DETACHED else DETACHED
    if step is ExchangeEvent.RELEASE:
        return DETACHED if resumable else state
    if state is WAITING and step in (ExchangeEvent.BEGIN, ExchangeEvent.NOTE, ExchangeEvent.BEAT):
        return STREAMING if streams else WAITING
    return state


every_kind = pytest.mark.parametrize(
    ("streams", "resumable", "cancels"), [*product([True, False], repeat=3)]
)


@every_kind
@pytest.mark.parametrize("state", ExchangeState, ids=lambda state: state.name)
@pytest.mark.parametrize("step", ExchangeEvent, ids=lambda step: step.name)
def test_exchange_table_follows_the_specification(
    state: ExchangeState, step: ExchangeEvent, streams: bool, resumable: bool, cancels: bool
) -> None:
    """Each step in each state leads to the right state, or is not in the table."""
    moves = table(streams=streams, resumable=resumable, cancels=cancels)

    try:
        there = expected_move(state, step, streams, resumable, cancels)
    except KeyError:
        assert (state, step) not in moves
    else:
        assert there is moves[state, step]


@every_kind
@pytest.mark.parametrize("state", ExchangeState, ids=lambda state: state.name)
@pytest.mark.parametrize("step", ExchangeEvent, ids=lambda step: step.name)
def test_exchange_takes_a_step_or_rejects_it(
    state: ExchangeState, step: ExchangeEvent, streams: bool, resumable: bool, cancels: bool
) -> None:
    """A step in the table changes the state; any other raises and changes nothing."""
    exchange = made(streams=streams, resumable=resumable, cancels=cancels, expected=2)
    if not brought(exchange, state):
        return  # a client without streams is never STREAMING, one that cancels never DETACHED
    if step is ExchangeEvent.LAST and state is not DONE:
        exchange.respond(b"{}")
    before = repr(exchange)

    try:
        there = expected_move(state, step, streams, streams and resumable, cancels)
    except KeyError:
        with pytest.raises(LocalIllegalTransition, match="in state DONE; caused by this side"):
            STEPS[step](exchange)
        assert before == repr(exchange)
    else:
        STEPS[step](exchange)
        assert there is exchange.state
        assert (there is DONE) == exchange.closed


def note(index: int, *, record: bool = True) -> list[ExchangeAction]:
    data = sse.event(b"{}", b"s/%d" % index if record else None)
    kept = [StreamRecord("s", index, b"{}", last=False)] if record else []
    return [*kept, StreamChunk(data)]


HEAD: list[ExchangeAction] = [StreamRecord("s", 0, b"", last=False), StreamHead(), PRIME]
# Kinds: streams, resumable, cancels.
PLAIN, KEPT, DETACHES, JSON_ONLY, JSON_SESSION = (
    (True, False, True),
    (True, True, False),
    (True, False, False),
    (False, False, True),
    (False, True, False),
)
RECORDED: list[ExchangeAction] = [StreamRecord("s", 1, b"{}", last=False)]
RECORDED_LAST: list[ExchangeAction] = [StreamRecord("s", 1, b"{}", last=True)]

# A kind, the events before, the event, its result.
MOVES: list[tuple[tuple[bool, bool, bool], list[ExchangeEvent], ExchangeEvent, Taken]] = [
    (PLAIN, [], ExchangeEvent.BEGIN, [StreamHead()]),
    (PLAIN, [], ExchangeEvent.NOTE, [StreamHead(), *note(1, record=False)]),
    (PLAIN, [], ExchangeEvent.RESPONSE, []),
    (PLAIN, [], ExchangeEvent.LAST, [FullResponse(200, b"{}")]),
    (PLAIN, [], ExchangeEvent.BEAT, [StreamHead(), BEAT]),
    (PLAIN, [], ExchangeEvent.RELEASE, []),
    (PLAIN, [], ExchangeEvent.LEAVE, True),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.BEGIN, []),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.NOTE, note(1, record=False)),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.RESPONSE, note(1, record=False)),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.BEAT, [BEAT]),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.LAST, [StreamEnd(sse.event(b"{}"))]),
    (PLAIN, [ExchangeEvent.NOTE], ExchangeEvent.RELEASE, []),
    (PLAIN, [ExchangeEvent.BEGIN], ExchangeEvent.LEAVE, True),
    (PLAIN, [ExchangeEvent.LAST], ExchangeEvent.LEAVE, False),
    (PLAIN, [ExchangeEvent.LAST], ExchangeEvent.BEAT, []),
    (PLAIN, [ExchangeEvent.LAST], ExchangeEvent.RELEASE, []),
    (KEPT, [], ExchangeEvent.BEGIN, HEAD),
    (KEPT, [], ExchangeEvent.NOTE, [*HEAD, *note(1)]),
    (KEPT, [], ExchangeEvent.LAST, [FullResponse(200, b"{}")]),
    (KEPT, [], ExchangeEvent.BEAT, [*HEAD, BEAT]),
    (KEPT, [], ExchangeEvent.RELEASE, [*HEAD, RETRY]),
    (KEPT, [], ExchangeEvent.LEAVE, False),
    (KEPT, [ExchangeEvent.LEAVE], ExchangeEvent.NOTE, []),
    (KEPT, [ExchangeEvent.LEAVE], ExchangeEvent.LAST, []),
    (KEPT, [ExchangeEvent.NOTE], ExchangeEvent.NOTE, note(2)),
    (KEPT, [ExchangeEvent.NOTE], ExchangeEvent.RELEASE, [RETRY]),
    (
        KEPT,
        [ExchangeEvent.NOTE],
        ExchangeEvent.LAST,
        [StreamRecord("s", 2, b"{}", last=True), StreamEnd(sse.event(b"{}", b"s/2"))],
    ),
    (KEPT, [ExchangeEvent.NOTE], ExchangeEvent.LEAVE, False),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.BEGIN, []),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.BEAT, []),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.NOTE, RECORDED),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.RESPONSE, RECORDED),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.LAST, RECORDED_LAST),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.LEAVE, False),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.RELEASE], ExchangeEvent.RELEASE, []),
    (KEPT, [ExchangeEvent.BEGIN, ExchangeEvent.RELEASE], ExchangeEvent.LAST, RECORDED_LAST),
    (JSON_ONLY, [], ExchangeEvent.BEGIN, []),
    (JSON_ONLY, [], ExchangeEvent.NOTE, []),
    (JSON_ONLY, [], ExchangeEvent.BEAT, []),
    (JSON_SESSION, [], ExchangeEvent.RELEASE, []),
    ((False, False, False), [ExchangeEvent.LEAVE], ExchangeEvent.LAST, []),
    (DETACHES, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.NOTE, []),
    (DETACHES, [ExchangeEvent.BEGIN, ExchangeEvent.LEAVE], ExchangeEvent.LAST, []),
]


def made_for(
    kind: tuple[bool, bool, bool], before: list[ExchangeEvent], step: ExchangeEvent
) -> Exchange:
    """Return an exchange after the steps *before*; it expects an answer more than are not last."""
    streams, resumable, cancels = kind
    expected = 1 + [*before, step].count(ExchangeEvent.RESPONSE)
    exchange = made(streams=streams, resumable=resumable, cancels=cancels, expected=expected)
    for earlier in before:
        STEPS[earlier](exchange)
    return exchange


@pytest.mark.parametrize(
    ("kind", "before", "step", "expected"),
    MOVES,
    ids=lambda value: value.name if isinstance(value, ExchangeEvent) else None,
)
def test_exchange_step_returns_exactly_these_actions(
    kind: tuple[bool, bool, bool], before: list[ExchangeEvent], step: ExchangeEvent, expected: Taken
) -> None:
    """The first message decides the shape; ids and records exist only on a resumable stream."""
    assert expected == STEPS[step](made_for(kind, before, step))


def test_exchange_actions_are_tested_for_each_pair() -> None:
    """No pair of the table is left out above."""
    tested = {(made_for(kind, before, step).state, step) for kind, before, step, _ in MOVES}

    assert table(streams=True, resumable=True, cancels=True).keys() == tested


def test_exchange_status_is_that_of_the_answer_alone() -> None:
    """An error that is the whole response has its own status (2026-07-28, "Server Validation")."""
    assert Exchange().respond(b"{}", 404) == [FullResponse(404, b"{}")]


def test_exchange_without_an_answer_ends_empty() -> None:
    """A cancelled request has no answer (2025-11-25, cancellation, "Behavior Requirements")."""
    assert Exchange().respond(None) == [FullResponse(202, b"")]

    exchange = Exchange(stream="s")
    exchange.begin_stream()

    assert exchange.respond(None) == [StreamRecord("s", 1, b"", last=True), StreamEnd(b"")]


def test_exchange_is_primed_where_the_revision_defines_it() -> None:
    """An event with an id and no data came with 2025-11-25 (SEP-1699)."""
    unprimed = Exchange(stream="s").begin_stream()
    assert unprimed == [StreamRecord("s", 0, b"", last=False), StreamHead()]


def test_exchange_is_handed_over_once_the_client_has_an_id() -> None:
    """Only a client that has received an id can resume the stream on another connection."""
    exchange = Exchange(stream="s", cancels=False)

    assert exchange.hand_over() == []
    assert exchange.state is WAITING

    exchange.begin_stream()

    assert exchange.hand_over() == []
    assert exchange.state is STREAMING

    exchange.note(b"{}")

    assert exchange.hand_over() == [StreamEnd(b"retry: 0\n\n")]
    assert exchange.state is DETACHED


def test_late_route_makes_a_disconnect_cancel_the_calls() -> None:
    """The route of a provider's tool is resolved after the exchange was made."""
    exchange = Exchange(stream="s", cancels=False)
    exchange.begin_stream()

    assert exchange.leave(cancels=True)
    assert exchange.closed


def test_exchange_is_released_where_the_revision_defines_it() -> None:
    """Polling came with 2025-11-25 (SEP-1699); other clients keep their connection."""
    exchange = Exchange(stream="s", cancels=False)
    exchange.note(b"{}")

    assert exchange.release(100) == []
    assert exchange.state is STREAMING


def test_exchange_batch_is_answered_in_one_array() -> None:
    """2025-03-26, "Sending Messages": a batch's answers may come as one JSON array."""
    exchange = Exchange(expected=3, batch=True)

    assert exchange.respond(b"1", 404) == []
    assert exchange.respond(None) == []
    assert exchange.respond(b"3") == [FullResponse(200, b"[1,3]")]


def test_exchange_batch_of_one_is_still_an_array() -> None:
    """A request that came in an array is answered in one."""
    assert Exchange(batch=True).respond(b"1") == [FullResponse(200, b"[1]")]


def test_exchange_batch_without_any_answer_ends_empty() -> None:
    """A batch of cancelled requests has no array."""
    exchange = Exchange(expected=2, batch=True)

    assert exchange.respond(None) == []
    assert exchange.respond(None) == [FullResponse(202, b"")]


def test_exchange_batch_that_becomes_a_stream_sends_held_answers() -> None:
    """An answer that was held for the array is the first event of the stream."""
    exchange = Exchange(expected=3, batch=True)
    exchange.respond(b"1")

    assert [
        StreamHead(),
        StreamChunk(sse.event(b"1")),
        StreamChunk(sse.event(b"{}")),
    ] == exchange.note(b"{}")
    assert exchange.respond(None) == []
    assert [StreamEnd(sse.event(b"3"))] == exchange.respond(b"3")


def test_exchange_shows_its_state() -> None:
    """Its repr has the state and the number of answers that are missing."""
    exchange = Exchange(expected=2, batch=True)
    exchange.respond(b"1")

    assert repr(exchange) == "<Exchange WAITING, 1 responses to send>"


events = st.lists(
    st.sampled_from(["begin", "note", "response", "nothing", "beat", "release", "leave"]),
    max_size=25,
)


@given(
    events,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_exchange_sends_one_response_in_any_order_of_events(
    steps: Sequence[str], named: bool, primed: bool, streams: bool, cancels: bool, expected: int
) -> None:
    """One response, in order, that ends; on a stream, each message exactly once."""
    exchange = Exchange(
        stream="s" if named else None,
        primed=primed,
        streams=streams,
        cancels=cancels,
        expected=expected,
        batch=expected > 1,
    )
    left = cancelled = False
    actions: list[ExchangeAction] = []
    for step in steps:
        before = repr(exchange)
        try:
            new = take(exchange, step)
        except LocalIllegalTransition:
            assert before == repr(exchange)
            assert exchange.closed
            continue
        if isinstance(new, bool):
            left = True
            cancelled = cancelled or new
            continue
        if left:
            assert all(isinstance(action, StreamRecord) for action in new)
        actions += new

    check_response([each for each in actions if not isinstance(each, StreamRecord)])
    records = [each for each in actions if isinstance(each, StreamRecord)]
    assert list(range(len(records))) == [record.index for record in records]
    assert not any(record.last for record in records[:-1])
    if records:
        assert records[-1].last == (exchange.closed and not cancelled)
    assert cancelled <= cancels
    if not streams:
        assert not any(
            isinstance(action, StreamHead | StreamChunk | StreamEnd) for action in actions
        )


def take(exchange: Exchange, step: str) -> Taken:
    if step == "nothing":
        return exchange.respond(None)
    return STEPS[ExchangeEvent[step.upper()]](exchange)


def check_response(sent: list[ExchangeAction]) -> None:
    """Check that it is one JSON body, or a head, chunks and an end."""
    if sent and isinstance(sent[0], FullResponse):
        assert len(sent) == 1
        return
    shape = [type(action) for action in sent]
    assert shape[:1] in ([], [StreamHead])
    assert StreamHead not in shape[1:]
    assert FullResponse not in shape
    assert StreamEnd not in shape[:-1]
    data = b"".join(each.data for each in sent if isinstance(each, StreamChunk | StreamEnd))
    numbers = [int(number) for number in re.findall(rb"^id: s/([0-9]+)$", data, re.MULTILINE)]
    assert sorted(set(numbers)) == numbers
