"""What a server says unasked, as values of 2026-07-28: its requests and notifications."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.client.codec import error_of, read
from genmcp.core.client.events import (
    Asked,
    Dropped,
    Ended,
    HangUp,
    LateAnswer,
    Notified,
    Outcome,
    PeerFault,
    PeerIllegalTransition,
    Pinged,
    Progress,
    Rejected,
    RequestFailed,
    Send,
    Withdrawn,
)
from genmcp.core.client.lifecycle import Lifecycle, Pending, PendingRequests, State, Step
from genmcp.core.client.opening import Connecting, TransportFailure
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
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message
from genmcp.wire.lines import OversizedMessage

__all__ = ["AskedRequests", "Receiving", "notified"]

_any_object: Final = msgspec.json.Decoder(dict[str, Any])
_CAPABILITY: Final[Mapping[str, str]] = {
    "roots/list": "roots",
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
}


class AskedRequests:
    """The requests of a server (before 2026-07-28) that wait for an answer of this side.

    What a question is about nothing says, but the stream it comes on, where there is one: it may be
    any request that was unanswered when it came, and none that was sent later.

    capabilities: what was declared; nothing else may be asked. most: how many may wait.
    """

    def __init__(self, capabilities: ClientCapabilities, most: int) -> None:
        self._capabilities = capabilities
        self._most = most
        self._ids: dict[RequestId, frozenset[RequestId]] = {}

    @property
    def subjects(self) -> frozenset[RequestId]:
        """The requests that what waits may be about."""
        return frozenset().union(*self._ids.values())

    def take(
        self, message: Message, id: RequestId, revision: Revision, about: frozenset[RequestId]
    ) -> Asked:
        """Return what *message* asks; it waits from now on.

        about: the requests it may be about; none: it is about none.

        Raises:
            PeerFault: its id waits already, so that no answer could be told from the other.
            McpError: what it is to be answered with at once.
        """
        if id in self._ids:
            raise PeerFault(f"the server uses the id {id!r} again, before it is answered")
        if len(self._ids) >= self._most:
            raise Overloaded(f"The client answers {self._most} requests already (limit: asked)")
        method = message.method or ""
        capability = _CAPABILITY.get(method)
        if capability is not None and (
            method not in revision.methods or getattr(self._capabilities, capability) is None
        ):
            raise MethodNotFound(method)
        try:
            params = _params_of(revision.methods.get(method), message, revision)
            meta = all_meta(message.params) if message.params else {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedParams(f"Invalid params: {error}") from None
        self._ids[id] = about
        return Asked(id, method, params, meta)

    def end(self, id: RequestId) -> bool:
        """Return whether request *id* waited; it does not any more."""
        return self._ids.pop(id, None) is not None

    def give_up(self, request: RequestId, waits: Callable[[RequestId], bool]) -> list[RequestId]:
        """Forget and return what can be about nothing but *request*, which was given up.

        waits: whether a request is unanswered still.
        """
        alone = [
            id
            for id, about in self._ids.items()
            if request in about and not any(waits(each) for each in about)
        ]
        for id in alone:
            del self._ids[id]
        return alone

    def clear(self) -> None:
        """Forget all: nobody is there who could take an answer."""
        self._ids.clear()


def notified(message: Message, revision: Revision, about: RequestId | None) -> Notified:
    """Return what *message*, a notification, tells.

    Raises:
        PeerFault: its params are not what the specification says.
    """
    method = message.method or ""
    try:
        params = _params_of(revision.methods.get(method), message, revision)
        meta = all_meta(message.params) if message.params else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerFault(f"the params of {method} are not what they must be: {error}") from None
    subscription = meta.get(SUBSCRIPTION_ID)
    named = isinstance(subscription, int | str) and not isinstance(subscription, bool)
    return Notified(method, params, subscription if named else None, about)


def _params_of(known: Method | None, message: Message, revision: Revision) -> Any:
    if known is None or known.sender == "client":
        return _any_object.decode(message.params or b"{}")
    return revision.up(known.params_decoder.decode(message.params or b"{}"))


_EMPTY = b"{}"
_FAILED = 400  # HTTP statuses from here on are errors


class Receiving:
    """Takes in what one server sends.

    tasks: whether a request may become a task. per_message, max_depth: as for the machine.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        pending: PendingRequests,
        asked: AskedRequests,
        connecting: Connecting,
        *,
        tasks: bool,
        per_message: bool,
        max_depth: int,
    ) -> None:
        self._lifecycle = lifecycle
        self._pending = pending
        self._asked = asked
        self._connecting = connecting
        self._tasks = tasks
        self._per_message = per_message
        self._max_depth = max_depth

    def take(self, body: bytes, now: float, about: RequestId | None, status: int) -> list[Outcome]:
        """Take in one message, or a batch: 2025-03-26, basic, "Batching"."""
        try:
            decoded = jsonrpc.decode(body, max_depth=self._max_depth)
        except McpError as fault:
            return self._garbage(body, fault, now)
        if isinstance(decoded, Message):
            return self._take(decoded, now, about, status)
        outcomes: list[Outcome] = []
        for each in decoded:
            if isinstance(each, Message):
                outcomes += self._take(each, now, about, status)
            else:
                outcomes.append(Dropped(each, each.id))
        return outcomes

    def _take(
        self, message: Message, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        if message.is_response:
            return self._response(message, now, about, status)
        id = message.request_id
        return self._told(message, now, about) if id is None else self._asks(message, id, about)

    def _garbage(self, body: bytes, fault: McpError, now: float) -> list[Outcome]:
        """Take in what is no message; what was to be an answer fails its request."""
        id = jsonrpc.id_of(body)
        return self._unread(id, fault, now, is_answer=b'"method"' not in body)

    def too_long(
        self, found: OversizedMessage, now: float, about: RequestId | None
    ) -> list[Outcome]:
        """Take in that a message was too long to be read; an answer fails its request."""
        fault = PeerFault(f"a message of {found.size} bytes is more than is read here")
        id = about if found.id is None else found.id
        return self._unread(id, fault, now, is_answer=b'"method"' not in found.head)

    def failed(self, id: object, failure: TransportFailure, now: float) -> list[Outcome]:
        """Take in that no answer to request *id* will come."""
        request = self._pending.get(id)
        if request is None:
            return []
        self._pending.remove(request)
        if request.opening:
            return self._connecting.failed(request, failure, now)
        error = failure.error
        failed = RequestFailed(request.id, error, failure.sent and not failure.session)
        if not failure.session or self._lifecycle.state is not State.READY:
            return [failed]
        return [failed, *self._renew(error, now)]

    def session_ended(self, error: Exception, now: float) -> list[Outcome]:
        """Take in that the session is over, in which the server has spoken before."""
        if self._lifecycle.state is not State.READY:
            return []
        self._connecting.renewed = False
        return self._renew(error, now)

    def _renew(self, error: Exception, now: float) -> list[Outcome]:
        self._asked.clear()
        return self._connecting.renew(error, now)

    def _unread(
        self, id: RequestId | None, fault: GenmcpError, now: float, *, is_answer: bool
    ) -> list[Outcome]:
        """Fail request *id*, whose answer cannot be read, if it is one."""
        if not is_answer or self._pending.get(id) is None:
            return [Dropped(fault, id)]
        error = PeerFault(f"the answer cannot be read: {fault}")
        return self.failed(id, TransportFailure(error, status=200), now)

    def _response(
        self, message: Message, now: float, about: RequestId | None, status: int
    ) -> list[Outcome]:
        id = message.request_id
        request = self._unnamed(about) if id is None else self._pending.get(id)
        if request is None and message.error is not None and status >= _FAILED:
            # An HTTP error concerns the request it answers. Servers of mcp 1.x, which have not
            # parsed that request, send "server-error" as the id.
            request = self._pending.get(about)
        if request is None:
            said = f": {message.error.message}" if message.error else ""
            return [Dropped(LateAnswer(f"no request {id!r} waits for an answer{said}"), id)]
        self._pending.remove(request)
        if request.opening:
            return self._connecting.answered(request, message, status, now)
        self._connecting.renewed = False
        if message.error is not None:
            return [Rejected(request.id, error_of(request, message.error, status))]
        try:
            return [read(request, message.result, tasks=self._tasks)]
        except PeerFault as fault:
            return [RequestFailed(request.id, fault, may_have_run=True)]

    def _unnamed(self, about: RequestId | None) -> Pending | None:
        """Return the request an error without an id is about.

        That on whose response it came; or that which opens the connection, since nothing else has
        been sent: a server of the era before may not even find the id of what it does not know.
        """
        if about is not None:
            return self._pending.get(about)
        return next((each for each in self._pending if each.opening), None)

    def _asks(self, message: Message, id: RequestId, about: RequestId | None) -> list[Outcome]:
        revision, state = self._connecting.revision, self._lifecycle.state
        if state is State.READY and revision.modern:
            # 2026-07-28, stdio and Streamable HTTP: the server MUST NOT send requests, and the
            # client MUST NOT send responses.
            return [Dropped(PeerIllegalTransition(message.method, f"in {revision.version}"), id)]
        ping = message.method == "ping"
        try:
            self._lifecycle.take(Step.PINGED if ping else Step.ASKED)
        except PeerIllegalTransition as fault:
            dropped = Dropped(fault, id)
            if state not in (State.PROBING, State.INITIALIZING):
                return [dropped]
            early = InvalidRequest("Nothing but a ping may be asked before the client is ready")
            return [self._reply(jsonrpc.encode_error(id, early)), dropped]
        if ping:
            return [self._reply(jsonrpc.encode_response(id, _EMPTY)), Pinged(id)]
        try:
            return [self._asked.take(message, id, revision, self._pending.ids(about))]
        except PeerFault as fault:
            return [Dropped(fault, id)]
        except McpError as error:
            return [self._reply(jsonrpc.encode_error(id, error)), Dropped(error, id)]

    def _reply(self, message: bytes) -> Send:
        ready = self._lifecycle.state is State.READY
        return Send(message, revision=self._connecting.revision.version if ready else None)

    def _told(self, message: Message, now: float, about: RequestId | None) -> list[Outcome]:
        try:
            self._lifecycle.take(Step.TOLD)
            told = notified(message, self._connecting.revision, about)
        except PeerFault as fault:
            return [Dropped(fault)]
        match told.params:
            case ProgressNotificationParams():
                return [self._progress(told.params, now)]
            case CancelledNotificationParams():
                return self._cancelled(told.params)
            case _:
                return [told]

    def _progress(self, params: ProgressNotificationParams, now: float) -> Outcome:
        id = params.progress_token
        request = self._pending.get(id)
        if request is None or not request.progress:
            return Dropped(PeerFault(f"no request wants the progress of {id!r}"), id)
        request.heard(now)
        return Progress(request.id, params.progress, params.total, params.message)

    def _cancelled(self, params: CancelledNotificationParams) -> list[Outcome]:
        """Learn that the server has had enough.

        Before 2026-07-28 of a request of its own; since, of a subscription (basic/patterns,
        "Cancellation"), whose id is this side's.
        """
        id = params.request_id
        if not self._connecting.revision.modern:
            if self._asked.end(id):
                return [Withdrawn(id, params.reason)]
            return [Dropped(PeerFault(f"the server cancels {id!r}, which it does not wait for"))]
        request = self._pending.get(id)
        if request is None or request.method != "subscriptions/listen":
            return [Dropped(PeerFault(f"the server cancels {id!r}, which is no subscription"))]
        self._pending.remove(request)
        ended = Ended(request.id, params.reason)
        return [HangUp(request.id), ended] if self._per_message else [ended]
