"""Where a client is in an event stream: what it passes on, and where it would go on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final
from urllib.parse import SplitResult

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    HttpStatusError,
    ProtocolError,
    RequestTimeout,
    SessionEnded,
    unanswered,
)
from genmcp.client.options import HttpOptions, mask_url
from genmcp.client.transports.base import HttpRequester, HttpResponse, Transport, TransportSink
from genmcp.client.transports.http_endpoint import (
    encoded,
    headers_of,
    media_type,
    path_of,
    resolved,
)
from genmcp.core.client.events import Send
from genmcp.wire.jsonrpc import RequestId
from genmcp.wire.lines import MAX_MESSAGE, OversizedMessage
from genmcp.wire.sse import Event, EventReader

__all__ = ["PASSING", "Follow", "ServerStream", "SseCursor", "SseTransport"]

_FIRST_DELAY = 0.5  # seconds before the first attempt, if the server does not say how many
_LONGEST_DELAY = 30.0
_LEAST_WAIT, _LONGEST_WAIT = 0.1, 300.0  # seconds, whatever the server says


class SseCursor:
    """A place in a stream of events, over all connections that brought some of it.

    last_id: what it is taken up with, empty if it cannot be. events: how many have come.
    """

    def __init__(self, max_message: int) -> None:
        self.last_id = ""
        self.events = 0
        self._retry: int | None = None
        self._max_message = max_message

    def delay(self, attempts: int) -> float:
        """Return how many seconds to wait after so many *attempts* in vain, in a row.

        2025-11-25, transports, "Sending Messages to the Server": `retry` is respected, as far as
        this side neither runs in circles nor waits for ever.
        """
        wanted = _FIRST_DELAY
        if self._retry is not None:
            wanted = min(max(self._retry / 1000, _LEAST_WAIT), _LONGEST_WAIT)
        backoff = _FIRST_DELAY * 2 ** (attempts - 1) if attempts else 0.0
        return max(wanted, min(backoff, _LONGEST_DELAY))

    async def follow(
        self, reply: HttpResponse, sink: TransportSink, about: RequestId | None
    ) -> bool:
        """Pass on the messages of *reply*, about a request if it has one, to their end.

        Return whether that request needs nothing more; what is left of the stream is then unread.

        Raises:
            ConnectionLost: the connection broke.
            ProtocolError: it is not HTTP what comes.
        """
        reader = EventReader(self._max_message)
        while chunk := await reply.chunk():
            answered = False
            for event in reader.feed(chunk):
                self.events += 1
                if isinstance(event, OversizedMessage):
                    answered |= sink.on_oversized(event.size, event.head, about)
                elif event.data and event.event == "message":
                    answered |= sink.on_message(event.data, about)
            self.last_id = reader.last_id or self.last_id
            self._retry = self._retry if reader.retry is None else reader.retry
            if answered and about is not None:
                return True
        return False


logger = logging.getLogger("genmcp.client")

PASSING: Final = (429, 502, 503, 504)  # HTTP statuses of what may be over soon
_LIVED = 5.0  # seconds after which a stream that ends has not failed

Follow = Callable[[str | None, SseCursor, Callable[[], None]], Awaitable[object]]
"""Opens a stream of a revision at a place, says that it has begun, and passes on what it brings."""


class ServerStream:
    """Holds the stream of the server *where* open with *follow*, for as long as there may be one.

    A stream that breaks is opened again, where it broke if its events have ids. If they have none,
    or there is no stream for a while, what the server has said meanwhile is lost: *sink* is told.
    """

    def __init__(self, where: str, follow: Follow, options: HttpOptions, max_message: int) -> None:
        self._where = where
        self._follow = follow
        self._options = options
        self._max_message = max_message
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._sink: TransportSink
        self._failures = 0  # in a row, of all sessions
        self._lossy = False  # whether something was said, perhaps, that was not heard
        self._began: float | None = None

    def begin(self, sink: TransportSink, revision: str | None) -> None:
        """Open the stream beside the caller, for a new session."""
        self._sink = sink
        heard = self._heard = asyncio.Event()
        # Not in the context of whoever sent the message that comes before it.
        self._task = asyncio.create_task(self._run(revision), context=Context())
        self._task.add_done_callback(lambda _: heard.set())

    async def stop(self) -> None:
        """Close the stream: the session is over."""
        if self._task is not None:
            task, self._task = self._task, None
            self._lossy = True
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hearing(self) -> None:
        """Wait until the stream is open, or is not expected to be soon."""
        if self._task is not None:
            await self._heard.wait()

    async def _run(self, revision: str | None) -> None:
        place = SseCursor(self._max_message)
        had = False
        if self._failures:  # in the session before: a server may forget one after the other
            if self._given_up:
                self._heard.set()
            await asyncio.sleep(self._delay(place))
        while True:
            events = place.events
            self._began = None
            try:
                await self._follow(revision, place, self._begun)
            except HttpStatusError as error:
                if error.status not in PASSING:
                    if not had:  # mostly 405: it has none
                        return
                    if isinstance(error, SessionEnded):
                        self._sink.on_session_ended(error)
                        return
                    place.last_id = ""  # perhaps it does not know that any more
            except ClientError as error:
                logger.debug("the stream of %s broke: %s", self._where, error)
            had = had or self._began is not None
            self._ended(place.events > events, place)
            await asyncio.sleep(self._delay(place))

    def _begun(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._heard.set()
        if self._lossy:
            self._lossy = False
            self._sink.on_lost_notifications()

    def _ended(self, moved: bool, place: SseCursor) -> None:
        now = asyncio.get_running_loop().time()
        lived = moved or (self._began is not None and now - self._began > _LIVED)
        self._failures = 0 if lived else self._failures + 1
        self._lossy = self._lossy or not place.last_id
        if not self._given_up:
            return
        if self._failures == self._options.max_resume_attempts + 1:
            logger.warning(
                "%s says nothing unasked for now: its stream cannot be had, and is asked for every "
                "%g s (option: listen_retry_interval)",
                self._where,
                self._options.listen_retry_interval,
            )
        self._heard.set()
        self._sink.on_lost_notifications()

    def _delay(self, place: SseCursor) -> float:
        if self._given_up:
            return self._options.listen_retry_interval
        return place.delay(self._failures)

    @property
    def _given_up(self) -> bool:
        return self._failures > self._options.max_resume_attempts


_JSON: Final = (b"Content-Type", b"application/json")
_STREAM: Final = (b"Accept", b"text/event-stream")


class SseTransport(Transport):
    """Hears the event stream at *url*, and speaks to the endpoint that its first event names.

    *requester* belongs to somebody else.
    """

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
        self._requester = requester
        self._timeout = options.connect_timeout
        self._headers = encoded(options.headers)
        self._max_message = max_message
        self._reader = EventReader(max_message)
        self._sink: TransportSink
        self._stream: HttpResponse
        self._endpoint = ""
        self._over: ClientError | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def open(self, sink: TransportSink) -> None:
        """Open the stream and wait for the endpoint.

        Raises:
            ClientError: there is no such stream here.
        """
        self._sink = sink
        try:
            async with asyncio.timeout(self._timeout):
                self._stream = await self._get()
                try:
                    events = await self._find_endpoint()
                except BaseException:
                    await self._stream.close()
                    raise
        except TimeoutError:
            raise RequestTimeout("the endpoint event", self.where, self._timeout) from None
        self._hearing = asyncio.create_task(self._hear(events), context=Context())

    async def send(self, message: Send) -> None:
        """Post a message to the endpoint; what it brings comes on the stream."""
        if self._over is not None:
            raise self._over
        try:
            await self._post(message)
        except ClientError as error:
            if message.id is None:
                raise
            if self._over is None:
                self._sink.on_failure(message.id, unanswered(message, error))

    async def close(self) -> None:
        """Close the stream."""
        self._over = self._over or ClientClosed(self.where)
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)

    async def _get(self) -> HttpResponse:
        headers = [_STREAM, *self._headers]
        reply = await self._requester.request(
            "GET", path_of(self._url), headers, counts_against_limit=False
        )
        if reply.status != 200 or media_type(reply) != "text/event-stream":
            await reply.close()
            raise HttpStatusError(self.where, reply.status)
        return reply

    async def _find_endpoint(self) -> Sequence[Event | OversizedMessage]:
        """Take the first event, which names the endpoint; return those that came with it."""
        while chunk := await self._stream.chunk():
            for place, event in enumerate(events := self._reader.feed(chunk)):
                if isinstance(event, OversizedMessage) or event.event != "endpoint":
                    raise ProtocolError("its first event is not `endpoint`", self.where)
                self._endpoint = self._path_of(event.data)
                return events[place + 1 :]
        raise ConnectionLost(self.where, "its event stream ended at once")

    def _path_of(self, data: bytes) -> str:
        """Return the path of the endpoint, which has to be where the stream is.

        Elsewhere it would be given what is meant for this server: credentials, for one.
        """
        target = resolved(self._url, data.decode("utf-8", "replace").strip(), self.where)
        if (target.scheme, target.netloc) != (self._url.scheme, self._url.netloc):
            place = mask_url(target.geturl())
            raise ProtocolError(f"its endpoint is elsewhere: {place}", self.where)
        return path_of(target)

    async def _hear(self, events: Sequence[Event | OversizedMessage]) -> None:
        reason = "the event stream ended"
        try:
            while True:
                for event in events:
                    self._pass_on(event)
                if not (chunk := await self._stream.chunk()):
                    break
                events = self._reader.feed(chunk)
        except ClientError as error:
            reason = str(error)
        finally:
            await self._stream.close()
        self._over = ConnectionLost(self.where, reason)
        self._sink.on_failure(None, self._over)

    def _pass_on(self, event: Event | OversizedMessage) -> None:
        if isinstance(event, OversizedMessage):
            self._sink.on_oversized(event.size, event.head)
        elif event.data and event.event == "message":
            self._sink.on_message(event.data)

    async def _post(self, message: Send) -> None:
        headers = [_JSON, *self._headers, *headers_of(message)]
        counts_against_limit = message.id is not None
        reply = await self._requester.request(
            "POST",
            self._endpoint,
            headers,
            message.message,
            counts_against_limit=counts_against_limit,
        )
        try:
            if (
                media_type(reply) == "text/event-stream"
            ):  # nothing is wanted of it, and its end may never come
                return
            content = await reply.read(self._max_message)
        finally:
            await reply.close()
        if reply.status >= 300:
            raise HttpStatusError(self.where, reply.status, content, reply.headers)
