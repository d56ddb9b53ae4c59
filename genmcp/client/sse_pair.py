"""HTTP+SSE, the transport of 2024-11-05: an event stream to hear, and a second URL to speak to.

2024-11-05, transports, "HTTP with SSE".
"""

import asyncio
from collections.abc import Sequence
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
)
from genmcp.client.faults import unanswered
from genmcp.client.http_headers import encoded, headers_of, media_type, path_of, resolved
from genmcp.client.http_options import HttpOptions
from genmcp.client.masking import masked_url
from genmcp.client.requester import Reply, Requester
from genmcp.client.transport import Sink, Transport
from genmcp.core.client_events import Send
from genmcp.wire.lines import MAX_MESSAGE, OversizedMessage
from genmcp.wire.sse import Event, EventReader

__all__ = ["SsePair"]

_JSON: Final = (b"Content-Type", b"application/json")
_STREAM: Final = (b"Accept", b"text/event-stream")


class SsePair(Transport):
    """Hears the event stream at *url*, and speaks to the endpoint that its first event names.

    *requester* belongs to somebody else.
    """

    def __init__(
        self,
        url: SplitResult,
        requester: Requester,
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
        self._sink: Sink
        self._stream: Reply
        self._endpoint = ""
        self._over: ClientError | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def open(self, sink: Sink) -> None:
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
                self._sink.failed(message.id, unanswered(message, error))

    async def close(self) -> None:
        """Close the stream."""
        self._over = self._over or ClientClosed(self.where)
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)

    async def _get(self) -> Reply:
        headers = [_STREAM, *self._headers]
        reply = await self._requester.request("GET", path_of(self._url), headers, waits=False)
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
            place = masked_url(target.geturl())
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
        self._sink.failed(None, self._over)

    def _pass_on(self, event: Event | OversizedMessage) -> None:
        if isinstance(event, OversizedMessage):
            self._sink.too_long(event.size, event.head)
        elif event.data and event.event == "message":
            self._sink.received(event.data)

    async def _post(self, message: Send) -> None:
        headers = [_JSON, *self._headers, *headers_of(message)]
        waits = message.id is not None
        reply = await self._requester.request(
            "POST", self._endpoint, headers, message.message, waits=waits
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
