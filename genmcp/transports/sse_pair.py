"""The two endpoints of 2024-11-05, transports, "HTTP with SSE": for clients that know nothing else.

A GET opens the event stream, whose first event names the URL to POST to; every answer comes as an
event on the stream. The session is sealed into that URL. An answer goes through the log that the
session's stream is read from, so that the POST may reach another process than the GET has.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.server_dispatch import params_of, session_request
from genmcp.core.session import Session, begin
from genmcp.errors import (
    InvalidParams,
    InvalidRequest,
    McpError,
    NotAllowed,
    Overloaded,
    StoreError,
)
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.mux.calls import Hook, Reason
from genmcp.mux.mux import Answer
from genmcp.protocol.notifications import LoggingMessageNotificationParams
from genmcp.protocol.revisions.v2024_11_05 import REVISION
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.stores.store import Delete, Put
from genmcp.subscription import Announcer
from genmcp.transports import legacy
from genmcp.transports.asgi import Receive, Scope, Send
from genmcp.transports.body import read_body
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.hooks import tool_of
from genmcp.transports.pace import Pace
from genmcp.transports.visit import Visit
from genmcp.wire import jsonrpc, sse
from genmcp.wire.http import judge_get, judge_post, preflight_headers

__all__ = ["SsePair"]

logger = logging.getLogger("genmcp")

Serve = Callable[[Visit], Awaitable[None]]
Admit = Callable[[Scope, Receive, Send, Serve], Awaitable[None]]
"""Makes a visit of an ASGI request, if it may come in, and answers what is raised."""

_PARAMETER: Final = "session"
_LARGEST: Final = 4096
"""How many bytes a client may say of itself: they are kept for as long as its session lives."""

#: Who opens a stream has not said yet who it is.
_NOBODY: Final = msgspec.convert(
    {
        "protocolVersion": REVISION.version,
        "capabilities": {},
        "clientInfo": {"name": "", "version": ""},
    },
    InitializeRequestParams,
)


class SsePair:
    """Serves both endpoints at one path. It is an ASGI application."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._calls: dict[str, set[_Call]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""

        async def serve(visit: Visit) -> None:
            match scope["method"]:
                case "GET":
                    await self._get(visit, _path(scope))
                case "POST":
                    await self._post(visit, scope["query_string"])
                case "OPTIONS":
                    origin = visit.table.get(b"origin", b"")
                    visit.headers = preflight_headers(visit.table, origin)
                    await visit.reply(204)
                case _:
                    raise NotAllowed("This endpoint takes GET, and POST", "GET", "POST", "OPTIONS")

        await self._admit(scope, receive, send, serve)

    async def _get(self, visit: Visit, path: str) -> None:
        """Begin a session, which ends with its stream."""
        judge_get(visit.table)
        mux = visit.mux
        with place(visit):
            session, id = mux.sessions.begin(_NOBODY, visit.principal)
            opening = sse.endpoint(f"{path}?{_PARAMETER}={id}".encode())
            try:
                await EventStream(visit).serve(mux.listeners.listen(session, opening=opening))
            finally:
                mux.sessions.end(session.key, session.issued)
                for call in self._calls.get(session.key, ()):
                    call.leave()
                with suppress(StoreError):
                    await mux.store.apply(Delete(_record(session)))

    async def _post(self, visit: Visit, query: bytes) -> None:
        """Take one message in; what answers it goes to the stream.

        Raises:
            McpError: it is no message of an open session.
        """
        judge_post(visit.table.get(b"content-type", b""), b"*/*", visit.mux.limits.header)
        given = parse_qs(query.decode("latin-1")).get(_PARAMETER, [""])
        session = visit.mux.sessions.open(given[0], visit.principal)
        limits = visit.mux.limits
        body = await read_body(visit.receive, visit.table.get(b"content-length"), limits)
        message = jsonrpc.decode(body, max_depth=limits.depth)
        if isinstance(message, list):
            raise InvalidRequest(f"The body must be one message: {session.version} has no batches")
        visit.id, visit.method = message.request_id, message.method
        if not message.is_request:
            await legacy.take(visit, session, message)
            await visit.reply(202)
            return
        answer: bytes | None
        try:
            if message.method == "initialize":
                answer = await _initialized(visit, session, message)
            else:
                session = await _introduced(visit, session)
                request = session_request(session, message, visit.mux)
                await visit.reply(202)
                answer = await self._called(_Call(visit, request))
        except McpError as error:
            visit.reject(error, id=visit.id, method=visit.method, session=session.key)
            answer = visit.mux.encoder.error(session.revision, message.request_id, error)
        if not visit.answered:
            await visit.reply(202)
        if answer is not None:
            await _say(visit, session.key, answer)

    async def _called(self, call: "_Call") -> bytes | None:
        calls = self._calls.setdefault(call.session, set())
        calls.add(call)
        try:
            return await call.run()
        finally:
            calls.discard(call)
            if not calls:
                self._calls.pop(call.session, None)


class _Call:
    """A request whose hook runs in the asyncio.Task of its POST; the sink of its channel."""

    idle = False

    def __init__(self, visit: Visit, request: Request) -> None:
        assert request.session is not None
        self.session: str = request.session
        self.closed = False
        self._visit = visit
        self._request = request
        self._hook = Hook(request)
        self._logs = Pace(visit.mux.limits.log_rate)

    async def run(self) -> bytes | None:
        """Return what answers the request; None if it is cancelled.

        Raises:
            Overloaded: too many calls run.
        """
        visit, request, mux = self._visit, self._request, self._visit.mux
        tool = tool_of(request)
        mux.held.check(principal=visit.principal, tool=tool)
        mux.held.take(principal=visit.principal, tool=tool)
        mux.calls.add(self.session, self._hook)
        visit.shutdown.add(self)
        channel = Channel(request, self, visit.principal, mux.assigns, visit.copied)
        work = mux.answer(request, channel)
        if ClientLogHandler.made:
            work = forwarding(channel, work)
        answer = Answer(None)
        try:
            with suppress(asyncio.CancelledError):
                answer = await work
            reason = self._hook.end()
        finally:
            self.closed = True
            visit.shutdown.discard(self)
            mux.calls.discard(self.session, self._hook)
            mux.held.leave(principal=visit.principal, tool=tool)
        if reason in (Reason.ASKED, Reason.LEFT):
            await mux.long.abandon(channel)
        if reason is Reason.STOPPING and answer.message is None:
            answer = mux.refusal(request, Overloaded("The server is shutting down"))
        return None if reason is Reason.ASKED else answer.message

    def stop(self) -> None:
        """Cancel it: the server is going away."""
        self._hook.cancel_now(Reason.STOPPING)

    def leave(self) -> None:
        """Take in that the stream is gone, which only some tools want to be cancelled by."""
        route: Any = self._request.route
        if route is not None and route.on_disconnect == "cancel":
            self._hook.cancel_now(Reason.LEFT)

    # What its channel says.

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self._visit.mux.announcer

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification to the stream."""
        if isinstance(params, LoggingMessageNotificationParams) and (wait := self._logs.turn()):
            await asyncio.sleep(wait)
        message = self._visit.mux.encoder.notification(request.revision, method, params)
        await _say(self._visit, self.session, message)
        await asyncio.sleep(0)  # so that the stream is read
        return True

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request of the server's own to the stream, and return its result as JSON.

        Raises:
            Failure: the client answers with an error, or not in time.
        """
        visit = self._visit
        say = partial(_say, visit, self.session)
        return await visit.mux.long.asked.ask(request, visit.principal, method, params, say)

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that go along where a store keeps a call."""
        return self._visit.keep

    async def promote(self, channel: Channel) -> None:
        """Do nothing: this revision has no tasks."""

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id*."""
        return await self._visit.mux.long.outcome_of(id, principal)

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the session's level."""
        return await self._visit.mux.sessions.level(self.session)

    def open(self) -> None:
        """Do nothing: the stream is open."""

    def release(self, retry: int) -> None:
        """Do nothing: this revision's clients do not come back."""

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool."""
        return await self._visit.mux.threads.run(function, *arguments)


async def _initialized(visit: Visit, session: Session, message: jsonrpc.Message) -> bytes:
    """Keep who the client is, for it does not say so again; return what answers it.

    Whatever revision it asks for, it gets the one that has this transport.
    """
    params = params_of(REVISION.methods["initialize"], message)
    params = msgspec.structs.replace(params, protocol_version=REVISION.version)
    introduced = begin(params, key=session.key, now=session.issued)
    packed = introduced.pack()
    if len(packed) > _LARGEST:
        raise InvalidParams(
            f"clientInfo and capabilities take {len(packed)} bytes, the most is {_LARGEST}"
        )
    mux = visit.mux
    await mux.store.apply(Put(_record(session), packed, ttl=mux.limits.session))
    server = mux.server
    result = introduced.welcome(server.info, server.capabilities, server.instructions)
    return mux.encoder.response(REVISION, message.id, result)  # type: ignore[arg-type]


async def _introduced(visit: Visit, session: Session) -> Session:
    """Return *session* as it has introduced itself.

    Raises:
        InvalidRequest: it has not.
        SessionGone: another release has kept it.
    """
    entry = await visit.mux.store.get(_record(session))
    if entry is None:
        raise InvalidRequest("Send initialize first")
    return Session.unpack(entry.value)


async def _say(visit: Visit, session: str, message: bytes) -> None:
    try:
        await visit.mux.listeners.say(session, message)
    except StoreError as error:
        logger.warning("a client is not told what its stream should say: %s", error)


def _record(session: Session) -> str:
    return f"session:{session.key}:client"


def _path(scope: Scope) -> str:
    """Return the path this was reached at, that of what it is mounted under included."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if root and path != root and not path.startswith(f"{root}/"):
        path = root + path  # hosts older than ASGI 2.3's wording leave it out
    return quote("/" + path.lstrip("/"))  # two slashes would name another host
