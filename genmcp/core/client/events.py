"""Outcomes of the client's state machine: actions for its transport, events for its owner.

A method of `ClientDispatch` returns actions and events in one list. The owner of the
`ClientDispatch`, a `Connection` (`client/connection.py`), performs the actions and handles the
events in the order of the list. `SendMessage` is public: transports of other packages send it.
"""

from collections.abc import Mapping, Sequence
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


class NoCommonRevision(GenmcpError):
    """The server supports no revision that the client may use; *supported* are those it names."""

    def __init__(self, message: str, supported: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.supported = tuple(supported)


class HandshakeTimeout(GenmcpError):
    """The server did not respond to *method* of the handshake within *seconds*."""

    def __init__(self, method: str, seconds: float) -> None:
        super().__init__(f"no response to {method} within {seconds:g} s")
        self.seconds = seconds


class LateAnswer(PeerFault):
    """A response to a request that has already ended."""


class PeerIllegalTransition(IllegalTransition, PeerFault):
    """The server sent a message that is not allowed in the current state of the connection."""

    culprit = "the peer"

    def __init__(self, step: object, state: object) -> None:
        super().__init__(step, state)
        self.args = (f"the server sent {step} {state}, which it must not",)


class Outcome(msgspec.Struct, frozen=True):
    """An outcome of a method of `ClientDispatch`: an action to perform, or an event to handle."""


class SendMessage(Outcome, frozen=True):
    """A message that a `Transport` sends to the server. An action of the client's state machine.

    Only `message` is sent over stdio. The other members save a transport from decoding the message.

    Args:
        message: one JSON-RPC message as UTF-8 encoded JSON, without a line end.
        id: the id of the request; None for notifications and responses.
        method: the method of the request or notification; None for a response.
        name: the value of the HTTP header `Mcp-Name`; None if the message has no such header.
        revision: the value of the HTTP header `MCP-Protocol-Version`; None before a revision is
            negotiated or proposed.
        param_headers: the `Mcp-Param-*` headers.
        withdraws: the id of the request that this message, a `notifications/cancelled`, cancels.
            A transport that has not yet written that request can drop both messages.
    """

    message: bytes
    id: int | None = None
    method: str | None = None
    name: str | None = None
    revision: str | None = None
    param_headers: ParamHeaders = ()
    withdraws: int | None = None


class CloseResponse(Outcome, frozen=True):
    """Action: close the HTTP response to request *id*; its content is no longer needed.

    The owner performs this action by cancelling `Transport.send` of that request.
    """

    id: int


class Connected(Outcome, frozen=True):
    """The handshake is complete, and requests may be sent.

    Args:
        revision: the negotiated protocol revision.
        server: name and version of the server, None if it does not send them.
        capabilities: the capabilities of the server.
        instructions: the server's instructions for models, if any.
    """

    revision: str
    server: Implementation | None
    capabilities: ServerCapabilities
    instructions: str | None


class ConnectionFailed(Outcome, frozen=True):
    """The connection could not be established. The state is FAILED."""

    error: Exception


class Disconnected(Outcome, frozen=True):
    """The connection has ended. The state is CLOSED; *error*: None if the client closed it."""

    error: Exception | None


class SessionReset(Outcome, frozen=True):
    """The server has lost the session. A new handshake runs; wait for `Connected`."""

    error: Exception


class RestartTransport(Outcome, frozen=True):
    """The transport ended during the handshake. The state is NEW.

    The owner opens the transport again and calls `begin` again.
    """

    error: Exception


class NotificationsMissed(Outcome, frozen=True):
    """Notifications of the server may have been lost. The server does not send them again."""


class Answered(Outcome, frozen=True):
    """The result of request *id*.

    Args:
        id: the id of the request.
        result: a value of 2026-07-28; decoded JSON for a method that no revision defines; None for
            a subscription that the server has ended without a response.
        raw: the JSON of the result as received.
    """

    id: int
    result: Any
    raw: msgspec.Raw


class RequestRejected(Outcome, frozen=True):
    """The server responded to request *id* with a JSON-RPC error.

    *cause* is the `HttpStatusError` that had the JSON-RPC error as its body; None over stdio, and
    if the HTTP status was not an error.
    """

    id: int
    error: McpError
    cause: Exception | None = None


class InputNeeded(Outcome, frozen=True):
    """Request *id* has ended with input requests, which the client answers.

    2026-07-28, basic/patterns, "Multi Round-Trip Requests": the client sends the same method and
    params again under a new id, with the responses, and with *state* unless it is None.
    """

    id: int
    requests: Mapping[str, InputRequest]
    state: str | None


class TaskCreated(Outcome, frozen=True):
    """The server responded to request *id* with a task, which will have the result (SEP-2663)."""

    id: int
    task: CreateTaskResult


class RequestTimedOut(Outcome, frozen=True):
    """Request *id* timed out after *seconds* and is cancelled.

    *silent*: True if the idle timeout expired, False if the total timeout expired.
    """

    id: int
    method: str
    seconds: float
    silent: bool


class RequestFailed(Outcome, frozen=True):
    """Request *id* will get no response; *error*: None if the client closed the connection.

    *may_have_run* is False only if the server has certainly not processed the request, so that the
    request can be sent again safely.
    """

    id: int
    error: Exception | None
    may_have_run: bool


class ProgressReceived(Outcome, frozen=True):
    """Progress of request *id*."""

    id: int
    progress: int | float
    total: int | float | None
    message: str | None


class NotificationReceived(Outcome, frozen=True):
    """A notification of the server.

    Args:
        method: the method.
        params: a value of 2026-07-28; decoded JSON for a method that no revision defines.
        subscription: the id of the `subscriptions/listen` request that the notification belongs to;
            None if it belongs to no subscription.
        about: the id of the request in whose HTTP response the notification was sent; None outside
            of such a response.
    """

    method: str
    params: Any
    subscription: RequestId | None = None
    about: RequestId | None = None


class RequestReceived(Outcome, frozen=True):
    """A request of the server (before 2026-07-28), which the client answers under the same *id*.

    Args:
        id: the id that the server chose.
        method: the method.
        params: a value of 2026-07-28; decoded JSON for a method that no revision defines.
        about: the ids of the requests of this client that the request may belong to.
    """

    id: RequestId
    method: str
    params: Any
    about: frozenset[RequestId]


class ReceivedRequestCancelled(Outcome, frozen=True):
    """The server's request *id* needs no response any more.

    Either the server has cancelled its request, or this client has given up its own request
    during which the server sent that request.
    """

    id: RequestId
    reason: str | None


class MessageDropped(Outcome, frozen=True):
    """A message of the server was ignored because of *fault*.

    *id* is the id of the message; None if the message has none or the id cannot be read.
    """

    fault: GenmcpError
    id: RequestId | None = None
