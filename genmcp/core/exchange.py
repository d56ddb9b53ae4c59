"""The response to one POST: its shape, its events and its end.

The first message decides the shape of the response. A response to the request makes it one JSON
body; a notification, `open` or a heartbeat makes it an event stream. 2026-07-28, Streamable HTTP,
"Sending Messages" and "Receiving Messages"; 2025-11-25, transports, the same.

A batch (2025-03-26) is one exchange that expects several answers.

An exchange performs no I/O. Each event returns the actions that it demands, in order: the writer of
the response stores every `Record`, and only then sends the others, so that a client can resume from
whatever it has received.
"""

from collections.abc import Mapping
from enum import IntEnum
from itertools import product
from typing import Final

import msgspec

from genmcp.errors import LocalIllegalTransition
from genmcp.wire import jsonrpc, sse

__all__ = [
    "Action",
    "Begin",
    "Chunk",
    "End",
    "Exchange",
    "Record",
    "State",
    "Step",
    "Whole",
    "table",
]


class Whole(msgspec.Struct, frozen=True):
    """Send a complete response with a JSON body; an empty *body* has no media type."""

    status: int
    body: bytes


class Begin(msgspec.Struct, frozen=True):
    """Send the head of an event stream."""


class Chunk(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, which stays open."""

    data: bytes


class End(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, if any, and end the response."""

    data: bytes = b""


class Record(msgspec.Struct, frozen=True):
    """Store message number *index* of stream *stream*, for a client that resumes the stream.

    *last* marks the message that ends the stream.
    """

    stream: str
    index: int
    message: bytes
    last: bool


Action = Whole | Begin | Chunk | End | Record


class State(IntEnum):
    """The state of an exchange."""

    WAITING = 0
    """Nothing is written: the response can still be one JSON body."""
    STREAMING = 1
    """The event stream is open."""
    DETACHED = 2
    """The connection is closed and the calls continue; their messages are only stored."""
    DONE = 3
    """All answers are given, or the disconnect has cancelled the calls."""


class Step(IntEnum):
    """An event of an exchange."""

    OPEN = 0
    """The event stream is requested before there is a message."""
    NOTE = 1
    """A notification or a request to the client is ready."""
    ANSWER = 2
    """An answer is ready, and more are expected."""
    LAST = 3
    """The last expected answer is ready."""
    BEAT = 4
    """Nothing was sent for the length of a heartbeat."""
    RELEASE = 5
    """The connection is to end, and the stream to continue on another one."""
    LEAVE = 6
    """The client has disconnected."""


Table = Mapping[tuple[State, Step], State]


def _stays(state: State, *steps: Step) -> Table:
    return {(state, step): state for step in steps}


_ALWAYS: Final[Table] = {
    (State.WAITING, Step.ANSWER): State.WAITING,
    **_stays(State.STREAMING, Step.OPEN, Step.NOTE, Step.ANSWER, Step.BEAT),
    **_stays(State.DETACHED, *Step),
    **{(state, Step.LAST): State.DONE for state in State if state is not State.DONE},
    # Late events, which are ignored: the client disconnects or resumes elsewhere after the last
    # byte, or a timer fires then. What is not in the table is a defect of the caller.
    **_stays(State.DONE, Step.BEAT, Step.RELEASE, Step.LEAVE),
}


def table(*, streams: bool, resumable: bool, cancels: bool) -> Table:
    """Return the transitions of an exchange.

    Args:
        streams: the client accepts event streams; any other gets JSON only.
        resumable: the client can resume the stream, so the server may end the connection.
        cancels: a disconnect cancels the calls. It MUST on 2026-07-28 (Streamable HTTP,
            "Cancellation") and SHOULD NOT before (2025-11-25, transports, point 6).
    """
    opened = State.STREAMING if streams else State.WAITING
    left = State.DONE if cancels else State.DETACHED
    return {
        **_ALWAYS,
        (State.WAITING, Step.OPEN): opened,
        (State.WAITING, Step.NOTE): opened,
        (State.WAITING, Step.BEAT): opened,
        (State.WAITING, Step.LEAVE): left,
        (State.STREAMING, Step.LEAVE): left,
        (State.WAITING, Step.RELEASE): State.DETACHED if resumable else State.WAITING,
        (State.STREAMING, Step.RELEASE): State.DETACHED if resumable else State.STREAMING,
    }


_TABLES: Final = {
    kind: table(streams=kind[0], resumable=kind[1], cancels=kind[2])
    for kind in product((False, True), repeat=3)
}


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """The response to one POST. Owned by the POST, or by the writer of its response.

    stream: the prefix of its event ids, which makes it resumable; None if it is not. primed:
    whether an event stream begins with an event that only carries an id (2025-11-25). streams,
    cancels: as for `table`. expected: the number of answers that end it. batch: whether a JSON body
    is an array of them.
    """

    stream: str | None = None
    primed: bool = False
    streams: bool = True
    cancels: bool = True
    expected: int = 1
    batch: bool = False
    state: State = State.WAITING
    _held: list[bytes] = msgspec.field(default_factory=list)
    _index: int = 0
    _answered: int = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.state.name}, {self.expected - self._answered} to answer>"

    @property
    def closed(self) -> bool:
        """Whether no message can be sent any more."""
        return self.state is State.DONE

    def open(self) -> list[Action]:
        """Make the response an event stream, before there is a message."""
        return self._begin(Step.OPEN)

    def note(self, message: bytes) -> list[Action]:
        """Send a notification, or a request to the client."""
        begun = self._begin(Step.NOTE)
        if self.state is State.WAITING:
            return begun
        connected = self.state is State.STREAMING
        return begun + self._message(message, last=False, connected=connected)

    def beat(self) -> list[Action]:
        """Send a comment, so that nothing on the way closes an idle connection."""
        begun = self._begin(Step.BEAT)
        return [*begun, Chunk(sse.COMMENT)] if self.state is State.STREAMING else begun

    def answer(self, message: bytes | None, status: int = 200) -> list[Action]:
        """Send an answer; *status* applies if it is the whole response.

        The answer is None if the request was cancelled, which then gets no response (2025-11-25,
        cancellation, "Behavior Requirements").
        """
        last = self._answered + 1 == self.expected
        was = self._advance(Step.LAST if last else Step.ANSWER)
        self._answered += 1
        if was is not State.WAITING:
            return self._message(message, last=last, connected=was is State.STREAMING)
        if message is not None:
            if not self.batch:
                return [Whole(status, message)]
            self._held.append(message)
        if not last:
            return []
        return [Whole(200, jsonrpc.encode_batch(self._held)) if self._held else Whole(202, b"")]

    def release(self, retry: int) -> list[Action]:
        """End the connection; the client is to resume the stream after *retry* milliseconds.

        2025-11-25, transports, point 6. Does nothing on other revisions, which do not define it.
        """
        return self._detach(retry) if self.primed else []

    def hand_over(self) -> list[Action]:
        """End the connection, because its client resumes the stream on another one.

        2025-11-25, transports, "Multiple Connections": each message is sent on one of them.
        """
        return self._detach(0) if self._index or self.primed else []

    def _detach(self, retry: int) -> list[Action]:
        was = self._advance(Step.RELEASE)
        if was is self.state:
            return []
        begun = self._head() if was is State.WAITING else []
        return [*begun, End(sse.retry(retry))]

    def leave(self) -> bool:
        """Handle a disconnect of the client; return whether it cancels the calls."""
        was = self._advance(Step.LEAVE)
        if was is State.WAITING:
            self.stream = None  # the client has no event id to resume from: nothing is stored
        return was is not State.DONE and self.state is State.DONE

    def _advance(self, step: Step) -> State:
        """Take *step*; return the state before it."""
        was = self.state
        moves = _TABLES[self.streams, self.streams and self.stream is not None, self.cancels]
        try:
            self.state = moves[was, step]
        except KeyError:
            raise LocalIllegalTransition(step.name, was.name) from None
        return was

    def _begin(self, step: Step) -> list[Action]:
        was = self._advance(step)
        opened = was is State.WAITING and self.state is State.STREAMING
        return self._head() if opened else []

    def _head(self) -> list[Action]:
        """Start the stream: its head, the event to resume from, the answers of a batch so far."""
        actions: list[Action] = [Begin()]
        if self.stream is not None:
            actions.append(Record(self.stream, 0, b"", last=False))
            if self.primed:
                actions.append(Chunk(sse.prime(b"%b/0" % self.stream.encode())))
        held, self._held = self._held, []
        for message in held:
            actions += self._message(message, last=False, connected=True)
        return actions

    def _message(self, message: bytes | None, *, last: bool, connected: bool) -> list[Action]:
        if message is None and not last:
            return []
        actions: list[Action] = []
        self._index += 1
        stream, index = self.stream, self._index
        if connected:
            event_id = None if stream is None else b"%b/%d" % (stream.encode(), index)
            data = b"" if message is None else sse.event(message, event_id)
            actions.append(End(data) if last else Chunk(data))
        if stream is not None:
            actions.append(Record(stream, index, message or b"", last))
        return actions
