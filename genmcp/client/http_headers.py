"""What a request line and the headers say of a message."""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from genmcp.client.errors import ProtocolError
from genmcp.client.requester import Reply
from genmcp.core.client_events import Send
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire.param_headers import encode_value

__all__ = [
    "HeaderList",
    "encoded",
    "headers_of",
    "media_type",
    "path_of",
    "resolved",
    "version_header",
]

HeaderList = list[tuple[bytes, bytes]]

_VERSIONS = {version: (b"MCP-Protocol-Version", version.encode()) for version in REVISIONS}

# RFC 3986, section 3.3; what is quoted already is left so.
_SAFE = "/:@!$&'()*+,;=~%"


def headers_of(message: Send) -> HeaderList:
    """Return the headers that mirror *message*: 2026-07-28, Streamable HTTP, "Request Metadata".

    An older server does not look at them, an intermediary may.
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
    """Return the header that names the *revision*, none before one is agreed on."""
    return [] if revision is None else [_VERSIONS[revision]]


def encoded(headers: Mapping[str, str]) -> HeaderList:
    """Return *headers* as they are sent."""
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


def path_of(url: SplitResult) -> str:
    """Return path and query of *url* as a request line has them."""
    path = quote(url.path, safe=_SAFE) or "/"
    return f"{path}?{quote(url.query, safe=_SAFE + '?')}" if url.query else path


def resolved(url: SplitResult, reference: str, where: str) -> SplitResult:
    """Return the address that the server at *url*, known as *where*, gives as *reference*.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return urlsplit(urljoin(url.geturl(), reference))
    except ValueError:
        raise ProtocolError(f"it gives an address that is none: {reference!r}", where) from None


def media_type(reply: Reply) -> str:
    """Return what the body of *reply* is, without parameters, in lower case; empty if unsaid."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()
