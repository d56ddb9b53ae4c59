"""What a server says unasked, as values of 2026-07-28: its requests and notifications."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.client_events import Asked, Notified
from genmcp.core.client_faults import PeerFault
from genmcp.errors import MalformedParams, MethodNotFound, Overloaded
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import SUBSCRIPTION_ID, RequestId, all_meta
from genmcp.protocol.revisions.revision import Revision
from genmcp.wire.jsonrpc import Message

__all__ = ["AskedRequests", "notified"]

_anything: Final = msgspec.json.Decoder(dict[str, Any])
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
        return _anything.decode(message.params or b"{}")
    return revision.up(known.params_decoder.decode(message.params or b"{}"))
