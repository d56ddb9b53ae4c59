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

__all__ = ["Client", "Request"]

_NO_CAPABILITIES = ClientCapabilities()


class Client(msgspec.Struct, frozen=True):
    """Who asks, by its own account: it is not verified (2026-07-28, RequestMetaObject)."""

    revision: str
    info: Implementation | None = None
    capabilities: ClientCapabilities = _NO_CAPABILITIES


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its method, its decoded *params*, and who asks.

    `raw` are the params as JSON, as they came. `session` is the key of the legacy session the
    request belongs to, or None. `route` is what the server found for it (tools/call and the
    like), or None.
    """

    id: RequestId
    method: str
    params: Value
    raw: msgspec.Raw
    revision: Revision
    client: Client
    session: str | None = None
    route: Any = None

    @property
    def meta(self) -> Mapping[str, Any]:
        """Every member of the request's `_meta`, those of others among them."""
        return all_meta(self.raw) if self.raw else {}

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
