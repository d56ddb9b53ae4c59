"""The two endpoints of 2024-11-05, transports, "HTTP with SSE", for clients of that revision.

A GET opens the event stream; its first event names the URL to POST to. Every response is sent as an
event on the stream. The session is sealed into that URL. A response is written to the log that the
session's stream is read from, so that the POST may reach another process than the GET.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import parse_qs, quote

from genmcp._mux.multimap import Multimap
from genmcp._transports.body import decode, read_body
from genmcp._transports.listening import EventStream
from genmcp._transports.pipe import Pipe, PipedCall
from genmcp._transports.post import perform
from genmcp._transports.request import HttpRequest, Receive, Scope, Send, Serve, reject
from genmcp._transports.writing import reply
from genmcp.core.request import Request, cancels_on_disconnect
from genmcp.core.server import OpenSession, Reject, ServerConnection, StartRequest
from genmcp.core.session import Session, anonymous_params, new_session
from genmcp.errors import (
    Conflict,
    InvalidParams,
    InvalidRequest,
    McpError,
    NotAllowed,
    OverShare,
    SessionNotFound,
    StoreError,
    StoreFull,
)
from genmcp.protocol.revisions.v2024_11_05 import REVISION
from genmcp.stores.store import Delete, Put, StoreEntry
from genmcp.wire import sse
from genmcp.wire.http import check_get_headers, check_post_headers, preflight_headers

Admit = Callable[[Scope, Receive, Send, Serve], Awaitable[None]]
"""Serves an ASGI request with the given function, and responds with the errors that it raises."""

logger = logging.getLogger("genmcp")

_PARAMETER: Final = "session"
_MAX_BYTES: Final = 4096
"""The maximum size of clientInfo and capabilities, which are stored for the life of a session."""


class SseEndpoint:
    """Serves both endpoints at one path: an ASGI application, made by `Endpoint.sse_route`."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._calls: Multimap[str, PipedCall] = Multimap()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self._admit(scope, receive, send, self._serve)

    async def _serve(self, http: HttpRequest) -> None:
        match http.scope["method"]:
            case "GET":
                await self._get(http, _path(http.scope))
            case "POST":
                await self._post(http, http.scope["query_string"])
            case "OPTIONS":
                http.headers = preflight_headers(http.table, http.table.get(b"origin", b""))
                await reply(http, 204)
            case _:
                raise NotAllowed("This endpoint takes GET, and POST", "GET", "POST", "OPTIONS")

    async def _get(self, http: HttpRequest, path: str) -> None:
        """Open a session, which ends with its stream."""
        check_get_headers(http.table)
        mux = http.mux
        mux.sessions.start()
        with mux.streams.acquired(http.client_key):
            session, id = mux.sessions.open_new(anonymous_params(REVISION), http.principal)
            opening = sse.endpoint(f"{path}?{_PARAMETER}={id}".encode())
            client, ttl = http.client_key.client, mux.limits.session_ttl
            await mux.store.apply(Put(_record(session), b"", ttl=ttl, client=client, new=True))
            try:
                source = await mux.session_streams.listen(session, opening=opening, client=client)
                in_use = partial(self._calls.__contains__, session.key)
                await EventStream(http, in_use=in_use).serve(source)
            finally:
                for call in self._calls.of(session.key):
                    # The task of a client with a handle is not cancelled by a disconnect.
                    if cancels_on_disconnect(call.route) and not call.responded:
                        call.leave()
                with suppress(StoreError):
                    await mux.store.apply(Delete(_record(session)))

    async def _post(self, http: HttpRequest, query: bytes) -> None:
        """Handle one message; the response to it is sent on the stream.

        Raises:
            McpError: it is not a message of an open session.
        """
        check_post_headers(http.table.get(b"content-type", b""), b"*/*")
        await http.mux.sessions.catch_up()
        given = parse_qs(query.decode("latin-1")).get(_PARAMETER, [""])
        session = http.mux.sessions.open(given[0], http.principal)
        http.enter(session.key)
        body = await read_body(http, http.table.get(b"content-length"))
        message = decode(body, http.mux.limits)
        if isinstance(message, list):
            raise InvalidRequest("The body must be one message: this transport has no batches")
        http.id, http.method = message.request_id, message.method
        entry = await http.mux.store.get(_record(session))
        if entry is None:
            raise SessionNotFound("Session has ended")
        opened = Session.unpack(entry.value) if entry.value else None
        action = ServerConnection(http.mux, opened, modern=False).receive(message)
        if not message.is_request:
            await perform(http, action)
            await reply(http, 202)
            return
        if isinstance(action, StartRequest):
            http.check_scopes([action.request])
        session = opened or session
        stream = _Stream(http, session.key)
        try:
            match action:
                case StartRequest(request=request):
                    await reply(http, 202)
                    await self._run(session.key, PipedCall(stream, request), http)
                    return
                case OpenSession():
                    response = await _initialize(http, session, action, entry)
                case Reject():
                    response = reject(http, action, session.key, session.revision)
        except McpError as error:
            action = Reject(error, True, http.id, http.method)
            response = reject(http, action, session.key, session.revision)
        if not http.response_begun:
            await reply(http, 202)
        await stream.send(response)

    async def _run(self, session: str, call: PipedCall, http: HttpRequest) -> None:
        self._calls.add(session, call)
        http.shutdown.add(call.stop)
        try:
            await call.run()
        finally:
            http.shutdown.discard(call.stop)
            self._calls.discard(session, call)


class _Stream(Pipe):
    """The stream of one session, as the pipe of a request that came with *http*."""

    def __init__(self, http: HttpRequest, session: str) -> None:
        super().__init__(http.mux, http.access, http.client_key, http.copied, http.keep)
        self._http = http
        self._session = session

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check that the client was granted *scopes*: unlike other pipes, this one is HTTP."""
        self._http.require_scopes(scopes)

    async def send(self, message: bytes) -> None:
        """Append *message* to the log that the stream is read from. The log has its own limit."""
        await self._append(message)

    async def respond(self, request: Request, message: bytes | None) -> None:
        """Send the response, if there is one; an error instead if the store has no room for it."""
        if message is None:
            return
        error = await self._append(message)
        if isinstance(error, OverShare | StoreFull):
            instead = self.mux.responses.failure(request, error).body
            assert instead is not None
            await self._append(instead, new=False)

    async def _append(self, message: bytes, *, new: bool = True) -> StoreError | None:
        client = self.client_key.client
        try:
            await self.mux.session_streams.append(self._session, message, client, new=new)
        except StoreError as error:
            logger.warning("a message cannot be put on the stream of its client: %s", error)
            return error
        return None


async def _initialize(
    http: HttpRequest, session: Session, action: OpenSession, entry: StoreEntry
) -> bytes:
    """Store the client's `initialize`, which is not repeated, and return the response to it.

    The revision is negotiated as on any transport: clients that fell back to this transport still
    speak newer session-based revisions, and other servers agree on them here.
    """
    introduced = new_session(action.params, key=session.key, now=session.issued)
    packed = introduced.pack()
    if len(packed) > _MAX_BYTES:
        raise InvalidParams(
            f"clientInfo and capabilities take {len(packed)} bytes, the maximum is {_MAX_BYTES}"
        )
    mux, client = http.mux, http.client_key.client
    ttl, version = mux.limits.session_ttl, entry.version
    try:
        await mux.store.apply(
            Put(_record(session), packed, ttl=ttl, expect=version, client=client, new=True)
        )
    except Conflict:
        raise InvalidRequest("The session has ended, or was initialized twice at once") from None
    result = introduced.initialize_result(mux.server)
    return mux.encoder.response(introduced.revision, action.id, result)


def _record(session: Session) -> str:
    return f"session:{session.key}#client"


def _path(scope: Scope) -> str:
    """Return the whole path of the request, the mount point included."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if root and path != root and not path.startswith(f"{root}/"):
        path = root + path  # hosts older than ASGI 2.3's wording leave it out
    return quote("/" + path.lstrip("/"))  # two slashes would name another host
