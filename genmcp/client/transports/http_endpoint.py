"""The endpoint of a server over Streamable HTTP: where it is, and the session there."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from genmcp.client.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    NotFound,
    ProtocolError,
    SessionEnded,
    Unauthorized,
)
from genmcp.client.options import HttpOptions, mask_url
from genmcp.client.transports.base import HttpRequester, HttpResponse
from genmcp.core.client.events import Send
from genmcp.errors import InvalidRequest, ParseError
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire import jsonrpc
from genmcp.wire.param_headers import encode_value

__all__ = [
    "HeaderList",
    "HttpEndpoint",
    "encoded",
    "headers_of",
    "media_type",
    "path_of",
    "resolved",
    "version_header",
]

_POST: Final = [
    (b"Accept", b"application/json, text/event-stream"),
    (b"Content-Type", b"application/json"),
]
_GET: Final = [(b"Accept", b"text/event-stream")]
_MOVED: Final = (307, 308)
_MOVES = 5  # redirects that are followed for one request
_KINDS: Final = {401: Unauthorized, 404: NotFound}
_LOST_CODES: Final = (-32000, -32001, -32600)
# Of the examples of the TypeScript SDK, its transports, and mcp 1.x; in lower case.
_LOST: Final = (
    "no valid session id",
    "missing session id",
    "invalid session id",
    "invalid or expired session id",
    "session not found",
    "mcp-session-id header is required",
    "server not initialized",
)


class HttpEndpoint:
    """Makes the requests of the protocol to *url*, through *requester*.

    session: its id, if the server gave one. max_message: the most bytes a body may have.
    """

    def __init__(
        self, url: SplitResult, requester: HttpRequester, options: HttpOptions, max_message: int
    ) -> None:
        self.where = requester.where
        self.session: str | None = None
        self._url = url
        self._path = path_of(url)
        self._requester = requester
        self._max_message = max_message
        own = encoded(options.headers)
        self._posting = [*_POST, *own]
        self._getting = [*_GET, *own]

    async def post(self, message: Send) -> HttpResponse:
        """Send a message.

        Raises:
            ClientError: there is no response.
        """
        headers = [*self._posting, *headers_of(message)]
        # What is under way may wait for an answer or a notification; listening has no end.
        counts_against_limit = message.id is not None and message.method != "subscriptions/listen"
        return await self._request(
            "POST", headers, message.message, counts_against_limit=counts_against_limit
        )

    async def get(self, revision: str | None, last_id: str) -> HttpResponse:
        """Ask for the stream of the server, or, with *last_id*, for what comes behind that event.

        Raises:
            ClientError: there is no response.
        """
        headers = [*self._getting, *version_header(revision)]
        if last_id:
            headers.append((b"Last-Event-ID", last_id.encode("utf-8")))
        return await self._request("GET", headers, counts_against_limit=False)

    async def end_session(self) -> None:
        """2025-11-25, transports, "Session Management": a client that is done should say so."""
        if self.session is not None:
            reply = await self._request("DELETE", [*self._getting], counts_against_limit=False)
            await reply.close()

    def begin_session(self, reply: HttpResponse) -> None:
        """Keep the session that the response to `initialize` begins.

        Raises:
            ProtocolError: its id has characters it must not have.
        """
        session = reply.headers.get("mcp-session-id")
        # 2025-11-25, transports, "Session Management": visible ASCII characters only.
        if session is not None and not all("!" <= each <= "~" for each in session):
            raise ProtocolError("its session id has characters it must not have", self.where)
        self.session = session

    async def refusal(
        self,
        reply: HttpResponse,
        session: str | None,
        within: float | None = None,
        *,
        resumed: bool = False,
    ) -> ClientError:
        """Return the error that *reply* is, to a request that was made in *session*.

        within: seconds its body has to end, or it says nothing; None: for ever. resumed: whether it
        was a GET with Last-Event-ID, so that error 400 may be about that id.
        """
        content = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                content = await reply.read(self._max_message)
        kind = _KINDS.get(reply.status, HttpStatusError)
        lost = reply.status == 404 or (
            reply.status == 400 and not resumed and _names_lost_session(content)
        )
        if session is not None and lost:
            if session != self.session:  # another one has been begun meanwhile
                return ConnectError(self.where, "the session ended before the request got there")
            kind = SessionEnded
        return kind(self.where, reply.status, content, reply.headers)

    async def _request(
        self,
        method: str,
        headers: "HeaderList",
        body: bytes | None = None,
        *,
        counts_against_limit: bool,
    ) -> HttpResponse:
        """Make a request, also where the endpoint has moved on its own origin.

        RFC 9110, sections 15.4.8 and 15.4.9: only 308 says that it has moved for good.
        """
        if self.session is not None:
            headers.append((b"Mcp-Session-Id", self.session.encode("ascii")))
        path, for_good = self._path, True
        for _ in range(_MOVES):
            reply = await self._requester.request(
                method, path, headers, body, counts_against_limit=counts_against_limit
            )
            if reply.status not in _MOVED:
                return reply
            try:
                path = self._new_path(reply)
                for_good = for_good and reply.status == 308
                if for_good:
                    self._path = path
                await reply.read(self._max_message)
            finally:
                await reply.close()
        raise ConnectError(self.where, f"it has moved {_MOVES} times in a row")

    def _new_path(self, reply: HttpResponse) -> str:
        target = resolved(self._url, reply.headers.get("location", ""), self.where)
        if (target.scheme, target.netloc) != (self._url.scheme, self._url.netloc):
            place = mask_url(target.geturl())
            raise ConnectError(self.where, f"it has moved to {place}: use that")
        return path_of(target)


def _names_lost_session(content: bytes) -> bool:
    """Return whether error 400 means that the server does not have the session of the request.

    2025-11-25, transports, "Session Management", has 404 for it. After a restart, servers of the
    TypeScript SDK respond with 400 and "No valid session ID provided", as in its examples, or
    "Server not initialized". Other 400 errors keep the session, such as an unsupported protocol
    version or an exceeded quota of sessions: the request is not to be repeated.
    """
    if not content.lstrip().startswith(b"{"):
        return False
    try:
        message = jsonrpc.decode(content)
    except (ParseError, InvalidRequest):
        return False
    error = None if isinstance(message, list) else message.error
    if error is None or error.code not in _LOST_CODES:
        return False
    text = error.message.lower()
    return any(phrase in text for phrase in _LOST)


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


def media_type(reply: HttpResponse) -> str:
    """Return what the body of *reply* is, without parameters, in lower case; empty if unsaid."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()
