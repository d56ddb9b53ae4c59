"""Asking the user to log in: by a browser, by a URL that is printed, or by a function."""

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from inspect import isawaitable, iscoroutinefunction
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from genmcp._core.auth.steps import Ask, FlowFailed, Listen
from genmcp.client.auth.listener import LoopbackListener

DEFAULT_LOGIN_TIMEOUT: Final = 300.0
"""Seconds for the user to log in."""

CALLBACK: Final = "http://127.0.0.1/callback"
"""The redirect URI, to which the port is added."""

AskFunction: TypeAlias = Callable[[str], str | Awaitable[str]]
"""A function, `async` or not, that is called with the authorization URL, and returns the URL to
which the browser was redirected. One that is not `async` runs in a thread."""


class UserPrompt:
    """Asks the user once. Owned by the run of a flow, which closes it.

    Args:
        redirect_uri: the redirect URI, to which a flow may add a segment; its port is chosen if it
            has none, and is on loopback.
        ask: replaces both browser and listener. Default: none.
        timeout: seconds for the user to log in.
        browser: whether to open a browser, beside printing the URL. Default: True.
        turn: returns a block that other prompts wait for: two windows at once would confuse.
            Default: none waits.
    """

    def __init__(
        self,
        redirect_uri: str = CALLBACK,
        ask: AskFunction | None = None,
        timeout: float = DEFAULT_LOGIN_TIMEOUT,
        *,
        browser: bool = True,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._redirect_uri = redirect_uri
        self._ask = ask
        self._timeout = timeout
        self._browser = browser
        self._turn = turn
        self._listener: LoopbackListener | None = None
        self._exits = AsyncExitStack()

    async def listen(self, step: Listen) -> str:
        """Wait for the other prompts, open the port of the redirect URI, and return the URI.

        Raises:
            FlowFailed: The port is in use.
        """
        await self.close()
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
                f"127.0.0.1 cannot listen on {port}: {error}", advice="OAuth(port=...)"
            ) from None
        return listener.redirect_uri

    async def ask(self, step: Ask) -> str:
        """Wait for the user to log in, and return the URL of the redirect.

        Raises:
            FlowFailed: The user did not log in in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                if self._ask is not None:
                    return await _call(self._ask, step.url)
                assert self._listener is not None
                with _TERMINAL.pasting(self._listener):
                    _show(step.url, browser=self._browser)
                    return await self._listener.wait(step.url)
        except TimeoutError:
            raise FlowFailed(
                f"the user did not log in within {self._timeout:g} s",
                advice="OAuth(login_timeout=...)",
            ) from None

    async def close(self) -> None:
        """Close the port. May be called repeatedly."""
        self._listener = None
        await self._exits.aclose()


async def _call(ask: AskFunction, url: str) -> str:
    found = ask(url) if iscoroutinefunction(ask) else await asyncio.to_thread(ask, url)
    found = await found if isawaitable(found) else found
    if not isinstance(found, str):
        raise FlowFailed(f"ask must return the URL of the redirect, not a {type(found).__name__}")
    return found


def _show(url: str, *, browser: bool) -> None:
    """Print *url*, and open it in a browser if this machine has a display.

    The program itself never fetches it: the URL is for the browser, in which the user is logged in.
    """
    _tell(f"To log in, open this URL in a browser:\n\n{url}\n")
    if browser and has_display():
        # A daemon: some browsers block, and the login must not outlive the program.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _tell(text: str) -> None:
    # Not on stdout, which may be the output of the program.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def has_display() -> bool:
    """Return whether a browser can probably be opened where the user sees it."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


class _Terminal:
    """Offers each line that is typed to the listeners of the logins that wait.

    For a browser on another machine. It is redirected to its own 127.0.0.1, where it shows an
    error, and the URL in its address bar.
    """

    def __init__(self) -> None:
        self._typed = bytearray()
        self._listeners: dict[asyncio.AbstractEventLoop, list[LoopbackListener]] = {}

    @contextmanager
    def pasting(self, listener: LoopbackListener) -> Iterator[None]:
        """Offer the lines to *listener* while the block runs."""
        loop = asyncio.get_running_loop()
        listeners = self._listeners.setdefault(loop, [])
        listeners.append(listener)
        fd = _terminal()
        try:
            if fd is not None and (len(listeners) > 1 or self._read(loop, fd)):
                _tell("If the browser shows an error after that, paste its URL here.")
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[loop]
                if fd is not None:
                    with suppress(NotImplementedError):
                        loop.remove_reader(fd)

    def _read(self, loop: asyncio.AbstractEventLoop, fd: int) -> bool:
        """Read lines from now on; return False on a system that cannot (Windows)."""

        def read() -> None:
            data = os.read(fd, 65536)
            if not data:
                loop.remove_reader(fd)
            self._typed += data
            *lines, rest = self._typed.split(b"\n")
            self._typed[:] = rest
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                if text and not any(each.offer(text) for each in self._listeners.get(loop, ())):
                    _tell("This is not the URL of the login that waits.")

        try:
            loop.add_reader(fd, read)
        except (NotImplementedError, OSError):
            return False
        self._typed.clear()
        return True


_TERMINAL: Final = _Terminal()


def _terminal() -> int | None:
    """Return the file descriptor of stdin if it is a terminal."""
    try:
        fd = sys.stdin.fileno()
        return fd if os.isatty(fd) else None
    except (AttributeError, OSError, ValueError):  # none, closed, or replaced
        return None
