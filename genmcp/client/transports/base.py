"""The interfaces of this folder: a transport and its sink, and an HTTP client and its response."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

from genmcp._core.client.events import SendMessage
from genmcp._wire.jsonrpc import RequestId
from genmcp.client.errors import ClientError, MessageTooLarge

Headers = Iterable[tuple[bytes, bytes]]


class TransportSink(Protocol):
    """Receives the messages and failures of a transport. Implemented by the client's connection.

    Its methods are called in the event loop and must not block. Over HTTP, *request_id* is the
    request whose response contained the message; otherwise it is None.

    `on_message` and `on_oversized` return whether that request needs nothing more: it was answered,
    has failed, or was cancelled. If its response ends before that, the transport resumes the
    response where the revision allows it, and reports a failure otherwise.
    """

    def on_message(self, message: bytes, request_id: RequestId | None = None) -> bool:
        """Handle one message as it was received: it may be a batch or invalid JSON."""
        ...

    def on_oversized(self, size: int, head: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message that was discarded because of its size.

        Args:
            size: The bytes that were received of it; there may have been more.
            head: The beginning of the message.
            request_id: The request whose response contained it.
        """
        ...

    def on_failure(self, request_id: RequestId | None, error: ClientError) -> None:
        """Handle the failure of a request, or of the whole transport if *request_id* is None.

        After a failure of the transport nothing more is received, and `send` raises the same error
        until the transport is opened again. A server of a legacy revision may exit because of the
        first request, so the client may open it again.
        """
        ...

    def on_lost_notifications(self) -> None:
        """Handle a gap in the notifications outside of requests."""
        ...

    def on_session_ended(self, error: ClientError) -> None:
        """Handle the end of the session, reported by the stream for notifications."""
        ...


class Transport(ABC):
    """Carries messages to one server, and the server's messages to a sink. Owned by a client.

    Attributes:
        per_message: Whether each request has a response of its own, as over HTTP. A request of
            2026-07-28 is then cancelled by cancelling its `send`, without a notification.
        server_name: The server as errors and logs name it: a URL or a command, secrets masked.
    """

    per_message: ClassVar[bool] = False
    server_name: str

    @abstractmethod
    async def open(self, sink: TransportSink) -> None:
        """Prepare to send, or do so again after the transport has failed.

        Raises:
            ClientError: The server cannot be reached.
        """

    @abstractmethod
    async def send(self, message: SendMessage) -> None:
        """Send a message. Several may be sent concurrently.

        With `per_message` this returns when the response has ended and all of it was passed to the
        sink; cancelling the caller abandons the response. Otherwise it returns when the message was
        written. The failure of a request is passed to the sink and not raised.

        Raises:
            ClientError: A notification or an answer could not be delivered, or the transport is not
                open.
        """

    async def notifications_ready(self) -> None:  # noqa: B027  # most transports need not wait
        """Wait until notifications outside of requests are received, or none are expected soon."""

    @abstractmethod
    async def close(self) -> None:
        """Close the transport, after which the sink is not called. May be called repeatedly."""


class HttpResponse(ABC):
    """An HTTP response whose body is still to be read. Owned by the code that sent the request.

    Attributes:
        status: The status code.
        headers: The headers, with names in lower case.
        on_close: Called once, when the response is closed.
    """

    status: int
    headers: Mapping[str, str]

    def __init__(self, server_name: str) -> None:
        self.server_name = server_name
        self.on_close: Callable[[], None] | None = None

    @property
    def media_type(self) -> str:
        """The media type of the body in lower case, without parameters; empty if not declared."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @abstractmethod
    async def chunk(self) -> bytes:
        """Return the next part of the body as soon as it was received, empty at the end.

        Raises:
            ConnectionLost: The connection was closed within the body.
            ProtocolError: The response is not valid HTTP.
        """

    async def read(self, limit: int) -> bytes:
        """Return the rest of the body.

        Args:
            limit: Maximum number of bytes.

        Raises:
            MessageTooLarge: The body exceeds *limit*.
            ConnectionLost: The connection was closed within the body.
            ProtocolError: The response is not valid HTTP.
        """
        chunks = []
        size = 0
        while data := await self.chunk():
            size += len(data)
            if size > limit:
                raise MessageTooLarge(self.server_name, size, limit)
            chunks.append(data)
        return b"".join(chunks)

    async def close(self) -> None:
        """Release the connection. May be called repeatedly.

        The connection is reused if the response was read to its end, and is closed otherwise.
        """
        on_close, self.on_close = self.on_close, None
        try:
            await self._release()
        finally:
            if on_close is not None:
                on_close()

    @abstractmethod
    async def _release(self) -> None:
        """Release the connection; may be called repeatedly."""


class HttpRequester(ABC):
    """An HTTP client for one origin. Owned by an `HttpTransport`.

    Args:
        server_name: The server as errors name it.
        max_connections: Maximum number of concurrent requests; None is no limit.
    """

    def __init__(self, server_name: str, max_connections: int | None = None) -> None:
        self.server_name = server_name
        self._slots = None if max_connections is None else asyncio.Semaphore(max_connections)

    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        counts_against_limit: bool = True,
    ) -> HttpResponse:
        """Send a request and return the response once its head was received, for any status.

        Args:
            method: The HTTP method.
            path: The path with its query, as in the request line.
            headers: Headers besides those of the connection, such as Host and Content-Length.
            body: The content, None without.
            counts_against_limit: Whether the request takes one of the `max_connections` slots, and
                waits for one. False for a request that may never end, and for one that an open
                request depends on: waiting for a slot could then be a deadlock.

        Raises:
            ConnectError: The connection could not be established; nothing was sent.
            ConnectionLost: The connection was closed before the head of the response.
            ProtocolError: The response is not valid HTTP.
        """
        slots = self._slots
        if slots is None or not counts_against_limit:
            return await self._send(method, path, headers, body)
        await slots.acquire()
        try:
            response = await self._send(method, path, headers, body)
        except BaseException:
            slots.release()
            raise
        response.on_close = slots.release
        return response

    @abstractmethod
    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        """Send a request; see `request`."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, including those in use. May be called repeatedly."""
