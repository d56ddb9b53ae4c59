"""The client's side of the protocol as a sans-IO machine: events in, actions out.

It speaks both eras: that of `initialize`, sessions and requests of the server, and that of
self-contained requests (2026-07-28, basic/versioning). Its interface has the shape of 2026-07-28.

Almost every method returns actions, which the transport performs, and events, which are for the
owner, in the order in which they are meant. Nothing that the peer sends makes one raise.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from genmcp.core.client.codec import ClientEncoder, Params
from genmcp.core.client.events import (
    Connected,
    HangUp,
    Outcome,
    ParamHeaders,
    RequestFailed,
    Send,
    TimedOutRequest,
    Withdrawn,
)
from genmcp.core.client.lifecycle import Lifecycle, Pending, PendingRequests, State, Step, Timeouts
from genmcp.core.client.opening import Connecting, DispatchOptions, TransportFailure
from genmcp.core.client.receiving import AskedRequests, Receiving
from genmcp.errors import InternalError, McpError, MethodNotFound, Overloaded
from genmcp.protocol.capabilities import TASKS, ClientCapabilities, Implementation
from genmcp.protocol.methods import Method
from genmcp.protocol.params import CancelledNotificationParams, LoggingLevel, RequestId
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.revisions.v2025_11_25 import SetLevelRequestParams
from genmcp.protocol.value import Value, wire_name
from genmcp.wire.jsonrpc import encode_error
from genmcp.wire.lines import OversizedMessage

__all__ = ["ClientDispatch", "DispatchOptions", "State", "Timeouts", "TransportFailure"]

_OPTIONS: Final = DispatchOptions()
_TIMEOUTS: Final = Timeouts()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_UNAUTHORIZED: Final = 401
#: Every method of the specification, whatever the revision.
_KNOWN: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)


class ClientDispatch:
    """One client's connection to one server.

    info, capabilities: who the client is, and what it can do, as 2026-07-28 says it.
    per_message: each request has a response of its own (HTTP), which is given up where the
    request is cancelled; otherwise all share one channel (stdio).

    Times are seconds of one clock that only goes forward.

    Raises:
        ConfigurationError: the options name a revision that is not spoken here.
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
        self._asked = AskedRequests(capabilities, options.max_asked)
        self._encoder = ClientEncoder(info, capabilities)
        self._connecting = Connecting(
            self._lifecycle, self._pending, self._encoder, options, per_message=per_message
        )
        self._receiving = Receiving(
            self._lifecycle,
            self._pending,
            self._asked,
            self._connecting,
            tasks=TASKS in (capabilities.extensions or {}),
            per_message=per_message,
            max_depth=options.max_depth,
        )

    def __repr__(self) -> str:
        return f"<ClientDispatch {self.state.name}, {self.pending} unanswered>"

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._lifecycle.state

    @property
    def reason(self) -> Exception | None:
        """Why it is CLOSED or FAILED; None in any other state, or if this side closed it."""
        return self._lifecycle.reason

    @property
    def ready(self) -> bool:
        """Whether requests may be sent."""
        return self.state is State.READY

    @property
    def server(self) -> Connected | None:
        """What is known of the server; None until it is connected to."""
        return self._connecting.server

    @property
    def pending(self) -> int:
        """How many requests are not answered, those that open the connection among them."""
        return len(self._pending)

    @property
    def next_check(self) -> float | None:
        """When to call `check_timeouts`: then or earlier. None: nothing has a time."""
        return self._pending.next_check

    def waits_for(self, id: RequestId | None) -> bool:
        """Return whether request *id* is not answered yet."""
        return self._pending.get(id) is not None

    def speaks(self, method: str) -> bool:
        """Return whether what is spoken has *method*: `ping`, or `subscriptions/listen`."""
        return method in self._connecting.revision.methods

    def begin(self, now: float) -> list[Outcome]:
        """Find out what the server speaks, and connect.

        Raises:
            LocalIllegalTransition: the machine is not NEW.
        """
        return self._connecting.begin(now)

    def request(
        self,
        method: str,
        params: Params = None,
        *,
        now: float,
        timeouts: Timeouts = _TIMEOUTS,
        progress: bool = False,
        meta: Mapping[str, Any] = _NOTHING,
        param_headers: ParamHeaders = (),
    ) -> tuple[int, list[Outcome]]:
        """Return the id of a new request, and what sends it.

        progress: it asks for progress. meta: what its `_meta` holds besides what it has to.
        param_headers: the headers that repeat its arguments.

        Raises:
            LocalIllegalTransition: not READY; its cause is the machine's `reason`.
            MethodNotFound: the method belongs to another revision than what is spoken.
            Overloaded: `max_pending` are unanswered.
            TypeError: *params* or *meta* are no JSON.
        """
        self._lifecycle.take(Step.PING if method == "ping" else Step.REQUEST)
        if self._foreign(method):
            raise MethodNotFound(method)
        most = self._options.max_pending
        if most and self.pending >= most:
            raise Overloaded(f"{most} requests are unanswered already (limit: max_pending)")
        revision = self._connecting.revision
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
            Send(message, request.id, method, name, revision.version, param_headers),
        ]

    def notify(self, method: str, params: Params = None) -> list[Outcome]:
        """Tell the server something; nothing is sent where what is spoken lacks *method*.

        Raises:
            LocalIllegalTransition: the machine is not READY.
        """
        self._lifecycle.take(Step.NOTIFY)
        if self._foreign(method):
            return []
        revision = self._connecting.revision
        message = self._encoder.notification(revision, method, params)
        return [Send(message, method=method, revision=revision.version)]

    def log_level(
        self, level: LoggingLevel, *, now: float, timeouts: Timeouts = _TIMEOUTS
    ) -> tuple[int | None, list[Outcome]]:
        """Want log messages from *level* on: a request, or a member of all that follow.

        2025-11-25, server/utilities, "Setting Log Level"; 2026-07-28, "Per-Request Log Level".

        Raises:
            LocalIllegalTransition, Overloaded: as `request`.
        """
        if self.speaks("logging/setLevel"):
            params = SetLevelRequestParams(level=level)
            return self.request("logging/setLevel", params, now=now, timeouts=timeouts)
        self._lifecycle.take(Step.REQUEST)
        self._encoder.log_from(level)
        return None, []

    def cancel(self, id: RequestId, reason: str | None = None) -> list[Outcome]:
        """Do not want request *id* any more; nothing happens if it is answered."""
        request = self._pending.get(id)
        if request is None or request.opening:
            return []
        self._pending.remove(request)
        return self._withdraw(request, reason)

    def answer(self, id: RequestId, result: Value | Mapping[str, Any]) -> list[Outcome]:
        """Answer what the server has asked; nothing happens if it does not want it any more."""
        if not self._asked.end(id):
            return []
        revision = self._connecting.revision
        return [Send(self._encoder.answer(revision, id, result), revision=revision.version)]

    def refuse(self, id: RequestId, error: McpError) -> list[Outcome]:
        """Answer what the server has asked with an error; as `answer`."""
        if not self._asked.end(id):
            return []
        return [Send(encode_error(id, error), revision=self._connecting.revision.version)]

    def received(
        self, body: bytes, now: float, *, about: RequestId | None = None, status: int = 200
    ) -> list[Outcome]:
        """Learn what has come: one message, or a batch.

        about: the request on whose own response it came, with its HTTP status.
        """
        if status == _UNAUTHORIZED:
            return []  # whatever it says, it is not of this protocol: the transport tells why
        return self._receiving.take(body, now, about, status)

    def too_long(
        self, size: int, head: bytes, *, now: float, about: RequestId | None = None
    ) -> list[Outcome]:
        """Learn that a message of *size* bytes was not read, which begins with *head*."""
        return self._receiving.too_long(OversizedMessage(size, head), now, about)

    def failed(self, id: RequestId, failure: TransportFailure, now: float) -> list[Outcome]:
        """Learn that the transport has no answer to request *id*."""
        return self._receiving.failed(id, failure, now)

    def session_ended(self, error: Exception, now: float) -> list[Outcome]:
        """Learn that the server does not know the session any more, of which it spoke before."""
        return self._receiving.session_ended(error, now)

    def check_timeouts(self, now: float) -> list[Outcome]:
        """End the requests whose time is up: *now* is their deadline, or later."""
        outcomes: list[Outcome] = []
        for request in self._pending.expired(now, self._asked.subjects):
            if request.opening:
                outcomes += self._connecting.timed_out(request, now)
            else:
                outcomes += [*self._withdraw(request, "it took too long"), _timed_out(request)]
        return outcomes

    def close(self) -> list[Outcome]:
        """Want no more of this connection; its transport is to be closed."""
        self._lifecycle.take(Step.CLOSE)
        self._asked.clear()
        return [RequestFailed(each.id, None, may_have_run=True) for each in self._pending.clear()]

    def closed(self, error: Exception | None = None) -> list[Outcome]:
        """Learn that the transport has ended, and why."""
        self._asked.clear()
        return self._connecting.lose(error)

    def fail(self, error: Exception) -> list[Outcome]:
        """Give up, in whatever state."""
        self._asked.clear()
        return self._connecting.give_up(error)

    def reset(self) -> None:
        """Be NEW again; the ids of requests go on.

        Raises:
            LocalIllegalTransition: the machine is neither CLOSED nor FAILED.
        """
        self._lifecycle.take(Step.RESET)
        self._connecting.forget()

    def _withdraw(self, request: Pending, reason: str | None) -> list[Outcome]:
        outcomes = _withdrawn(self._encoder, request, reason, per_message=self._per_message)
        return outcomes + _unasked(self._asked.give_up(request.id, self.waits_for), request, reason)

    def _foreign(self, method: str) -> bool:
        """Whether *method* is of another revision than what is spoken."""
        return method in _KNOWN and not self.speaks(method)


def _withdrawn(
    encoder: ClientEncoder, request: Pending, reason: str | None, *, per_message: bool
) -> list[Outcome]:
    """Let the server know that *request* is not wanted any more.

    2026-07-28, basic/patterns, "Transport-Specific Cancellation"; before, a notification
    everywhere.
    """
    outcomes: list[Outcome] = []
    revision = request.revision
    if not (per_message and revision.modern):
        method = "notifications/cancelled"
        params = CancelledNotificationParams(request_id=request.id, reason=reason)
        message = encoder.notification(revision, method, params)
        version = revision.version
        outcomes.append(Send(message, method=method, revision=version, withdraws=request.id))
    if per_message:
        outcomes.append(HangUp(request.id))
    return outcomes


def _unasked(ids: Iterable[RequestId], request: Pending, reason: str | None) -> list[Outcome]:
    """Answer the questions *ids*, which were about *request*, in the place of the handler."""
    outcomes: list[Outcome] = []
    for id in ids:
        error = InternalError("The request this was asked for was given up")
        outcomes.append(Send(encode_error(id, error), revision=request.revision.version))
        outcomes.append(Withdrawn(id, reason))
    return outcomes


def _timed_out(request: Pending) -> TimedOutRequest:
    silent = request.idle_until < request.until
    return TimedOutRequest(request.id, request.method, request.allowed, silent)


def _name_in(params: Params, known: Method | None) -> str | None:
    """Return what names the thing that a request is about: 2026-07-28, "Request Metadata"."""
    member = None if known is None else known.name_member
    if member is None or params is None:
        return None
    if isinstance(params, Value):
        name: str | None = getattr(params, member, None)
        return name
    return params.get(wire_name(member))
