"""`genmcp serve`: a server, over HTTP or over standard streams."""

import asyncio
import inspect
import logging
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import msgspec
import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette

from genmcp.cli.logs import log_to_stderr
from genmcp.cli.target import load, mux_of
from genmcp.cli.worker import first, told_by_signals
from genmcp.errors import ConfigurationError
from genmcp.mux.mux import SECRET_VARIABLE, Mux
from genmcp.server import Server
from genmcp.telemetry.log import LoggingTelemetry
from genmcp.transports.endpoint import Endpoint
from genmcp.transports.stdio import Streams, private_streams, serve_streams
from genmcp.wire.http import Security

__all__ = ["Http", "application", "endpoint_of", "over_http", "over_streams", "serve_until_told"]

logger = logging.getLogger("genmcp")

_TARGET: Final = "GENMCP_SERVE"
"""The environment variable in which worker processes find what to serve, and where."""


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `genmcp serve` over HTTP for a *target*, `module:attribute`.

    allowed_hosts: host names to answer to; None: those of the target. proxy_headers: whether
    `X-Forwarded-For` and `X-Forwarded-Proto` replace the address and the scheme of a connection.
    forwarded_allow_ips: the addresses of proxies, separated by commas, whose headers are used; sets
    proxy_headers; None: FORWARDED_ALLOW_IPS, or loopback. grace: seconds that running jobs have to
    finish when the server stops; None: those of `JobOptions` of the mux.
    """

    target: str
    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    workers: int = 1
    reload: bool = False
    allowed_hosts: list[str] | None = None
    grace: float | None = None
    proxy_headers: bool = False
    forwarded_allow_ips: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of uvicorn.

        Proxy headers are off by default: without a proxy, a client could send `X-Forwarded-For` and
        appear to be remote, where the Host header is not checked.
        """
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "proxy_headers": self.proxy_headers or self.forwarded_allow_ips is not None,
            "forwarded_allow_ips": self.forwarded_allow_ips,
            # uvicorn's records then go to the root logger, in the same format as all others.
            "log_config": None,
        }
        # Without it, pipelined requests of one connection share context variables. Older releases
        # of uvicorn lack the setting.
        if "reset_contextvars" in inspect.signature(uvicorn.Config).parameters:
            settings["reset_contextvars"] = True
        return settings


def over_http(http: Http) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status.

    Raises:
        ConfigurationError: the target, or where it is to be served, is wrong.
    """
    many = http.workers > 1
    with _no_word_of_secrets():
        endpoint = endpoint_of(http)  # what is wrong with it is told here, once
    if many and not endpoint.mux.store.shared:
        logger.warning(
            "each of the %d workers keeps tasks, log levels and subscriptions to itself: give them "
            "a store that they share (store=, or GENMCP_STORE), such as sqlite:///jobs.db",
            http.workers,
        )
    # One line for each request: LoggingTelemetry logs the tool, the access log only the path.
    observers = endpoint.mux.observers.all
    names_tools = any(isinstance(each, LoggingTelemetry) for each in observers)
    settings = {**http.settings, "access_log": not names_tools}
    if not many and not http.reload:
        app = served(endpoint, http.path)
        server = _Server(uvicorn.Config(app, **settings), http)
        with suppress(KeyboardInterrupt, SystemExit):  # the latter where it cannot listen
            server.run()
        return 0 if server.started else 1
    # What one of them has sealed, another opens; a shared store was refused without a secret.
    os.environ[SECRET_VARIABLE] = os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)
    logger.info("%s is to be served with the path %s", http.target, http.path)
    os.environ[_TARGET] = msgspec.json.encode(http).decode()
    application = f"{__name__}:application"
    how: dict[str, Any] = {"workers": http.workers} if many else {"reload": True}
    try:
        uvicorn.run(application, factory=True, **settings, **how)
    except SystemExit as ended:  # it cannot listen
        return 1 if ended.code else 0
    return 0


@contextmanager
def _no_word_of_secrets() -> Iterator[None]:
    """Keep back the warning that several workers have no secret: they are going to get one."""

    def has_another(record: logging.LogRecord) -> bool:
        return SECRET_VARIABLE not in (record.args or ())

    logger.addFilter(has_another)
    try:
        yield
    finally:
        logger.removeFilter(has_another)


class _Server(uvicorn.Server):
    """A server that says where it serves, once it does."""

    def __init__(self, config: uvicorn.Config, http: Http) -> None:
        super().__init__(config)
        self._http = http

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            target, path = self._http.target, self._http.path
            logger.info("serving %s at http://%s:%d%s", target, host, port, path)


def application() -> Starlette:
    """Return the application of a worker process."""
    log_to_stderr(serves=True)
    http = msgspec.json.decode(os.environ[_TARGET], type=Http)
    return served(endpoint_of(http), http.path)


def served(endpoint: Endpoint, path: str) -> Starlette:
    """Return an application that has *endpoint* at *path*, and closes it at its end."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await endpoint.aclose()
            await endpoint.mux.aclose()

    return Starlette(routes=[endpoint.route(path)], lifespan=lifespan)


def endpoint_of(http: Http) -> Endpoint:
    """Return the endpoint that the target is, or one of it.

    Raises:
        ConfigurationError: it is none, and there can be none of it.
    """
    if not http.path.startswith("/"):
        raise ConfigurationError(f"--path: a path begins with a slash, unlike {http.path!r}")
    endpoint = _found(http)
    if http.grace is not None:
        service = endpoint.mux.tasks.service.worker
        service.options = replace(service.options, shutdown_grace=http.grace)
    return endpoint


def _found(http: Http) -> Endpoint:
    found = load(http.target)
    if not isinstance(found, Endpoint):
        telemetry = LoggingTelemetry()
        mux = Mux(found, telemetry=telemetry) if isinstance(found, Server) else mux_of(http.target)
        return Endpoint(mux, security=Security(allowed_hosts=http.allowed_hosts))
    if http.allowed_hosts is not None:
        raise ConfigurationError(
            f"--allowed-host: {http.target} is an Endpoint, whose security= says that"
        )
    return found


def over_streams(target: str) -> None:
    """Serve over standard input and output, until the input ends, or SIGTERM or SIGINT.

    Nothing that the target's modules print when they are imported reaches the client.

    Raises:
        ConfigurationError: the target is wrong, or there is no standard input or output.
    """
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if stream is None:
            raise ConfigurationError(f"--stdio: standard {name} is closed")
    if sys.stdin.isatty():
        sys.stderr.write(
            "genmcp: waiting for JSON-RPC messages, a line each; Ctrl-D ends this\n"
            "(--stdio is for a client that starts this process; without it, HTTP is served)\n"
        )
    with private_streams() as streams:
        asyncio.run(serve_until_told(mux_of(target), streams))


async def serve_until_told(mux: Mux, streams: Streams) -> None:
    """Serve *mux* over *streams*, until they end or this process is told to, and close it."""
    stop = asyncio.Event()
    try:
        with told_by_signals(stop):
            serving = asyncio.ensure_future(serve_streams(mux, streams))
            await first(serving, stop.wait())
            if not serving.cancelled():
                serving.result()
    finally:
        await mux.aclose()
