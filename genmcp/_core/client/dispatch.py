"""The client side of the protocol as one sans-IO state machine.

The machine supports both eras of the protocol (2026-07-28, basic/versioning). The legacy era has
`initialize`, sessions and requests of the server; the modern era has self-contained requests. In
both eras, the params and results that the owner sees have the form of 2026-07-28.

Most methods return a list of outcomes: actions for the transport and events for the owner. The
owner handles the outcomes in the order of the list. No message of the server makes a method raise.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from genmcp._core.client.codec import Params, RequestEncoder
from genmcp._core.client.events import (
    CloseResponse,
    Connected,
    Outcome,
    ParamHeaders,
    ReceivedRequestCancelled,
    RequestFailed,
    RequestTimedOut,
    SendMessage,
)
from genmcp._core.client.lifecycle import (
    ConnectionState,
    ConnectionStep,
    DispatchOptions,
    Lifecycle,
    Pending,
    PendingRequests,
    Timeouts,
    TransportFailure,
)
from genmcp._core.client.opening import Connector
from genmcp._core.client.receiving import MessageReceiver, PeerRequests
from genmcp._wire.jsonrpc import encode_error
from genmcp._wire.lines import OversizedMessage
from genmcp.errors import InternalError, McpError, MethodNotFound
from genmcp.protocol.capabilities import TASKS, ClientCapabilities, Implementation
from genmcp.protocol.methods import Method
from genmcp.protocol.params import CancelledNotificationParams, LoggingLevel, RequestId
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.revisions.v2025_11_25 import SetLevelRequestParams
from genmcp.protocol.value import Value, wire_name

__all__ = ["ClientDispatch", "ConnectionState", "DispatchOptions", "Timeouts", "TransportFailure"]

_OPTIONS: Final = DispatchOptions()
_TIMEOUTS: Final = Timeouts()
_NO_META: Final[Mapping[str, Any]] = MappingProxyType({})
_UNAUTHORIZED: Final = 401
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
        self._lifecycle = Lifecycle()
        self._pending = PendingRequests()
        self.pause, self.resume = self._pending.pause, self._pending.resume
        self._peer_requests = PeerRequests(capabilities, options.max_asked)
        self._encoder = RequestEncoder(info, capabilities)
        self._connector = Connector(
            self._lifecycle, self._pending, self._encoder, options, per_message=per_message
        )
        self._receiver = MessageReceiver(
            self._lifecycle,
            self._pending,
            self._peer_requests,
            self._connector,
            tasks=TASKS in (capabilities.extensions or {}),
            per_message=per_message,
            max_depth=options.max_depth,
        )

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
    def ready(self) -> bool:
        """Whether requests may be sent."""
        return self.state is ConnectionState.READY

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
        meta: Mapping[str, Any] = _NO_META,
        param_headers: ParamHeaders = (),
    ) -> tuple[int, list[SendMessage]]:
        """Return the id of a new request, and the actions that send it.

        *progress*: whether the server should send progress. *meta* is added to the `_meta` of the
        request. *param_headers* are `Mcp-Param-*` headers, which repeat arguments of a tool call.

        Raises:
            LocalIllegalTransition: The state is not READY. The cause of the exception is `reason`.
            MethodNotFound: The method belongs to another revision than the negotiated one.
            TypeError: *params* or *meta* cannot be encoded as JSON.
        """
        self._lifecycle.take(ConnectionStep.PING if method == "ping" else ConnectionStep.REQUEST)
        if self._is_foreign(method):
            raise MethodNotFound(method)
        revision = self._connector.revision
        request = self._pending.add(method, revision, now=now, timeouts=timeouts, progress=progress)
        if progress:
            meta = {**meta, "progressToken": request.id}
        try:
            message = self._encoder.request(revision, request.id, method, params, meta)
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
            LocalIllegalTransition: The state is not READY.
        """
        self._lifecycle.take(ConnectionStep.NOTIFY)
        if self._is_foreign(method):
            return []
        revision = self._connector.revision
        message = self._encoder.notification(revision, method, params)
        return [SendMessage(message, method=method, revision=revision.version)]

    def log_level(
        self, level: LoggingLevel, *, now: float, timeouts: Timeouts = _TIMEOUTS
    ) -> tuple[int | None, list[SendMessage]]:
        """Set the log level of the server. Raises the errors of `request`.

        2025-11-25, "Setting Log Level": a request; return its id and the actions that send it.
        2026-07-28, "Per-Request Log Level": in `_meta` of later requests; return None, no actions.
        """
        if self.supports("logging/setLevel"):
            params = SetLevelRequestParams(level=level)
            return self.request("logging/setLevel", params, now=now, timeouts=timeouts)
        self._lifecycle.take(ConnectionStep.REQUEST)
        self._encoder.set_log_level(level)
        return None, []

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
        """Handle one message of the server, or a batch.

        *about* is the request in the HTTP response of which *body* was; *status* is its status.
        """
        if status == _UNAUTHORIZED:
            return []  # not JSON-RPC of the MCP server; the transport reports the error
        return self._receiver.receive(body, now, about, status)

    def too_long(
        self, size: int, head: bytes, *, now: float, about: RequestId | None = None
    ) -> list[Outcome]:
        """Handle a message of *size* bytes that was discarded; *head* is its beginning."""
        return self._receiver.too_long(OversizedMessage(size, head), now, about)

    def failed(self, id: RequestId, failure: TransportFailure, now: float) -> list[Outcome]:
        """Handle the failure of the transport to get a response to request *id*."""
        return self._receiver.failed(id, failure, now)

    def session_ended(self, error: Exception, now: float) -> list[Outcome]:
        """Handle the loss of the session on the server."""
        return self._receiver.session_ended(error, now)

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

    def fail(self, error: Exception) -> list[Outcome]:
        """Fail the connection and all pending requests because of *error*, in any state."""
        self._peer_requests.clear()
        return self._connector.give_up(error)

    def reset(self) -> None:
        """Return from CLOSED or FAILED to NEW. Request ids are not reused."""
        self._lifecycle.take(ConnectionStep.RESET)
        self._connector.forget()

    def _cancel(self, request: Pending, reason: str | None) -> list[Outcome]:
        outcomes = _cancellation(self._encoder, request, reason, per_message=self._per_message)
        for id in self._peer_requests.remove_for(request.id, self.is_pending):
            error = InternalError("The request that this belongs to was cancelled")
            outcomes.append(SendMessage(encode_error(id, error), revision=request.revision.version))
            outcomes.append(ReceivedRequestCancelled(id, reason))
        return outcomes

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
