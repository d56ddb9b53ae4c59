"""The loopback listener, to which the browser is redirected after a login (RFC 8252, 7.3)."""

import asyncio
from contextlib import suppress
from hmac import compare_digest
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import h11

_HOST: Final = "127.0.0.1"  # not `localhost`, which may be another address: RFC 8252, 8.3
_MAX_HEAD: Final = 64 * 1024  # bytes of a request; a code may be long
_REQUEST_TIMEOUT: Final = 10.0  # seconds for a browser to send one
_MAX_CONNECTIONS: Final = 32

_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Nothing of the request is repeated in a page, and none loads, runs or frames anything. The URL,
# which has the code, is not sent to other sites.
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)  # fmt: skip
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<h1>{title}</h1>
<p>{text}</p>
</html>
"""


class _ListenerPage(NamedTuple):
    status: HTTPStatus
    title: str
    text: str


_BACK: Final = "You can close this window and go back to the application."
_LOGGED_IN: Final = _ListenerPage(HTTPStatus.OK, "Login received", _BACK)
_NOT_LOGGED_IN: Final = _ListenerPage(HTTPStatus.OK, "The login was not completed", _BACK)
_UNKNOWN: Final = _ListenerPage(
    HTTPStatus.NOT_FOUND, "Not found", "There is nothing at this address."
)  # fmt: skip
_FOREIGN: Final = _ListenerPage(
    HTTPStatus.BAD_REQUEST,
    "This is not the expected login",
    "Go back to the application, and begin again there.",
)
_SECOND: Final = _ListenerPage(HTTPStatus.GONE, "This login has ended already", _BACK)


class LoopbackListener:
    """Receives one redirect at a port of this machine. Owned by the run of a flow.

    Args:
        redirect_uri: a loopback URI with the path, and with the port if it is fixed.
        preferred: the URI of an earlier login. Its port is tried first if none is fixed.

    Attributes:
        redirect_uri: the URI with the port that is open.
    """

    def __init__(self, redirect_uri: str, preferred: str | None = None) -> None:
        self.redirect_uri = redirect_uri
        self._preferred = preferred
        self._state = ""
        self._received: asyncio.Future[str] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "LoopbackListener":
        """Open the port.

        Raises:
            OSError: The fixed port is in use.
        """
        parts = urlsplit(self.redirect_uri)
        earlier = urlsplit(self._preferred or "").port
        self._received = asyncio.get_running_loop().create_future()
        if not parts.port and earlier:
            with suppress(OSError):
                self._server = await self._listen(earlier)
        if self._server is None:
            self._server = await self._listen(parts.port or 0)
        port = self._server.sockets[0].getsockname()[1]
        self.redirect_uri = parts._replace(netloc=f"{parts.hostname}:{port}").geturl()
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the port, once the page for the browser is sent."""
        assert self._server is not None
        self._server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=1)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def wait(self, authorization_url: str) -> str:
        """Wait for the redirect that answers *authorization_url*; return its URL.

        A request with another `state` is refused, and does not end the wait: any page in the
        browser can send one.
        """
        assert self._received is not None
        self._state = parse_qs(urlsplit(authorization_url).query).get("state", [""])[-1]
        return await self._received

    async def _listen(self, port: int) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, _HOST, port, start_serving=False)
        try:
            await server.start_serving()
        except BaseException:  # a cancellation, too, must not leave the port open
            server.close()
            raise
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            with suppress(h11.RemoteProtocolError, OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_REQUEST_TIMEOUT):
                    await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(_MAX_HEAD))
        if not isinstance(event, h11.Request):  # closed without a request, as browsers do ahead
            return
        answer = self._judge(event)
        page = _PAGE.format(title=answer.title, text=answer.text).encode()
        headers = [*_HEADERS, ("Content-Length", str(len(page)))]
        head = http.send(h11.Response(status_code=answer.status, headers=headers, reason=b""))
        body = http.send(h11.Data(data=page)) if event.method != b"HEAD" else b""
        writer.write((head or b"") + (body or b""))
        await writer.drain()

    def _judge(self, request: h11.Request) -> _ListenerPage:
        """Take the URL of a request if it is the redirect; return the page for the browser."""
        assert self._received is not None
        expected = urlsplit(self.redirect_uri)
        try:
            target = urlsplit(request.target.decode("ascii", "replace"))
        except ValueError:
            return _UNKNOWN
        host = dict(request.headers).get(b"host", b"").decode("ascii", "replace").lower()
        # Another name that resolves to this machine: DNS rebinding.
        is_here = host == expected.netloc and target.path == (expected.path or "/")
        if not is_here or request.method != b"GET":
            return _UNKNOWN
        if self._received.done():
            return _SECOND
        state = parse_qs(target.query).get("state", [""])
        is_ours = compare_digest(state[0].encode("utf-8", "replace"), self._state.encode())
        if not self._state or len(state) != 1 or not is_ours:
            return _FOREIGN
        self._received.set_result(expected._replace(query=target.query).geturl())
        return _NOT_LOGGED_IN if "error" in parse_qs(target.query) else _LOGGED_IN
