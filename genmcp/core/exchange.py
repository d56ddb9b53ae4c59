"""One POST, from its arrival to the last byte of its answer.

The first thing said decides the shape of the response: an answer makes it one JSON body, a
notification (or a wish, or a silence too long) makes it an event stream. 2026-07-28, Streamable
HTTP, "Sending Messages" and "Receiving Messages"; 2025-11-25, transports, the same.

A batch (2025-03-26) is an exchange that expects several answers.
"""

from collections.abc import Mapping
from enum import IntEnum
from itertools import product
from typing import Final

import msgspec

from genmcp.core.actions import Abandon, Action, Begin, Chunk, End, Record, Whole
from genmcp.errors import LocalOutOfTurn
from genmcp.wire import jsonrpc, sse

__all__ = ["Exchange", "State", "Step", "table"]


class State(IntEnum):
    """Where an exchange stands."""

    WAITING = 0
    """Nothing is written: a plain JSON answer is still possible."""
    STREAMING = 1
    """The event stream is open."""
    DETACHED = 2
    """The connection is gone, the work goes on; what it says waits for a client that resumes."""
    DONE = 3
    """Answered, or abandoned."""


class Step(IntEnum):
    """What can happen to an exchange."""

    OPEN = 0
    """The event stream is wished for."""
    NOTE = 1
    """A notification is to be sent."""
    ANSWER = 2
    """An answer is there, and more are expected."""
    LAST = 3
    """The last expected answer is there."""
    BEAT = 4
    """The response has been silent for as long as it may."""
    RELEASE = 5
    """The connection is to be given up, the stream not."""
    LEAVE = 6
    """The client has closed the connection."""


Table = Mapping[tuple[State, Step], State]

_ALWAYS: Final[Table] = {
    (State.WAITING, Step.ANSWER): State.WAITING,
    (State.WAITING, Step.LAST): State.DONE,
    (State.STREAMING, Step.OPEN): State.STREAMING,
    (State.STREAMING, Step.NOTE): State.STREAMING,
    (State.STREAMING, Step.ANSWER): State.STREAMING,
    (State.STREAMING, Step.LAST): State.DONE,
    (State.STREAMING, Step.BEAT): State.STREAMING,
    (State.DETACHED, Step.OPEN): State.DETACHED,
    (State.DETACHED, Step.NOTE): State.DETACHED,
    (State.DETACHED, Step.ANSWER): State.DETACHED,
    (State.DETACHED, Step.LAST): State.DONE,
    (State.DETACHED, Step.BEAT): State.DETACHED,
    (State.DETACHED, Step.RELEASE): State.DETACHED,
    (State.DETACHED, Step.LEAVE): State.DETACHED,
    # A connection that closes or is taken over behind the last byte, or a timer that fires then,
    # is no news.
    (State.DONE, Step.BEAT): State.DONE,
    (State.DONE, Step.RELEASE): State.DONE,
    (State.DONE, Step.LEAVE): State.DONE,
}


def table(*, streams: bool, resumable: bool, cancels: bool) -> Table:
    """Return the transitions of an exchange.

    streams: the client takes event streams; one that does not gets its answer as JSON only.
    resumable: the client can come back for what it missed, so a connection may be given up.
    cancels: a disconnect cancels. It MUST on 2026-07-28 (Streamable HTTP, "Cancellation") and
        SHOULD NOT before (2025-11-25, transports, point 6).
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


_EITHER: Final = (False, True)
_TABLES: Final = {
    choice: table(streams=choice[0], resumable=choice[1], cancels=choice[2])
    for choice in product(_EITHER, _EITHER, _EITHER)
}


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """One POST and its answers.

    stream: the name its events' ids begin with, which makes it resumable; or None.
    primed: whether an event stream begins with an event that only carries an id (2025-11-25).
    streams, cancels: as for `table`.
    expected: how many answers end it. batch: whether a JSON body is an array of them.
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
        """Whether nothing more can be said."""
        return self.state is State.DONE

    def open(self) -> list[Action]:
        """Make the response an event stream now."""
        return self._begin(Step.OPEN)

    def note(self, message: bytes) -> list[Action]:
        """Send a notification."""
        begun = self._begin(Step.NOTE)
        if self.state is State.WAITING:
            return begun
        connected = self.state is State.STREAMING
        return begun + self._say(message, last=False, connected=connected)

    def beat(self) -> list[Action]:
        """Break a silence."""
        begun = self._begin(Step.BEAT)
        return [*begun, Chunk(sse.COMMENT)] if self.state is State.STREAMING else begun

    def answer(self, message: bytes | None, status: int = 200) -> list[Action]:
        """Send an answer; *status* counts if it is the whole response.

        None is no answer: the request was cancelled, and nothing is said of it any more
        (2025-11-25, cancellation, "Behavior Requirements").
        """
        was = self.state
        last = self._answered + 1 == self.expected
        self._advance(Step.LAST if last else Step.ANSWER)
        self._answered += 1
        if was is not State.WAITING:
            return self._say(message, last=last, connected=was is State.STREAMING)
        if message is not None:
            if not self.batch:
                return [Whole(status, message)]
            self._held.append(message)
        if not last:
            return []
        return [Whole(200, jsonrpc.encode_batch(self._held)) if self._held else Whole(202, b"")]

    def release(self, retry: int) -> list[Action]:
        """Give up the connection; the client is to come back after *retry* milliseconds.

        2025-11-25, transports, point 6. Other revisions do not know it: there nothing happens.
        """
        return self._detach(retry) if self.primed else []

    def hand_over(self) -> list[Action]:
        """Give up the connection, because its client has come back on another.

        2025-11-25, transports, "Multiple Connections": each message goes out on one of them.
        """
        return self._detach(0) if self._index or self.primed else []

    def _detach(self, retry: int) -> list[Action]:
        was = self.state
        self._advance(Step.RELEASE)
        if was is self.state:
            return []
        begun = self._head() if was is State.WAITING else []
        return [*begun, End(sse.retry(retry))]

    def leave(self) -> list[Action]:
        """Learn that the client has closed the connection."""
        was = self.state
        self._advance(Step.LEAVE)
        if was is State.WAITING:
            self.stream = None  # the client has no id to come back with: nothing is to be kept
        return [Abandon()] if was is not State.DONE and self.state is State.DONE else []

    @property
    def _table(self) -> Table:
        return _TABLES[self.streams, self.streams and self.stream is not None, self.cancels]

    def _advance(self, step: Step) -> None:
        try:
            self.state = self._table[self.state, step]
        except KeyError:
            raise LocalOutOfTurn(step.name, self.state.name) from None

    def _begin(self, step: Step) -> list[Action]:
        was = self.state
        self._advance(step)
        opened = was is State.WAITING and self.state is State.STREAMING
        return self._head() if opened else []

    def _head(self) -> list[Action]:
        """Open the stream: its head, what a client can resume from, the answers held so far."""
        actions: list[Action] = [Begin()]
        if self.stream is not None:
            actions.append(Record(self.stream, 0, b"", last=False))
            if self.primed:
                actions.append(Chunk(sse.prime(b"%b/0" % self.stream.encode())))
        held, self._held = self._held, []
        for message in held:
            actions += self._say(message, last=False, connected=True)
        return actions

    def _say(self, message: bytes | None, *, last: bool, connected: bool) -> list[Action]:
        actions: list[Action] = []
        if message is None and not last:
            return actions
        self._index += 1
        if connected:
            data = b"" if message is None else sse.event(message, self._event_id())
            actions.append(End(data) if last else Chunk(data))
        if self.stream is not None:
            actions.append(Record(self.stream, self._index, message or b"", last))
        return actions

    def _event_id(self) -> bytes | None:
        return None if self.stream is None else b"%b/%d" % (self.stream.encode(), self._index)
