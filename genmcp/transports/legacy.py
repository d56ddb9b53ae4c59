"""Requests of the revisions before 2026-07-28: sessions, their streams, batches."""

import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress

from genmcp.core.params import notification_params
from genmcp.core.request import Request
from genmcp.core.server_dispatch import (
    SESSION_HEADER,
    check_batch,
    exchange_of,
    params_of,
    session_request,
)
from genmcp.core.session import Session
from genmcp.errors import InvalidRequest, MalformedParams, McpError, NotAllowed
from genmcp.mux.listeners import LISTENER
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.recovery import Recovery
from genmcp.transports.responder import Responder
from genmcp.transports.visit import Visit
from genmcp.wire.http import judge_get
from genmcp.wire.jsonrpc import Message

__all__ = ["delete", "get", "initialize", "post", "post_batch", "take"]


async def initialize(visit: Visit, message: Message) -> None:
    """Begin a session, whose id goes out with the answer.

    2025-11-25, lifecycle, "Initialization".
    """
    if not isinstance(message.id, int | str):
        raise InvalidRequest("initialize must be a request")
    params = params_of(REVISION.methods["initialize"], message)
    session, id = visit.mux.sessions.begin(params, visit.principal)
    server = visit.mux.server
    result = session.welcome(server.info, server.capabilities, server.instructions)
    body = visit.mux.encoder.response(session.revision, message.id, result)
    await visit.reply(200, body, [(SESSION_HEADER, id.encode())])


def post(visit: Visit, message: Message) -> Awaitable[None]:
    """Return what answers one message of a session.

    Raises:
        SessionGone: the session is not there any more.
        InvalidRequest: it answers nothing that was asked.
    """
    if not visit.mux.peers.current:
        return _post_later(visit, message)
    session = _session(visit)
    if message.is_request:
        try:
            request = session_request(session, message, visit.mux)
        except McpError as error:
            _reject(visit, session, message, error)
            answer = visit.mux.encoder.error(session.revision, message.request_id, error)
            return visit.reply(200, answer)
        return Responder(visit).serve(request)
    return _taken(visit, session, message)


async def _post_later(visit: Visit, message: Message) -> None:
    await visit.mux.peers.catch_up()
    await post(visit, message)


async def _taken(visit: Visit, session: Session, message: Message) -> None:
    await take(visit, session, message)
    await visit.reply(202)


async def post_batch(visit: Visit, batch: Sequence[Message | InvalidRequest]) -> None:
    """Answer the messages of a batch: 2025-03-26, basic, "Batching".

    Raises:
        InvalidRequest: the session's revision has no batches.
    """
    check_batch(visit.table)
    await visit.mux.peers.catch_up()
    session = _session(visit)
    session.check_batch()
    asked: list[Message | InvalidRequest] = []
    for member in batch:
        if isinstance(member, InvalidRequest) or member.is_request:
            asked.append(member)
        else:
            # One late response must not reject the other members.
            with suppress(InvalidRequest, MalformedParams):
                await take(visit, session, member)
    if asked:
        await _served(visit, session, asked)
    else:
        await visit.reply(202)


async def get(visit: Visit) -> None:
    """Open the session's own stream, or go on with one whose connection was lost.

    2025-11-25, transports, "Listening for Messages from the Server" and "Resumability and
    Redelivery".
    """
    await visit.mux.peers.catch_up()
    session = _session(visit)
    judge_get(visit.table)
    with place(visit.mux, visit.client_key):
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
    await visit.mux.peers.catch_up()
    await visit.mux.end_session(_session(visit), visit.client_key)
    await visit.reply(204)


def _check_announces(visit: Visit) -> None:
    """Check that the server sends notifications of its own.

    Raises:
        NotAllowed: it sends none. 2025-11-25, transports, "Listening for Messages from the
            Server", point 2: 405 where no stream is offered.
    """
    if visit.mux.server.announcer is None:
        raise NotAllowed("This server announces nothing: there is no stream to listen on", "POST")


def _session(visit: Visit) -> Session:
    id = visit.table.get(SESSION_HEADER)
    if id is None:
        raise NotAllowed(
            "This method needs a session (Mcp-Session-Id), which initialize begins", "POST"
        )
    visit.mux.peers.open()
    session = visit.mux.sessions.open(id.strip().decode("latin-1"), visit.principal)
    visit.enter(session.key)
    return session


def _served(
    visit: Visit,
    session: Session,
    asked: Sequence[Message | InvalidRequest],
) -> Awaitable[None]:
    """Return what answers all that is *asked*; one that is refused does not stop the others."""
    requests: list[Request] = []
    refused: list[bytes] = []
    encoder = visit.mux.encoder
    for message in asked:
        if isinstance(message, InvalidRequest):
            visit.reject(message, id=message.id, session=session.key)
            refused.append(encoder.error(session.revision, message.id, message))
            continue
        try:
            requests.append(session_request(session, message, visit.mux))
        except McpError as error:
            _reject(visit, session, message, error)
            refused.append(encoder.error(session.revision, message.request_id, error))
    exchange = exchange_of(
        requests,
        session.revision,
        stream=secrets.token_urlsafe(9) if visit.streams else None,
        streams=visit.streams,
        expected=len(asked),
        batch=True,
    )
    return Responder(visit).serve_batch(exchange, requests, refused)


def _reject(visit: Visit, session: Session, message: Message, error: McpError) -> None:
    visit.reject(error, id=message.request_id, method=message.method, session=session.key)


async def take(visit: Visit, session: Session, message: Message) -> None:
    """Handle a notification or a response.

    Raises:
        InvalidRequest: it is a response without a pending request.
        MalformedParams: it is a notification with invalid params.
    """
    if message.is_response:
        # 2025-11-25, transports, "Sending Messages to the Server", point 4: what cannot be
        # accepted gets an error status.
        await visit.mux.long.asked.take(session.key, visit.principal, message)
        return
    params = notification_params(session.revision, message)
    if message.method == "notifications/cancelled" and params.request_id is not None:
        await visit.mux.peers.cancel(session.key, params.request_id)


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
