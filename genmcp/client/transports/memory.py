"""A server in this process: the whole path of a request through its endpoint, without a socket."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from genmcp.client.errors import ClientClosed, ConnectionLost
from genmcp.client.options import HttpOptions
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse
from genmcp.client.transports.http import HttpTransport
from genmcp.mux.mux import Mux
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint
from genmcp.transports.request import IN_PROCESS, Message, Receive, Scope, Send
from genmcp.wire.lines import MAX_MESSAGE

__all__ = ["AsgiAdapter", "MemoryTransport", "name_of"]

App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("genmcp.client")

_URL = urlsplit("http://localhost/")
_AHEAD = 64  # pieces of a body that may wait to be read
_LEAVING = 0.5  # seconds an application has to notice that its client is gone


class MemoryTransport(HttpTransport):
    """Talks to *target*; an endpoint that is made here is closed with it, and so is its mux."""

    def __init__(
        self,
        target: Server | Mux | Endpoint,
        options: HttpOptions | None = None,
        *,
        max_message: int = MAX_MESSAGE,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        self._served = target if isinstance(target, Endpoint) else Endpoint(target)
        self._owned = isinstance(target, Server)
        self._asgi = AsgiAdapter(self._served, name_of(target), scope)
        super().__init__(_URL, self._asgi, options or HttpOptions(), max_message=max_message)

    async def disconnect(self) -> None:
        """Break every open response, as a lost network connection does."""
        await self._asgi.disconnect()

    async def close(self) -> None:
        """End the session, if there is one, and all requests."""
        await super().close()
        if self._owned:
            await self._served.aclose()


def name_of(target: Server | Mux | Endpoint) -> str:
    """Return what *target* is called where people read it."""
    mux = target.mux if isinstance(target, Endpoint) else target
    server = mux.server if isinstance(mux, Mux) else mux
    return f"{server.info.name} (in this process)"


class AsgiAdapter(HttpRequester):
    """Gives requests to an ASGI application, each in an asyncio.Task of its own.

    Args:
        app: the application.
        where: the server's name in messages.
        scope: members that replace those of the ASGI scope, such as `state` and `user`.
    """

    def __init__(self, app: App, where: str, scope: Mapping[str, Any] | None = None) -> None:
        self.where = where
        self._app = app
        self._scope = dict(scope or {})
        self._replies: set[_AsgiResponse] = set()
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
        if self._closed:
            raise ClientClosed(self.where)
        reply = _AsgiResponse(self.where, body or b"")
        scope = {**_scope(method, path, headers), **self._scope}
        self._replies.add(reply)
        reply.task = asyncio.create_task(reply.run(self._app, scope))
        reply.task.add_done_callback(lambda _: self._replies.discard(reply))
        try:
            await reply.begun()
        except BaseException:
            await reply.close()
            raise
        return reply

    async def disconnect(self) -> None:
        """Break every open response: the application gets `http.disconnect`."""
        for reply in tuple(self._replies):
            await reply.close()

    async def close(self) -> None:
        """Break every open response, and wait briefly until the application has noticed."""
        self._closed = True
        replies = tuple(self._replies)
        await self.disconnect()
        if replies:
            await asyncio.wait([reply.task for reply in replies], timeout=_LEAVING)


class _AsgiResponse(HttpResponse):
    """A response, and the channel by which the application gives it."""

    task: asyncio.Task[None]

    def __init__(self, where: str, body: bytes) -> None:
        super().__init__(where)
        self.status = 0
        self._body: bytes | None = body
        self._pieces: deque[bytes] = deque()
        self._whole = False
        self._ended = False
        self._left = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self, app: App, scope: Scope) -> None:
        """Let the application serve the request."""
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            logger.exception("%s failed", self.where)
        finally:
            self._ended = True
            self._changed.set()

    async def begun(self) -> None:
        """Wait for the head."""
        while not self.status:
            if self._ended:
                raise ConnectionLost(self.where, "it ended before it answered")
            await self._change()

    async def chunk(self) -> bytes:
        """Return the next piece of the body."""
        while not self._pieces:
            if self._whole:
                return b""
            if self._ended or self._left.is_set():
                raise ConnectionLost(self.where, "it ended within a response")
            await self._change()
        self._changed.set()
        return self._pieces.popleft()

    async def close(self) -> None:
        """Leave it: the application learns that its client is gone."""
        self._left.set()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        while len(self._pieces) >= _AHEAD and not self._left.is_set():
            await self._change()
        if self._left.is_set():
            raise OSError("the client has left")  # ASGI 2.4, "Disconnected Client"
        if message["type"] == "http.response.start":
            pairs = message.get("headers", ())
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs
            }
            self.status = message["status"]
        else:
            if body := message.get("body", b""):
                self._pieces.append(body)
            self._whole = not message.get("more_body", False)
        self._changed.set()


def _scope(method: str, path: str, headers: Headers) -> Scope:
    target, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode("ascii"),
        "root_path": "",
        "query_string": query.encode("ascii"),
        "headers": [(b"host", b"localhost"), *((name.lower(), value) for name, value in headers)],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
        "state": {},
        "extensions": {IN_PROCESS: {}},
    }
