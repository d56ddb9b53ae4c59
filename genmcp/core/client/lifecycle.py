"""Where a client's connection stands, and which step leads where: the one table of both eras."""

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

__all__ = ["TABLE", "Lifecycle", "Pending", "PendingRequests", "State", "Step", "Timeouts"]


class State(Enum):
    """Where a connection stands."""

    __hash__ = object.__hash__  # that of Enum costs as much as all else of a look into the table

    NEW = auto()
    """Nothing has been sent."""
    PROBING = auto()
    """`server/discover` is under way: which era the server is of is not known."""
    INITIALIZING = auto()
    """`initialize` is under way."""
    READY = auto()
    """Requests may be sent."""
    CLOSING = auto()
    """This side has had enough; the transport ends."""
    CLOSED = auto()
    """The connection was there, and is gone."""
    FAILED = auto()
    """It did not come about, or something went wrong that no message can mend."""


class Step(Enum):
    """What can happen. The last three are the peer's; all others are this side's."""

    __hash__ = object.__hash__

    BEGIN = auto()
    PROBE = auto()
    """The server is asked again which revisions it speaks."""
    HANDSHAKE = auto()
    """`initialize` is sent."""
    CONNECT = auto()
    """A revision is agreed on."""
    RENEW = auto()
    """The session is gone: another is begun."""
    RESTART = auto()
    """The transport has ended before a revision was agreed on: it is opened again."""
    REQUEST = auto()
    PING = auto()
    NOTIFY = auto()
    FAIL = auto()
    CLOSE = auto()
    LOSE = auto()
    """The transport has ended."""
    RESET = auto()
    ASKED = auto()
    """The peer wants an answer."""
    PINGED = auto()
    TOLD = auto()
    """The peer sends a notification."""


NEW, PROBING, INITIALIZING, READY, CLOSING, CLOSED, FAILED = State

_PEER: Final = {Step.ASKED: "a request", Step.PINGED: "a ping", Step.TOLD: "a notification"}
_WHEN: Final = {
    NEW: "before it was sent anything",
    **dict.fromkeys((PROBING, INITIALIZING), "before the connection is open"),
    **dict.fromkeys((CLOSING, CLOSED, FAILED), "after the connection has ended"),
}

#: Where each step leads, of those that may be taken.
TABLE: Final[Mapping[tuple[State, Step], State]] = {
    (NEW, Step.BEGIN): PROBING,
    (PROBING, Step.PROBE): PROBING,
    (INITIALIZING, Step.PROBE): PROBING,
    (PROBING, Step.HANDSHAKE): INITIALIZING,
    (PROBING, Step.CONNECT): READY,
    (INITIALIZING, Step.CONNECT): READY,
    # 2025-11-25, transports, "Session Management", point 4.
    (READY, Step.RENEW): PROBING,
    # 2026-07-28, stdio, "Backward Compatibility".
    (PROBING, Step.RESTART): NEW,
    (INITIALIZING, Step.RESTART): NEW,
    (READY, Step.REQUEST): READY,
    # 2025-11-25, lifecycle: before the answer to `initialize`, nothing else than pings.
    (INITIALIZING, Step.PING): INITIALIZING,
    (READY, Step.PING): READY,
    (READY, Step.NOTIFY): READY,
    **{(state, Step.FAIL): FAILED for state in State},
    **{(state, Step.CLOSE): CLOSING for state in State if state is not CLOSED},
    (CLOSED, Step.CLOSE): CLOSED,
    **{(state, Step.LOSE): FAILED for state in (NEW, PROBING, INITIALIZING, FAILED)},
    **{(state, Step.LOSE): CLOSED for state in (READY, CLOSING, CLOSED)},
    (CLOSED, Step.RESET): NEW,
    (FAILED, Step.RESET): NEW,
    (READY, Step.ASKED): READY,
    # 2025-11-25, ping: "the receiver MUST respond promptly", so wherever there is a line.
    **{(state, Step.PINGED): state for state in State if state not in (CLOSED, FAILED)},
    **{(state, Step.TOLD): state for state in (PROBING, INITIALIZING, READY, CLOSING)},
}


class Lifecycle:
    """The state of one connection; `reason` is why it is CLOSED or FAILED, where there is one."""

    def __init__(self) -> None:
        self.state = State.NEW
        self.reason: Exception | None = None

    def take(self, step: Step, reason: Exception | None = None) -> None:
        """Take *step*; *reason* is why, of one that leads to an end.

        Raises:
            LocalIllegalTransition: this side may not take it now; its cause is the reason of the
                state.
            PeerIllegalTransition: the peer may not.
        """
        state = TABLE.get((self.state, step))
        if state is None:
            if step in _PEER:
                raise PeerIllegalTransition(_PEER[step], _WHEN[self.state]) from self.reason
            raise LocalIllegalTransition(step.name, self.state.name) from self.reason
        if state in (State.CLOSED, State.FAILED):
            self.reason = self.reason or reason
        elif state is State.NEW:
            self.reason = None
        self.state = state


class Timeouts(msgspec.Struct, frozen=True):
    """How long a request may take, in seconds; None for ever.

    idle: since anything was heard of it. 2026-07-28, basic/patterns, "Timeouts": progress may
    begin it anew, the *total* runs on. whole: what *total* is the rest of, if it is one.
    """

    idle: float | None = 30.0
    total: float | None = 3600.0
    whole: float | None = None


class Pending(msgspec.Struct, eq=False):
    """One request that is not answered. *known* is None for a method that *revision* lacks."""

    id: int
    method: str
    known: Method | None
    revision: Revision
    progress: bool
    #: It belongs to the opening of the connection, not to who uses it.
    opening: bool
    idle: float
    idle_until: float
    until: float
    whole: float

    @property
    def allowed(self) -> float:
        """How long it may take, in all or without a word, whichever is up first."""
        return self.whole if self.until <= self.idle_until else self.idle

    @property
    def deadline(self) -> float:
        """When its time is up; infinite if never."""
        return min(self.idle_until, self.until)

    def heard(self, now: float) -> None:
        """Note that something was heard of it."""
        self.idle_until = now + self.idle


class PendingRequests:
    """Requests by their ids, which begin at 1 and are never used again.

    2026-07-28, basic, "Requests": no two that are not answered have the same.
    """

    def __init__(self) -> None:
        self._last = 0
        self._by_id: dict[int, Pending] = {}
        self._next_check = math.inf

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        return iter([*self._by_id.values()])

    @property
    def next_check(self) -> float | None:
        """No time is up before it; None: none will be."""
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
        """Return a new request, sent *now*."""
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
        """Return request *id*, None if it is not pending. True and 1.0 are no ids."""
        return self._by_id.get(id) if type(id) is int else None

    def ids(self, about: RequestId | None) -> frozenset[RequestId]:
        """Return *about*, if it is given, or else the ids of all requests."""
        return frozenset(self._by_id) if about is None else frozenset((about,))

    def remove(self, request: Pending) -> None:
        """Forget *request*."""
        del self._by_id[request.id]
        if not self._by_id:
            self._next_check = math.inf

    def clear(self) -> list[Pending]:
        """Forget all requests; return those of who uses the connection."""
        users = [request for request in self if not request.opening]
        self._by_id.clear()
        self._next_check = math.inf
        return users

    def keep(self, request: Pending) -> None:
        """Take *request* back, whose time was up: should an answer come, it is welcome."""
        request.idle_until = request.until = math.inf
        self._by_id[request.id] = request

    def expired(self, now: float, waiting: frozenset[RequestId]) -> list[Pending]:
        """Remove and return those whose time is up: *now* is their deadline, or later.

        waiting: those of which the server may wait for this side: its silence does not count.
        """
        up = []
        for request in self:
            if request.id in waiting:
                request.heard(now)
            if request.deadline <= now:
                up.append(request)
                self.remove(request)
        self._next_check = min((each.deadline for each in self), default=math.inf)
        return up
