"""A request as everything above the wire sees it, whatever revision it came in."""

from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.meta import ProgressToken, RequestId, RequestMeta, all_meta
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.value import Value
from genmcp.wire.jsonrpc import params_of

__all__ = ["Client", "Request"]

_NO_CAPABILITIES = ClientCapabilities()


class Client(msgspec.Struct, frozen=True):
    """Who asks, by its own account: it is not verified (2026-07-28, RequestMetaObject)."""

    revision: str
    info: Implementation | None = None
    capabilities: ClientCapabilities = _NO_CAPABILITIES


class Request(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request: its method, its decoded *params*, and who asks.

    `session` is the key of the legacy session the request belongs to, or None. `route` is what
    the server found for it (tools/call and the like), or None. `raw` is the JSON they came in:
    its params (msgspec.Raw), or the whole message (bytes). `arguments` is what a tool's `validate`
    made of those of a call that goes on in `continue_`; None before. `mirrors` are the headers
    that repeat arguments, where only a route that is still to be found tells which they are.
    """

    id: RequestId
    method: str
    params: Value
    revision: Revision
    client: Client
    session: str | None = None
    route: Any = None
    raw: bytes | msgspec.Raw = b""
    arguments: Any = None
    mirrors: Mapping[bytes, bytes] | None = None

    @property
    def asks_again(self) -> bool:
        """Whether its client answers a question by sending its request again (2026-07-28 on).

        Before, the server sends the question as a request of its own.
        """
        return self.revision.modern

    @property
    def meta(self) -> Mapping[str, Any]:
        """Every member of the request's `_meta`, those of others among them."""
        params = params_of(self.raw) if isinstance(self.raw, bytes) else self.raw
        return all_meta(params) if params else {}

    @property
    def known_meta(self) -> RequestMeta:
        """The members of `_meta` that have a meaning here."""
        found: RequestMeta = self.params.meta  # type: ignore[attr-defined]
        return found

    @property
    def progress_token(self) -> ProgressToken | None:
        """What progress is reported under, None if the client did not ask for any."""
        return self.known_meta.progress_token

    @property
    def log_level(self) -> LoggingLevel | None:
        """The least severe level this request wants to hear of (2026-07-28 on)."""
        return self.known_meta.log_level
