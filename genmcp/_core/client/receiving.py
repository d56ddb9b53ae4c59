"""Incoming messages of a client: responses, requests and notifications of the server."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp._core.client.codec import decode_error, decode_result
from genmcp._core.client.events import (
    CloseResponse,
    LateAnswer,
    MessageDropped,
    NotificationReceived,
    Outcome,
    PeerFault,
    PeerIllegalTransition,
    PingReceived,
    ProgressReceived,
    ReceivedRequestCancelled,
    RequestFailed,
    RequestReceived,
    RequestRejected,
    SendMessage,
    SubscriptionEnded,
)
from genmcp._core.client.lifecycle import (
    ConnectionState,
    ConnectionStep,
    Lifecycle,
    Pending,
    PendingRequests,
    TransportFailure,
)
from genmcp._core.client.opening import Connector
from genmcp._wire import jsonrpc
from genmcp._wire.jsonrpc import Message
from genmcp._wire.lines import OversizedMessage
from genmcp.errors import (
    GenmcpError,
    InvalidRequest,
    MalformedParams,
    McpError,
    MethodNotFound,
    Overloaded,
)
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    SUBSCRIPTION_ID,
    CancelledNotificationParams,
    ProgressNotificationParams,
    RequestId,
    all_meta,
)
from genmcp.protocol.revisions.revision import Revision

_any_object: Final = msgspec.json.Decoder(dict[str, Any])
_EMPTY: Final = b"{}"
_HTTP_ERROR: Final = 400  # the lowest HTTP status that is an error
_CAPABILITY: Final[Mapping[str, str]] = {
    "roots/list": "roots",
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
}


class PeerRequests:
    """The unanswered requests of the server (before 2026-07-28). Owned by a `ClientDispatch`.

    The server sends such a request while it processes a request of this client. The message does
    not name that request. Over HTTP, it is the request whose response contains the message.
    Otherwise it may be any request that was pending when the message arrived.

    Args:
        capabilities: the declared capabilities; requests that need others are rejected.
        limit: maximum number of unanswered requests (`DispatchOptions.max_asked`).
    """

    def __init__(self, capabilities: ClientCapabilities, limit: int) -> None:
        self._capabilities = capabilities
        self._limit = limit
        self._ids: dict[RequestId, frozenset[RequestId]] = {}

    @property
    def subjects(self) -> frozenset[RequestId]:
        """The requests of this client that the unanswered requests may belong to."""
        return frozenset().union(*self._ids.values())

    def add(
        self, message: Message, id: RequestId, revision: Revision, about: frozenset[RequestId]
    ) -> RequestReceived:
        """Register and decode a request of the server.

        Args:
            message: the request.
            id: the id of the request.
            revision: the negotiated revision.
            about: the ids of the requests of this client that the request may belong to.

        Raises:
            PeerFault: Another unanswered request has the same id.
            McpError: The request is invalid or not supported; the error is the response to it.
        """
        if id in self._ids:
            raise PeerFault(f"the server uses the id {id!r} again, before it is answered")
        if len(self._ids) >= self._limit:
            raise Overloaded(f"The client answers {self._limit} requests already (max_asked)")
        method = message.method or ""
        capability = _CAPABILITY.get(method)
        if capability is not None and (
            method not in revision.methods or getattr(self._capabilities, capability) is None
        ):
            raise MethodNotFound(method)
        try:
            params = _decode_params(revision.methods.get(method), message, revision)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedParams(f"Invalid params: {error}") from None
        self._ids[id] = about
        return RequestReceived(id, method, params, about)

    def remove(self, id: RequestId) -> bool:
        """Remove request *id*; return whether it was unanswered."""
        return self._ids.pop(id, None) is not None

    def remove_for(
        self, request: RequestId, is_pending: Callable[[RequestId], bool]
    ) -> list[RequestId]:
        """Remove and return the ids of the server's requests that belonged only to *request*.

        *request* is a request of this client that was cancelled. A request of the server is removed
        if it may belong to *request* and to none that is still pending; *is_pending* returns
        whether a request of this client is still pending.
        """
        orphans = [
            id
            for id, about in self._ids.items()
            if request in about and not any(is_pending(each) for each in about)
        ]
        for id in orphans:
            del self._ids[id]
        return orphans

    def clear(self) -> None:
        """Remove all requests, because their responses can no longer be delivered."""
        self._ids.clear()


def decode_notification(
    message: Message, revision: Revision, about: RequestId | None
) -> NotificationReceived:
    """Decode the notification *message*.

    Raises:
        PeerFault: Its params do not conform to the specification.
    """
    method = message.method or ""
    try:
        params = _decode_params(revision.methods.get(method), message, revision)
        meta = all_meta(message.params) if message.params else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerFault(f"invalid params of {method}: {error}") from None
    subscription = meta.get(SUBSCRIPTION_ID)
    valid = isinstance(subscription, int | str) and not isinstance(subscription, bool)
    return NotificationReceived(method, params, subscription if valid else None, about)


def _decode_params(known: Method | None, message: Message, revision: Revision) -> Any:
    if known is None or known.sender == "client":
        return _any_object.decode(message.params or b"{}")
    return revision.up(known.params_decoder.decode(message.params or b"{}"))


class MessageReceiver:
    """Handles the messages of one server. Owned by a `ClientDispatch`.

    Args:
        lifecycle, pending, peer_requests, connector: the other machines of the connection.
        tasks: whether the client has declared tasks, so that a response may be a task.
        per_message: whether each request has an HTTP response of its own.
        max_depth: maximum nesting of a message.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        pending: PendingRequests,
        peer_requests: PeerRequests,
        connector: Connector,
        *,
        tasks: bool,
        per_message: bool,
        max_depth: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._pending = pending
        self._peer_requests = peer_requests
        self._connector = connector
        self._tasks = tasks
        self._per_message = per_message
        self._max_depth = max_depth

    def receive(
        self, body: bytes, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        """Handle one message or a batch (2025-03-26, basic, "Batching")."""
        try:
            decoded = jsonrpc.decode(body, max_depth=self._max_depth)
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

    def _receive(
        self, message: Message, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        if message.is_response:
            return self._response(message, now, about, status)
        id = message.request_id
        if id is None:
            return self._notification(message, now, about)
        return self._request(message, id, about)

    def too_long(
        self, found: OversizedMessage, now: float, about: RequestId | None
    ) -> list[Outcome]:
        """Handle a message that exceeds the size limit; a response fails its request."""
        fault = PeerFault(f"a message of {found.size} bytes exceeds the limit")
        id = about if found.id is None else found.id
        return self._unreadable(id, fault, now, is_response=b'"method"' not in found.head)

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
            return [MessageDropped(LateAnswer(f"request {id!r} is not pending{detail}"), id)]
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
            return [self._reply(jsonrpc.encode_response(id, _EMPTY)), PingReceived(id)]
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
        ended = SubscriptionEnded(request.id, params.reason)
        return [CloseResponse(request.id), ended] if self._per_message else [ended]
