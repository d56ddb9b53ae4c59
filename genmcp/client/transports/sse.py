"""Event streams: resumption, the stream for notifications, and the HTTP+SSE transport of 2024.

Revisions before 2026-07-28 resume a broken stream by its last event id (2025-11-25, transports,
"Resumability and Redelivery"), and have a stream for notifications outside of requests ("Listening
for Messages from the Server"). HTTP+SSE is the transport of 2024-11-05: one event stream carries
all messages of the server, and its first event names the URL for those of the client.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Final
from urllib.parse import SplitResult

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    HttpStatusError,
    ProtocolError,
    SessionEnded,
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
    CONTENT_TYPE,
    EVENT_STREAM,
    HeaderList,
    message_headers,
    request_path,
    resolve_on_origin,
    status_error_class,
)
from genmcp.core.backoff import backoff
from genmcp.core.client.events import SendMessage
from genmcp.wire.jsonrpc import RequestId
from genmcp.wire.lines import MAX_MESSAGE, OversizedMessage
from genmcp.wire.sse import EventReader, SseEvent

logger = logging.getLogger("genmcp.client")

TRANSIENT: Final = (429, 502, 503, 504)  # HTTP statuses after which an attempt may succeed

# Seconds before a stream is resumed.
_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0
_MIN_RETRY, _MAX_RETRY = 0.1, 300.0  # bounds of the delay that a server sends as `retry`

RESUME_ATTEMPTS = 5  # failures in a row; after them a request fails
_LASTED = 5.0  # seconds after which a stream that ends is not a failure

FollowStream = Callable[
    [str | None, "SseCursor", RequestId | None, Callable[[], None]], Awaitable[object]
]
"""Reads an event stream to its end.

The arguments are the negotiated revision, the position at which to begin, the id of the request
that the stream belongs to (None for notifications), and a function to call when the stream is open.
"""


class SseCursor:
    """The position in an event stream, across the connections that carry it.

    Owned by the request or the notification stream that it belongs to.

    Attributes:
        last_id: the id of the last received event, after which the stream can be resumed; empty
            if the events have no ids.
        events: the number of events received.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self.events = 0
        self._retry: int | None = None

    def delay(self, failures: int) -> float:
        """Return the seconds to wait before the stream is resumed.

        2025-11-25, transports, "Sending Messages to the Server": the server's `retry` is respected,
        within bounds that prevent both a busy loop and an endless wait.

        Args:
            failures: failed attempts in a row.
        """
        wanted = _FIRST_DELAY
        if self._retry is not None:
            wanted = min(max(self._retry / 1000, _MIN_RETRY), _MAX_RETRY)
        return max(wanted, backoff(failures, _FIRST_DELAY, _MAX_DELAY))

    async def follow(
        self, response: HttpResponse, sink: TransportSink, request_id: RequestId | None
    ) -> bool:
        """Pass the messages of a stream to *sink*, until it ends or the request is answered.

        Returns:
            Whether the request was answered; the rest of the stream is unread then.

        Raises:
            ConnectionLost: the connection was closed.
            ProtocolError: the response is not valid HTTP.
        """
        reader = EventReader(MAX_MESSAGE)
        while chunk := await response.chunk():
            answered = False
            for event in reader.feed(chunk):
                self.events += 1
                answered |= _deliver(event, sink, request_id)
            # Updated after the delivery, so that events that were not delivered come again.
            self.last_id = reader.last_id or self.last_id
            self._retry = self._retry if reader.retry is None else reader.retry
            if answered and request_id is not None:
                return True
        return False


class NotificationStream:
    """The event stream on which a legacy server sends messages that belong to no request.

    Owned by an `HttpTransport`, which starts the stream for each session. A broken stream is opened
    again, after its last event if the events have ids. Notifications may be lost otherwise; then
    `TransportSink.on_lost_notifications` is called once the stream is open.

    Args:
        server_name: the server as the log names it.
        follow: opens the stream and passes its messages on until it ends.
    """

    def __init__(self, server_name: str, follow: FollowStream) -> None:
        self._server_name = server_name
        self._follow = follow
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()  # the stream is open, or could not be opened
        self._sink: TransportSink
        self._failures = 0  # in a row, across sessions
        self._may_have_lost = False  # notifications, since the sink was last notified of that
        self._opened_at: float | None = None

    def start(self, sink: TransportSink, revision: str | None) -> None:
        """Open the stream in a task of its own, for a new session."""
        self._sink = sink
        settled = self._settled = asyncio.Event()
        # An empty context: the context of the caller belongs to the request that it has just sent.
        self._task = asyncio.create_task(self._run(revision), context=Context())
        self._task.add_done_callback(lambda _: settled.set())

    async def stop(self) -> None:
        """Close the stream, because the session has ended."""
        if self._task is not None:
            task, self._task = self._task, None
            self._may_have_lost = True
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def ready(self) -> None:
        """Wait until the stream is open, or could not be opened."""
        if self._task is not None:
            await self._settled.wait()

    async def _run(self, revision: str | None) -> None:
        cursor = SseCursor()
        was_open = False
        # The stream of the previous session failed. A server may lose each session at once, so the
        # delays continue to grow across sessions.
        if self._failures:
            await asyncio.sleep(cursor.delay(self._failures))
        while True:
            events = cursor.events
            self._opened_at = None
            try:
                await self._follow(revision, cursor, None, self._on_open)
            except HttpStatusError as error:
                if error.status not in TRANSIENT:
                    if not was_open:  # usually 405: the server has no such stream
                        return
                    if isinstance(error, SessionEnded):
                        self._sink.on_session_ended(error)
                        return
                    cursor.last_id = ""  # the server may no longer store the last event
            except ClientError as error:
                logger.debug("The notification stream of %s broke: %s", self._server_name, error)
            was_open = was_open or self._opened_at is not None
            self._may_have_lost = self._may_have_lost or not cursor.last_id
            # A stream that ends at once, without an event, counts as one that cannot be opened.
            lasts = asyncio.get_running_loop().time() - _LASTED
            worked = self._opened_at is not None and self._opened_at < lasts
            self._failures = 0 if worked or cursor.events > events else self._failures + 1
            self._settled.set()
            await asyncio.sleep(cursor.delay(self._failures))

    def _on_open(self) -> None:
        self._opened_at = asyncio.get_running_loop().time()
        self._settled.set()
        if self._may_have_lost:
            self._may_have_lost = False
            self._sink.on_lost_notifications()


class SseTransport(Transport):
    """The HTTP+SSE transport of 2024-11-05. Owned by the `HttpTransport` that detected it.

    Args:
        url: the URL of the event stream.
        requester: the HTTP client; it is not closed.
        headers: the user's headers, encoded.
        on_wait: called when `open` begins or ends to wait for the user to log in.
    """

    def __init__(
        self,
        url: SplitResult,
        requester: HttpRequester,
        headers: HeaderList,
        *,
        on_wait: OnWait | None = None,
    ) -> None:
        self.server_name = requester.server_name
        self._url = url
        self._requester = requester
        self._headers = headers
        self._on_wait = on_wait
        self._sink: TransportSink
        self._path = ""
        self._error: ClientError | None = None  # why the transport is not open any more
        self._reading: asyncio.Task[None] | None = None

    async def open(self, sink: TransportSink) -> None:
        """Open the stream and wait for the event that names the endpoint.

        Raises:
            ClientError: the URL does not respond with such a stream.
        """
        self._sink = sink
        response = await self._requester.request(
            "GET",
            request_path(self._url),
            [EVENT_STREAM, *self._headers],
            counts_against_limit=False,
            on_wait=self._on_wait,
        )
        try:
            if response.status != 200 or response.media_type != "text/event-stream":
                kind = status_error_class(response.status)
                raise kind(self.server_name, response.status, b"", response.headers)
            events = self._events(response)
            self._path = self._endpoint_path(await anext(events, None))
        except BaseException:
            await response.close()
            raise
        self._reading = asyncio.create_task(self._read(response, events), context=Context())

    async def send(self, message: SendMessage) -> None:
        """Post a message to the endpoint. The response arrives on the event stream."""
        if self._error is not None:
            raise self._error
        try:
            await self._post(message)
        except ClientError as error:
            if message.id is None:
                raise
            if self._error is None:
                self._sink.on_failure(message.id, lost_response_error(message, error))

    async def close(self) -> None:
        """Close the stream."""
        self._error = self._error or ClientClosed(self.server_name)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _endpoint_path(self, event: SseEvent | OversizedMessage | None) -> str:
        """Return the path of the endpoint that the first event names."""
        if event is None:
            raise ConnectionLost(self.server_name, "its event stream ended at once")
        if isinstance(event, OversizedMessage) or event.event != "endpoint":
            raise ProtocolError("its first event is not `endpoint`", self.server_name)
        reference = event.data.decode("utf-8", "replace").strip()
        target, same_origin = resolve_on_origin(self._url, reference, self.server_name)
        # Another origin must not receive the messages and the credentials for this server.
        if not same_origin:
            place = mask_url(target.geturl())
            raise ProtocolError(f"its endpoint is on another origin: {place}", self.server_name)
        return request_path(target)

    async def _events(self, response: HttpResponse) -> AsyncIterator[SseEvent | OversizedMessage]:
        reader = EventReader(MAX_MESSAGE)
        while chunk := await response.chunk():
            for event in reader.feed(chunk):
                yield event

    async def _read(
        self, response: HttpResponse, events: AsyncIterator[SseEvent | OversizedMessage]
    ) -> None:
        reason = "the event stream ended"
        try:
            async for event in events:
                _deliver(event, self._sink, None)
        except ClientError as error:
            reason = str(error)
        finally:
            await response.close()
        self._error = ConnectionLost(self.server_name, reason)
        self._sink.on_failure(None, self._error)

    async def _post(self, message: SendMessage) -> None:
        response = await self._requester.request(
            "POST",
            self._path,
            [CONTENT_TYPE, *self._headers, *message_headers(message)],
            message.message,
            counts_against_limit=message.id is not None,
            on_wait=waits_for(message, self._requester, self._sink),
        )
        try:
            # An event stream as the response to a POST has no meaning in HTTP+SSE, and may never
            # end, so it is not read.
            if response.media_type == "text/event-stream":
                return
            content = await response.read(MAX_MESSAGE)
        finally:
            await response.close()
        if response.status >= 300:
            kind = status_error_class(response.status)
            raise kind(self.server_name, response.status, content, response.headers)


def waits_for(message: SendMessage, requester: HttpRequester, sink: TransportSink) -> OnWait | None:
    """Return the function to call when *message* begins or ends to wait for the user to log in."""
    if message.id is None or not requester.waits:
        return None
    id = message.id
    return lambda waiting: sink.on_wait(id, waiting=waiting)


def _deliver(
    event: SseEvent | OversizedMessage, sink: TransportSink, request_id: RequestId | None
) -> bool:
    """Pass an event to the sink; return whether request *request_id* is finished."""
    if isinstance(event, OversizedMessage):
        return sink.on_oversized(event.size, event.head, request_id)
    if event.data and event.event == "message":
        return sink.on_message(event.data, request_id)
    return False
