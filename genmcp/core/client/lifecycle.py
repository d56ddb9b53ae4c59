"""The state of a client's connection, and its pending requests.

`TABLE` is one state machine for both eras of the protocol: for the legacy era, which begins with
`initialize`, and for the modern era of self-contained requests (2026-07-28).
"""

import math
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from genmcp.core.client.events import PeerIllegalTransition
from genmcp.errors import LocalIllegalTransition
from genmcp.protocol.methods import Method
from genmcp.protocol.params import RequestId
from genmcp.protocol.revisions.revision import Revision


class DispatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `ClientDispatch`. Times are in seconds.

    Args:
        revision: the only revision to negotiate; None: the newest that both sides support.
        probe_timeout: time for the response to `server/discover` on a transport that is not
            `per_message` (stdio). After that the server is treated as one of the legacy era.
        connect_timeout: time for the response to any other message of the handshake.
        max_asked: maximum number of requests of the server that wait for a response.
    """

    revision: str | None = None
    probe_timeout: float = 5.0
    connect_timeout: float = 60.0
    max_asked: int = 64


class TransportFailure(msgspec.Struct, frozen=True):
    """The failure of a transport to get the response to a request.

    Args:
        error: the error.
        status: the HTTP status of the response; None without an HTTP response.
        sent: whether the request may have reached the server.
        session: whether the request failed because the server does not know the session.
    """

    error: Exception
    status: int | None = None
    sent: bool = True
    session: bool = False


class ConnectionState(Enum):
    """The states of a client's connection."""

    # `Enum.__hash__` hashes the name, which doubles the time of a lookup in `TABLE`.
    __hash__ = object.__hash__

    NEW = auto()
    """Nothing has been sent."""
    PROBING = auto()
    """`server/discover` is pending: the era of the server is unknown."""
    INITIALIZING = auto()
    """`initialize` is pending."""
    READY = auto()
    """Requests may be sent."""
    CLOSING = auto()
    """The client has closed the connection; the transport has not ended yet."""
    CLOSED = auto()
    """The connection was established, and has ended."""
    FAILED = auto()
    """The connection could not be established, or failed for good."""


class ConnectionStep(Enum):
    """The causes of transitions.

    The server causes the last three: ASKED, PINGED and TOLD. The client or its transport causes the
    others.
    """

    __hash__ = object.__hash__

    BEGIN = auto()
    PROBE = auto()
    """`server/discover` is sent."""
    HANDSHAKE = auto()
    """`initialize` is sent."""
    CONNECT = auto()
    """A revision is negotiated."""
    RENEW = auto()
    """The server has lost the session, and the client begins a new one."""
    RESTART = auto()
    """The transport ended during the handshake and is reopened."""
    REQUEST = auto()
    PING = auto()
    NOTIFY = auto()
    FAIL = auto()
    CLOSE = auto()
    LOSE = auto()
    """The transport has ended."""
    ASKED = auto()
    """The server sends a request."""
    PINGED = auto()
    TOLD = auto()
    """The server sends a notification."""


NEW, PROBING, INITIALIZING, READY, CLOSING, CLOSED, FAILED = ConnectionState

_PEER: Final = {
    ConnectionStep.ASKED: "a request",
    ConnectionStep.PINGED: "a ping",
    ConnectionStep.TOLD: "a notification",
}
_WHEN: Final = {
    NEW: "before the handshake",
    **dict.fromkeys((PROBING, INITIALIZING), "before the connection is open"),
    **dict.fromkeys((CLOSING, CLOSED, FAILED), "after the connection has ended"),
}

#: The legal transitions: the new state for a state and a step. A pair that is not in the table is
#: a PeerIllegalTransition for the steps of the server, and otherwise a LocalIllegalTransition.
TABLE: Final[Mapping[tuple[ConnectionState, ConnectionStep], ConnectionState]] = {
    (NEW, ConnectionStep.BEGIN): PROBING,
    # A server may reject the probed revision and name another: probe again (basic/versioning).
    (PROBING, ConnectionStep.PROBE): PROBING,
    (INITIALIZING, ConnectionStep.PROBE): PROBING,
    (PROBING, ConnectionStep.HANDSHAKE): INITIALIZING,
    (PROBING, ConnectionStep.CONNECT): READY,
    (INITIALIZING, ConnectionStep.CONNECT): READY,
    # 2025-11-25, transports, "Session Management", point 4: the client begins a new session.
    (READY, ConnectionStep.RENEW): PROBING,
    # 2026-07-28, stdio, "Backward Compatibility": a legacy server may exit on `server/discover`.
    (PROBING, ConnectionStep.RESTART): NEW,
    (INITIALIZING, ConnectionStep.RESTART): NEW,
    (READY, ConnectionStep.REQUEST): READY,
    # 2025-11-25, lifecycle: before the response to `initialize`, only pings are allowed.
    (INITIALIZING, ConnectionStep.PING): INITIALIZING,
    (READY, ConnectionStep.PING): READY,
    (READY, ConnectionStep.NOTIFY): READY,
    **{(state, ConnectionStep.FAIL): FAILED for state in ConnectionState},
    **{(state, ConnectionStep.CLOSE): CLOSING for state in ConnectionState if state is not CLOSED},
    (CLOSED, ConnectionStep.CLOSE): CLOSED,
    **{(state, ConnectionStep.LOSE): FAILED for state in (NEW, PROBING, INITIALIZING, FAILED)},
    **{(state, ConnectionStep.LOSE): CLOSED for state in (READY, CLOSING, CLOSED)},
    (READY, ConnectionStep.ASKED): READY,
    # 2025-11-25, ping: "the receiver MUST respond promptly". So a ping is legal in every state in
    # which the transport can still send the response.
    **{
        (state, ConnectionStep.PINGED): state
        for state in ConnectionState
        if state not in (CLOSED, FAILED)
    },
    **{(state, ConnectionStep.TOLD): state for state in (PROBING, INITIALIZING, READY, CLOSING)},
}


class Lifecycle:
    """The state of one connection. Owned by its `ClientDispatch`.

    `reason` is the error that led to CLOSED or FAILED; None in other states, and if the client
    closed the connection.
    """

    def __init__(self) -> None:
        self.state = NEW
        self.reason: Exception | None = None

    def take(self, step: ConnectionStep, reason: Exception | None = None) -> None:
        """Change the state by *step*.

        If the new state is CLOSED or FAILED, store *reason*, unless an earlier reason is stored.

        Raises:
            LocalIllegalTransition: the client may not take this step now.
            PeerIllegalTransition: the server may not take this step now.

        The cause of either exception is the stored `reason`.
        """
        state = TABLE.get((self.state, step))
        if state is None:
            if step in _PEER:
                raise PeerIllegalTransition(_PEER[step], _WHEN[self.state]) from self.reason
            raise LocalIllegalTransition(step.name, self.state.name) from self.reason
        if state in (CLOSED, FAILED):
            # The first reason is kept: later ones are consequences of it.
            self.reason = self.reason or reason
        self.state = state


class Timeouts(msgspec.Struct, frozen=True):
    """The timeouts of one request, in seconds; None: no limit.

    Args:
        idle: time without progress. 2026-07-28, basic/patterns, "Timeouts": progress may restart
            this timeout, but not the total timeout.
        total: time from the sending of the request to its response.
        whole: the total timeout that the user gave for the whole call. Only error messages show it.
            It exceeds *total* if this is a later request of the call. None: equal to *total*.
    """

    idle: float | None = 30.0
    total: float | None = 3600.0
    whole: float | None = None


class Pending(msgspec.Struct, eq=False):
    """A pending request.

    Args:
        id, method: as in the message.
        known: the definition of the method; None if *revision* does not define the method.
        revision: the revision of the message.
        progress: whether the request has a progress token.
        opening: whether the request is part of the handshake, and not a request of the user.
        idle: the idle timeout in seconds; infinite without one.
        idle_until: the time at which the idle timeout expires.
        until: the time at which the total timeout expires.
        whole: as in `Timeouts`; infinite without a total timeout.
        paused_at: the time since which the timeouts are paused; None while they run.
    """

    id: int
    method: str
    known: Method | None
    revision: Revision
    progress: bool
    opening: bool
    idle: float
    idle_until: float
    until: float
    whole: float
    paused_at: float | None = None

    @property
    def allowed(self) -> float:
        """The length of the timeout that expires first, in seconds, for the error message."""
        return self.whole if self.until <= self.idle_until else self.idle

    @property
    def deadline(self) -> float:
        """The time at which the request times out; infinite without a timeout."""
        return math.inf if self.paused_at is not None else min(self.idle_until, self.until)

    def restart_idle(self, now: float) -> None:
        """Restart the idle timeout: the server has sent progress."""
        self.idle_until = now + self.idle


class PendingRequests:
    """The pending requests of one connection, by id. Owned by its `ClientDispatch`.

    Ids start at 1 and are never reused (2026-07-28, basic, "Requests").
    """

    def __init__(self) -> None:
        self._last = 0
        self._by_id: dict[int, Pending] = {}
        # A lower bound of all deadlines. When a request ends, the bound stays: the exact minimum
        # would need a search of all requests for each response. An early check does no harm.
        self._next_check = math.inf

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        return iter([*self._by_id.values()])

    @property
    def next_check(self) -> float | None:
        """The time before which no request times out; None without timeouts."""
        return None if self._next_check == math.inf else self._next_check

    def add(
        self,
        method: str,
        revision: Revision,
        *,
        now: float,
        timeouts: Timeouts,
        progress: bool = False,
        opening: bool = False,
    ) -> Pending:
        """Register and return a new request, sent *now*."""
        self._last += 1
        idle = math.inf if timeouts.idle is None else timeouts.idle
        total = math.inf if timeouts.total is None else timeouts.total
        request = Pending(
            id=self._last,
            method=method,
            known=revision.methods.get(method),
            revision=revision,
            progress=progress,
            opening=opening,
            idle=idle,
            idle_until=now + idle,
            until=now + total,
            whole=timeouts.whole or total,
        )
        self._by_id[self._last] = request
        self._next_check = min(self._next_check, request.deadline)
        return request

    def get(self, id: object) -> Pending | None:
        """Return request *id*, None if it is not pending."""
        # True and 1.0 equal 1 as keys of a dict, but are not ids.
        return self._by_id.get(id) if type(id) is int else None

    def was_sent(self, id: object) -> bool:
        """Return whether *id* is that of a request, which may have ended."""
        return type(id) is int and 0 < id <= self._last

    def ids(self, about: RequestId | None) -> frozenset[RequestId]:
        """Return the ids of the requests that a message of the server may belong to.

        Only *about*, the request whose HTTP response contained the message; if *about* is None,
        all pending requests.
        """
        return frozenset(self._by_id) if about is None else frozenset((about,))

    def remove(self, request: Pending) -> None:
        """Remove *request*: it has ended."""
        del self._by_id[request.id]
        if not self._by_id:
            self._next_check = math.inf

    def clear(self) -> list[Pending]:
        """Remove all requests; return those that are not part of the handshake."""
        requests = [request for request in self if not request.opening]
        self._by_id.clear()
        self._next_check = math.inf
        return requests

    def pause(self, id: object, now: float) -> None:
        """Pause the timeouts of request *id*: it is not sent before the user has logged in."""
        request = self.get(id)
        if request is not None and request.paused_at is None:
            request.paused_at = now

    def resume(self, id: object, now: float) -> None:
        """Continue the timeouts of request *id*, by as much later as they were paused."""
        request = self.get(id)
        if request is not None and request.paused_at is not None:
            elapsed = now - request.paused_at
            request.idle_until += elapsed
            request.until += elapsed
            request.paused_at = None
            self._next_check = min(self._next_check, request.deadline)

    def expired(self, now: float, waiting: frozenset[RequestId]) -> list[Pending]:
        """Remove and return the requests with a deadline of *now* or earlier.

        Args:
            now: the current time.
            waiting: ids of requests that the server may process only after it receives a response
                of this client. Their idle timeouts are restarted instead of expiring.
        """
        expired = []
        for request in self:
            if request.id in waiting:
                request.restart_idle(now)
            if request.deadline <= now:
                expired.append(request)
                self.remove(request)
        self._next_check = min((each.deadline for each in self), default=math.inf)
        return expired
