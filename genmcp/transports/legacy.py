"""Sessions of the revisions before 2026-07-28: their streams, and their end."""

import re
from collections.abc import AsyncGenerator

from genmcp.core.server_dispatch import SESSION_HEADER, check_get, check_legacy
from genmcp.core.session import Session
from genmcp.errors import InvalidRequest, NotAllowed
from genmcp.mux.listeners import LISTENER
from genmcp.transports.event_stream import EventStream, place
from genmcp.transports.recovery import Recovery
from genmcp.transports.visit import Visit
from genmcp.wire.http import judge_get

__all__ = ["delete", "get", "session_of"]


async def get(visit: Visit) -> None:
    """Open the session's own stream, or go on with one whose connection was lost.

    2025-11-25, transports, "Listening for Messages from the Server" and "Resumability and
    Redelivery".

    Raises:
        McpError: the request is not for a stream of a session.
    """
    check_get(visit.table)
    await visit.mux.peers.catch_up()
    session = session_of(visit)
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
    check_legacy(visit.table)
    await visit.mux.peers.catch_up()
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
    visit.mux.peers.open()
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
