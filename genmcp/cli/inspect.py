"""`genmcp inspect`: the console for any server, behind a proxy on loopback.

The address has a random token, so that other users and pages of this machine do not know it. The
proxy starts nothing but the command that the user has named.
"""

import asyncio
import hmac
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

import uvicorn
from msgspec.structs import replace

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp._wire.http import Security
from genmcp.cli.output import OutputWriter, private_output, sanitize
from genmcp.cli.parsing import PORT, command, option, options_as
from genmcp.cli.remote import error_text
from genmcp.cli.target import (
    ResolvedTarget,
    TargetCommand,
    TargetOptions,
    resolve_target,
    target_parameters,
    with_stderr,
)
from genmcp.cli.worker import stop_on_signals
from genmcp.client.auth.asking import has_display
from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.errors import ConfigurationError, GenmcpError
from genmcp.hub.config import Backoff, HubLimits, Retry, ServerConfig
from genmcp.hub.member import HubMember, HubServer, SuspendedCalls
from genmcp.hub.relay import QuestionLimiter
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.stores.memory import MemoryStore

HOST: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 24
_RETRY: Final = Retry(max_attempts=5, base_delay=0.5, cap=5.0)


@command("inspect", "open the console for a server in a browser, until Ctrl-C", TargetCommand)
@options_as(TargetOptions, *target_parameters)
@option("--port", type=PORT, metavar="N", default=0, help="the port of the console; default: any")
@option("--no-browser", "browser", flag_value=False, default=True, help="print the URL only")
def inspect(options: TargetOptions, port: int, browser: bool) -> int:
    """Serve the console for a server, which may be of any kind."""

    def show(output: OutputWriter, url: str) -> None:
        output.write_line(url)
        sys.stderr.write("genmcp: Ctrl-C ends this; the address is valid until then\n")
        if browser and has_display():
            # In a thread: some browsers return when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    with private_output() as output:
        resolved = resolve_target(options)
        loud = with_stderr(resolved.options, _write_error)
        resolved = replace(resolved, options=loud)
        try:
            asyncio.run(inspect_server(resolved, partial(show, output), port=port))
        except (ClientError, GenmcpError) as error:
            if isinstance(error, ConfigurationError):
                raise
            # The error of the client, which has advice on logins.
            cause = error.__cause__ if isinstance(error.__cause__, ClientError) else error
            sys.stderr.write(f"genmcp: {sanitize(error_text(cause))}\n")
            return 1
    return 0


def _write_error(text: str) -> None:
    sys.stderr.write(f"{sanitize(text)}\n")


class InspectedServer(HubServer):
    """One server that a client is connected to, under its own name and with its own names.

    Args:
        member: the connection, which is open.
        client: its client.
        limits: the limits of the connection.
    """

    def __init__(self, member: HubMember, client: Client, limits: HubLimits) -> None:
        info = client.server_info or Implementation(name="server", version="")
        self._member: Mapping[str, HubMember] = {}
        super().__init__(lambda: self._member, limits, name=info.name, version=info.version)
        # The name of the only member is empty, and so is the separator: names are not qualified.
        self._separator = ""
        self._member = {"": member}
        self.members_changed()
        self._info = info
        self._instructions = client.instructions
        self._offered = client.capabilities

    @property
    def instructions(self) -> str | None:
        """The instructions of the server."""
        return self._instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the proxy, without those that the server lacks."""
        offered, own = self._offered, super().capabilities
        missing = [
            name
            for name in ("tools", "prompts", "resources", "completions", "logging")
            if getattr(offered, name) is None
        ]
        return replace(own, **dict.fromkeys(missing))

    @property
    def methods(self) -> Collection[str]:
        """The methods of these capabilities."""
        offered = self._offered
        return [
            method
            for method in super().methods
            if getattr(offered, _CAPABILITIES[method.partition("/")[0]]) is not None
        ]


_CAPABILITIES: Final[Mapping[str, str]] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
}


class TokenGuard:
    """An ASGI application that serves *endpoint* at a secret path, to pages of this origin only.

    Args:
        endpoint: the endpoint.
        authority: the host and port, as in the header `Host`.
        path: the path of the endpoint, which has the token.
    """

    def __init__(self, endpoint: Endpoint, authority: str, path: str) -> None:
        self._endpoint = endpoint
        self._authority = authority.encode()
        self._path = path.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http" and (status := self._rejection(scope)):
            # The body of the request is not read: uvicorn closes the connection.
            length = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": length})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._endpoint(scope, receive, send)

    def _rejection(self, scope: Any) -> int | None:
        """Return the status for a request that is rejected, else None."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        # DNS rebinding: the page of another site could send requests here, under its own host.
        if hosts != [self._authority]:
            return 421
        if origins not in ([], [b"http://" + self._authority]):
            return 403
        if not hmac.compare_digest(scope["path"].encode(), self._path):
            return 404
        return None


@asynccontextmanager
async def proxied(
    resolved: ResolvedTarget, on_lost: Callable[[Exception], None]
) -> AsyncIterator[Mux]:
    """Give a mux of the server of *resolved*: its own mux, or that of a connection to it.

    *on_lost* is called when the connection has broken, and cannot be restored.

    Raises:
        ClientError: the server cannot be reached.
    """
    target = resolved.target
    if isinstance(target, Mux):
        try:
            yield target
        finally:
            await target.aclose()
        return
    limits = HubLimits()
    config = ServerConfig(
        "the server",
        target=target,
        headers=resolved.headers,
        auth=resolved.auth,
        retry=_RETRY,
    )
    member = HubMember(
        config,
        resolved.options,
        Backoff(),
        QuestionLimiter(limits),
        SuspendedCalls(limits),
        lambda _, error: on_lost(error),
    )
    member.relay_questions()
    await member.client.open()
    try:
        server = InspectedServer(member, await member.client.current(), limits)
        # Not the store of GENMCP_STORE: nothing of the proxy outlives it.
        mux = Mux(server, store=MemoryStore())
        try:
            yield mux
        finally:
            await mux.aclose()
    finally:
        await member.client.close()


async def inspect_server(
    resolved: ResolvedTarget, on_ready: Callable[[str], None], *, port: int = 0
) -> None:
    """Serve the console for a server until SIGINT or SIGTERM.

    Args:
        resolved: the server.
        on_ready: called with the address of the console.
        port: the port; 0: any free port.

    Raises:
        ConfigurationError: the port is in use.
        ClientError: the server cannot be reached, or its connection broke for good.
    """
    stop, failures = asyncio.Event(), list[Exception]()

    def fail(error: Exception) -> None:
        failures.append(error)
        stop.set()

    async with AsyncExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        listener = stack.enter_context(_listener(port))
        opening = stack.enter_async_context(proxied(resolved, fail))
        mux = await _unless(stop, opening)
        if mux is None:
            return
        authority = f"{HOST}:{listener.getsockname()[1]}"
        path = f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/mcp"
        security = Security(allowed_hosts=[authority])
        endpoint = Endpoint(mux, security=security, console=True, grace=0.5)
        guard = TokenGuard(endpoint, authority, path)
        config = uvicorn.Config(
            guard,
            lifespan="on",
            log_config=None,
            access_log=False,  # it would have the token
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        server = _Uvicorn(config)
        serving = asyncio.create_task(server.serve([listener]))
        stopping = asyncio.create_task(stop.wait())
        try:
            on_ready(f"http://{authority}{path}")
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            # Streams that browsers hold open would otherwise delay the exit.
            await endpoint.aclose()
            server.should_exit = True
            await asyncio.wait({serving})
    if failures:
        raise failures[0]


class _Uvicorn(uvicorn.Server):
    """A server whose signals `inspect_server` handles."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listener(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigurationError(f"--port {port}: {error.strerror}") from None


async def _unless(stop: asyncio.Event, opening: Coroutine[Any, Any, Mux]) -> Mux | None:
    """Return the result of *opening*, or None if *stop* is set before."""
    task, stopping = asyncio.create_task(opening), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for each in (task, stopping):
            each.cancel()
        await asyncio.wait({task, stopping})
