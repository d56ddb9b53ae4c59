"""A load balancer for tests: it sends each request to the next server in turn.

Connections from clients stay open between requests; those to servers do not. A stream stays with
its server until it ends, or until the client closes its connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

_Connected: TypeAlias = Callable[
    [], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]
]

_READ_AT_ONCE = 65_536
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"


class Balancer:
    """Forwards HTTP/1.1 requests to servers in turn. Servers that are down are skipped.

    Args:
        targets: the base URLs of the servers.
        port: the port on loopback to listen on. Default 0: a free one.

    Attributes:
        url: the base URL to which clients send requests.
        sent: the number of requests forwarded to each server.
    """

    def __init__(self, targets: Iterable[str], port: int = 0) -> None:
        places = [urlsplit(each) for each in targets]
        self._targets: Sequence[tuple[str, int]] = [
            (each.hostname or "", each.port or 80) for each in places
        ]
        self._port = port
        self._next = 0
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.url = ""
        self.sent = [0] * len(self._targets)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        try:
            await _Client(reader, writer, self._connected).serve()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # client or server closed the connection, or the balancer is closing
        finally:
            writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection to the next server that is up, or None."""
        for _ in self._targets:
            number = self._next % len(self._targets)
            self._next += 1
            with suppress(ConnectionError):
                connection = await asyncio.open_connection(*self._targets[number])
                self.sent[number] += 1
                return connection
        return None


class _Client:
    """The connection of a client, which may send several requests."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connected: _Connected
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connected = connected
        self._rest = b""  # bytes received of the next request

    async def serve(self) -> None:
        """Forward requests until the client closes the connection."""
        while (request := await self._request()) is not None:
            server = await self._connected()
            if server is None:
                self._writer.write(_BAD_GATEWAY)
                continue
            reader, writer = server
            try:
                writer.write(request)
                response = asyncio.create_task(self._respond(reader))
                leaving = asyncio.create_task(self._reader.read(_READ_AT_ONCE))
                try:
                    await asyncio.wait({response, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if leaving.done():
                        if not leaving.result():
                            return
                        self._rest += leaving.result()
                    if not await response:
                        return
                finally:
                    for each in (response, leaving):
                        each.cancel()
                    await asyncio.gather(response, leaving, return_exceptions=True)
            finally:
                writer.transport.abort()

    async def _request(self) -> bytes | None:
        """Return the next request, with `connection: close`; None at the end."""
        while b"\r\n\r\n" not in self._rest:
            if not (part := await self._reader.read(_READ_AT_ONCE)):
                return None
            self._rest += part
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        fields = _fields(head)
        body = b""
        if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            while not _has_all_chunks(self._rest):
                self._rest += await self._reader.readexactly(1)
            body, self._rest = self._rest, b""
        else:
            size = int(fields.get(b"content-length", 0))
            if len(self._rest) < size:
                self._rest += await self._reader.readexactly(size - len(self._rest))
            body, self._rest = self._rest[:size], self._rest[size:]
        return _without_connection(head) + b"\r\nconnection: close\r\n\r\n" + body

    async def _respond(self, server: asyncio.StreamReader) -> bool:
        """Forward a response; return whether the client can send another request."""
        head = (await server.readuntil(b"\r\n\r\n"))[:-4]
        fields, status = _fields(head), int(head.split(b" ", 2)[1])
        self._writer.write(_without_connection(head) + b"\r\n\r\n")
        count, end = 0, b""
        while part := await server.read(_READ_AT_ONCE):
            count, end = count + len(part), (end + part)[-5:]
            self._writer.write(part)
            await self._writer.drain()
        if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            return end == b"0\r\n\r\n"
        if status in (204, 304):
            return True
        return count == int(fields.get(b"content-length", -1))


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _without_connection(head: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(each for each in lines if not each.lower().startswith(b"connection:"))


def _has_all_chunks(body: bytes) -> bool:
    return body.endswith(b"\r\n0\r\n\r\n") or body == b"0\r\n\r\n"
