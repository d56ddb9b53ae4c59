"""Asking the user to log in: by a browser and a listener, or by a function."""

import asyncio
import os
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from inspect import isawaitable, iscoroutinefunction
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from genmcp._core.auth.steps import Ask, FlowFailed, Listen
from genmcp.client.auth.listener import LoopbackListener

LOGIN_TIMEOUT: Final = 300.0
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
        turn: returns a block that other prompts wait for: two windows at once would confuse.
            Default: none waits.
    """

    def __init__(
        self,
        redirect_uri: str = CALLBACK,
        ask: AskFunction | None = None,
        timeout: float = LOGIN_TIMEOUT,
        *,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._redirect_uri = redirect_uri
        self._ask = ask
        self._timeout = timeout
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
                f"127.0.0.1 cannot listen on {port}: {error}", advice="OAuth(redirect_uri=...)"
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
                show(step.url)
                if has_display():
                    _in_thread(webbrowser.open, step.url)
                return await self._listener.wait(step.url)
        except TimeoutError:
            raise FlowFailed(f"the user did not log in within {self._timeout:g} s") from None

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
