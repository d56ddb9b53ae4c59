"""Where a client's connection stands, and which step leads where: the one table of both eras."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from genmcp.core.client_faults import PeerIllegalTransition
from genmcp.errors import LocalIllegalTransition

__all__ = ["TABLE", "Lifecycle", "State", "Step"]


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
