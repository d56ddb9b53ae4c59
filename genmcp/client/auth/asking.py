"""Asking the user to log in: by a browser and a loopback listener, or by a function (RFC 8252)."""

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    nullcontext,
    suppress,
)
from hmac import compare_digest
from inspect import isawaitable, iscoroutinefunction
from typing import Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import h11

from genmcp.core.auth.steps import Ask, FlowFailed, Listen

LOGIN_TIMEOUT: Final = 300.0
"""Seconds for the user to log in."""

CALLBACK: Final = "http://127.0.0.1/callback"
"""The redirect URI, to which the port is added."""

AskFunction: TypeAlias = Callable[[str], str | Awaitable[str]]
"""A function, `async` or not, that is called with the authorization URL, and returns the URL to
which the browser was redirected. One that is not `async` runs in a thread."""

_HOST: Final = "127.0.0.1"  # not `localhost`, which may be another address: RFC 8252, 8.3
_MAX_HEAD: Final = 64 * 1024  # bytes of a request; a code may be long
_REQUEST_TIMEOUT: Final = 10.0  # seconds for a browser to send one
_MAX_CONNECTIONS: Final = 32

# Nothing of the request is repeated in a page, and none loads, runs or frames anything. The URL,
# which has the code, is not sent to other sites.
_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<h1>{title}</h1>
<p>You can close this window and go back to the application.</p>
</html>
"""
# Status and title of each page.
_RECEIVED: Final = (200, "Login received")
_NOT_COMPLETED: Final = (200, "The login was not completed")
_FOREIGN: Final = (400, "This is not the expected login")
_UNKNOWN: Final = (404, "There is nothing at this address")
_ENDED: Final = (410, "This login has ended already")


class UserPrompt:
    """Asks the user once. Owned by the run of a flow, which closes it.

    Args:
        redirect_uri: the redirect URI, to which a flow may add a segment; its port is chosen if it
            has none, and is on loopback.
        ask: replaces both browser and listener. Default: none.
        timeout: seconds for the user to log in.
        turn: returns a block that other prompts wait for: two windows at once would confuse.
            Default: none waits.
        asking: returns a block that is entered while this prompt waits for others, and while the
            user is asked. Default: nothing happens.
    """

    def __init__(
        self,
        redirect_uri: str = CALLBACK,
        ask: AskFunction | None = None,
        timeout: float = LOGIN_TIMEOUT,
        *,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        asking: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._redirect_uri = redirect_uri
        self._ask = ask
        self._timeout = timeout
        self._turn = turn
        self._asking = asking
        self._listener: LoopbackListener | None = None
        self._exits = AsyncExitStack()

    async def listen(self, step: Listen) -> str:
        """Wait for the other prompts, open the port of the redirect URI, and return the URI.

        Raises:
            FlowFailed: the port is in use.
        """
        await self.close()
        with self._asking():  # those before it ask the user as well
            await self._exits.enter_async_context(self._turn())
        redirect_uri = self._redirect_uri + step.segment
        if self._ask is not None:
            return redirect_uri
        listener = LoopbackListener(redirect_uri, step.preferred)
        try:
            self._listener = await self._exits.enter_async_context(listener)
        except OSError as error:
            port = urlsplit(self._redirect_uri).port or "any port"
            raise FlowFailed(
                f"127.0.0.1 cannot listen on {port}: {error}", advice="OAuth(redirect_uri=...)"
            ) from None
        return listener.redirect_uri

    async def ask(self, step: Ask) -> str:
        """Wait for the user to log in, and return the URL of the redirect.

        Raises:
            FlowFailed: the user did not log in in time.
        """
        try:
            with self._asking():
                async with asyncio.timeout(self._timeout):
                    return await self._redirect_of(step.url)
        except TimeoutError:
            raise FlowFailed(f"the user did not log in within {self._timeout:g} s") from None

    async def _redirect_of(self, url: str) -> str:
        if self._ask is not None:
            return await _call(self._ask, url)
        assert self._listener is not None
        show(url)
        if has_display():
            _in_thread(webbrowser.open, url)
        return await self._listener.wait(url)

    async def close(self) -> None:
        """Close the port. May be called repeatedly."""
        self._listener = None
        await self._exits.aclose()


async def _call(ask: AskFunction, url: str) -> str:
    if iscoroutinefunction(ask):
        found: object = await ask(url)
    else:
        found = await asyncio.wrap_future(_in_thread(ask, url))
        found = await found if isawaitable(found) else found
    if not isinstance(found, str):
        raise FlowFailed(f"ask must return the URL of the redirect, not a {type(found).__name__}")
    return found


def _in_thread(function: Callable[[str], object], url: str) -> Future[object]:
    """Call a function that may block, in a thread that does not outlive the program."""
    future: Future[object] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function(url))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def show(url: str) -> None:
    """Print the authorization URL to stderr, since stdout may be the output of the program.

    The program itself never fetches it: the URL is for the browser, in which the user is logged in.
    """
    sys.stderr.write(f"To log in, open this URL in a browser:\n\n{url}\n\n")
    sys.stderr.flush()


def has_display() -> bool:
    """Return whether a browser can probably be opened where the user sees it."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


class LoopbackListener:
    """Receives one redirect at a port of this machine. Owned by a `UserPrompt`.

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
        self._received: asyncio.Future[str]
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "LoopbackListener":
        """Open the port.

        Raises:
            OSError: the fixed port is in use.
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

    async def __aexit__(self, *_: object) -> None:
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
        status, title = self._judge(event)
        page = _PAGE.format(title=title).encode()
        headers = [*_HEADERS, ("Content-Length", str(len(page)))]
        head = http.send(h11.Response(status_code=status, headers=headers, reason=b""))
        body = http.send(h11.Data(data=page)) if event.method != b"HEAD" else b""
        writer.write((head or b"") + (body or b""))
        await writer.drain()

    def _judge(self, request: h11.Request) -> tuple[int, str]:
        """Take the URL of a request if it is the redirect; return the page for the browser."""
        expected = urlsplit(self.redirect_uri)
        try:
            target = urlsplit(request.target.decode("ascii", "replace"))
        except ValueError:
            return _UNKNOWN
        host = dict(request.headers).get(b"host", b"").decode("ascii", "replace").lower()
        # Another name that resolves to this machine: DNS rebinding.
        hosts = (expected.netloc, expected.netloc.removesuffix(":80"))  # as browsers send it
        is_here = host in hosts and target.path == (expected.path or "/")
        if not is_here or request.method != b"GET":
            return _UNKNOWN
        if self._received.done():
            return _ENDED
        params = parse_qs(target.query)
        state = params.get("state", [""])
        is_ours = compare_digest(state[0].encode("utf-8", "replace"), self._state.encode())
        if not self._state or len(state) != 1 or not is_ours:
            return _FOREIGN
        self._received.set_result(expected._replace(query=target.query).geturl())
        return _NOT_COMPLETED if "error" in params else _RECEIVED
