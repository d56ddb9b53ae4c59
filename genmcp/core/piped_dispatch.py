"""Which request a message makes on a connection that carries every message, and has no headers.

A dual-era server is told the era by how the client opens (2026-07-28, stdio, "Backward
Compatibility", and versioning, "Backward Compatibility with Initialization-Based Versions"): a
version in `_meta`, or an `initialize`, which holds for what follows on the connection.
"""

from genmcp.core.request import Request
from genmcp.core.server_dispatch import Catalog, claimed_version, modern_request, session_request
from genmcp.core.session import Session
from genmcp.errors import InvalidRequest
from genmcp.protocol.revisions.chain import LATEST
from genmcp.wire.jsonrpc import Message

__all__ = ["piped_request"]


def piped_request(session: Session | None, message: Message, catalog: Catalog) -> Request:
    """Return the request *message* makes; *session* is what the connection was initialized as.

    Both eras may be spoken on one connection: each request says by itself if it is modern.

    Raises:
        InvalidRequest: nothing tells which revision is spoken.
        McpError: it is not accepted, as for `modern_request` and `session_request`.
    """
    if claimed_version(message) is not None:
        return modern_request(None, message, catalog)
    if session is None:
        raise InvalidRequest(
            "Bad request: send initialize first, or speak "
            f"{LATEST.version} (name the version in _meta)"
        )
    return session_request(session, message, catalog)
