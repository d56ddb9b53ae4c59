"""The protected resource metadata of an endpoint: where it is, and how it is served (RFC 9728)."""

from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from genmcp._transports.request import Headers, Receive, Scope, Send
from genmcp._transports.writing import BODY, START
from genmcp.core.auth.metadata import resource_metadata_path, resource_metadata_urls

_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_ROOT: Final = resource_metadata_path("/")

# For the pages of any origin: the document is public, and a page needs it before it has a token.
_HEADERS: Final[Headers] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
    (b"allow", b"GET, HEAD, OPTIONS"),
)
_FOUND: Final[Headers] = (
    *_HEADERS,
    (b"content-type", b"application/json"),
    (b"cache-control", b"public, max-age=3600"),
)


class ResourceDocument:
    """The metadata of an endpoint. An ASGI application that serves it to anyone.

    Args:
        resource: the URL of the endpoint.
        content: the metadata.

    Attributes:
        at_root: whether the host application has a route to it at its root.
    """

    def __init__(self, resource: str, content: bytes) -> None:
        self._content = content
        # Decoded, as the path of an ASGI scope is.
        self._path = resource_metadata_path(unquote(urlsplit(resource).path))
        self._url = resource_metadata_urls(resource)[0]
        self._url_below = resource.rstrip("/") + _ROOT
        self.at_root = False

    @property
    def paths(self) -> list[str]:
        """The paths at the root of the host: with the path of the resource, and without.

        Some clients look only at the second.
        """
        return list(dict.fromkeys((self._path, _ROOT)))

    def url(self, scope: Scope) -> str:
        """Return the URL of the document for the client that has sent the request *scope*.

        Under a mount, only paths below the mount reach the endpoint. A challenge may name any URL.
        """
        # Starlette sets `endpoint` for each of its routes. A request without both has reached this
        # process with its whole path, so that one for the root would as well.
        everywhere = not scope.get("root_path") and "endpoint" not in scope
        return self._url if self.at_root or everywhere else self._url_below

    def matches(self, scope: Scope) -> bool:
        """Return whether a request that reached the endpoint is for the document."""
        if scope["method"] not in _METHODS:
            return False
        path: str = scope["path"].rstrip("/")
        # At the root, below a mount, and behind a proxy that has added or removed a prefix.
        return path.endswith((_ROOT, self._path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self.serve(scope["method"], send)

    async def serve(self, method: str, send: Send) -> None:
        """Respond to a request with *method*."""
        status, headers, body = 405, _HEADERS, b""
        if method == "OPTIONS":
            status = 204
        elif method in _METHODS:
            length = (b"content-length", b"%d" % len(self._content))
            status, headers = 200, (*_FOUND, length)
            body = b"" if method == "HEAD" else self._content
        with suppress(OSError):  # the client has left
            await send({"type": START, "status": status, "headers": [*headers]})
            await send({"type": BODY, "body": body})
