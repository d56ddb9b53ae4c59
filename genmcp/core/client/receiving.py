"""The requests and notifications of a server, decoded."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.client.events import (
    NotificationReceived,
    PeerFault,
    RequestReceived,
)
from genmcp.errors import (
    MalformedParams,
    MethodNotFound,
    Overloaded,
)
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import (
    SUBSCRIPTION_ID,
    RequestId,
    all_meta,
)
from genmcp.protocol.revisions.revision import Revision
from genmcp.wire.jsonrpc import Message

_any_object: Final = msgspec.json.Decoder(dict[str, Any])
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
            PeerFault: another unanswered request has the same id.
            McpError: the request is invalid or not supported; the error is the response to it.
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
        PeerFault: its params do not conform to the specification.
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
