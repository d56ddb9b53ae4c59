"""The interfaces of client transports: `Transport` and its sink, `HttpRequester` and its response.

`genmcp/_transports` is the server's counterpart of this folder. The guide for
transports of other packages is docs/how-to/write-a-transport.md.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final, Protocol, TypeAlias

from genmcp.client.errors import ClientError, ProtocolError
from genmcp.core.client.events import SendMessage
from genmcp.wire.jsonrpc import RequestId

Headers = Iterable[tuple[bytes, bytes]]

# Bytes of a body that are read in one turn of the event loop. A byte may cost several microseconds:
# a server can send messages of one byte, and chunks of one byte, each of which counts as more.
_TURN: Final = 4096
_CHUNK: Final = 64

OnWait: TypeAlias = Callable[[bool], None]
"""Called with true when a request waits for the user to log in, and with false after that."""


class TransportSink(Protocol):
    """Receives the messages and failures of a transport. Implemented by the client's connection.

    A transport calls these methods in the event loop; none of them blocks or raises. With
    `Transport.per_message`, *request_id* is the request whose response contained the message.
    Without `per_message`, it is None.

    `on_message` and `on_oversized` return whether request *request_id* is finished: it was
    answered, has failed, or was cancelled. If the response ends while the request is unfinished,
    the transport resumes the response where the revision allows resumption, and otherwise calls
    `on_failure`. For a *request_id* of None the return value has no meaning.
    """

    def on_message(self, message: bytes, request_id: RequestId | None = None) -> bool:
        """Handle the bytes of one message; they may be a JSON-RPC batch or invalid JSON."""
        ...

    def on_oversized(self, size: int, head: bytes, request_id: RequestId | None = None) -> bool:
        """Handle a message that was discarded because of its size.

        Args:
            size: the number of bytes that were received before the message was discarded.
            head: the beginning of the message.
            request_id: the request whose response contained the message.
        """
        ...

    def on_failure(self, request_id: RequestId | None, error: ClientError) -> None:
        """Handle the failure of a request, or of the whole transport if *request_id* is None.

        After a failure of the whole transport, the transport passes no more messages, and
        `Transport.send` raises *error* until `Transport.open` is called again.
        """
        ...

    def on_wait(self, request_id: RequestId, *, waiting: bool) -> None:
        """Handle that a request waits for the user to log in, or does not wait any more.

        No timeout of the request expires meanwhile.
        """
        ...

    def on_lost_notifications(self) -> None:
        """Handle a possible loss of notifications: the client clears its caches."""
        ...

    def on_session_ended(self, error: ClientError) -> None:
        """Handle the loss of the session on the server: the client begins another session.

        Called when the event stream for notifications reports the loss. A lost session that a
        request reports is passed to `on_failure` as `SessionEnded`.
        """
        ...


class Transport(ABC):
    """Carries messages to one server, and the server's messages to a sink. Owned by a client.

    Attributes:
        per_message: whether each request has a response of its own, as over HTTP. If true, in
            2026-07-28:

            - The client cancels a request by cancelling its `send`, and sends no notification.
            - A server that does not respond to `server/discover` within `open_timeout` has failed.
              Otherwise silence for `probe_timeout` means a server of an earlier revision.
            - `SendMessage.param_headers` repeats arguments of tool calls, and tools whose
              `x-mcp-header` annotations are invalid are left out.
        server_name: the server as errors and logs name it: a URL or a command, secrets masked.
    """

    per_message: ClassVar[bool] = False
    server_name: str

    @abstractmethod
    async def open(self, sink: TransportSink) -> None:
        """Connect, and pass the messages of the server to *sink* from now on.

        Called again on the same transport in two cases:

        - The transport failed during the handshake, because a server of an earlier revision may
          exit on the first request. The client opens the transport once more, without `close`.
        - The user opens a client again that was closed, and whose target is this transport. A
          transport that can be used only once raises `ClientClosed`, as those of genmcp do.

        Raises:
            ClientError: the server cannot be reached, or the transport cannot be opened again.
        """

    @abstractmethod
    async def send(self, message: SendMessage) -> None:
        """Send a message. Several calls may run concurrently.

        With `per_message`, return when the response has ended and all of it was passed to the sink.
        Otherwise return when the message was written. If the task of the caller is cancelled, the
        message need not be written, and its response is closed.

        If a request (`message.id` is not None) fails, call `TransportSink.on_failure` with its id,
        and do not raise the error. A notification that cancels request `message.withdraws` can be
        dropped if that request was not written yet; the request must not be written then.

        Raises:
            ClientError: a notification or a response could not be delivered. Or the transport is
                not open: the error is then that of the last `on_failure` for the whole transport,
                or `ClientClosed`.
        """

    async def notifications_ready(self) -> None:  # noqa: B027  # most transports need not wait
        """Wait until the server can send notifications that belong to no request.

        Return at once if the transport always receives them, or if it cannot expect them soon.
        """

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, and wait until that is done. The sink is not called after it.

        May be called repeatedly, and while `open` or `send` runs.
        """


class HttpResponse(ABC):
    """An HTTP response whose body is still to be read. Owned by the code that sent the request.

    Attributes:
        status: the status code.
        headers: the headers, with names in lower case.
        on_close: called once, when the response is closed.
    """

    status: int
    headers: Mapping[str, str]

    def __init__(self, server_name: str) -> None:
        self.server_name = server_name
        self.on_close: Callable[[], None] | None = None
        self._received = b""
        self._at = 0  # the position in `_received` of the next part
        self._turn = 0  # how much was read since other tasks ran

    @property
    def media_type(self) -> str:
        """The media type of the body in lower case, without parameters; empty if not declared.

        That of a compressed body names the coding too, so that no reader takes it for its own.
        """
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding in ("", "identity"):
            return media_type
        return f"{media_type} compressed by {coding}"

    async def chunk(self) -> bytes:
        """Wait for the next part of the body and return it; return `b""` at the end.

        However much was received, other tasks run after some 4 KiB of it.

        Raises:
            ConnectionLost: the connection was closed within the body.
            ProtocolError: the response is not valid HTTP.
        """
        if self._turn >= _TURN:
            self._turn = 0
            await asyncio.sleep(0)
        if self._at >= len(self._received):
            self._received, self._at = await self._chunk(), 0
        part = self._received[self._at : self._at + _TURN]
        self._at += _TURN
        self._turn += len(part) + _CHUNK
        return part

    async def read(self, limit: int) -> bytes:
        """Read the body to its end, and return the part that was not read before.

        Args:
            limit: maximum number of bytes.

        Raises:
            ConnectionLost: the connection was closed within the body.
            ProtocolError: the response is not valid HTTP, or exceeds *limit*.
        """
        body = bytearray()
        while data := await self.chunk():
            body += data
            if len(body) > limit:
                raise ProtocolError(f"a message of more than {limit} bytes", self.server_name)
        return bytes(body)

    async def close(self) -> None:
        """Release the connection. May be called repeatedly.

        The connection can be reused if the response was read to its end. Otherwise the connection
        is closed.
        """
        on_close, self.on_close = self.on_close, None
        try:
            await self._release()
        finally:
            if on_close is not None:
                on_close()

    @abstractmethod
    async def _chunk(self) -> bytes:
        """Return what was received of the body, of any size; see `chunk`."""

    @abstractmethod
    async def _release(self) -> None:
        """Release the connection; may be called repeatedly."""


class HttpRequester(ABC):
    """An HTTP client for one origin. Owned by an `HttpTransport`.

    Args:
        server_name: the server as errors name it.
        max_connections: maximum number of concurrent requests; None is no limit.

    Attributes:
        waits: whether `request` may wait for the user, and then calls *on_wait*.
    """

    waits: ClassVar[bool] = False

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
        on_wait: OnWait | None = None,  # see `waits`
    ) -> HttpResponse:
        """Send a request and return the response once its head was received, for any status.

        Args:
            method: the HTTP method.
            path: the path with its query, as in the request line.
            headers: headers besides those of the connection, such as Host and Content-Length.
            body: the content; None: the request has no content.
            counts_against_limit: whether the request waits for one of the `max_connections` slots
                and occupies it. False for a request whose response may never end, and for a
                message that an open request depends on: that request occupies a slot, so that
                waiting for a slot could be a deadlock.
            on_wait: called when the request begins or ends to wait for the user to log in. None:
                no caller waits for the response, so that the user should not be asked.

        Raises:
            ConnectError: the connection could not be established; nothing was sent.
            ConnectionLost: the connection was closed before the head of the response.
            ProtocolError: the response is not valid HTTP.
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
