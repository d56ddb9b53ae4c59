"""Streamable HTTP, all revisions: one POST a message, answered by JSON or an event stream.

2026-07-28, Streamable HTTP; 2025-11-25, transports. What the older revisions have besides is here
as well: sessions, the stream a server speaks on unasked, and streams that are taken up again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final
from urllib.parse import SplitResult

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ConnectionLost,
    HttpStatusError,
    ProtocolError,
    unanswered,
)
from genmcp.client.options import HttpOptions
from genmcp.client.transports.base import (
    HttpRequester,
    HttpResponse,
    Transport,
    TransportSink,
)
from genmcp.client.transports.http_endpoint import HttpEndpoint, media_type
from genmcp.client.transports.sse import PASSING, ServerStream, SseCursor, SseTransport
from genmcp.core.client.events import Send
from genmcp.core.client.opening import MODERN_CODES
from genmcp.errors import InvalidRequest, MethodNotFound, ParseError
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import RequestId
from genmcp.wire.lines import MAX_MESSAGE

__all__ = ["HttpTransport"]

logger = logging.getLogger("genmcp.client")

_OLD_SERVER: Final = (400, 404, 405)
"""2026-07-28, Streamable HTTP, "HTTP+SSE Transport (2024-11-05)", for clients, point 2."""
_OPENING: Final = ("initialize", "server/discover")  # sent before there is a session
_REST = 1.0  # seconds in which what is of no use any more has to end


class HttpTransport(Transport):
    """Speaks to the server at *url* through *requester*, which it closes.

    max_message: the most bytes a message may have.
    """

    per_message: ClassVar[bool] = True

    def __init__(
        self,
        url: SplitResult,
        requester: HttpRequester,
        options: HttpOptions,
        *,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.where = requester.where
        self._url = url
        self.requester = requester
        self._options = options
        self._max_message = max_message
        self._endpoint = HttpEndpoint(url, requester, options, max_message)
        self._sink: TransportSink
        self._pair: SseTransport | None = None
        self._over: ClientError | None = None
        self._stream = ServerStream(self.where, self._hear, options, max_message)
        self._rests: set[asyncio.Task[None]] = set()

    async def open(self, sink: TransportSink) -> None:
        """Remember *sink*: a connection is made by the first message."""
        if self._over is not None:
            raise self._over
        self._sink = sink

    async def send(self, message: Send) -> None:
        """Send a message, and pass on all that comes in response."""
        if self._over is not None:
            raise self._over
        if self._pair is not None:
            await self._pair.send(message)
            return
        try:
            await self._exchange(message)
        except ClientError as error:
            if message.id is None:
                raise
            if self._over is None:
                self._sink.on_failure(message.id, unanswered(message, error))
            return
        if message.method == "notifications/initialized" and self._options.listen:
            await self._stream.stop()
            if self._over is None:  # it may have been closed meanwhile
                self._stream.begin(self._sink, message.revision)

    async def hearing(self) -> None:
        """Wait until what the server says unasked is heard, or is not expected to be soon."""
        await self._stream.hearing()

    async def close(self) -> None:
        """End the session, if there is one, and all connections."""
        if self._over is not None:
            return
        self._over = ClientClosed(self.where)
        try:
            await self._stream.stop()
            if self._pair is not None:
                await self._pair.close()
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(self._options.close_timeout):
                    await self._endpoint.end_session()
        finally:
            for rest in self._rests:
                rest.cancel()
            await self.requester.close()
            await asyncio.gather(*self._rests, return_exceptions=True)

    async def _exchange(self, message: Send) -> None:
        """Post a message and take its response, to its end or as far as it is wanted."""
        if message.method in _OPENING:
            self._endpoint.session = None
            await self._stream.stop()
        session = self._endpoint.session
        reply = await self._endpoint.post(message)
        unread = False
        try:
            if reply.status < 300:
                unread = await self._take(message, reply)
                return
            error = await self._endpoint.refusal(reply, session)
        finally:
            await self._leave(reply, unread=unread)
        if message.method != "initialize" or not self._may_be_pair(error):
            raise error
        await self._fall_back(message, error)

    async def _take(self, message: Send, reply: HttpResponse) -> bool:
        """Take a response that is no error; return whether its end is still to come.

        Raises:
            ClientError: the request has no answer.
        """
        if message.method == "initialize":
            self._endpoint.begin_session(reply)
        media = media_type(reply)
        if message.id is None:
            if media != "text/event-stream":  # its end may never come, and nothing is wanted
                await reply.read(self._max_message)
            return False
        if media == "text/event-stream":
            return await self._follow(message, reply)
        if media != "application/json":
            said = f"HTTP {reply.status} with {media or 'no content'} in response to a request"
            raise ProtocolError(said, self.where)
        if not self._sink.on_message(await reply.read(self._max_message), message.id):
            raise ProtocolError(f"its response to {message.method} is no answer", self.where)
        return False

    async def _follow(self, message: Send, reply: HttpResponse) -> bool:
        """Pass on what an event stream brings until the request is answered.

        Return whether the stream given is still to end.

        Raises:
            ConnectionLost: it ended without the answer, and cannot be taken up again.
            OutcomeUnknown: that was tried, in vain.
        """
        place = SseCursor(self._max_message)
        cause: ClientError
        try:
            if await place.follow(reply, self._sink, message.id):
                return True
            cause = ConnectionLost(self.where, "the event stream ended without the answer")
        except ConnectionLost as error:
            cause = error
        if not _resumable(message) or not place.last_id:
            raise cause
        await reply.close()
        await self._resume(message, place, cause)
        return False

    async def _resume(self, message: Send, place: SseCursor, cause: ClientError) -> None:
        """Take up the stream of a request where it broke, until the request is answered.

        2025-11-25, transports, "Resumability and Redelivery".

        Raises:
            OutcomeUnknown: it cannot be taken up (any more).
        """
        attempts = 0
        while attempts < self._options.max_resume_attempts:
            await asyncio.sleep(place.delay(attempts))
            attempts += 1
            heard = place.events
            try:
                if await self._listen_once(message.revision, place, message.id):
                    return
            except (ConnectionLost, ConnectError) as error:
                cause = error
            except HttpStatusError as error:
                cause = error
                if error.status not in PASSING:
                    break
            if place.events > heard:
                attempts = 0
        raise unanswered(message, cause, arrived=True)

    async def _hear(
        self, revision: str | None, place: SseCursor, begun: Callable[[], None]
    ) -> None:
        await self._listen_once(revision, place, None, begun)

    async def _listen_once(
        self,
        revision: str | None,
        place: SseCursor,
        about: RequestId | None,
        begun: Callable[[], None] = lambda: None,
    ) -> bool:
        """Open a stream at *place* and pass on what it brings; return whether *about* is answered.

        begun: is called when it is open.

        Raises:
            ClientError: it could not be opened, or broke.
        """
        session = self._endpoint.session
        reply = await self._endpoint.get(revision, place.last_id)
        unread = False
        try:
            if reply.status >= 300:
                resumed = bool(place.last_id)
                raise await self._endpoint.refusal(reply, session, _REST, resumed=resumed)
            if media_type(reply) != "text/event-stream":
                raise HttpStatusError(self.where, reply.status)
            begun()
            return (unread := await place.follow(reply, self._sink, about))
        finally:
            await self._leave(reply, unread=unread)

    async def _fall_back(self, message: Send, error: ClientError) -> None:
        """Go on with HTTP+SSE of 2024-11-05, if that is what the server speaks."""
        pair = SseTransport(self._url, self.requester, self._options, max_message=self._max_message)
        try:
            await pair.open(self._sink)
        except ClientError:
            raise error from None
        if self._over is not None:  # closed meanwhile
            await pair.close()
            raise self._over
        self._pair = pair
        await pair.send(message)

    async def _leave(self, reply: HttpResponse, *, unread: bool) -> None:
        """Close *reply*; its end, if *unread*, is waited for beside: the connection is kept."""
        if not unread:
            await reply.close()
            return
        rest = asyncio.create_task(_read_rest(reply))
        self._rests.add(rest)
        rest.add_done_callback(self._rests.discard)

    def _may_be_pair(self, error: ClientError) -> bool:
        return (
            isinstance(error, HttpStatusError)
            and error.status in _OLD_SERVER
            and not _is_modern(error.content)
        )


async def _read_rest(reply: HttpResponse) -> None:
    try:
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_REST):
                while await reply.chunk():
                    pass
    finally:
        await reply.close()


def _resumable(message: Send) -> bool:
    known = REVISIONS.get(message.revision or "")
    return known is None or not known.modern


def _is_modern(content: bytes) -> bool:
    """Whether the body of an HTTP error is one that only 2026-07-28 and later know.

    Of these is MethodNotFound where the method is `initialize`, which every older server has.
    """
    try:
        message = jsonrpc.decode(content)
    except (ParseError, InvalidRequest):
        return False
    error = None if isinstance(message, list) else message.error
    return error is not None and (error.code in MODERN_CODES or error.code == MethodNotFound.code)
