"""The client side of the protocol as one sans-IO state machine.

The machine supports both eras of the protocol (2026-07-28, basic/versioning). The legacy era has
`initialize`, sessions and requests of the server; the modern era has self-contained requests. In
both eras, the params and results that the owner sees have the form of 2026-07-28.

Most methods return a list of outcomes: actions for the transport and events for the owner. The
owner handles the outcomes in the order of the list. No message of the server makes a method raise.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp.core.client.codec import Params, RequestEncoder, decode_error, decode_result
from genmcp.core.client.events import (
    Answered,
    CloseResponse,
    Connected,
    LateAnswer,
    MessageDropped,
    Outcome,
    ParamHeaders,
    PeerFault,
    PeerIllegalTransition,
    ProgressReceived,
    ReceivedRequestCancelled,
    RequestFailed,
    RequestRejected,
    RequestTimedOut,
    SendMessage,
)
from genmcp.core.client.lifecycle import (
    ConnectionState,
    ConnectionStep,
    DispatchOptions,
    Lifecycle,
    Pending,
    PendingRequests,
    Timeouts,
    TransportFailure,
)
from genmcp.core.client.opening import Connector
from genmcp.core.client.receiving import PeerRequests, decode_notification
from genmcp.errors import GenmcpError, InternalError, InvalidRequest, McpError, MethodNotFound
from genmcp.protocol.capabilities import TASKS, ClientCapabilities, Implementation
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    CancelledNotificationParams,
    LoggingLevel,
    ProgressNotificationParams,
    RequestId,
)
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.value import Value, wire_name
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message, encode_error
from genmcp.wire.lines import OversizedMessage

__all__ = ["ClientDispatch", "ConnectionState", "DispatchOptions", "Timeouts", "TransportFailure"]

_OPTIONS: Final = DispatchOptions()
_TIMEOUTS: Final = Timeouts()
_EMPTY: Final = b"{}"
_UNAUTHORIZED: Final = 401
_HTTP_ERROR: Final = 400  # the lowest HTTP status that is an error
_MAX_BATCH: Final = 1000  # messages of a batch, all of which are handled in one go
#: Every method of the specification, in any revision.
_SPECIFIED: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)


class ClientDispatch:
    """The state machine of one connection of a client.

    Args:
        info: name and version of the client.
        capabilities: the declared capabilities, as 2026-07-28 defines them.
        per_message: as `Transport.per_message`: True if each request has a response of its own
            (HTTP), False if all messages share one channel (stdio).
        options: timeouts and limits.

    The parameter `now` of the methods is the time of a monotonic clock in seconds. Raises
    ConfigurationError if `options.revision` is not supported. `pause`, `resume`: `PendingRequests`.
    """

    def __init__(
        self,
        info: Implementation,
        capabilities: ClientCapabilities,
        *,
        per_message: bool,
        options: DispatchOptions = _OPTIONS,
    ) -> None:
        self.capabilities = capabilities
        self._per_message = per_message
        self._options = options
        self._lifecycle = Lifecycle()
        self._pending = PendingRequests()
        self.pause, self.resume = self._pending.pause, self._pending.resume
        self._peer_requests = PeerRequests(capabilities, options.max_asked)
        self._encoder = RequestEncoder(info, capabilities)
        self._connector = Connector(
            self._lifecycle, self._pending, self._encoder, options, per_message=per_message
        )
        self._tasks = TASKS in (capabilities.extensions or {})

    def __repr__(self) -> str:
        return f"<ClientDispatch {self.state.name}, {self.pending} pending>"

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._lifecycle.state

    @property
    def reason(self) -> Exception | None:
        """The error that led to CLOSED or FAILED; None in other states, and after `close`."""
        return self._lifecycle.reason

    @property
    def server(self) -> Connected | None:
        """The connected server; None before the handshake is complete."""
        return self._connector.server

    @property
    def pending(self) -> int:
        """The number of pending requests, those of the handshake included."""
        return len(self._pending)

    @property
    def next_check(self) -> float | None:
        """The time at which to call `check_timeouts`; None: no request has a timeout."""
        return self._pending.next_check

    def is_pending(self, id: RequestId | None) -> bool:
        """Return whether request *id* is pending."""
        return self._pending.get(id) is not None

    def supports(self, method: str) -> bool:
        """Return whether the negotiated revision has *method*."""
        return method in self._connector.revision.methods

    def begin(self, now: float) -> list[Outcome]:
        """Start the handshake: return the action that sends its first message, in state NEW."""
        return self._connector.begin(now)

    def request(
        self,
        method: str,
        params: Params = None,
        *,
        now: float,
        timeouts: Timeouts = _TIMEOUTS,
        progress: bool = False,
        param_headers: ParamHeaders = (),
    ) -> tuple[int, list[SendMessage]]:
        """Return the id of a new request, and the actions that send it.

        *progress*: whether the server should send progress. *param_headers* are `Mcp-Param-*`
        headers, which repeat arguments of a tool call.

        Raises:
            LocalIllegalTransition: the state is not READY. The cause of the exception is `reason`.
            MethodNotFound: the method belongs to another revision than the negotiated one.
            TypeError: *params* cannot be encoded as JSON.
        """
        self._lifecycle.take(ConnectionStep.PING if method == "ping" else ConnectionStep.REQUEST)
        if self._is_foreign(method):
            raise MethodNotFound(method)
        revision = self._connector.revision
        request = self._pending.add(method, revision, now=now, timeouts=timeouts, progress=progress)
        try:
            message = self._encoder.request(revision, request.id, method, params, progress=progress)
        except BaseException:
            self._pending.remove(request)
            raise
        name = _name_in(params, request.known) if revision.modern else None
        return request.id, [
            SendMessage(message, request.id, method, name, revision.version, param_headers)
        ]

    def notify(self, method: str, params: Params = None) -> list[SendMessage]:
        """Return the action that sends a notification; none if only other revisions have *method*.

        Raises:
            LocalIllegalTransition: the state is not READY.
        """
        self._lifecycle.take(ConnectionStep.NOTIFY)
        if self._is_foreign(method):
            return []
        revision = self._connector.revision
        message = self._encoder.notification(revision, method, params)
        return [SendMessage(message, method=method, revision=revision.version)]

    def set_log_level(self, level: LoggingLevel) -> None:
        """Put *level* into the `_meta` of later requests: 2026-07-28, "Per-Request Log Level"."""
        self._encoder.set_log_level(level)

    def cancel(self, id: RequestId, reason: str | None = None) -> list[Outcome]:
        """Cancel request *id*. Does nothing if it was already answered."""
        request = self._pending.get(id)
        if request is None or request.opening:
            return []
        self._pending.remove(request)
        return self._cancel(request, reason)

    def answer(self, id: RequestId, result: Value | Mapping[str, Any]) -> list[SendMessage]:
        """Respond to the server's request *id*. Does nothing if the server has cancelled it."""
        if not self._peer_requests.remove(id):
            return []
        revision = self._connector.revision
        return [
            SendMessage(self._encoder.response(revision, id, result), revision=revision.version)
        ]

    def refuse(self, id: RequestId, error: McpError) -> list[SendMessage]:
        """Respond to the server's request *id* with *error*; as `answer` if it was cancelled."""
        if not self._peer_requests.remove(id):
            return []
        return [SendMessage(encode_error(id, error), revision=self._connector.revision.version)]

    def received(
        self, body: bytes, now: float, *, about: RequestId | None = None, status: int = 200
    ) -> list[Outcome]:
        """Handle one message of the server, or a batch (2025-03-26, basic, "Batching").

        *about* is the request in the HTTP response of which *body* was; *status* is its status.
        """
        if status == _UNAUTHORIZED:
            return []  # not JSON-RPC of the MCP server; the transport reports the error
        try:
            decoded = jsonrpc.decode(body, batch=_MAX_BATCH)
        except McpError as fault:
            id = jsonrpc.id_of(body)
            return self._unreadable(id, fault, now, is_response=b'"method"' not in body)
        if isinstance(decoded, Message):
            return self._receive(decoded, now, about, status)
        outcomes: list[Outcome] = []
        for each in decoded:
            if isinstance(each, Message):
                outcomes += self._receive(each, now, about, status)
            else:
                outcomes.append(MessageDropped(each, each.id))
        return outcomes

    def too_long(
        self, size: int, head: bytes, *, now: float, about: RequestId | None = None
    ) -> list[Outcome]:
        """Handle a message of *size* bytes that was discarded; *head* is its beginning.

        A response fails its request.
        """
        found = OversizedMessage(size, head)
        fault = PeerFault(f"a message of {size} bytes exceeds the limit")
        id = about if found.id is None else found.id
        return self._unreadable(id, fault, now, is_response=b'"method"' not in head)

    def failed(self, id: object, failure: TransportFailure, now: float) -> list[Outcome]:
        """Handle the failure of the transport to get a response to request *id*."""
        request = self._pending.get(id)
        if request is None:
            return []
        self._pending.remove(request)
        if request.opening:
            return self._connector.failed(request, failure, now)
        error = failure.error
        # If the server did not know the session, it has not processed the request.
        failed = RequestFailed(request.id, error, failure.sent and not failure.session)
        if not failure.session or self._lifecycle.state is not ConnectionState.READY:
            return [failed]
        return [failed, *self._renew(error, now)]

    def session_ended(self, error: Exception, now: float) -> list[Outcome]:
        """Handle the loss of a session on the server, reported by the notification stream."""
        if self._lifecycle.state is not ConnectionState.READY:
            return []
        # The notification stream was open, so this session worked: replacing the session is not a
        # step of the endless loop that `Connector.renew` prevents.
        self._connector.renewed = False
        return self._renew(error, now)

    def check_timeouts(self, now: float) -> list[Outcome]:
        """Cancel the requests with a deadline of *now* or earlier; report them as timed out."""
        outcomes: list[Outcome] = []
        for request in self._pending.expired(now, self._peer_requests.subjects):
            if request.opening:
                outcomes += self._connector.timed_out(request, now)
                continue
            outcomes += self._cancel(request, "it took too long")
            silent = request.idle_until < request.until
            outcomes.append(RequestTimedOut(request.id, request.method, request.allowed, silent))
        return outcomes

    def close(self) -> list[Outcome]:
        """Fail the pending requests. The owner then closes the transport, and calls `closed`."""
        self._lifecycle.take(ConnectionStep.CLOSE)
        self._peer_requests.clear()
        return [RequestFailed(each.id, None, may_have_run=True) for each in self._pending.clear()]

    def closed(self, error: Exception | None = None) -> list[Outcome]:
        """Handle the end of the transport, because of *error* if it is not None."""
        self._peer_requests.clear()
        return self._connector.transport_ended(error)

    def _cancel(self, request: Pending, reason: str | None) -> list[Outcome]:
        outcomes = _cancellation(self._encoder, request, reason, per_message=self._per_message)
        for id in self._peer_requests.remove_for(request.id, self.is_pending):
            error = InternalError("The request that this belongs to was cancelled")
            outcomes.append(SendMessage(encode_error(id, error), revision=request.revision.version))
            outcomes.append(ReceivedRequestCancelled(id, reason))
        return outcomes

    def _receive(
        self, message: Message, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        if message.is_response:
            return self._response(message, now, about, status)
        id = message.request_id
        if id is None:
            return self._notification(message, now, about)
        return self._request(message, id, about)

    def _renew(self, error: Exception, now: float) -> list[Outcome]:
        self._peer_requests.clear()
        return self._connector.renew(error, now)

    def _unreadable(
        self, id: RequestId | None, fault: GenmcpError, now: float, *, is_response: bool
    ) -> list[Outcome]:
        """Fail request *id* if the unreadable message is its response, otherwise drop it."""
        if not is_response or self._pending.get(id) is None:
            return [MessageDropped(fault, id)]
        error = PeerFault(f"the response cannot be read: {fault}")
        return self.failed(id, TransportFailure(error, status=200), now)

    def _response(
        self, message: Message, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        id = message.request_id
        request = self._without_id(about) if id is None else self._pending.get(id)
        if request is None and message.error is not None and status >= _HTTP_ERROR:
            # The body of an HTTP error answers the request of that HTTP exchange, even if the id in
            # the body differs: servers made with mcp 1.x send the id "server-error" if they could
            # not parse the request.
            request = self._pending.get(about)
        if request is None:
            detail = f": {message.error.message}" if message.error else ""
            if self._pending.was_sent(id):
                return [MessageDropped(LateAnswer(f"request {id} has ended{detail}"), id)]
            return [MessageDropped(PeerFault(f"there was no request {id!r}{detail}"), id)]
        self._pending.remove(request)
        if request.opening:
            return self._connector.answered(request, message, status, now)
        self._connector.renewed = False
        if message.error is not None:
            return [RequestRejected(request.id, decode_error(request, message.error, status))]
        try:
            return [decode_result(request, message.result, tasks=self._tasks)]
        except PeerFault as fault:
            return [RequestFailed(request.id, fault, may_have_run=True)]

    def _without_id(self, about: RequestId | None) -> Pending | None:
        """Return the request that an error response without an id answers; None if unknown.

        Over HTTP this is request *about*, whose response contained the error. Otherwise it is the
        request of the handshake, if one is pending: a server of the legacy era may not read the id
        of a message whose method it does not know.
        """
        if about is not None:
            return self._pending.get(about)
        return next((each for each in self._pending if each.opening), None)

    def _request(self, message: Message, id: RequestId, about: RequestId | None) -> list[Outcome]:
        revision, state = self._connector.revision, self._lifecycle.state
        if state is ConnectionState.READY and revision.modern:
            # 2026-07-28, stdio and Streamable HTTP: the server MUST NOT send requests, and the
            # client MUST NOT send responses. So the request is dropped without an error response.
            fault = PeerIllegalTransition(message.method, f"in {revision.version}")
            return [MessageDropped(fault, id)]
        ping = message.method == "ping"
        try:
            self._lifecycle.take(ConnectionStep.PINGED if ping else ConnectionStep.ASKED)
        except PeerIllegalTransition as fault:
            dropped = MessageDropped(fault, id)
            if state not in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
                return [dropped]
            early = InvalidRequest("Only a ping is allowed before the client is ready")
            return [self._reply(jsonrpc.encode_error(id, early)), dropped]
        if ping:
            return [self._reply(jsonrpc.encode_response(id, _EMPTY))]
        try:
            return [self._peer_requests.add(message, id, revision, self._pending.ids(about))]
        except PeerFault as fault:
            return [MessageDropped(fault, id)]
        except McpError as error:
            return [self._reply(jsonrpc.encode_error(id, error)), MessageDropped(error, id)]

    def _reply(self, message: bytes) -> SendMessage:
        ready = self._lifecycle.state is ConnectionState.READY
        return SendMessage(message, revision=self._connector.revision.version if ready else None)

    def _notification(self, message: Message, now: float, about: RequestId | None) -> list[Outcome]:
        try:
            self._lifecycle.take(ConnectionStep.TOLD)
            notification = decode_notification(message, self._connector.revision, about)
        except PeerFault as fault:
            return [MessageDropped(fault)]
        match notification.params:
            case ProgressNotificationParams() as params:
                return [self._progress(params, now)]
            case CancelledNotificationParams() as params:
                return self._cancelled(params)
            case _:
                return [notification]

    def _progress(self, params: ProgressNotificationParams, now: float) -> Outcome:
        id = params.progress_token
        request = self._pending.get(id)
        if request is None or not request.progress:
            return MessageDropped(PeerFault(f"progress of {id!r}, which was not requested"), id)
        request.restart_idle(now)
        return ProgressReceived(request.id, params.progress, params.total, params.message)

    def _cancelled(self, params: CancelledNotificationParams) -> list[Outcome]:
        """Handle `notifications/cancelled` of the server.

        Before 2026-07-28 the server cancels a request that it has sent. Since 2026-07-28 the server
        ends a subscription, and names it by the id of the client's `subscriptions/listen` request
        (basic/patterns, "Cancellation").
        """
        id = params.request_id
        if not self._connector.revision.modern:
            if self._peer_requests.remove(id):
                return [ReceivedRequestCancelled(id, params.reason)]
            return [MessageDropped(PeerFault(f"the server cancels {id!r}, which is not pending"))]
        request = self._pending.get(id)
        if request is None or request.method != "subscriptions/listen":
            fault = PeerFault(f"the server cancels {id!r}, which is not a subscription")
            return [MessageDropped(fault)]
        self._pending.remove(request)
        ended = Answered(request.id, None, msgspec.Raw())
        return [CloseResponse(request.id), ended] if self._per_message else [ended]

    def _is_foreign(self, method: str) -> bool:
        """Return whether *method* belongs to another revision than the negotiated one."""
        return method in _SPECIFIED and not self.supports(method)


def _cancellation(
    encoder: RequestEncoder, request: Pending, reason: str | None, *, per_message: bool
) -> list[Outcome]:
    """Return the actions that cancel *request* at the server.

    2026-07-28, basic/patterns, "Transport-Specific Cancellation": over HTTP, closing the response
    cancels the request. Earlier revisions need `notifications/cancelled` on every transport.
    """
    outcomes: list[Outcome] = []
    revision = request.revision
    if not (per_message and revision.modern):
        method = "notifications/cancelled"
        params = CancelledNotificationParams(request_id=request.id, reason=reason)
        message = encoder.notification(revision, method, params)
        version = revision.version
        outcomes.append(SendMessage(message, method=method, revision=version, withdraws=request.id))
    if per_message:
        outcomes.append(CloseResponse(request.id))
    return outcomes


def _name_in(params: Params, known: Method | None) -> str | None:
    """Return the value of `Mcp-Name`: the tool, prompt or resource that the request names.

    None if the method has no such param. 2026-07-28, Streamable HTTP, "Request Metadata".
    """
    member = None if known is None else known.name_member
    if member is None or params is None:
        return None
    if isinstance(params, Value):
        name: str | None = getattr(params, member, None)
        return name
    return params.get(wire_name(member))
