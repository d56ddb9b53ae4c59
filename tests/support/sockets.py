"""An HTTP/1.1 client over a bare socket: fast, and able to disconnect at any point."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"


class Response:
    """A response whose body has not been read yet."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive.

        Raises:
            asyncio.IncompleteReadError: the body is incomplete.
        """
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def body(self) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def messages(self) -> list[Any]:
        """Return the messages of the body, JSON or an event stream."""
        body = await self.body()
        if self.headers.get("content-type") != "text/event-stream":
            return [json.loads(body)] if body else []
        data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(each) for each in data if each]


class Connection:
    """A connection to a server. As a context manager it is closed on exit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect to the host and port of *url*."""
        where = urlsplit(url)
        return cls(*await asyncio.open_connection(where.hostname, where.port))

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once, with a reset if data is pending."""
        self._writer.transport.abort()

    async def send(self, request: bytes) -> None:
        """Send *request*, or a part of it."""
        self._writer.write(request)
        await self._writer.drain()

    async def response(self) -> Response:
        """Wait for the head of the next response."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Response(self._reader, int(first.split()[1]), headers)

    async def ask(self, request: bytes) -> Response:
        """Send *request* and wait for the head of its response."""
        await self.send(request)
        return await self.response()


def http(method: str, headers: Mapping[str, str], body: bytes = b"", path: str = "/mcp") -> bytes:
    """Return an HTTP request."""
    named = {
        "host": "localhost",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def called(
    tool: str,
    arguments: Mapping[str, Any],
    *,
    id: int,
    session: str | None = None,
    capabilities: Mapping[str, Any] = {},
) -> bytes:
    """Return a call of *tool*, in a *session* or of 2026-07-28; its id is its progress token."""
    meta: dict[str, Any] = {"progressToken": id}
    if session is None:
        meta |= {_META + "protocolVersion": MODERN, _META + "clientCapabilities": capabilities}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
    else:
        headers = {"mcp-session-id": session}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return http("POST", headers, _json(id=id, method="tools/call", params=params))


def notification(session: str, method: str, **params: Any) -> bytes:
    """Return a notification in a *session*."""
    return http("POST", {"mcp-session-id": session}, _json(method=method, params=params))


def initialize(version: str = "2025-11-25") -> bytes:
    """Return an `initialize` request."""
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return http("POST", {}, _json(id=0, method="initialize", params=params))


def _json(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()
