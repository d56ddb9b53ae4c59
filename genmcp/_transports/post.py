"""POSTed messages of every revision, and the GET and DELETE of sessions: performs the actions.

A plain request of 2026-07-28 is not handled here: `_transports/endpoint.py` passes it to a
`Responder` directly (see `plain_request`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp._mux.replay import OpenCall
from genmcp._mux.responses import error_of
from genmcp._mux.session_streams import LISTENER
from genmcp._mux.stored_request import StoredRequest
from genmcp._transports.listening import EventStream
from genmcp._transports.pipe import Pipe, PipedCall
from genmcp._transports.request import HttpRequest, reject
from genmcp._transports.responder import Responder, serve_batch
from genmcp._transports.writing import reply
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import CallContext, Channel
from genmcp.core.request import Request
from genmcp.core.server import (
    LISTEN,
    CancelRequest,
    DeliverResponse,
    OpenSession,
    Reject,
    ServerAction,
    ServerConnection,
    StartRequest,
)
from genmcp.core.server_dispatch import SESSION_HEADER, Era, check_batch, check_legacy, era_of
from genmcp.core.session import Session
from genmcp.core.task import LOST
from genmcp.errors import InvalidRequest, McpError, NotAllowed, StoreError
from genmcp.protocol.params import RequestParams
from genmcp.stores.following import RETRY_DELAY
from genmcp.wire.http import check_get_headers
from genmcp.wire.jsonrpc import ErrorBody, Message, encode_batch


def post(http: HttpRequest, message: Message | list[Message | InvalidRequest]) -> Awaitable[None]:
    """Return the awaitable that responds to a message, or to a batch.

    Raises:
        McpError: it is not accepted.
    """
    if isinstance(message, list):
        return _post_batch(http, message)
    if message.method is not None:
        http.id, http.method = message.request_id, message.method
    session = None
    era = era_of(http.table, message)
    if era is Era.SESSION:
        if not http.mux.sessions.current:
            return _post_later(http, message)
        session = session_of(http)
    action = ServerConnection(http.mux, session, headers=http.table).receive(message, era)
    if isinstance(action, StartRequest):
        return Responder(http, action.request).serve()
    return _respond(http, session, action)


async def _post_later(http: HttpRequest, message: Message) -> None:
    await http.mux.sessions.catch_up()
    answering = post(http, message)
    del message  # not kept for the life of a call or stream
    await answering


async def _respond(http: HttpRequest, session: Session | None, action: ServerAction) -> None:
    mux = http.mux
    if isinstance(action, OpenSession):
        session, id = mux.sessions.open_new(action.params, http.principal)
        headers = [(SESSION_HEADER, id.encode())]
        body = mux.encoder.response(
            session.revision, action.id, session.initialize_result(mux.server)
        )
        await reply(http, 200, body, headers)
    elif isinstance(action, Reject) and action.responds and session is not None:
        await reply(http, 200, reject(http, action, session.key, session.revision))
    else:
        await perform(http, action)
        await reply(http, 202)


async def perform(http: HttpRequest, action: ServerAction) -> None:
    """Perform the action for a message that gets no response of its own.

    Raises:
        InvalidRequest: it is a response without a pending request.
        McpError: it was rejected.
    """
    match action:
        case Reject(error=error):
            # 2025-11-25, transports, "Sending Messages to the Server", point 4: an error status.
            raise error
        case DeliverResponse(session=session, response=response):
            asked = http.mux.server_requests
            await asked.deliver(session.key, http.principal, response, http.client_key.client)
        case CancelRequest(id=id):
            assert http.session is not None
            await http.mux.sessions.cancel_call(http.session, id)


async def _post_batch(http: HttpRequest, batch: Sequence[Message | InvalidRequest]) -> None:
    """Respond to a batch: 2025-03-26, basic, "Batching".

    Raises:
        InvalidRequest: the session's revision has no batches.
    """
    check_batch(http.table)
    await http.mux.sessions.catch_up()
    session = session_of(http)
    connection = ServerConnection(http.mux, session, headers=http.table)
    actions = connection.receive_batch(batch, error_of)
    requests = [each.request for each in actions if isinstance(each, StartRequest)]
    http.check_scopes(requests)
    rejections = [
        reject(http, each, session.key, session.revision)
        for each in actions
        if isinstance(each, Reject) and each.responds
    ]
    for action in actions:
        if isinstance(action, CancelRequest | DeliverResponse):
            with suppress(InvalidRequest):  # a late response must not reject the other members
                await perform(http, action)
    if requests:
        await serve_batch(http, requests, rejections)
    elif rejections:
        await reply(http, 200, encode_batch(rejections))
    else:
        await reply(http, 202)


async def get(http: HttpRequest) -> None:
    """Open the session's own stream, or resume one after a lost connection.

    2025-11-25, transports, "Listening for Messages from the Server" and "Resumability and
    Redelivery".

    Raises:
        McpError: the request is not for a stream of a session.
    """
    check_legacy(http.table)
    await http.mux.sessions.catch_up()
    session = session_of(http)
    check_get_headers(http.table)
    with http.mux.streams.acquired(http.client_key):
        stream = EventStream(http)
        last = http.table.get(b"last-event-id")
        if last is None:
            # 2025-11-25, transports, "Listening for Messages from the Server", point 2: 405 where
            # no stream is offered.
            if not http.mux.offers(LISTEN):
                raise NotAllowed("This server announces no changes: it has no stream", "POST")
            client = http.client_key.client
            source = await http.mux.session_streams.listen(session, client=client)
        else:
            source = await _resumed(http, session, last.strip().decode("latin-1"), stream)
        await stream.serve(source)


async def delete(http: HttpRequest) -> None:
    """End the session, its calls and streams: 2025-11-25, transports, "Session Management"."""
    check_legacy(http.table)
    await http.mux.sessions.catch_up()
    await http.mux.end_session(session_of(http), http.client_key)
    await reply(http, 204)


def session_of(http: HttpRequest) -> Session:
    """Return the session that the request names; the request counts towards it from now on.

    Raises:
        NotAllowed: it names none.
        SessionNotFound: the session has ended.
    """
    id = http.table.get(SESSION_HEADER)
    if id is None:
        raise NotAllowed(
            "This method needs a session (Mcp-Session-Id), which initialize opens", "POST"
        )
    http.mux.sessions.start()
    session = http.mux.sessions.open(id.strip().decode("latin-1"), http.principal)
    http.enter(session.key)
    return session


_NUMBER = re.compile(r"[0-9]{1,15}")


async def _resumed(
    http: HttpRequest, session: Session, last: str, reader: EventStream
) -> AsyncGenerator[bytes, None]:
    """Return the events after *last* on its stream, for *reader* to send.

    Raises:
        InvalidRequest: the stream does not exist, or has expired.
    """
    stream, _, number = last.partition("/")
    if stream == LISTENER:
        client = http.client_key.client
        return await http.mux.session_streams.listen(session, after=number, client=client)
    if not _NUMBER.fullmatch(number):
        raise InvalidRequest(f"Last-Event-ID is not an id of this server: {last}")
    await http.mux.replay.check(session.key, stream)
    recover = Recovery(http, session).messages
    return http.mux.replay.resume(session.key, stream, int(number), reader, recover)


_WAITING: Final = 16
"""Messages buffered for a client that reads slowly; when the buffer is full, the calls wait."""


class Recovery(Pipe):
    """The unanswered calls of a resumed stream, and the pipe of their messages. Owned by the GET.

    The process of these calls has died, and a client that lost its connection resumes in any
    process (2025-11-25, transports, "Resumability and Redelivery").

    A call that waits for a task is followed to the end of that task, and its questions are sent
    again. Any other call ended with its process and is answered with an error.
    """

    def __init__(self, http: HttpRequest, session: Session) -> None:
        super().__init__(http.mux, http.access, http.client_key)
        self._session = session
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)

    async def messages(self, calls: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
        """Yield the messages of *calls* until each of them is answered."""
        work = asyncio.ensure_future(self._finish_all(calls))
        try:
            while (message := await self._messages.get()) is not None:
                yield message
        finally:
            await cancel_and_wait(work)

    async def send(self, message: bytes) -> None:
        """Send *message*, waiting for room in the buffer."""
        await self._messages.put(message)

    async def _finish_all(self, calls: Sequence[OpenCall]) -> None:
        await asyncio.gather(*map(self._finish, calls), return_exceptions=True)
        await self._messages.put(None)

    async def _finish(self, call: OpenCall) -> None:
        """Send the response to *call*: the result of its task, or an error."""
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
            response = self.mux.responses.encode(request, await self._followed(request, call.task))
        except Exception as error:  # the client must get a response in any case
            response = self.mux.responses.failure(request, error)
        await self.respond(request, response.body)

    async def _followed(self, request: Request, task: str) -> Any:
        while True:
            try:
                kept = await self.mux.tasks.service.records.call(task)
                if kept is not None:
                    request = StoredRequest.unpack(kept).request()
                call, services = PipedCall(self, request), self.mux.call_services
                context = CallContext(sink=call, caller=self, performer=call, services=services)
                channel = Channel(request, context, self.access)
                return await self.mux.continuations.followed(task, channel)
            except StoreError:
                await asyncio.sleep(RETRY_DELAY)
