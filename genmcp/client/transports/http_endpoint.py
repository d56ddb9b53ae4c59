"""The HTTP requests of the protocol: headers, session id, redirects and HTTP errors."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from genmcp._core.client.events import SendMessage
from genmcp._wire import jsonrpc
from genmcp._wire.param_headers import encode_value
from genmcp.client.errors import (
    ClientError,
    ConnectError,
    Forbidden,
    HttpStatusError,
    NotFound,
    ProtocolError,
    SessionEnded,
    Unauthorized,
)
from genmcp.client.options import HttpOptions, mask_url
from genmcp.client.transports.base import HttpRequester, HttpResponse, OnWait
from genmcp.errors import InvalidRequest, ParseError
from genmcp.protocol.revisions.chain import REVISIONS

HeaderList = list[tuple[bytes, bytes]]

CONTENT_TYPE: Final = (b"Content-Type", b"application/json")
EVENT_STREAM: Final = (b"Accept", b"text/event-stream")
_ACCEPT: Final = (b"Accept", b"application/json, text/event-stream")
_VERSIONS: Final = {version: (b"MCP-Protocol-Version", version.encode()) for version in REVISIONS}

# RFC 3986, section 3.3. The percent sign is among them: what is quoted already remains as it is.
_SAFE: Final = "/:@!$&'()*+,;=~%"

_MAX_REDIRECTS: Final = 5  # for one request
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


class HttpEndpoint:
    """Sends the requests of the protocol to one URL. Owned by an `HttpTransport`.

    Args:
        url: the URL of the server.
        requester: the HTTP client.
        options: the user's headers.
        max_message: maximum size of a response body in bytes.

    Attributes:
        session: the session id that the server assigned, None without a session.
    """

    def __init__(
        self, url: SplitResult, requester: HttpRequester, options: HttpOptions, max_message: int
    ) -> None:
        self.server_name = requester.server_name
        self.session: str | None = None
        self._url = url
        self._path = request_path(url)
        self._requester = requester
        self._max_message = max_message
        custom = encode_headers(options.headers)
        self._post_headers = [_ACCEPT, CONTENT_TYPE, *custom]
        self._get_headers = [EVENT_STREAM, *custom]

    async def post(self, message: SendMessage, on_wait: OnWait | None = None) -> HttpResponse:
        """Send a message and return the response.

        *on_wait* is called when the message begins or ends to wait for the user to log in.

        Raises:
            ClientError: No response was received.
        """
        headers = [*self._post_headers, *message_headers(message)]
        # An open request may depend on an answer or a notification; a subscription never ends.
        limited = message.id is not None and message.method != "subscriptions/listen"
        return await self._request(
            "POST", headers, message.message, counts_against_limit=limited, on_wait=on_wait
        )

    async def get(self, revision: str | None, last_id: str) -> HttpResponse:
        """Open an event stream of the server.

        Args:
            revision: the negotiated revision.
            last_id: the id of the last event that was received, to resume behind it; empty for a
                new stream.

        Raises:
            ClientError: No response was received.
        """
        headers = [*self._get_headers, *_version_header(revision)]
        if last_id:
            headers.append((b"Last-Event-ID", last_id.encode("utf-8")))
        return await self._request("GET", headers)

    async def end_session(self) -> None:
        """End the session, if there is one: 2025-11-25, transports, "Session Management"."""
        if self.session is not None:
            response = await self._request("DELETE", [*self._get_headers])
            await response.close()

    def begin_session(self, response: HttpResponse) -> None:
        """Store the session id of the response to `initialize`.

        Raises:
            ProtocolError: The id contains forbidden characters.
        """
        session = response.headers.get("mcp-session-id")
        # 2025-11-25, transports, "Session Management": visible ASCII characters only.
        if session is not None and not all("!" <= each <= "~" for each in session):
            raise ProtocolError("its session id contains forbidden characters", self.server_name)
        self.session = session

    async def status_error(
        self,
        response: HttpResponse,
        session: str | None,
        timeout: float | None = None,
        *,
        resumed: bool = False,
    ) -> ClientError:
        """Return the exception for a response with an error status.

        Args:
            response: the response; its body is read.
            session: the session id of the request.
            timeout: seconds to read the body, which is ignored after that; None waits for it.
            resumed: whether the request had a `Last-Event-ID`, which status 400 may be about.
        """
        content = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                content = await response.read(self._max_message)
        kind = status_error_class(response.status)
        lost = response.status == 404 or (
            response.status == 400 and not resumed and _is_session_error(content)
        )
        if session is not None and lost:
            # Another request has begun a new session in the meantime, in which the caller may
            # repeat this one; `SessionEnded` would end the new session.
            if session != self.session:
                return ConnectError(
                    self.server_name, "the session ended before the request was received"
                )
            kind = SessionEnded
        return kind(self.server_name, response.status, content, response.headers)

    async def _request(
        self,
        method: str,
        headers: HeaderList,
        body: bytes | None = None,
        *,
        counts_against_limit: bool = False,
        on_wait: OnWait | None = None,
    ) -> HttpResponse:
        """Send a request, following redirects that keep the method on the same origin.

        RFC 9110, sections 15.4.8 and 15.4.9: 307 is temporary; 308 is permanent, so later requests
        use its path at once.
        """
        if self.session is not None:
            headers.append((b"Mcp-Session-Id", self.session.encode("ascii")))
        path, permanent = self._path, True
        for _ in range(_MAX_REDIRECTS):
            response = await self._requester.request(
                method,
                path,
                headers,
                body,
                counts_against_limit=counts_against_limit,
                on_wait=on_wait,
            )
            if response.status not in (307, 308):
                return response
            try:
                location = response.headers.get("location", "")
                target, same_origin = resolve_on_origin(self._url, location, self.server_name)
                # The headers may hold credentials, which another origin must not receive.
                if not same_origin:
                    place = mask_url(target.geturl())
                    reason = f"it has moved to {place}; use that URL"
                    raise ConnectError(self.server_name, reason)
                path = request_path(target)
                permanent = permanent and response.status == 308
                if permanent:
                    self._path = path
                await response.read(self._max_message)
            finally:
                await response.close()
        raise ConnectError(self.server_name, f"it redirected {_MAX_REDIRECTS} times in a row")


def status_error_class(status: int) -> type[HttpStatusError]:
    """Return the class of the error for an HTTP status."""
    return _ERRORS.get(status, HttpStatusError)


def message_headers(message: SendMessage) -> HeaderList:
    """Return the headers that mirror *message*: 2026-07-28, Streamable HTTP, "Request Metadata".

    They are sent to legacy servers as well, where an intermediary may use them.
    """
    headers = _version_header(message.revision)
    if (method := message.method) is not None and method.isascii() and method.isprintable():
        headers.append((b"Mcp-Method", method.encode("ascii")))
    if message.name is not None:
        headers.append(_name_header(message.name))
    headers.extend(message.param_headers)
    return headers


@lru_cache(maxsize=256)
def _name_header(name: str) -> tuple[bytes, bytes]:
    return b"Mcp-Name", encode_value(name).encode("ascii")


def _version_header(revision: str | None) -> HeaderList:
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
        target = urlsplit(urljoin(url.geturl(), reference))
    except ValueError:
        raise ProtocolError(f"it sent an invalid URL: {reference!r}", server_name) from None
    return target, (target.scheme, target.netloc) == (url.scheme, url.netloc)


def _is_session_error(content: bytes) -> bool:
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
