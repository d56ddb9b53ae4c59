"""The form of the protocol's HTTP requests: their headers, paths and errors."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from genmcp.client.errors import (
    Forbidden,
    HttpStatusError,
    NotFound,
    ProtocolError,
    Unauthorized,
)
from genmcp.core.auth.metadata import same_origin
from genmcp.core.client.events import SendMessage
from genmcp.errors import InvalidRequest, ParseError
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire import jsonrpc
from genmcp.wire.param_headers import encode_value

HeaderList = list[tuple[bytes, bytes]]

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
CONTENT_TYPE: Final = (b"Content-Type", b"application/json")
EVENT_STREAM: Final = (b"Accept", b"text/event-stream")
ACCEPT: Final = (b"Accept", b"application/json, text/event-stream")
_VERSIONS: Final = {version: (b"MCP-Protocol-Version", version.encode()) for version in REVISIONS}

# RFC 3986, section 3.3. The percent sign is among them: what is quoted already remains as it is.
_SAFE: Final = "/:@!$&'()*+,;=~%"

_ERRORS: Final = {401: Unauthorized, 403: Forbidden, 404: NotFound}

# How servers report an unknown session with HTTP 400, in lower case: the examples of the TypeScript
# SDK, its transports, and the Python SDK (mcp 1.x).
_SESSION_ERROR_CODES: Final = (-32000, -32001, -32600)
_SESSION_ERRORS: Final = (
    "no valid session id",
    "missing session id",
    "invalid session id",
    "invalid or expired session id",
    "session not found",
    "mcp-session-id header is required",
    "server not initialized",
)


def status_error_class(status: int) -> type[HttpStatusError]:
    """Return the class of the error for an HTTP status."""
    return _ERRORS.get(status, HttpStatusError)


def message_headers(message: SendMessage) -> HeaderList:
    """Return the headers that mirror *message*: 2026-07-28, Streamable HTTP, "Request Metadata".

    They are sent to legacy servers as well, where an intermediary may use them.
    """
    headers = version_header(message.revision)
    if (method := message.method) is not None and method.isascii() and method.isprintable():
        headers.append((b"Mcp-Method", method.encode("ascii")))
    if message.name is not None:
        headers.append(_name_header(message.name))
    headers.extend(message.param_headers)
    return headers


@lru_cache(maxsize=256)
def _name_header(name: str) -> tuple[bytes, bytes]:
    return b"Mcp-Name", encode_value(name).encode("ascii")


def version_header(revision: str | None) -> HeaderList:
    """Return the header that names the negotiated revision; none before it is negotiated."""
    return [] if revision is None else [_VERSIONS[revision]]


def encode_headers(headers: Mapping[str, str]) -> HeaderList:
    """Return the user's headers as bytes, without white space around the values."""
    return [
        (name.encode("ascii"), value.strip(" \t").encode("latin-1"))
        for name, value in headers.items()
    ]


def request_path(url: SplitResult) -> str:
    """Return the path and the query of *url*, as in the request line."""
    path = quote(url.path, safe=_SAFE) or "/"
    return f"{path}?{quote(url.query, safe=_SAFE + '?')}" if url.query else path


def resolve_on_origin(
    url: SplitResult, reference: str, server_name: str
) -> tuple[SplitResult, bool]:
    """Resolve a URL that the server at *url* sent; return it and whether its origin is the same.

    Raises:
        ProtocolError: *reference* is not a URL.
    """
    try:
        target = urljoin(url.geturl(), reference)
        return urlsplit(target), same_origin(target, url.geturl())
    except ValueError:
        raise ProtocolError(f"it sent an invalid URL: {reference!r}", server_name) from None


def is_session_error(content: bytes) -> bool:
    """Return whether the body of an HTTP 400 says that the session is unknown.

    2025-11-25, transports, "Session Management", requires 404. After a restart, servers of the
    TypeScript SDK respond with 400. Other errors with 400 keep the session, such as an unsupported
    protocol version or an exceeded quota of sessions: the request must not be repeated.
    """
    if not content.lstrip().startswith(b"{"):
        return False
    try:
        message = jsonrpc.decode(content)
    except (ParseError, InvalidRequest):
        return False
    error = None if isinstance(message, list) else message.error
    if error is None or error.code not in _SESSION_ERROR_CODES:
        return False
    text = error.message.lower()
    return any(phrase in text for phrase in _SESSION_ERRORS)
