"""The server's side of the protocol as a machine: given a decoded message, it returns an action.

Every transport passes its messages to the same machine. For all transports, this module decides how
`initialize` and responses of the client are handled, by which era a message is read, and which
notification cancels a request; the consequences of a cancellation are in `core/call.py`. The
transport opens sessions, reads, writes and performs the actions.

No message of a client makes the machine raise. An exception of `ServerCatalog.find`, which is the
server author's code, propagates.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from genmcp.core.request import Request, notification_params, session_params
from genmcp.core.server_dispatch import (
    Era,
    Headers,
    ServerCatalog,
    claimed_version,
    modern_request,
    session_request,
)
from genmcp.core.session import ServerDescription, Session, anonymous_params, new_session
from genmcp.errors import InvalidRequest, McpError
from genmcp.protocol.params import RequestId
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.v2025_11_25 import REVISION, InitializeRequestParams
from genmcp.wire.jsonrpc import Message


class StartRequest(msgspec.Struct, frozen=True):
    """Run *request*, and respond to it."""

    request: Request


class OpenSession(msgspec.Struct, frozen=True):
    """Make a session of *params*, assign it to the machine, and respond to `initialize` *id*."""

    id: RequestId
    params: InitializeRequestParams


class SessionReady(msgspec.Struct, frozen=True):
    """The client has received the response to `initialize`: notifications may be sent to it."""


class CancelRequest(msgspec.Struct, frozen=True):
    """Cancel the request *id*, which gets no response then. Ignored if it does not run."""

    id: RequestId


class DeliverResponse(msgspec.Struct, frozen=True):
    """Deliver *response* to a request of the server, within *session*."""

    session: Session
    response: Message


class Accept(msgspec.Struct, frozen=True):
    """Do nothing: a notification without an effect."""


class Reject(msgspec.Struct, frozen=True):
    """Respond with *error*, or only report it: see *responds*.

    responds: whether the message was a request, which gets an error response. Other messages get
    none; over HTTP the error decides the status.
    """

    error: McpError
    responds: bool
    id: RequestId | None = None
    method: str | None = None


ServerAction = (
    StartRequest | OpenSession | SessionReady | CancelRequest | DeliverResponse | Accept | Reject
)


ANONYMOUS: Final = new_session(anonymous_params(REVISION), key="", now=0.0)
"""The session of a `ping` that precedes `initialize`."""

_ACCEPT: Final = Accept()
_READY: Final = SessionReady()
_INITIALIZE: Final = REVISION.methods["initialize"]


LISTEN: Final = "subscriptions/listen"
"""The method whose response is a stream that a transport serves until either side ends it."""

SMALL: Final = frozenset(
    ["server/discover", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"]
)
"""The methods whose results are small, and which are sent to a client that does not read."""

BUILTIN: Final = SMALL | {"tasks/get", "tasks/update", "tasks/cancel"}
"""The methods that a mux answers for any server."""

_LISTS: Final = {"tools/list", "resources/list", "resources/templates/list", "prompts/list"}
AT_ONCE: Final = SMALL | _LISTS
"""The methods that are served even if no slot for a call is free: as a rule they do not wait."""


def is_offered(server: ServerDescription, method: str) -> bool:
    """Return whether *method* is served, by *server* or by the mux for it.

    A client may only use the declared capabilities: 2026-07-28, basic, and 2025-11-25, lifecycle,
    "Capability Negotiation".
    """
    known = LATEST.methods.get(method)
    if known is not None and known.needs is not None:
        return known.needs in (server.capabilities.extensions or ())
    match method:
        case "logging/setLevel":
            return server.capabilities.logging is not None
        case "subscriptions/listen":
            return server.changes is not None
        case "resources/subscribe" | "resources/unsubscribe":
            resources = server.capabilities.resources
            return resources is not None and bool(resources.subscribe)
        case _:
            return method in BUILTIN or method in server.methods


class ServerConnection(msgspec.Struct, eq=False):
    """Decides on the messages of one client. Owned by the transport that reads them.

    A pipe has one for its lifetime. Over HTTP, each POST names its session and has its own.

    catalog: the methods and routes of the server. session: the session that `initialize` has
    opened, which the transport assigns; None before. headers: those of the HTTP request; None on a
    transport without headers. modern: whether a request may name 2026-07-28 or later in its
    `_meta`; only used without headers.
    """

    catalog: ServerCatalog
    session: Session | None = None
    headers: Headers | None = None
    modern: bool = True

    def receive(self, message: Message, era: Era | None = None) -> ServerAction:
        """Return the action for *message*.

        *era*: over HTTP, the result of `era_of`. None on other transports, where the message alone
        decides.
        """
        method = message.method
        try:
            if method is None:
                return self._response(message, era)
            if message.id is msgspec.UNSET:
                return self._notification(message, era)
            if era is None:
                era = self._era(message)
            if era is Era.MODERN:
                return StartRequest(modern_request(self.headers, message, self.catalog))
            if era is Era.HANDSHAKE:
                params, _ = session_params(_INITIALIZE, message.params)
                assert isinstance(params, InitializeRequestParams)
                return OpenSession(message.id, params)  # type: ignore[arg-type]  # a request
            # Anything else belongs to a session: without one there is no revision to read it by.
            session = self.session
            if session is None:
                # 2025-11-25, lifecycle, "Initialization": pings may come before it.
                if method != "ping":
                    raise InvalidRequest(_UNOPENED if self.modern else "Send initialize first")
                session = ANONYMOUS
            return StartRequest(session_request(session, message, self.catalog))
        except McpError as error:
            # A value from here on: its frames refer to the caller's, which keeps it. That would be
            # a reference cycle for each rejected message.
            error.__traceback__ = error.__context__ = None
            return Reject(error, message.is_request, message.request_id, method)

    def receive_batch(
        self, batch: Iterable[Message | InvalidRequest], error_of: Callable[[Exception], McpError]
    ) -> list[ServerAction]:
        """Return the actions for the members of a batch.

        A batch belongs to its session (2025-03-26, basic, "Batching"), so that a member neither
        opens another one (lifecycle, "Initialization") nor names a revision. *error_of* returns the
        error for an exception of `ServerCatalog.find`, which fails one member.

        Raises:
            InvalidRequest: without a session, or if its revision has no batches.
        """
        # The members are decided one after another, before the first of them runs: an exception of
        # the server author's `find` must fail one member, not leave others without a response.
        if self.session is None:
            raise InvalidRequest("There must be one message at a time, not a batch")
        self.session.check_batch()
        actions: list[ServerAction] = []
        for member in batch:
            try:
                if isinstance(member, InvalidRequest):
                    actions.append(Reject(member, True, member.id))
                else:
                    actions.append(self.receive(member, Era.SESSION))
            except Exception as error:
                assert isinstance(member, Message)
                fault = error_of(error)
                actions.append(Reject(fault, True, member.request_id, member.method))
        return actions

    def _era(self, message: Message) -> Era:
        """Return the era of a request without headers, of which one connection may carry both.

        2026-07-28, stdio, "Backward Compatibility".
        """
        if message.method == "initialize":
            return Era.HANDSHAKE
        # Only modern requests name a version in `_meta`; it is checked for support later, so that
        # an unknown one gets the error that lists the supported versions.
        if self.modern and claimed_version(message) is not None:
            return Era.MODERN
        return Era.SESSION

    def _notification(self, message: Message, era: Era | None) -> ServerAction:
        if era is Era.HANDSHAKE:
            raise InvalidRequest("initialize must be a request")
        session = None if era is Era.MODERN else self.session
        params = notification_params(LATEST if session is None else session.revision, message)
        if message.method == "notifications/cancelled":
            # 2026-07-28, Streamable HTTP: a client cancels by closing its connection, and the
            # request id of one connection means nothing on another. On a pipe *era* is None, and
            # the notification cancels in every revision.
            id: RequestId | None = getattr(params, "request_id", None)
            if id is not None and era is not Era.MODERN:
                return CancelRequest(id)
        elif message.method == "notifications/initialized" and session is not None:
            return _READY
        return _ACCEPT

    def _response(self, message: Message, era: Era | None) -> ServerAction:
        if era is Era.MODERN:
            # 2026-07-28, Streamable HTTP, "Sending Messages", point 4.
            raise InvalidRequest("A client must not send responses")
        if self.session is None:
            raise InvalidRequest("The response answers no request of this server")
        return DeliverResponse(self.session, message)


_UNOPENED: Final = (
    f"Bad request: send initialize first, or speak {LATEST.version} (name the version in _meta)"
)
