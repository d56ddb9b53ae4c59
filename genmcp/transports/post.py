"""POSTed messages of every revision, and the GET and DELETE of sessions: performs the actions.

A plain request of 2026-07-28 does not come here: see `request_at_once`.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.server import (
    Action,
    Cancel,
    Deliver,
    OpenSession,
    Reject,
    ServerConnection,
    Start,
)
from genmcp.core.server_dispatch import (
    SESSION_HEADER,
    Era,
    check_batch,
    check_get,
    check_legacy,
    era_of,
    exchange_of,
)
from genmcp.core.session import Session
from genmcp.core.task import LOST
from genmcp.errors import InvalidRequest, McpError, NotAllowed, StoreError
from genmcp.mux.changes import LISTENER
from genmcp.mux.mux import Mux
from genmcp.mux.replay import OpenCall
from genmcp.mux.resumption import StoredRequest
from genmcp.protocol.params import RequestParams
from genmcp.transports.batch_answers import serve_batch
from genmcp.transports.listening import EventStream
from genmcp.transports.piped import PipedCall
from genmcp.transports.responder import Responder
from genmcp.transports.visit import Visit
from genmcp.wire.http import judge_get
from genmcp.wire.jsonrpc import ErrorBody, Message

__all__ = ["Recovery", "delete", "get", "perform", "post", "rejected", "session_of"]


def post(visit: Visit, message: Message | list[Message | InvalidRequest]) -> Awaitable[None]:
    """Return the awaitable that responds to a message, or to a batch.

    Raises:
        McpError: it is not accepted.
    """
    if isinstance(message, list):
        return _post_batch(visit, message)
    if message.method is not None:
        visit.id, visit.method = message.request_id, message.method
    session = None
    era = era_of(visit.table, message)
    if era is Era.SESSION:
        if not visit.mux.broadcast.current:
            return _post_later(visit, message)
        session = session_of(visit)
    action = ServerConnection(visit.mux, session, headers=visit.table).receive(message, era)
    if isinstance(action, Start):
        return Responder(visit, action.request).serve()
    return _respond(visit, session, action)


async def _post_later(visit: Visit, message: Message) -> None:
    await visit.mux.broadcast.catch_up()
    answering = post(visit, message)
    del message  # not kept for the life of a call or stream
    await answering


async def _respond(visit: Visit, session: Session | None, action: Action) -> None:
    mux = visit.mux
    if isinstance(action, OpenSession):
        session, id = mux.sessions.begin(action.params, visit.principal)
        headers = [(SESSION_HEADER, id.encode())]
        body = mux.encoder.response(session.revision, action.id, session.welcome(mux.server))
        await visit.reply(200, body, headers)
    elif isinstance(action, Reject) and action.answered and session is not None:
        await visit.reply(200, rejected(visit, session, action))
    else:
        await perform(visit, action)
        await visit.reply(202)


async def perform(visit: Visit, action: Action) -> None:
    """Perform the action for a message that gets no response of its own.

    Raises:
        InvalidRequest: it is a response without a pending request.
        McpError: it was rejected.
    """
    match action:
        case Reject(error=error):
            # 2025-11-25, transports, "Sending Messages to the Server", point 4: an error status.
            raise error
        case Deliver(session=session, message=message):
            await visit.mux.asked.deliver(session.key, visit.principal, message)
        case Cancel(id=id):
            assert visit.session is not None
            await visit.mux.broadcast.cancel(visit.session, id)


def rejected(visit: Visit, session: Session, action: Reject) -> bytes:
    """Return the error response to a request within *session*, and report it to telemetry."""
    visit.reject(action.error, id=action.id, method=action.method, session=session.key)
    return visit.mux.encoder.error(session.revision, action.id, action.error)


async def _post_batch(visit: Visit, batch: Sequence[Message | InvalidRequest]) -> None:
    """Respond to a batch: 2025-03-26, basic, "Batching".

    Raises:
        InvalidRequest: the session's revision has no batches.
    """
    check_batch(visit.table)
    await visit.mux.broadcast.catch_up()
    session = session_of(visit)
    connection = ServerConnection(visit.mux, session, headers=visit.table)
    connection.check_batch()
    requests: list[Request] = []
    refused: list[bytes] = []
    for member in batch:
        match connection.receive_member(member):
            case Start(request=request):
                requests.append(request)
            case Reject(answered=True) as action:
                refused.append(rejected(visit, session, action))
            case Reject():
                pass  # one that gets no response must not reject the other members
            case action:
                # Nor must a late response.
                with suppress(InvalidRequest):
                    await perform(visit, action)
    if not requests and not refused:
        await visit.reply(202)
        return
    exchange = exchange_of(
        requests,
        session.revision,
        stream=secrets.token_urlsafe(9) if visit.streams else None,
        streams=visit.streams,
        expected=len(requests) + len(refused),
        batch=True,
    )
    await serve_batch(visit, exchange, requests, refused)


async def get(visit: Visit) -> None:
    """Open the session's own stream, or go on with one whose connection was lost.

    2025-11-25, transports, "Listening for Messages from the Server" and "Resumability and
    Redelivery".

    Raises:
        McpError: the request is not for a stream of a session.
    """
    check_get(visit.table)
    await visit.mux.broadcast.catch_up()
    session = session_of(visit)
    judge_get(visit.table)
    with visit.mux.streams.hold(visit.client_key):
        stream = EventStream(visit)
        last = visit.table.get(b"last-event-id")
        if last is None:
            _check_announces(visit)
            owner = visit.mux.owners.of(visit.client_key)
            source = await visit.mux.listeners.listen(session, owner=owner)
        else:
            source = await _resumed(visit, session, last.strip().decode("latin-1"), stream)
        await stream.serve(source)


async def delete(visit: Visit) -> None:
    """End the session, and what it has open: 2025-11-25, transports, "Session Management"."""
    check_legacy(visit.table)
    await visit.mux.broadcast.catch_up()
    await visit.mux.end_session(session_of(visit), visit.client_key)
    await visit.reply(204)


def _check_announces(visit: Visit) -> None:
    """Check that the server sends notifications of its own.

    Raises:
        NotAllowed: it sends none. 2025-11-25, transports, "Listening for Messages from the
            Server", point 2: 405 where no stream is offered.
    """
    if visit.mux.server.announcer is None:
        raise NotAllowed("This server announces nothing: there is no stream to listen on", "POST")


def session_of(visit: Visit) -> Session:
    """Return the session that the request names; the request counts towards it from now on.

    Raises:
        NotAllowed: it names none.
        SessionGone: the session has ended.
    """
    id = visit.table.get(SESSION_HEADER)
    if id is None:
        raise NotAllowed(
            "This method needs a session (Mcp-Session-Id), which initialize begins", "POST"
        )
    visit.mux.broadcast.open()
    session = visit.mux.sessions.open(id.strip().decode("latin-1"), visit.principal)
    visit.enter(session.key)
    return session


_NUMBER = re.compile(r"[0-9]{1,15}")


async def _resumed(
    visit: Visit, session: Session, last: str, reader: EventStream
) -> AsyncGenerator[bytes, None]:
    """Return what follows event *last* on its stream, for *reader* to send.

    Raises:
        InvalidRequest: there is no such stream, or it is not kept any more.
    """
    stream, _, number = last.partition("/")
    if stream == LISTENER:
        owner = visit.mux.owners.of(visit.client_key)
        return await visit.mux.listeners.listen(session, after=number, owner=owner)
    if not _NUMBER.fullmatch(number):
        raise InvalidRequest(f"Last-Event-ID is not an id of this server: {last}")
    await visit.mux.replay.check(session.key, stream)
    recover = Recovery(visit, session).messages
    return visit.mux.replay.resume(session.key, stream, int(number), reader, recover)


_AGAIN: Final = 1.0
"""Seconds before a failed access to the store is retried."""

_WAITING: Final = 16
"""Messages buffered for a client that reads slowly; when the buffer is full, the calls wait."""


class Recovery:
    """The unanswered calls of a resumed stream, and the pipe of their messages. Owned by the GET.

    The process of these calls has died, and a client that lost its connection resumes in any
    process (2025-11-25, transports, "Resumability and Redelivery").

    A call that waits for a task is followed to the end of that task, and its questions are sent
    again. Any other call ended with its process and is answered with an error.
    """

    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()

    def __init__(self, visit: Visit, session: Session) -> None:
        self.mux: Mux = visit.mux
        self.principal = visit.principal
        self.client_key: ClientKey = visit.client_key
        self._session = session
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)

    async def messages(self, calls: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
        """Yield the messages of *calls* until each of them is answered."""
        left: asyncio.Future[Any] = asyncio.gather(*map(self._finish, calls))
        try:
            while not (left.done() and self._messages.empty()):
                coming: asyncio.Future[Any] = asyncio.ensure_future(self._messages.get())
                try:
                    await asyncio.wait({coming, left}, return_when=asyncio.FIRST_COMPLETED)
                    if coming.done():
                        yield coming.result()
                finally:
                    coming.cancel()
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)

    async def _finish(self, call: OpenCall) -> None:
        """Send the answer to *call*: the result of its task, or an error."""
        request = Request(
            id=call.id,
            method=call.method,
            params=RequestParams(),  # the params of a finished task are not stored
            revision=self._session.revision,
            client=self._session.client,
            session=self._session.key,
        )
        try:
            if call.task is None:
                lost = msgspec.json.decode(LOST, type=ErrorBody)
                raise McpError(lost.message, code=lost.code)
            answer = self.mux.said(request, await self._followed(request, call.task))
        except Exception as error:  # the client must get an answer in any case
            answer = self.mux.failure(request, error)
        assert answer.message is not None
        await self.say(answer.message)

    async def _followed(self, request: Request, task: str) -> Any:
        while True:
            try:
                kept = await self.mux.tasks.service.records.call(task)
                if kept is not None:
                    request = StoredRequest.unpack(kept).request()
                channel = Channel(request, PipedCall(self, request), self.principal)
                return await self.mux.continuations.followed(task, channel)
            except StoreError:
                await asyncio.sleep(_AGAIN)

    # Messages of the calls.

    async def say(self, message: bytes) -> None:
        """Send *message*, waiting for room in the buffer."""
        await self._messages.put(message)

    async def report(self, request: Request, message: bytes) -> None:
        """Send the progress of *request*, waiting for room in the buffer."""
        await self.say(message)

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send the answer to *request*, if there is one."""
        if message is not None:
            await self.say(message)
