"""A pool of HTTP/1.1 connections to one origin; h11 writes requests and parses responses.

A tool call is one small request, over which a general HTTP client takes several times as long as
the server does (figures in design/decisions.md). `HttpxAdapter` is for what this pool does not do:
proxies, and the user's own `httpx.AsyncClient`.
"""

import asyncio
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import SplitResult

import h11

from genmcp.client.errors import (
    ClientClosed,
    ConnectError,
    ConnectionLost,
    ProtocolError,
)
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse
from genmcp.tls import trusted_context

MAX_CONNECTIONS = 100  # concurrent requests; further ones wait
CONNECT_TIMEOUT = 10.0  # seconds to establish a connection
# Seconds for which an idle connection is kept. Common servers close one after 5 seconds. If both
# ends close at the same moment, it is unknown whether a request arrived, so this is less.
KEEPALIVE_TIMEOUT = 4.0
# Of the head of a response, of the trailers behind a chunked body, and of all interim responses.
MAX_HEADER_BYTES = 32 * 1024
_EYEBALLS_DELAY: Final = 0.25  # seconds until the next address is tried too: RFC 8305, section 8
_BUFFER_BYTES: Final = 256 * 1024  # received and not read: beyond it, reading pauses
# Given to h11 at once. It bounds a head only while the head is incomplete.
_PARSED_BYTES: Final = 16 * 1024


class HttpPool(HttpRequester):
    """Sends requests to the origin of a URL over reused connections. Owned by its transport.

    Args:
        url: a URL of the origin.
        server_name: the server as errors name it.
        tls: the TLS context; None: `trusted_context()`.
    """

    def __init__(
        self, url: SplitResult, server_name: str, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(server_name, MAX_CONNECTIONS)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = None
        if url.scheme == "https":
            self._tls = tls or trusted_context()
        # RFC 9110, section 12.5.3: without Accept-Encoding, a body may come in any coding.
        self._headers = [(b"Host", _host_header(url)), (b"Accept-Encoding", b"identity")]
        # Of this pool, and until it is closed: heads have access tokens. Building one validates all
        # headers, which is a fifth of the client's CPU time for a request. Most requests repeat the
        # head of an earlier one: the same tool with arguments of the same length.
        self._head = lru_cache(maxsize=128)(_request_head)
        self._idle: list[_PooledConnection] = []  # the least recently used first
        self._busy: set[_PooledConnection] = set()
        self._closed = False

    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        length = None if body is None else len(body)
        try:
            head = self._head(method, path, (*self._headers, *headers), length)
        except h11.LocalProtocolError as error:  # such as an event id with control characters
            raise ConnectError(self.server_name, f"the request is not valid: {error}") from None
        connection = self._reusable_connection() or await self._connect()
        self._busy.add(connection)
        response = _PooledResponse(self, connection)
        try:
            connection.send(head, body)
            await response.read_head()
        except BaseException:
            await response.close()
            raise
        return response

    async def close(self) -> None:
        """Close all connections, including those in use."""
        self._closed = True
        self._head.cache_clear()
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.closed.wait()

    def take_back(self, connection: "_PooledConnection") -> None:
        """Take back a connection from its response, for reuse if the response is complete."""
        self._busy.discard(connection)
        if self._closed or not connection.start_next_cycle():
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def _reusable_connection(self) -> "_PooledConnection | None":
        limit = time.monotonic() - KEEPALIVE_TIMEOUT
        while self._idle and self._idle[0].idle_since <= limit:
            self._idle.pop(0).abort()
        # The most recently used one first, so that the others expire after a burst of requests.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_silent():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> "_PooledConnection":
        if self._closed:
            raise ClientClosed(self.server_name)
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {}
        if self._races_addresses(loop):
            options["happy_eyeballs_delay"] = _EYEBALLS_DELAY
        timeout = CONNECT_TIMEOUT
        try:
            async with asyncio.timeout(timeout):
                connection: _PooledConnection
                _, connection = await loop.create_connection(
                    _PooledConnection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    **options,
                )
        except TimeoutError:
            reason = f"no connection within {timeout:g} s"
            raise ConnectError(self.server_name, reason) from None
        except ConnectionRefusedError:
            reason = "connection refused; is the server running, and is the port right?"
            raise ConnectError(self.server_name, reason) from None
        except (OSError, UnicodeError) as error:  # an unknown host, an invalid certificate, ...
            raise ConnectError(self.server_name, str(error) or type(error).__name__) from error
        if self._closed:  # while the connection was established
            connection.abort()
            raise ClientClosed(self.server_name)
        return connection

    def _races_addresses(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether to try several addresses concurrently, which uvloop cannot.

        Not for a single address: asyncio leaves a socket to the garbage collector if the race is
        cancelled at the moment in which it ends.
        """
        return isinstance(loop, asyncio.BaseEventLoop) and not _is_address(self._host)


class _PooledConnection(asyncio.Protocol):
    """A connection: its socket, its parser, and the bytes that were received and not parsed.

    An `asyncio.Protocol`, since an `asyncio.StreamReader` does not tell whether it has unread
    bytes, and these decide whether the connection can be reused.
    """

    def __init__(self) -> None:
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.closed = asyncio.Event()
        self.idle_since = 0.0
        self._transport: asyncio.Transport
        self._has_input: Callable[[], bool]
        self._received = bytearray()
        self._paused = False
        self._eof = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: the transports of uvloop are not instances of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        self._has_input = _input_check(connected.fileno())
        _enable_keep_alive(connected)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _BUFFER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._eof = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._eof = True
        self._error = exc
        self.closed.set()
        self._wake()

    def send(self, head: h11.Request, body: bytes | None) -> None:
        """Write a request.

        The write is not drained: a server may respond before it has read the request, and the
        response must be read without waiting. The body is in memory in any case.
        """
        data = self.http.send(head) or b""
        if body is not None:
            data += self.http.send(h11.Data(data=body)) or b""
        self.http.send(h11.EndOfMessage())
        self._transport.write(data)

    async def read(self) -> bytes:
        """Return the next bytes that were received, empty at the end.

        Raises:
            OSError: the connection failed.
        """
        if not self._received and not self._eof:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._received and self._error is not None:
            raise self._error
        data = bytes(self._received[:_PARSED_BYTES])
        del self._received[:_PARSED_BYTES]
        if self._paused and not self._received and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return data

    def start_next_cycle(self) -> bool:
        """Prepare for another request; return False if the connection cannot be reused.

        Bytes behind a complete response answer no request. They would be taken for the response to
        the next one.
        """
        if self.http.their_state is not h11.DONE or self.http.trailing_data[0] or self._received:
            return False
        self.http.start_next_cycle()
        return not self._eof and not self._transport.is_closing()

    def is_silent(self) -> bool:
        """Return whether nothing was received since the last response, not even the end.

        The socket is asked as well: the event loop may not have read it yet.
        """
        return (
            not self._received
            and not self._eof
            and not self._transport.is_closing()
            and not self._has_input()
        )

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _PooledResponse(HttpResponse):
    """A response on a connection of a pool."""

    def __init__(self, pool: HttpPool, connection: _PooledConnection) -> None:
        super().__init__(pool.server_name)
        self._pool = pool
        self._connection = connection
        self._http = connection.http
        self._ended = False
        self._ambiguous = False
        self._released = False

    async def read_head(self) -> None:
        """Read the status and the headers, and skip interim responses (1xx)."""
        size = 0
        while True:
            size += await self._receive("before it responded" if not size else "in a response")
            while (event := self._next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    self._set_head(event)
                    return
            # h11 bounds a single head. This also bounds interim responses, of which a server could
            # send any number.
            if size > MAX_HEADER_BYTES:
                raise self._too_large()

    def _set_head(self, head: h11.Response) -> None:
        self.status = head.status_code
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.headers = headers
        # RFC 9112, section 6.3: an intermediary may have taken the other one of both for the end
        # of the body, so what follows on this connection is not reliable.
        self._ambiguous = "transfer-encoding" in headers and "content-length" in headers

    async def _chunk(self) -> bytes:
        while not self._ended:
            event = self._next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if event is h11.NEED_DATA:
                await self._receive("in a response")
            else:  # EndOfMessage
                self._ended = True
        return b""

    async def _release(self) -> None:
        if not self._released:
            self._released = True
            if self._ambiguous:
                self._connection.abort()
            self._pool.take_back(self._connection)

    def _next_event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if self._http.trailing_data[1]:  # the connection was closed within the body
                raise ConnectionLost(self.server_name, "it was closed in a response") from None
            if error.error_status_hint == 431:
                raise self._too_large() from None
            reason = f"its response is not valid HTTP/1.1: {str(error)[:200]}"
            raise ProtocolError(reason, self.server_name) from None

    async def _receive(self, when: str) -> int:
        """Pass what is received to the parser; return the number of bytes."""
        try:
            data = await self._connection.read()
        except OSError as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLost(self.server_name, reason) from error
        self._http.receive_data(data)
        if not data and self._http.their_state is h11.SEND_RESPONSE:
            raise ConnectionLost(self.server_name, f"it was closed {when}")
        return len(data)

    def _too_large(self) -> ProtocolError:
        reason = f"the head or the trailers of its response exceed {MAX_HEADER_BYTES} bytes"
        return ProtocolError(reason, self.server_name)


def _request_head(
    method: str, path: str, headers: tuple[tuple[bytes, bytes], ...], length: int | None
) -> h11.Request:
    framing = [] if length is None else [(b"Content-Length", b"%d" % length)]
    return h11.Request(method=method, target=path, headers=[*headers, *framing])


def _enable_keep_alive(connected: socket.socket) -> None:
    """Make the system detect a dead connection, since an event stream may be silent for hours.

    A firewall or a NAT in between may drop an idle connection without notice to either end.
    """
    with suppress(OSError):  # some systems refuse it on a connection that was closed already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _host_header(url: SplitResult) -> bytes:
    name = (url.hostname or "").encode("idna")
    if b":" in name:
        name = b"[%b]" % name
    return name if url.port is None else b"%b:%d" % (name, url.port)


def _input_check(fd: int) -> Callable[[], bool]:
    """Return a function that checks whether file descriptor *fd* has unread input."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: bool(select.select([fd], [], [], 0)[0])
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return lambda: bool(poll.poll(0))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
