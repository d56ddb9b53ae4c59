"""The faults of `fuzzed_peer` over HTTP, and those of HTTP itself."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.client.fuzzed_peer import MARK, answer, cut, faulty, opening

#: Faults of the response as a whole; after none of them there is an answer.
RESPONSES = {
    "no_status": b"",
    "half_head": b"HTTP/1.1 200 OK\r\nContent-",
    "no_http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "no_version": b"HTTP/7 200\r\n\r\n",
    "no_utf8": b"\xff\xfe\xfd\r\n\r\n",
    "bad_header": b"HTTP/1.1 200 OK\r\n : \xff\r\n\r\n",
    "long_head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 200,
    "switch": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "negative": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "short": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{}",
    "huge": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
    "no_chunk": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad_chunk": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n",
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "accepted": b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    "no_content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p>?",
    "moved": b"HTTP/1.1 307 Moved\r\nLocation: /mcp\r\nContent-Length: 0\r\n\r\n",
    "moved_away": b"HTTP/1.1 308 Moved\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    "unasked": b"HTTP/1.1 401 No\r\nWWW-Authenticate: \xff\r\nContent-Length: 0\r\n\r\n",
    "not_here": b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n\xff{",
    "broken": b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n{\"error\":",
    "busy": b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nRetry-After: x\r\n\r\n",
}  # fmt: skip
RETRIES = [b"retry: 0\n", b"retry: 99999999999999999999\n", b"retry: -1\n", b"id: 1\n", b"id\n"]


class HttpPeer:
    """A server over HTTP/1.1. *fault*: that of its responses to requests other than calls."""

    def __init__(self, rng: random.Random, fault: str) -> None:
        self.rng = rng
        self.fault = fault
        self.busy: set[asyncio.Task[Any]] = set()
        self.writers: list[asyncio.StreamWriter] = []
        self.over = asyncio.Event()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self.busy.add(task)
        self.writers.append(writer)
        task.add_done_callback(self.busy.discard)
        task.add_done_callback(lambda _: writer.close())  # data already written still arrives

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self.exchange(reader, writer):
                pass

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Respond to one request; return whether to keep the connection."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if first.startswith("GET") and self.rng.random() < 0.7:
            fault = self.rng.choice(["flood", "garbage", "asks"])
            messages = faulty(self.rng, fault, 0, answer(10**6, "wrong"))
            await self.stream(writer, b"".join(self.event(each) for each in messages))
            await self.over.wait()
            return False
        if not first.startswith("POST"):
            writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
            return True
        message = json.loads(body)
        if "id" not in message or "method" not in message:
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
            return True
        id, fault, good = message["id"], self.fault, b""
        if message["method"] == "tools/call":
            arguments = message["params"]["arguments"]
            fault, good = arguments["fault"], answer(id, f"{arguments['n']}{MARK}")
        else:
            good = opening(message)
            if fault == "utf8":
                good = good.replace(b"result", b"result" + MARK.encode())
        return await self.respond(writer, id, fault, good)

    async def respond(self, writer: asyncio.StreamWriter, id: int, fault: str, good: bytes) -> bool:
        if fault in RESPONSES:
            writer.write(RESPONSES[fault])
            return fault in ("empty", "moved", "accepted")
        if fault in ("silent", "late"):
            await self.over.wait()
            return False
        messages = faulty(self.rng, fault, id, good)
        broken = fault in ("unended", "exit")
        if len(messages) == 1 and not broken and self.rng.random() < 0.5:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(messages[0]), messages[0]))
            return True
        data = b"".join(self.event(each) for each in messages)
        if broken:
            data = data[: self.rng.randrange(len(data) - 4)]
        await self.stream(writer, data)
        if fault == "exit":
            return False
        writer.write(b"0\r\n\r\n")
        return True

    async def stream(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send an event stream without its end."""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for piece in cut(self.rng, data):
            if piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()

    def event(self, message: bytes) -> bytes:
        """Return an event with *message*, with random comments and fields."""
        end = self.rng.choice([b"\n", b"\r", b"\r\n"])
        noise = [b"", b": \xff", b"what: ever", b"event: message", b"event: other\ndata: wrong\n"]
        lines = [self.rng.choice(noise), self.rng.choice(RETRIES).rstrip()]
        around = b"".join(each + b"\n" for each in lines)
        if self.rng.random() < 0.5:
            around += b"\n"  # the text there is an event of its own, without data
        return around + b"data: " + message + end + end


@asynccontextmanager
async def http_peer(rng: random.Random, fault: str = "none") -> AsyncIterator[str]:
    """Start a server and return its URL."""
    peer = HttpPeer(rng, fault)
    server = await asyncio.start_server(peer.begin, "127.0.0.1", 0, limit=2**20)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}/mcp"
    finally:
        server.close()
        peer.over.set()
        for task in peer.busy:
            task.cancel()
        await asyncio.gather(*peer.busy, return_exceptions=True)
        for writer in peer.writers:
            writer.transport.abort()
        await server.wait_closed()
