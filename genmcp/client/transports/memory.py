"""The transport for a server in this process: HTTP without a socket, through the ASGI endpoint."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp._transports.request import IN_PROCESS, Message, Receive, Scope, Send
from genmcp.client.auth.base import Auth
from genmcp.client.errors import ClientClosed, ConnectionLost
from genmcp.client.transports.base import Headers, HttpRequester, HttpResponse
from genmcp.client.transports.http import HttpTransport
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.errors import ConfigurationError
from genmcp.server import Server

App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("genmcp.client")

_URL: Final = urlsplit("http://localhost/")
_MAX_CHUNKS: Final = 64  # of a body, written and not read; the application waits beyond them
_DISCONNECT_TIMEOUT: Final = 0.5  # seconds for the application to notice a disconnect


class MemoryTransport(HttpTransport):
    """The transport for a server, a mux or an endpoint in this process. Owned by a client.

    Args:
        target: the server. A `Server` gets an endpoint and a mux, which are closed with the
            transport; other targets are not closed.
        headers: the headers of every request.
        scope: entries that replace those of the ASGI scope, such as `state` and `user`.
        auth: authorizes the requests. Default: none.
    """

    def __init__(
        self,
        target: Server | Mux | Endpoint,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        scope: Mapping[str, Any] | None = None,
        auth: Auth | None = None,
    ) -> None:
        self._served = target if isinstance(target, Endpoint) else Endpoint(target)
        self._owned = isinstance(target, Server)
        self._asgi = AsgiAdapter(self._served, in_process_name(target), scope)
        requester: HttpRequester = self._asgi
        if auth is not None:
            from genmcp.client.transports.authorized import authorized  # most do without it

            requester = authorized(_URL, requester, auth, in_process=True)
        super().__init__(_URL, requester, headers)

    async def disconnect(self) -> None:
        """Break every open response, as a lost network connection does."""
        await self._asgi.disconnect()

    async def close(self) -> None:
        """End the session, if there is one, and all requests."""
        await super().close()
        if self._owned:
            await self._served.aclose()


def memory_transport(
    target: Server | Mux | Endpoint, headers: Mapping[str, str], auth: Auth | None
) -> MemoryTransport:
    """Return a transport to *target*.

    Raises:
        ConfigurationError: *target* is no server, or cannot be used with *auth*.
    """
    if not isinstance(target, Server | Mux | Endpoint):
        raise ConfigurationError(
            "the target of a client must be a URL, a Command, a Server, Mux or Endpoint, "
            # Not its repr: a URL object of a library may show a secret.
            f"or a Transport, not a {type(target).__name__}"
        )
    if auth is not None and not isinstance(target, Endpoint):
        raise ConfigurationError("auth= is for a server over HTTP: a URL or an Endpoint")
    return MemoryTransport(target, headers=headers, auth=auth)


def in_process_name(target: Server | Mux | Endpoint) -> str:
    """Return the name of *target* for messages."""
    if not isinstance(target, Server | Mux | Endpoint):
        return f"a {type(target).__name__}"
    mux = target.mux if isinstance(target, Endpoint) else target
    server = mux.server if isinstance(mux, Mux) else mux
    return f"{server.info.name} (in this process)"


class AsgiAdapter(HttpRequester):
    """Passes requests to an ASGI application, each in a task of its own. Owned by its transport.

    Args:
        app: the application.
        server_name: the server as errors name it.
        scope: entries that replace those of the ASGI scope.
    """

    def __init__(self, app: App, server_name: str, scope: Mapping[str, Any] | None = None) -> None:
        super().__init__(server_name)
        self._app = app
        self._scope = dict(scope or {})
        self._responses: set[_AsgiResponse] = set()
        self._closed = False

    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        if self._closed:
            raise ClientClosed(self.server_name)
        response = _AsgiResponse(self.server_name, body or b"")
        scope = {**_request_scope(method, path, headers), **self._scope}
        self._responses.add(response)
        response.task = asyncio.create_task(response.run(self._app, scope))
        response.task.add_done_callback(lambda _: self._responses.discard(response))
        try:
            await response.wait_head()
        except BaseException:
            await response.close()
            raise
        return response

    async def disconnect(self) -> None:
        """Break every open response: the application receives `http.disconnect`."""
        for response in tuple(self._responses):
            await response.close()

    async def close(self) -> None:
        """Break every open response, and wait briefly until the application has noticed."""
        self._closed = True
        tasks = [response.task for response in self._responses]
        await self.disconnect()
        if tasks:
            await asyncio.wait(tasks, timeout=_DISCONNECT_TIMEOUT)


class _AsgiResponse(HttpResponse):
    """A response, with the `receive` and `send` of the application that writes it."""

    task: asyncio.Task[None]

    def __init__(self, server_name: str, request_body: bytes) -> None:
        super().__init__(server_name)
        self.status = 0
        self._request_body: bytes | None = request_body
        self._chunks: deque[bytes] = deque()
        self._complete = False  # the application has sent the whole body
        self._returned = False  # the application has returned or raised an exception
        self._disconnected = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self, app: App, scope: Scope) -> None:
        """Run the application for this request."""
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            logger.exception("%s failed", self.server_name)
        finally:
            self._returned = True
            self._changed.set()

    async def wait_head(self) -> None:
        """Wait until the application has sent the head."""
        while not self.status:
            if self._returned:
                raise ConnectionLost(self.server_name, "it ended before it responded")
            await self._wait_change()

    async def _chunk(self) -> bytes:
        while not self._chunks:
            if self._complete:
                return b""
            if self._returned or self._disconnected.is_set():
                raise ConnectionLost(self.server_name, "it ended in a response")
            await self._wait_change()
        self._changed.set()
        return self._chunks.popleft()

    async def _release(self) -> None:
        self._disconnected.set()
        self._changed.set()

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _receive(self) -> Message:
        if self._request_body is not None:
            body, self._request_body = self._request_body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        while len(self._chunks) >= _MAX_CHUNKS and not self._disconnected.is_set():
            await self._wait_change()
        if self._disconnected.is_set():
            raise OSError("the client has disconnected")  # ASGI 2.4, "Disconnected Client"
        if message["type"] == "http.response.start":
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
            self.status = message["status"]
        else:
            if body := message.get("body", b""):
                self._chunks.append(body)
            self._complete = not message.get("more_body", False)
        self._changed.set()


def _request_scope(method: str, path: str, headers: Headers) -> Scope:
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
