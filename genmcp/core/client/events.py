"""What the client's machine answers: actions for its transport, events for its owner.

Both come in one list, to be performed and told in its order.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp.errors import GenmcpError, IllegalTransition, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.params import RequestId
from genmcp.protocol.tasks import CreateTaskResult

__all__ = [
    "Action",
    "Answered",
    "Asked",
    "Connected",
    "ConnectionFailed",
    "Disconnected",
    "Dropped",
    "Ended",
    "Event",
    "HangUp",
    "InputRequired",
    "LateAnswer",
    "Missed",
    "Notified",
    "Outcome",
    "ParamHeaders",
    "PeerFault",
    "PeerIllegalTransition",
    "Pinged",
    "Progress",
    "Rejected",
    "RequestFailed",
    "Reset",
    "Restart",
    "Send",
    "TaskCreated",
    "TimedOutRequest",
    "Withdrawn",
]

ParamHeaders = tuple[tuple[bytes, bytes], ...]
"""`Mcp-Param-*` headers: names in lower case, values encoded."""


class Send(msgspec.Struct, frozen=True):
    """Send *message*, and what a transport with headers has to know of it.

    id: of the request it is; None for a notification and for an answer.
    method: None for an answer to a request of the server.
    name: what `Mcp-Name` repeats, as it is in the params; None where that header does not belong.
    revision: what `MCP-Protocol-Version` says; None as long as none is agreed on.
    withdraws: the request it cancels, which need not be known if that was not sent.
    """

    message: bytes
    id: int | None = None
    method: str | None = None
    name: str | None = None
    revision: str | None = None
    param_headers: ParamHeaders = ()
    withdraws: int | None = None


class HangUp(msgspec.Struct, frozen=True):
    """Give up the response to request *id*, where it has one of its own: nobody wants it now."""

    id: int


class Connected(msgspec.Struct, frozen=True):
    """Requests may be sent. *server* is None where it does not say who it is."""

    revision: str
    server: Implementation | None
    capabilities: ServerCapabilities
    instructions: str | None


class ConnectionFailed(msgspec.Struct, frozen=True):
    """There is no connection, and none will come of it: the state is FAILED."""

    error: Exception


class Disconnected(msgspec.Struct, frozen=True):
    """The connection is gone: the state is CLOSED. *error* is None where this side closed it."""

    error: Exception | None


class Reset(msgspec.Struct, frozen=True):
    """The session is gone and another is begun; until `Connected`, nothing can be sent."""

    error: Exception


class Restart(msgspec.Struct, frozen=True):
    """The transport has ended on what it was asked first: open it again, and `begin` once more."""

    error: Exception


class Missed(msgspec.Struct, frozen=True):
    """The server may have told something that did not come, and that will not come again."""


class Answered(msgspec.Struct, frozen=True):
    """The result of request *id*: a value of 2026-07-28, and *raw*, its JSON as it came.

    The result of a method that no revision knows is what its JSON holds.
    """

    id: int
    result: Any
    raw: msgspec.Raw


class Rejected(msgspec.Struct, frozen=True):
    """The server answered request *id* with an error; *cause* is what it came in, if it says more.

    An HTTP error, with its headers.
    """

    id: int
    error: McpError
    cause: Exception | None = None


class InputRequired(msgspec.Struct, frozen=True):
    """Request *id* needs answers: it is to be sent again with them, and with *state* if not None.

    2026-07-28, basic/patterns, "Multi Round-Trip Requests"; the request sent again is another one.
    """

    id: int
    requests: Mapping[str, InputRequest]
    state: str | None


class TaskCreated(msgspec.Struct, frozen=True):
    """Request *id* became a task (SEP-2663)."""

    id: int
    task: CreateTaskResult


class TimedOutRequest(msgspec.Struct, frozen=True):
    """Request *id* was not answered in its time, *seconds*; it is cancelled.

    silent: it was time without a word, not in all.
    """

    id: int
    method: str
    seconds: float
    silent: bool


class RequestFailed(msgspec.Struct, frozen=True):
    """Request *id* will not be answered; *error* is None where this side has closed.

    may_have_run: whether the server may have carried it out; if not, it can be sent again.
    """

    id: int
    error: Exception | None
    may_have_run: bool


class Ended(msgspec.Struct, frozen=True):
    """The server ended the subscription that request *id* began, without an answer to it."""

    id: int
    reason: str | None


class Progress(msgspec.Struct, frozen=True):
    """How far request *id* has come."""

    id: int
    progress: int | float
    total: int | float | None
    message: str | None


class Notified(msgspec.Struct, frozen=True):
    """The server has told something.

    params: a value of 2026-07-28; what the JSON holds where no revision knows the method.
    subscription: the request that began the subscription it belongs to, if it does.
    about: the request on whose own response it came, if it did.
    """

    method: str
    params: Any
    subscription: RequestId | None = None
    about: RequestId | None = None


class Asked(msgspec.Struct, frozen=True):
    """The server wants an answer, under its own *id* (before 2026-07-28).

    params: a value of 2026-07-28; what the JSON holds where no revision knows the method.
    meta: every member of its `_meta`.
    """

    id: RequestId
    method: str
    params: Any
    meta: Mapping[str, Any]


class Pinged(msgspec.Struct, frozen=True):
    """The server has sent a `ping`; it is answered."""

    id: RequestId


class Withdrawn(msgspec.Struct, frozen=True):
    """What the server asked under *id* need not be answered any more.

    It has cancelled it; or nobody waits for what it can only be about.
    """

    id: RequestId
    reason: str | None


class Dropped(msgspec.Struct, frozen=True):
    """Something of the server's was not used, and *fault* says why; *id* is that it had."""

    fault: GenmcpError
    id: RequestId | None = None


Action = Send | HangUp
Event = (
    Connected
    | ConnectionFailed
    | Disconnected
    | Reset
    | Restart
    | Missed
    | Answered
    | Rejected
    | InputRequired
    | TaskCreated
    | TimedOutRequest
    | RequestFailed
    | Ended
    | Progress
    | Notified
    | Asked
    | Pinged
    | Withdrawn
    | Dropped
)
Outcome = Action | Event


class PeerFault(GenmcpError):
    """The peer broke the protocol; the message says how."""


class LateAnswer(PeerFault):
    """The peer answered what does not wait for an answer, or not any more."""


class PeerIllegalTransition(IllegalTransition, PeerFault):
    """The peer sent what it may not send then: *step* and *state* in words."""

    culprit = "the peer"

    def __init__(self, step: object, state: object) -> None:
        super().__init__(step, state)
        self.args = (f"the server sent {step} {state}, which it must not",)
