"""Outcomes of the client's state machine: actions for its transport, events for its owner.

A method of `ClientDispatch` returns both in one list. The owner performs the actions and handles
the events in the order of the list.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp.errors import GenmcpError, IllegalTransition, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.params import RequestId
from genmcp.protocol.tasks import CreateTaskResult

ParamHeaders = tuple[tuple[bytes, bytes], ...]
"""`Mcp-Param-*` headers: names in lower case, values encoded."""


class PeerFault(GenmcpError):
    """A violation of the protocol by the server; the message describes it."""


class LateAnswer(PeerFault):
    """A response to a request that is not pending, or not any more."""


class PeerIllegalTransition(IllegalTransition, PeerFault):
    """A message that the server may not send in the current state of the connection."""

    culprit = "the peer"

    def __init__(self, step: object, state: object) -> None:
        super().__init__(step, state)
        self.args = (f"the server sent {step} {state}, which it must not",)


class SendMessage(msgspec.Struct, frozen=True):
    """Action: send *message*.

    Args:
        message: The encoded message.
        id: The id of the request; None for notifications and responses.
        method: The method; None for a response.
        name: The value of `Mcp-Name`; None where the header does not apply.
        revision: The value of `MCP-Protocol-Version`; None before a revision is negotiated.
        param_headers: The `Mcp-Param-*` headers.
        withdraws: The id of the request that the message cancels. The message can be dropped if
            that request was never sent.
    """

    message: bytes
    id: int | None = None
    method: str | None = None
    name: str | None = None
    revision: str | None = None
    param_headers: ParamHeaders = ()
    withdraws: int | None = None


class CloseResponse(msgspec.Struct, frozen=True):
    """Action: close the HTTP response to request *id*; its content is no longer needed."""

    id: int


class Connected(msgspec.Struct, frozen=True):
    """The handshake is complete, and requests may be sent.

    Args:
        revision: The negotiated protocol revision.
        server: Name and version of the server, None if it does not send them.
        capabilities: The capabilities of the server.
        instructions: The server's instructions for models, if any.
    """

    revision: str
    server: Implementation | None
    capabilities: ServerCapabilities
    instructions: str | None


class ConnectionFailed(msgspec.Struct, frozen=True):
    """The connection could not be established. The state is FAILED."""

    error: Exception


class Disconnected(msgspec.Struct, frozen=True):
    """The connection has ended. The state is CLOSED; *error* is None if the client closed it."""

    error: Exception | None


class SessionReset(msgspec.Struct, frozen=True):
    """The server has lost the session. A new handshake runs; wait for `Connected`."""

    error: Exception


class RestartTransport(msgspec.Struct, frozen=True):
    """The transport ended during the handshake: reopen it and call `begin` again."""

    error: Exception


class NotificationsMissed(msgspec.Struct, frozen=True):
    """Notifications of the server may have been lost, and will not be sent again."""


class Answered(msgspec.Struct, frozen=True):
    """The result of request *id*.

    Args:
        id: The id of the request.
        result: A value of 2026-07-28; decoded JSON for a method that no revision defines.
        raw: The JSON of the result as received.
    """

    id: int
    result: Any
    raw: msgspec.Raw


class RequestRejected(msgspec.Struct, frozen=True):
    """The server responded to request *id* with a JSON-RPC error.

    *cause* is the HTTP error that carried it, with its headers, where there is one.
    """

    id: int
    error: McpError
    cause: Exception | None = None


class InputNeeded(msgspec.Struct, frozen=True):
    """Request *id* needs input: send it again with the responses, and with *state* if not None.

    2026-07-28, basic/patterns, "Multi Round-Trip Requests". The repeated request has a new id.
    """

    id: int
    requests: Mapping[str, InputRequest]
    state: str | None


class TaskCreated(msgspec.Struct, frozen=True):
    """Request *id* continues as a task (SEP-2663)."""

    id: int
    task: CreateTaskResult


class RequestTimedOut(msgspec.Struct, frozen=True):
    """Request *id* timed out after *seconds* and is cancelled.

    *silent*: the idle timeout expired, not the total timeout.
    """

    id: int
    method: str
    seconds: float
    silent: bool


class RequestFailed(msgspec.Struct, frozen=True):
    """Request *id* will get no response; *error* is None if the client closed the connection.

    *may_have_run*: the server may have processed it. If False, it is safe to send it again.
    """

    id: int
    error: Exception | None
    may_have_run: bool


class SubscriptionEnded(msgspec.Struct, frozen=True):
    """The server ended the subscription of request *id* without a response."""

    id: int
    reason: str | None


class ProgressReceived(msgspec.Struct, frozen=True):
    """Progress of request *id*."""

    id: int
    progress: int | float
    total: int | float | None
    message: str | None


class NotificationReceived(msgspec.Struct, frozen=True):
    """A notification of the server.

    Args:
        method: The method.
        params: A value of 2026-07-28; decoded JSON for a method that no revision defines.
        subscription: The id of the request that opened its subscription, if any.
        about: The id of the request in whose HTTP response it was sent, if any.
    """

    method: str
    params: Any
    subscription: RequestId | None = None
    about: RequestId | None = None


class RequestReceived(msgspec.Struct, frozen=True):
    """A request of the server (before 2026-07-28), to be answered under its *id*.

    Args:
        id: The id that the server chose.
        method: The method.
        params: A value of 2026-07-28; decoded JSON for a method that no revision defines.
        meta: All members of the request's `_meta`.
    """

    id: RequestId
    method: str
    params: Any
    meta: Mapping[str, Any]


class PingReceived(msgspec.Struct, frozen=True):
    """A `ping` of the server, which has been answered."""

    id: RequestId


class ReceivedRequestCancelled(msgspec.Struct, frozen=True):
    """The server's request *id* needs no response any more.

    The server has cancelled it, or the request that it belongs to was given up.
    """

    id: RequestId
    reason: str | None


class MessageDropped(msgspec.Struct, frozen=True):
    """A message of the server was ignored because of *fault*; *id* is its id, if it had one."""

    fault: GenmcpError
    id: RequestId | None = None


Action = SendMessage | CloseResponse
Event = (
    Connected
    | ConnectionFailed
    | Disconnected
    | SessionReset
    | RestartTransport
    | NotificationsMissed
    | Answered
    | RequestRejected
    | InputNeeded
    | TaskCreated
    | RequestTimedOut
    | RequestFailed
    | SubscriptionEnded
    | ProgressReceived
    | NotificationReceived
    | RequestReceived
    | PingReceived
    | ReceivedRequestCancelled
    | MessageDropped
)
Outcome = Action | Event
