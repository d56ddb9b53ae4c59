"""Streamable HTTP of all revisions: each message is a POST, answered by JSON or an event stream.

2026-07-28, Streamable HTTP; 2025-11-25, transports. For the legacy revisions, this module also
handles sessions, the notification stream of the server, and the resumption of event streams.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import ClassVar, Final
from urllib.parse import SplitResult

from genmcp.client.errors import (
    AuthorizationFailed,
    ClientClosed,
    ClientError,
    ConnectError,
    ConnectionLost,
    Forbidden,
    HttpStatusError,
    ProtocolError,
    SessionEnded,
    Unauthorized,
    is_transient,
    lost_response_error,
)
from genmcp.client.options import mask_url
from genmcp.client.transports.base import (
    HttpRequester,
    HttpResponse,
    OnWait,
    Transport,
    TransportSink,
)
from genmcp.client.transports.http_messages import (
    ACCEPT,
    CONTENT_TYPE,
    EVENT_STREAM,
    NO_HEADERS,
    HeaderList,
    encode_headers,
    is_session_error,
    message_headers,
    request_path,
    resolve_on_origin,
    status_error_class,
    version_header,
)
from genmcp.client.transports.sse import (
    RESUME_ATTEMPTS,
    NotificationStream,
    SseCursor,
    SseTransport,
    waits_for,
)
from genmcp.core.client.events import SendMessage
from genmcp.core.client.opening import MODERN_CODES
from genmcp.errors import InvalidRequest, MethodNotFound, ParseError
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import RequestId
from genmcp.wire.lines import MAX_MESSAGE

# 2026-07-28, Streamable HTTP, "HTTP+SSE Transport (2024-11-05)", for clients, point 2.
_SSE_STATUSES: Final = (400, 404, 405)
_OPENING: Final = ("initialize", "server/discover")  # sent before there is a session
_LISTEN: Final = "subscriptions/listen"
_MAX_REDIRECTS: Final = 5  # for one request
_END_TIMEOUT: Final = 2.0  # seconds to end the session when the client closes
_ERROR_TIMEOUT: Final = 5.0  # seconds to read the body of an HTTP error
_DRAIN_TIMEOUT: Final = 1.0  # seconds to read what is left of a response and not needed


class HttpTransport(Transport):
    """The transport for a URL. Owned by a client.

    Args:
        url: the URL of the server.
        requester: the HTTP client, which is closed with the transport.
        headers: the user's headers.
    """

    per_message: ClassVar[bool] = True

    def __init__(
        self,
        url: SplitResult,
        requester: HttpRequester,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        self.server_name = requester.server_name
        self.requester = requester
        self._url = url
        self._path = request_path(url)
        self._headers = encode_headers(headers)
        self._post_headers = [ACCEPT, CONTENT_TYPE, *self._headers]
        self._get_headers = [EVENT_STREAM, *self._headers]
        self._session: str | None = None  # the id that the server assigned
        self._sink: TransportSink
        self._sse: SseTransport | None = None  # for a server that speaks only HTTP+SSE
        self._closed: ClientError | None = None
        self._notifications = NotificationStream(self.server_name, self._follow)
        self._drains: set[asyncio.Task[None]] = set()

    async def open(self, sink: TransportSink) -> None:
        """Store *sink*. The connection is opened when the first message is sent."""
        if self._closed is not None:
            raise self._closed
        self._sink = sink

    async def send(self, message: SendMessage) -> None:
        """Send a message and pass its whole response to the sink."""
        if self._closed is not None:
            raise self._closed
        if self._sse is not None:
            await self._sse.send(message)
            return
        try:
            if message.method in _OPENING:
                self._session = None
                await self._notifications.stop()
            # Read before the POST: another request may begin a new session meanwhile.
            session = self._session
            response = await self._request(
                "POST",
                [*self._post_headers, *message_headers(message)],
                message.message,
                # An open request may depend on an answer or a notification; a subscription never
                # ends.
                counts_against_limit=message.id is not None and message.method != _LISTEN,
                on_wait=waits_for(message, self.requester, self._sink),
            )
            await self._handle_response(message, response, session)
        except ClientError as error:
            if message.id is None:
                raise
            if self._closed is None:
                self._sink.on_failure(message.id, lost_response_error(message, error))
            return
        if message.method == "notifications/initialized":
            await self._notifications.stop()
            if self._closed is None:  # `stop` waits, so the transport may have been closed
                self._notifications.start(self._sink, message.revision)

    async def notifications_ready(self) -> None:
        """Wait until the notification stream is open, or until opening it has failed."""
        await self._notifications.ready()

    async def close(self) -> None:
        """End the session, if there is one, and close all connections."""
        if self._closed is not None:
            return
        self._closed = ClientClosed(self.server_name)
        try:
            await self._notifications.stop()
            if self._sse is not None:
                await self._sse.close()
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_END_TIMEOUT):
                    if self._session is not None:
                        # 2025-11-25, transports, "Session Management"
                        ended = await self._request("DELETE", [*self._get_headers])
                        await ended.close()
        finally:
            for task in self._drains:
                task.cancel()
            await self.requester.close()
            await asyncio.gather(*self._drains, return_exceptions=True)

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

        RFC 9110, sections 15.4.8 and 15.4.9: 307 and 308.
        """
        if self._session is not None:
            headers.append((b"Mcp-Session-Id", self._session.encode("ascii")))
        path = self._path
        for _ in range(_MAX_REDIRECTS):
            response = await self.requester.request(
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
                await response.read(MAX_MESSAGE)
            finally:
                await response.close()
        raise ConnectError(self.server_name, f"it redirected {_MAX_REDIRECTS} times in a row")

    async def _handle_response(
        self, message: SendMessage, response: HttpResponse, session: str | None
    ) -> None:
        """Read the response to a message until the request is answered."""
        unread = False
        try:
            if response.status < 300:
                unread = await self._read(message, response)
                return
            error = await self._status_error(response, session)
        finally:
            await self._release(response, unread=unread)
        if message.method != "initialize" or not _may_be_sse(error):
            raise error
        await self._fall_back_to_sse(message, error)

    async def _read(self, message: SendMessage, response: HttpResponse) -> bool:
        """Read a successful response.

        Returns:
            Whether a part of it is left unread.

        Raises:
            ClientError: the request was not answered.
        """
        if message.method == "initialize":
            self._session = self._session_of(response)
        media_type = response.media_type
        if message.id is None:
            # The body has no meaning; an event stream may also never end.
            if media_type != "text/event-stream":
                await response.read(MAX_MESSAGE)
            return False
        if media_type == "text/event-stream":
            return await self._read_stream(message, response)
        if media_type != "application/json":
            content = media_type or "no content"
            reason = f"it responded to a request with HTTP {response.status} and {content}"
            raise ProtocolError(reason, self.server_name)
        if not self._sink.on_message(await response.read(MAX_MESSAGE), message.id):
            reason = f"its response to {message.method} does not answer the request"
            raise ProtocolError(reason, self.server_name)
        return False

    async def _read_stream(self, message: SendMessage, response: HttpResponse) -> bool:
        """Read an event stream until the request is answered, and resume it if it breaks.

        Returns:
            Whether a part of *response* is left unread.

        Raises:
            ConnectionLost: the stream ended without the answer and cannot be resumed.
            OutcomeUnknown: resuming it failed.
        """
        cursor = SseCursor()
        cause: ClientError
        try:
            if await cursor.follow(response, self._sink, message.id):
                return True
            cause = ConnectionLost(self.server_name, "the event stream ended without the answer")
        except ConnectionLost as error:
            cause = error
        revision = REVISIONS.get(message.revision or "")
        is_modern = revision is not None and revision.modern
        if is_modern or not cursor.last_id:  # 2026-07-28 has no resumption
            raise cause
        await response.close()
        await self._resume(message, cursor, cause)
        return False

    async def _resume(self, message: SendMessage, cursor: SseCursor, cause: ClientError) -> None:
        """Resume the broken stream of a request until the request is answered.

        2025-11-25, transports, "Resumability and Redelivery".

        Raises:
            OutcomeUnknown: all attempts failed. The server has received the request.
        """
        failures = 0
        while failures < RESUME_ATTEMPTS:
            await asyncio.sleep(cursor.delay(failures))
            failures += 1
            events = cursor.events
            try:
                if await self._follow(message.revision, cursor, message.id):
                    return
            except ClientError as error:
                cause = error
                if not is_transient(error):
                    break
            # A server may close the stream after each event, to save connections. The attempts
            # bound only those that make no progress.
            if cursor.events > events:
                failures = 0
        raise lost_response_error(message, cause, delivered=True)

    async def _follow(
        self,
        revision: str | None,
        cursor: SseCursor,
        request_id: RequestId | None,
        on_open: Callable[[], None] = lambda: None,
    ) -> bool:
        """Open an event stream at *cursor* and pass its messages to the sink.

        Returns:
            Whether the request was answered.

        Raises:
            ClientError: the stream could not be opened, or broke.
        """
        session = self._session
        headers = [*self._get_headers, *version_header(revision)]
        if cursor.last_id:
            headers.append((b"Last-Event-ID", cursor.last_id.encode("utf-8")))
        response = await self._request("GET", headers)
        answered = False
        try:
            if response.status >= 300:
                raise await self._status_error(response, session, resumed=bool(cursor.last_id))
            if response.media_type != "text/event-stream":
                raise HttpStatusError(self.server_name, response.status)
            on_open()
            answered = await cursor.follow(response, self._sink, request_id)
            return answered
        finally:
            await self._release(response, unread=answered)

    def _session_of(self, response: HttpResponse) -> str | None:
        """Return the session id in the response to `initialize`; None without a session.

        Raises:
            ProtocolError: the id contains forbidden characters.
        """
        session = response.headers.get("mcp-session-id")
        # 2025-11-25, transports, "Session Management": visible ASCII characters only.
        if session is not None and not all("!" <= each <= "~" for each in session):
            raise ProtocolError("its session id contains forbidden characters", self.server_name)
        return session

    async def _status_error(
        self,
        response: HttpResponse,
        session: str | None,
        *,
        resumed: bool = False,
    ) -> ClientError:
        """Return the exception for a response with an error status.

        Args:
            response: the response; its body is read, for five seconds at most.
            session: the session id of the request.
            resumed: whether the request had a `Last-Event-ID`, which status 400 may be about.
        """
        content = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ERROR_TIMEOUT):
                content = await response.read(MAX_MESSAGE)
        kind = status_error_class(response.status)
        lost = response.status == 404 or (
            response.status == 400 and not resumed and is_session_error(content)
        )
        if session is not None and lost:
            # Another request has begun a new session in the meantime, in which the caller may
            # repeat this one; `SessionEnded` would end the new session.
            if session != self._session:
                return ConnectError(
                    self.server_name, "the session ended before the request was received"
                )
            kind = SessionEnded
        return kind(self.server_name, response.status, content, response.headers)

    async def _fall_back_to_sse(self, message: SendMessage, error: ClientError) -> None:
        """Switch to HTTP+SSE of 2024-11-05, or raise *error* if the server does not speak it."""
        sse = SseTransport(
            self._url,
            self.requester,
            self._headers,
            on_wait=waits_for(message, self.requester, self._sink),
        )
        try:
            await sse.open(self._sink)
        # The URL exists: the server demands authorization for the stream.
        except (AuthorizationFailed, Forbidden, Unauthorized):
            raise
        except ClientError:
            raise error from None
        if self._closed is not None:  # while the stream was opened
            await sse.close()
            raise self._closed
        self._sse = sse
        await sse.send(message)

    async def _release(self, response: HttpResponse, *, unread: bool) -> None:
        """Close a response. If its end is unread, read it in a task, to keep the connection."""
        if not unread:
            await response.close()
            return
        task = asyncio.create_task(_drain(response))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)


async def _drain(response: HttpResponse) -> None:
    try:
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT):
                while await response.chunk():
                    pass
    finally:
        await response.close()


def _may_be_sse(error: ClientError) -> bool:
    """Return whether a server that supports only HTTP+SSE may respond so to `initialize`.

    Error codes of 2026-07-28 rule that out: such a server does not know them. MethodNotFound rules
    it out as well, since all legacy revisions have `initialize`.
    """
    if not isinstance(error, HttpStatusError) or error.status not in _SSE_STATUSES:
        return False
    try:
        message = jsonrpc.decode(error.content)
    except (ParseError, InvalidRequest):
        return True
    code = None if isinstance(message, list) or message.error is None else message.error.code
    return code not in MODERN_CODES and code != MethodNotFound.code
