"""The two endpoints of 2024-11-05, transports, "HTTP with SSE", for clients without another one.

A GET opens the event stream, whose first event names the URL to POST to; every answer is sent as an
event on the stream. The session is sealed into that URL. An answer is written to the log that the
session's stream is read from, so that the POST may reach another process than the GET.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs, quote

from genmcp.core.request import Request
from genmcp.core.server import OpenSession, Reject, ServerConnection, Start
from genmcp.core.session import Session, begin, introduction
from genmcp.errors import (
    Conflict,
    InvalidParams,
    InvalidRequest,
    McpError,
    NotAllowed,
    OverShare,
    SessionGone,
    StoreError,
    StoreFull,
)
from genmcp.protocol.revisions.v2024_11_05 import REVISION
from genmcp.stores.store import Delete, Entry, Put
from genmcp.transports.asgi import Receive, Scope, Send
from genmcp.transports.body import decoded, read_body
from genmcp.transports.listening import EventStream
from genmcp.transports.piped import PipedCall
from genmcp.transports.post import perform, rejected
from genmcp.transports.running_call import cancels_on_disconnect
from genmcp.transports.visit import Serve, Visit
from genmcp.wire import sse
from genmcp.wire.http import judge_get, judge_post, preflight_headers

__all__ = ["SsePair"]

Admit = Callable[[Scope, Receive, Send, Serve], Awaitable[None]]
"""Admits an ASGI request, serves it with the given function and responds to what that raises."""

logger = logging.getLogger("genmcp")

_UNSENT: Final = "a message cannot be put on the stream of its client: %s"

_PARAMETER: Final = "session"
_LARGEST: Final = 4096
"""How many bytes a client may say of itself: they are kept for as long as its session lives."""


class SsePair:
    """Serves both endpoints at one path. It is an ASGI application."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._calls: dict[str, set[PipedCall]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self._admit(scope, receive, send, self._serve)

    async def _serve(self, visit: Visit) -> None:
        match visit.scope["method"]:
            case "GET":
                await self._get(visit, _path(visit.scope))
            case "POST":
                await self._post(visit, visit.scope["query_string"])
            case "OPTIONS":
                visit.headers = preflight_headers(visit.table, visit.table.get(b"origin", b""))
                await visit.reply(204)
            case _:
                raise NotAllowed("This endpoint takes GET, and POST", "GET", "POST", "OPTIONS")

    async def _get(self, visit: Visit, path: str) -> None:
        """Begin a session, which ends with its stream.

        The session is open while it has a record, in every process. Revoking its id instead would
        take one of the client's places for ended sessions with each stream.
        """
        judge_get(visit.table)
        mux = visit.mux
        mux.broadcast.open()
        with visit.mux.streams.hold(visit.client_key):
            session, id = mux.sessions.begin(introduction(REVISION), visit.principal)
            opening = sse.endpoint(f"{path}?{_PARAMETER}={id}".encode())
            owner = mux.owners.of(visit.client_key)
            ttl = mux.limits.session
            await mux.store.apply(Put(_record(session), b"", ttl=ttl, owner=owner, new=True))
            try:
                source = await mux.listeners.listen(session, opening=opening, owner=owner)
                await EventStream(visit).serve(source)
            finally:
                for call in self._calls.get(session.key, ()):
                    if cancels_on_disconnect(call):
                        call.leave()
                with suppress(StoreError):
                    await mux.store.apply(Delete(_record(session)))

    async def _post(self, visit: Visit, query: bytes) -> None:
        """Handle one message; the response to it is sent on the stream.

        Raises:
            McpError: it is not a message of an open session.
        """
        judge_post(visit.table.get(b"content-type", b""), b"*/*", visit.mux.limits.header)
        await visit.mux.broadcast.catch_up()
        given = parse_qs(query.decode("latin-1")).get(_PARAMETER, [""])
        session = visit.mux.sessions.open(given[0], visit.principal)
        visit.enter(session.key)
        limits = visit.mux.limits
        body = await read_body(visit, visit.table.get(b"content-length"))
        message = decoded(body, limits)
        if isinstance(message, list):
            raise InvalidRequest("The body must be one message: this transport has no batches")
        visit.id, visit.method = message.request_id, message.method
        entry = await visit.mux.store.get(_record(session))
        if entry is None:
            raise SessionGone("Session has ended")
        introduced = Session.unpack(entry.value) if entry.value else None
        action = ServerConnection(visit.mux, introduced, modern=False).receive(message)
        if not message.is_request:
            await perform(visit, action)
            await visit.reply(202)
            return
        session = introduced or session
        stream = _Stream(visit, session.key)
        try:
            match action:
                case Start(request=request):
                    await visit.reply(202)
                    await self._called(session.key, PipedCall(stream, request), visit)
                    return
                case OpenSession():
                    answer = await _initialized(visit, session, action, entry)
                case Reject():
                    answer = rejected(visit, session, action)
        except McpError as error:
            answer = rejected(visit, session, Reject(error, True, visit.id, visit.method))
        if not visit.answered:
            await visit.reply(202)
        await stream.say(answer)

    async def _called(self, session: str, call: PipedCall, visit: Visit) -> None:
        calls = self._calls.setdefault(session, set())
        calls.add(call)
        visit.shutdown.add(call)
        try:
            await call.run()
        finally:
            visit.shutdown.discard(call)
            calls.discard(call)
            if not calls:
                self._calls.pop(session, None)


class _Stream:
    """The stream of one session, as the pipe of a request that *visit* brings."""

    def __init__(self, visit: Visit, session: str) -> None:
        self.mux = visit.mux
        self.principal = visit.principal
        self.client_key = visit.client_key
        self.copied = visit.copied
        self.keep = visit.keep
        self._session = session
        self._owner = visit.mux.owners.of(visit.client_key)

    async def say(self, message: bytes) -> None:
        """Put *message* into the log that the stream is read from."""
        await self._say(message)

    async def _say(self, message: bytes, *, new: bool = True) -> None:
        try:
            await self.mux.listeners.say(self._session, message, self._owner, new=new)
        except StoreError as error:
            logger.warning(_UNSENT, error)

    async def report(self, request: Request, message: bytes) -> None:
        """Send every *message*: the log is bounded by itself."""
        await self.say(message)

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send the response, if there is one; an error instead if the store has no room for it."""
        if message is None:
            return
        try:
            await self.mux.listeners.say(self._session, message, self._owner)
        except (OverShare, StoreFull) as error:
            instead = self.mux.failure(request, error).message
            assert instead is not None
            await self._say(instead, new=False)
        except StoreError as error:
            logger.warning(_UNSENT, error)


async def _initialized(visit: Visit, session: Session, action: OpenSession, entry: Entry) -> bytes:
    """Store the client's `initialize`, which is not repeated, and return the response to it.

    The revision is negotiated as on any transport: clients that fell back to this transport still
    speak newer session-based revisions, and other servers agree on them here.
    """
    introduced = begin(action.params, key=session.key, now=session.issued)
    packed = introduced.pack()
    if len(packed) > _LARGEST:
        raise InvalidParams(
            f"clientInfo and capabilities take {len(packed)} bytes, the most is {_LARGEST}"
        )
    mux = visit.mux
    record = Put(
        _record(session),
        packed,
        ttl=mux.limits.session,
        expect=entry.version,
        owner=mux.owners.of(visit.client_key),
        new=True,
    )
    try:
        await mux.store.apply(record)
    except Conflict:
        raise InvalidRequest("The session has ended, or was initialized twice at once") from None
    result = introduced.welcome(mux.server)
    return mux.encoder.response(introduced.revision, action.id, result)


def _record(session: Session) -> str:
    return f"session:{session.key}#client"


def _path(scope: Scope) -> str:
    """Return the path this was reached at, that of what it is mounted under included."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if root and path != root and not path.startswith(f"{root}/"):
        path = root + path  # hosts older than ASGI 2.3's wording leave it out
    return quote("/" + path.lstrip("/"))  # two slashes would name another host
