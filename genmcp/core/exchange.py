"""The response to one POST: a JSON body or an event stream, its events and its end.

An exchange decides the shape of the response by the first event. A response to a call makes it one
JSON body. A notification, `begin_stream` or a heartbeat makes it an event stream (2026-07-28,
Streamable HTTP, "Sending Messages" and "Receiving Messages"; 2025-11-25, transports, the same).

Most responses need no exchange: if nothing was sent before it, `Responder._reply` writes
the JSON body (`_transports/responder.py`). The response to `subscriptions/listen` is an event
stream in any case, and has none either (`_transports/listening.py`).

A batch (2025-03-26) is one exchange that expects several responses.

An exchange performs no I/O. Each of its methods is an event with its data, and returns the actions
to perform, in this order. The `StreamRecord` of a message comes before the message, so that a
client can resume after any event that it has received.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import product
from typing import Final

import msgspec

from genmcp.core.request import Request, cancels_on_disconnect
from genmcp.errors import LocalIllegalTransition
from genmcp.wire import jsonrpc, sse


class FullResponse(msgspec.Struct, frozen=True):
    """Send a complete response with a JSON body; an empty *body* has no media type."""

    status: int
    body: bytes


class StreamHead(msgspec.Struct, frozen=True):
    """Send the head of an event stream."""


class StreamChunk(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, which stays open."""

    data: bytes


class StreamEnd(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, if any, and end the response."""

    data: bytes = b""


class StreamRecord(msgspec.Struct, frozen=True):
    """Store message number *index* of stream *stream*, for a client that resumes the stream.

    *last* marks the message that ends the stream.
    """

    stream: str
    index: int
    data: bytes
    last: bool


ExchangeAction = FullResponse | StreamHead | StreamChunk | StreamEnd | StreamRecord


# The transitions are tables and not branches, so that a test can compare each pair of a state and
# an event with the specification, for every kind of client.


class ExchangeState(IntEnum):
    """The state of an exchange."""

    WAITING = 0
    """No byte of the response is sent: it can still be one JSON body."""
    STREAMING = 1
    """The event stream is open."""
    DETACHED = 2
    """The connection is closed and the calls continue; their messages are only stored."""
    DONE = 3
    """All responses are sent, or the disconnect has cancelled the calls."""


class ExchangeEvent(IntEnum):
    """An event of an exchange."""

    BEGIN = 0
    """The event stream is to begin before there is a message."""
    NOTE = 1
    """A notification or a request to the client is ready."""
    RESPONSE = 2
    """A response is ready, and more are expected."""
    LAST = 3
    """The last expected response is ready."""
    BEAT = 4
    """No message was sent for `Endpoint(heartbeat=)` seconds."""
    RELEASE = 5
    """The server ends the connection; the client resumes the stream on another connection."""
    LEAVE = 6
    """The client has disconnected."""


Table = Mapping[tuple[ExchangeState, ExchangeEvent], ExchangeState]


def _stays(state: ExchangeState, *steps: ExchangeEvent) -> Table:
    return {(state, step): state for step in steps}


_ALWAYS: Final[Table] = {
    (ExchangeState.WAITING, ExchangeEvent.RESPONSE): ExchangeState.WAITING,
    **_stays(
        ExchangeState.STREAMING,
        ExchangeEvent.BEGIN,
        ExchangeEvent.NOTE,
        ExchangeEvent.RESPONSE,
        ExchangeEvent.BEAT,
    ),
    **_stays(ExchangeState.DETACHED, *ExchangeEvent),
    **{
        (state, ExchangeEvent.LAST): ExchangeState.DONE
        for state in ExchangeState
        if state is not ExchangeState.DONE
    },
    # Late events, which are ignored: after the last byte the client disconnects, resumes the stream
    # on another connection, or a timer expires. Any other absent pair is a defect of the caller.
    **_stays(ExchangeState.DONE, ExchangeEvent.BEAT, ExchangeEvent.RELEASE, ExchangeEvent.LEAVE),
}


def table(*, streams: bool, resumable: bool, cancels: bool) -> Table:
    """Return the transitions of an exchange.

    Args:
        streams: the client accepts event streams; any other gets JSON only.
        resumable: the client can resume the stream, so the server may end the connection.
        cancels: a disconnect cancels the calls. It MUST on 2026-07-28 (Streamable HTTP,
            "Cancellation") and SHOULD NOT before (2025-11-25, transports, point 6), unless the tool
            demands it (`Tool.on_disconnect`).
    """
    begun = ExchangeState.STREAMING if streams else ExchangeState.WAITING
    left = ExchangeState.DONE if cancels else ExchangeState.DETACHED
    return {
        **_ALWAYS,
        (ExchangeState.WAITING, ExchangeEvent.BEGIN): begun,
        (ExchangeState.WAITING, ExchangeEvent.NOTE): begun,
        (ExchangeState.WAITING, ExchangeEvent.BEAT): begun,
        (ExchangeState.WAITING, ExchangeEvent.LEAVE): left,
        (ExchangeState.STREAMING, ExchangeEvent.LEAVE): left,
        (ExchangeState.WAITING, ExchangeEvent.RELEASE): ExchangeState.DETACHED
        if resumable
        else ExchangeState.WAITING,
        (ExchangeState.STREAMING, ExchangeEvent.RELEASE): ExchangeState.DETACHED
        if resumable
        else ExchangeState.STREAMING,
    }


_TABLES: Final = {
    kind: table(streams=kind[0], resumable=kind[1], cancels=kind[2])
    for kind in product((False, True), repeat=3)
}


class Exchange(msgspec.Struct, kw_only=True, eq=False):
    """The response to one POST. Owned by the POST, or by the writer of its response.

    stream: the prefix of its event ids, if the stream can be resumed; else None. primed: whether an
    event stream begins with an event that only carries an id (2025-11-25). streams, cancels: as for
    `table`. expected: the number of responses after which it ends. batch: whether a JSON body is an
    array of them.
    """

    stream: str | None = None
    primed: bool = False
    streams: bool = True
    cancels: bool = True
    expected: int = 1
    batch: bool = False
    state: ExchangeState = ExchangeState.WAITING
    _held: list[bytes] = msgspec.field(default_factory=list)
    _index: int = 0
    _responses: int = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.state.name}, {self.expected - self._responses} responses to send>"

    @property
    def closed(self) -> bool:
        """Whether no message can be sent any more."""
        return self.state is ExchangeState.DONE

    def begin_stream(self) -> list[ExchangeAction]:
        """Begin the event stream before there is a message; no actions if it has begun."""
        return self._begin(ExchangeEvent.BEGIN)

    def note(self, message: bytes) -> list[ExchangeAction]:
        """Send a notification, or a request to the client."""
        begun = self._begin(ExchangeEvent.NOTE)
        if self.state is ExchangeState.WAITING:
            return begun
        connected = self.state is ExchangeState.STREAMING
        return begun + self._message(message, last=False, connected=connected)

    def beat(self) -> list[ExchangeAction]:
        """Send a comment, so that no proxy closes an idle connection."""
        begun = self._begin(ExchangeEvent.BEAT)
        return (
            [*begun, StreamChunk(sse.COMMENT)] if self.state is ExchangeState.STREAMING else begun
        )

    def respond(self, message: bytes | None, status: int = 200) -> list[ExchangeAction]:
        """Send a response; *status* applies if it is the whole HTTP response.

        A cancelled request gets no response (2025-11-25, cancellation, "Behavior Requirements"):
        *message* is then None.
        """
        # *status* applies to a JSON body with one response. The head of a stream, and the body of a
        # batch with responses of different statuses, have the status 200.
        last = self._responses + 1 == self.expected
        was = self._advance(ExchangeEvent.LAST if last else ExchangeEvent.RESPONSE)
        self._responses += 1
        if was is not ExchangeState.WAITING:
            return self._message(message, last=last, connected=was is ExchangeState.STREAMING)
        if message is not None:
            if not self.batch:
                return [FullResponse(status, message)]
            self._held.append(message)
        if not last:
            return []
        return [
            FullResponse(200, jsonrpc.encode_batch(self._held))
            if self._held
            else FullResponse(202, b"")
        ]

    def release(self, retry: int) -> list[ExchangeAction]:
        """End the connection; the client is to resume the stream after *retry* milliseconds.

        2025-11-25, transports, point 6. Does nothing on other revisions, which do not define it.
        """
        return self._detach(retry) if self.primed else []

    def hand_over(self, retry: int = 0) -> list[ExchangeAction]:
        """End the connection, because its client resumes the stream on another one.

        No actions if the client cannot resume it. It waits *retry* milliseconds before.

        2025-11-25, transports, "Multiple Connections": each message is sent on one of them.
        """
        # The client needs the id of an event to resume. On a stream that is not primed and has sent
        # no event, to end the connection would only lose messages.
        return self._detach(retry) if self._index or self.primed else []

    def _detach(self, retry: int) -> list[ExchangeAction]:
        was = self._advance(ExchangeEvent.RELEASE)
        if was is self.state:
            return []
        begun = self._head() if was is ExchangeState.WAITING else []
        return [*begun, StreamEnd(sse.retry(retry))]

    def leave(self, *, cancels: bool = False) -> bool:
        """Handle a disconnect of the client; return whether it cancels the calls.

        *cancels*: as for the exchange, of a route that was resolved after the exchange was made.
        """
        self.cancels |= cancels
        # In WAITING the client has seen no event id, so that it cannot resume: nothing is stored
        # or held for it, although the calls may run on.
        was = self._advance(ExchangeEvent.LEAVE)
        if was is ExchangeState.WAITING:
            self.stream, self._held = None, []
        return was is not ExchangeState.DONE and self.state is ExchangeState.DONE

    def _advance(self, step: ExchangeEvent) -> ExchangeState:
        """Take *step*; return the state before it."""
        # `stream` and `cancels` may change while the exchange waits (a client that leaves before
        # the first event; a route that is resolved late), so that the table is looked up each time.
        was = self.state
        moves = _TABLES[self.streams, self.streams and self.stream is not None, self.cancels]
        try:
            self.state = moves[was, step]
        except KeyError:
            raise LocalIllegalTransition(step.name, was.name) from None
        return was

    def _begin(self, step: ExchangeEvent) -> list[ExchangeAction]:
        was = self._advance(step)
        begun = was is ExchangeState.WAITING and self.state is ExchangeState.STREAMING
        return self._head() if begun else []

    def _head(self) -> list[ExchangeAction]:
        """Start the stream: its head, the event to resume from, the responses of a batch so far."""
        # Event 0 is stored before anything is sent: a client that loses its connection between the
        # head and the first message can already resume the stream, even if another process died in
        # between. Responses of a batch that were held for a JSON body become its first events.
        actions: list[ExchangeAction] = [StreamHead()]
        if self.stream is not None:
            actions.insert(0, StreamRecord(self.stream, 0, b"", last=False))
            if self.primed:
                actions.append(StreamChunk(sse.prime(b"%b/0" % self.stream.encode())))
        held, self._held = self._held, []
        for message in held:
            actions += self._message(message, last=False, connected=True)
        return actions

    def _message(
        self, message: bytes | None, *, last: bool, connected: bool
    ) -> list[ExchangeAction]:
        if message is None and not last:
            return []
        # The index grows even if nothing is sent or stored: an event keeps its number on every
        # connection, so that a client which resumes neither misses one nor gets one twice.
        actions: list[ExchangeAction] = []
        self._index += 1
        stream, index = self.stream, self._index
        if stream is not None:
            actions.append(StreamRecord(stream, index, message or b"", last))
        if connected:
            event_id = None if stream is None else b"%b/%d" % (stream.encode(), index)
            data = b"" if message is None else sse.event(message, event_id)
            actions.append(StreamEnd(data) if last else StreamChunk(data))
        return actions


def exchange_for(
    requests: Sequence[Request], *, streams: bool, stream: str | None, batch: int = 0
) -> Exchange:
    """Return the exchange of one POST, for its valid *requests*.

    From 2026-07-28 on a disconnect cancels the calls. Before, it cancels them only if a tool has
    `on_disconnect = "cancel"` (2025-11-25, transports, point 6). In a batch, one such tool decides
    for all members.

    Args:
        requests: the requests of the POST, without the invalid members of a batch.
        streams: whether the client accepts event streams.
        stream: a new id for the event stream, if the client can resume it; else None.
        batch: the number of responses of a batch, including those to invalid members; 0 for a
            single request.
    """
    # All requests of a POST have one revision: a batch belongs to one session.
    revision = requests[0].revision
    return Exchange(
        stream=stream,
        primed=revision.priming_event,
        streams=streams,
        cancels=revision.modern or any(cancels_on_disconnect(each.route) for each in requests),
        expected=batch or 1,
        batch=batch > 0,
    )
