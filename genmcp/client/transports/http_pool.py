"""HTTP/1.1 to one origin over kept connections: no more than the protocol asks for.

A call of a tool is one small request. A general HTTP client takes several times as long over it
as the server does (design/decisions.md); where more than this is needed (a proxy, HTTP/2, its own
authentication), `HttpxAdapter` takes its place.
"""

import asyncio
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import SplitResult

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ConnectionLost,
    ConnectionRefused,
    ProtocolError,
)
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse

__all__ = ["HttpPool"]

_HEAD = 64 * 1024  # bytes that the head of a response may have
_NEXT = 0.25  # seconds until the next address is tried too: RFC 8305, section 8
_PIECE = 256 * 1024  # bytes of a body that are taken at once
_IDLE = 4.0
"""Seconds a connection is kept unused. Common servers keep one for 5 s: when both ends give up in
the same moment, nobody can tell whether a request got through."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")


class _PooledConnection:
    """A connection, and whether it can be used again.

    waited: whether the request it is used for has one of the places of those that wait.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.waited = False
        self.idle_since = 0.0
        # What was received and not read: a StreamReader does not say it in public.
        self.left: bytearray = reader._buffer  # type: ignore[attr-defined]
        self._readable = _readable(writer.get_extra_info("socket").fileno())

    def usable(self, now: float) -> bool:
        """Whether nothing came since it was used: only its end, or what nobody asked for, can."""
        return (
            now - self.idle_since < _IDLE
            and not self.left
            and not self.reader.at_eof()
            and not self.writer.is_closing()
            and not self._readable()
        )

    def abort(self) -> None:
        self.writer.transport.abort()


class HttpPool(HttpRequester):
    """A pool of connections to the origin of *url*.

    where: the server, as errors name it. most: how many of the requests that wait there may be at
    once. connect_timeout: seconds.
    """

    def __init__(
        self,
        url: SplitResult,
        where: str,
        *,
        connect_timeout: float,
        most: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.where = where
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = tls
        if url.scheme == "https" and tls is None:
            self._tls = ssl.create_default_context()
        self._connect_timeout = connect_timeout
        # RFC 9110, section 12.5.3: without Accept-Encoding a body may come in any coding.
        self._fixed = b"Host: %b\r\nAccept-Encoding: identity\r\n" % _host(url)
        self._slots = asyncio.Semaphore(most)
        self._idle: list[_PooledConnection] = []  # the one that is idle longest first
        self._sweeping: asyncio.TimerHandle | None = None
        self._busy: set[_PooledConnection] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        counts_against_limit: bool = True,
    ) -> HttpResponse:
        """Send a request and return the head of its response."""
        lines = [f"{method} {path} HTTP/1.1\r\n".encode("ascii"), self._fixed]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if body is not None:
            lines.append(b"Content-Length: %d\r\n\r\n" % len(body))
            lines.append(body)
        else:
            lines.append(b"\r\n")
        if counts_against_limit:
            await self._slots.acquire()
        try:
            connection = self._kept() or await self._connect()
        except BaseException:
            if counts_against_limit:
                self._slots.release()
            raise
        connection.waited = counts_against_limit
        self._busy.add(connection)
        reply = _PooledResponse(self, connection)
        try:
            # Not drained: a server may answer before it has read everything, and reading that
            # answer must not wait for it. The body is in memory anyway.
            connection.writer.write(b"".join(lines))
            await reply.read_head()
        except BaseException:
            await reply.close()
            raise
        return reply

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in connections:
            connection.abort()
        closing = (connection.writer.wait_closed() for connection in connections)
        await asyncio.gather(*closing, return_exceptions=True)

    def give_back(self, connection: _PooledConnection, *, reusable: bool) -> None:
        """Take a connection back from the reply that used it."""
        self._busy.discard(connection)
        if connection.waited:
            self._slots.release()
        if reusable and not connection.left and not self._closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._sweeping is None:
                self._sweeping = asyncio.get_running_loop().call_later(_IDLE, self._sweep)
        else:
            connection.abort()

    def _sweep(self) -> None:
        """Close what has been idle for too long, and come back for the rest."""
        now = time.monotonic()
        while self._idle and now - self._idle[0].idle_since >= _IDLE:
            self._idle.pop(0).abort()
        self._sweeping = None
        if self._idle:
            wait = self._idle[0].idle_since + _IDLE - now
            self._sweeping = asyncio.get_running_loop().call_later(wait, self._sweep)

    def _kept(self) -> _PooledConnection | None:
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(now):
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _PooledConnection:
        if self._closed:
            raise ClientClosed(self.where)
        delay = {"happy_eyeballs_delay": _NEXT} if self._may_race() else {}
        try:
            async with asyncio.timeout(self._connect_timeout):
                streams = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, limit=_HEAD, **delay
                )
        except TimeoutError:
            reason = f"no connection within {self._connect_timeout:g} s"
            raise ConnectError(self.where, reason) from None
        except ConnectionRefusedError:
            raise ConnectionRefused(self.where) from None
        except (OSError, UnicodeError) as error:  # the name is unknown, the certificate is bad, ...
            raise ConnectError(self.where, str(error) or type(error).__name__) from error
        connection = _PooledConnection(*streams)
        _keep_alive(connection.writer.get_extra_info("socket"))
        if self._closed:  # meanwhile
            connection.abort()
            raise ClientClosed(self.where)
        return connection

    def _may_race(self) -> bool:
        """Whether several addresses may be tried side by side, which uvloop cannot.

        Not where there is but one: asyncio leaves a socket to the garbage collector if the race is
        cancelled in the instant in which it ends.
        """
        able = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        return able and not _is_address(self._host)


class _PooledResponse(HttpResponse):
    """A response on a connection."""

    def __init__(self, pool: HttpPool, connection: _PooledConnection) -> None:
        super().__init__(pool.where)
        self._pool = pool
        self._connection: _PooledConnection | None = connection
        self._reader = connection.reader
        self._left = 0  # bytes of the body, or of the chunk, that are still to come
        self._framing = "length"
        self._over = False
        self._reusable = False

    async def read_head(self) -> None:
        """Read status and headers, those of interim responses left out."""
        while True:
            version, self.status, self.headers = self._parsed(await self._until(b"\r\n\r\n"))
            if self.status >= 200:
                break
            if self.status == 101:
                raise ProtocolError("it changed to a protocol nobody asked for", self.where)
        headers = self.headers
        self._reusable = version == b"1" and "close" not in headers.get("connection", "").lower()
        if self.status in (204, 304):
            self._over = True
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._framing = "chunked"
            if "content-length" in headers:
                # RFC 9112, section 6.3: where it ends is not what everybody in between thinks.
                self._reusable = False
        elif (length := headers.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise ProtocolError(f"its Content-Length is {length[:40]!r}", self.where)
            self._left = int(length)
            self._over = not self._left
        else:
            self._framing = "close"
            self._reusable = False

    async def chunk(self) -> bytes:
        """Return the next piece of the body."""
        if self._over:
            return b""
        if self._framing == "close":
            data = await self._some(_PIECE)
            self._over = not data
            return data
        if self._framing == "chunked" and not self._left:
            await self._next_chunk()
            if self._over:
                return b""
        data = await self._some(min(self._left, _PIECE))
        if not data:
            raise ConnectionLost(self.where, "it ended within a response")
        self._left -= len(data)
        if not self._left:
            if self._framing == "length":
                self._over = True
            elif await self._until(b"\r\n") != b"\r\n":
                raise ProtocolError("a chunk does not end where it said", self.where)
        return data

    async def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._pool.give_back(connection, reusable=self._over and self._reusable)

    async def _next_chunk(self) -> None:
        if not (found := _SIZE.fullmatch(await self._until(b"\r\n"))):
            raise ProtocolError("it sent a chunk without a size", self.where)
        self._left = int(found[1], 16)
        if not self._left:
            while await self._until(b"\r\n") != b"\r\n":
                pass  # a trailer
            self._over = True

    async def _until(self, end: bytes) -> bytes:
        try:
            return await self._reader.readuntil(end)
        except asyncio.IncompleteReadError as error:
            when = "within a response" if error.partial else "before it answered"
            raise ConnectionLost(self.where, f"it ended {when}") from None
        except asyncio.LimitOverrunError:
            raise ProtocolError(f"a head of more than {_HEAD} bytes", self.where) from None
        except OSError as error:
            raise self._lost(error) from error

    async def _some(self, most: int) -> bytes:
        try:
            return await self._reader.read(most)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> ClientError:
        return ConnectionLost(self.where, str(error) or type(error).__name__)

    def _parsed(self, head: bytes) -> tuple[bytes, int, dict[str, str]]:
        first, *lines = head[:-4].split(b"\r\n")
        if not (found := _STATUS.fullmatch(first)):
            said = first[:40].decode("latin-1")
            raise ProtocolError(f"it does not speak HTTP/1.1 but says {said!r}", self.where)
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not name or name != name.strip():
                raise ProtocolError(f"a header that is none: {name[:40]!r}", self.where)
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return found[1], int(found[2]), headers


def _keep_alive(line: socket.socket) -> None:
    """Let the system find out when *line* is dead: a stream may be silent for as long as it likes.

    What is between both ends may forget a line that is not used, and tells neither of them.
    """
    with suppress(OSError):  # some systems refuse it on a line that has ended already
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _host(url: SplitResult) -> bytes:
    """Return what the Host header says of *url*."""
    name = (url.hostname or "").encode("idna")
    if b":" in name:
        name = b"[%b]" % name
    return name if url.port is None else b"%b:%d" % (name, url.port)


if hasattr(select, "poll"):

    def _readable(fd: int) -> Callable[[], bool]:
        """Return what says whether anything has come at *fd*."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return lambda: bool(poll.poll(0))

else:

    def _readable(fd: int) -> Callable[[], bool]:
        """Return what says whether anything has come at *fd*."""
        return lambda: bool(select.select([fd], [], [], 0)[0])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
