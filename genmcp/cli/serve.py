"""`genmcp serve`: a server over HTTP, by uvicorn, or over standard streams."""

import asyncio
import inspect
import logging
import multiprocessing
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType, MethodType
from typing import Any, Final

import click
import msgspec
import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette

from genmcp._mux.mux import SECRET_VARIABLE, Mux
from genmcp._transports.endpoint import Endpoint
from genmcp._transports.health import HEALTH_PATH, READY_PATH, Health
from genmcp._transports.shutdown import uvicorn_server
from genmcp._transports.stdio import private_streams, serve_stdio
from genmcp.cli.output import CommandError, log_to_stderr
from genmcp.cli.parsing import COUNT, PORT, SECONDS, example, options_as
from genmcp.cli.target import SERVED_HELP, load_attribute, load_mux
from genmcp.cli.worker import (
    HostPort,
    check_store,
    metrics_option,
    serve_metrics,
    stop_on_signals,
    wait_for_first,
)
from genmcp.errors import ConfigurationError
from genmcp.server import Server
from genmcp.telemetry.log import LoggingTelemetry
from genmcp.wire.http import Security

logger = logging.getLogger("genmcp")

# The environment variable that passes the `ServeOptions` to worker processes, as JSON.
_OPTIONS_VARIABLE: Final = "GENMCP_SERVE"


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `genmcp serve` over HTTP.

    Args:
        target: as in `load_attribute`.
        host: the address to listen on.
        port: the port; 0: any free port.
        path: the path of the endpoint.
        workers: the number of processes.
        reload: whether to restart when a file changes.
        allowed_hosts: host names to accept. None given: those of the target.
        console: whether browsers get the console at the path of the endpoint.
        grace: seconds that open calls and running jobs have to finish when the server stops. None:
            those of the endpoint and of the `JobOptions` of the mux.
        drain: seconds for which requests are still accepted after SIGTERM, while the server reports
            that it is not ready. A second signal ends them.
        metrics: the address at which metrics are served for Prometheus.
        forwarded_allow_ips: the addresses of trusted proxies, separated by commas, whose
            `X-Forwarded-For` and `X-Forwarded-Proto` replace the address and scheme of a
            connection. None: those headers are ignored.
    """

    target: str
    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    workers: int = 1
    reload: bool = False
    allowed_hosts: Sequence[str] = ()
    console: bool = False
    grace: float | None = None
    drain: float = 0.0
    metrics: HostPort | None = None
    forwarded_allow_ips: str | None = None

    @property
    def uvicorn_settings(self) -> dict[str, Any]:
        """The settings of uvicorn.

        Proxy headers are off by default: without a proxy, a client could send `X-Forwarded-For` and
        appear to be remote, where the Host header is not checked.
        """
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "proxy_headers": self.forwarded_allow_ips is not None,
            "forwarded_allow_ips": self.forwarded_allow_ips,
            # uvicorn's records then go to the root logger, in the same format as all others.
            "log_config": None,
        }
        # Without this setting, pipelined requests of one connection share context variables. Older
        # releases of uvicorn lack the setting.
        if "reset_contextvars" in inspect.signature(uvicorn.Config).parameters:
            settings["reset_contextvars"] = True
        return settings


_DEFAULTS: Final = ServeOptions(target="")
_serve_options: Final = options_as(
    ServeOptions,
    click.argument("target"),
    click.option("--host", default=_DEFAULTS.host, help="the address (127.0.0.1)"),
    click.option("--port", type=PORT, default=_DEFAULTS.port, help="the port (8000); 0: any"),
    click.option("--path", default=_DEFAULTS.path, help="the path of the endpoint (/mcp)"),
    click.option("--workers", type=COUNT, default=1, help="the number of processes (1)"),
    click.option("--reload", is_flag=True, help="restart when a file changes"),
    click.option("--console", is_flag=True, help="serve a page to try the server in a browser"),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="a host name to accept, '*' for any; repeatable",
    ),
    click.option("--grace", type=SECONDS, help="seconds that calls and jobs may take at shutdown"),
    click.option(
        "--drain",
        type=SECONDS,
        default=_DEFAULTS.drain,
        help=f"seconds to accept requests after SIGTERM, while {READY_PATH} responds with 503 (0)",
    ),
    metrics_option,
    click.option(
        "--forwarded-allow-ips",
        metavar="ADDRESSES",
        help="proxies, separated by commas, whose X-Forwarded-For and -Proto are trusted",
    ),
)


@click.command(
    "serve",
    epilog=example(
        "serve server.py",
        "serve server.py --reload --console",
        "serve shop.app:mux --stdio",
        about=SERVED_HELP,
    ),
)
@_serve_options
@click.option("--stdio", is_flag=True, help="serve the client that started this process")
def serve(options: ServeOptions, stdio: bool) -> int:
    """Serve TARGET over HTTP, or over standard streams, until SIGTERM or SIGINT."""
    if stdio:
        if options != replace(_DEFAULTS, target=options.target):
            raise ConfigurationError("--stdio cannot be combined with options for HTTP")
        serve_stdio_target(options.target)
        return 0
    if options.reload and options.workers > 1:
        raise ConfigurationError("--reload cannot be combined with --workers")
    return serve_http(options)


def run(server: Server, transport: str, host: str, port: int) -> None:
    """Serve *server* until its client leaves or a signal stops the process: `Server.run`.

    Raises:
        ConfigurationError: the transport does not exist, or a standard stream is closed.
        CommandError: its store can never be used with its settings.
        SystemExit: the address cannot be used.
    """
    log_to_stderr(serves=True)
    if transport == "stdio":
        serve_stdio_target(server)
    elif transport == "http":
        if serve_http(ServeOptions(target=server.info.name, host=host, port=port), server):
            raise SystemExit(1)  # the log has the reason
    else:
        raise ConfigurationError(f'run: transport must be "stdio" or "http", not {transport!r}')


def serve_http(options: ServeOptions, given: Server | None = None) -> int:
    """Serve over HTTP until SIGTERM or SIGINT, and return the exit status.

    The server *given* is served in place of the target, in this process.

    Raises:
        ConfigurationError: the target cannot be served, or an option does not apply to it.
        CommandError: its store can never be used with its settings.
    """
    has_workers = options.workers > 1
    if options.metrics is not None and (has_workers or options.reload):
        raise ConfigurationError(
            "--metrics cannot be combined with --workers or --reload: each process has metrics of "
            "its own. Run several servers, or export by OTLP"
        )
    # Loaded here as well as in each worker, so that a configuration error is reported once.
    with _without_secret_warning():
        endpoint = _create_endpoint(options, given)
    if has_workers and not endpoint.mux.store.shared:
        logger.warning(
            "the %d workers do not share tasks, log levels and subscriptions: give the mux a "
            "shared store (store=, or GENMCP_STORE), such as sqlite:///jobs.db",
            options.workers,
        )
    # Each request is logged once: by LoggingTelemetry, which logs the tool, or otherwise by the
    # access log of uvicorn, which logs only the path.
    observers = endpoint.mux.observers.all
    logs_requests = any(isinstance(each, LoggingTelemetry) for each in observers)
    settings = {**options.uvicorn_settings, "access_log": not logs_requests}
    if not has_workers and not options.reload:
        config = uvicorn.Config(_create_app(endpoint, options), **settings)
        server = _UvicornServer(config, options, endpoint.mux)
        # uvicorn raises SystemExit if it cannot listen. After a signal has ended it, it raises that
        # signal again.
        with suppress(KeyboardInterrupt, SystemExit), serve_metrics(endpoint.mux, options.metrics):
            server.run()
        return 0 if server.started else 1
    asyncio.run(_check_and_close(endpoint.mux))
    # The workers must share a secret: each opens values that another has sealed. With a shared
    # store, a missing secret was rejected above.
    os.environ[SECRET_VARIABLE] = os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)
    logger.info("%s will be served with the path %s", options.target, options.path)
    os.environ[_OPTIONS_VARIABLE] = msgspec.json.encode(options).decode()
    factory = f"{__name__}:{create_app.__name__}"
    mode: dict[str, Any] = {"workers": options.workers} if has_workers else {"reload": True}
    try:
        with _named_options():
            uvicorn.run(factory, factory=True, **settings, **mode)
    except SystemExit as exit:  # uvicorn cannot listen
        return 1 if exit.code else 0
    return 0


@contextmanager
def _without_secret_warning() -> Iterator[None]:
    """Suppress the warning about a missing secret: `serve_http` is about to set one."""

    def is_other(record: logging.LogRecord) -> bool:
        return SECRET_VARIABLE not in (record.args or ())

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


@contextmanager
def _named_options() -> Iterator[None]:
    """Name the options that help if uvicorn cannot listen, for which it raises SystemExit."""
    try:
        yield
    except SystemExit as exit:
        if exit.code:
            logger.error("choose another address with --port or --host")
        raise


class _UvicornServer(uvicorn.Server):
    """A server that checks the store before it listens, and logs its URL when it does."""

    def __init__(self, config: uvicorn.Config, options: ServeOptions, mux: Mux) -> None:
        super().__init__(config)
        self._options = options
        self._mux = mux

    async def startup(self, sockets: Any = None) -> None:
        # Not in the lifespan, in which Starlette would log an error with its traceback.
        try:
            await check_store(self._mux)
        except CommandError:
            await self._mux.aclose()
            raise
        with _named_options():
            await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            target, path = self._options.target, self._options.path
            logger.info("serving %s at http://%s:%d%s", target, host, port, path)


async def _check_and_close(mux: Mux) -> None:
    try:
        await check_store(mux)
    finally:
        await mux.aclose()


def create_app() -> Starlette:
    """Return the application of a worker process, which uvicorn calls by its name."""
    log_to_stderr(serves=True)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_stop_after, args=[parent], daemon=True).start()
    options = msgspec.json.decode(os.environ[_OPTIONS_VARIABLE], type=ServeOptions)
    return _create_app(_create_endpoint(options), options)


def _stop_after(parent: Any) -> None:
    """Stop this process, as SIGTERM does, when *parent* has ended without stopping it.

    A parent that was killed leaves its workers behind. They would hold the port, and serve an
    application that nothing restarts or stops. `join` waits for the end of a pipe that only the
    parent has open.
    """
    parent.join()
    logger.warning("the parent process %d has ended: stopping", parent.pid)
    signal.raise_signal(signal.SIGTERM)


def _create_app(endpoint: Endpoint, options: ServeOptions) -> Starlette:
    health, routes = Health(endpoint), endpoint.routes(options.path)
    routes += health.routes()
    logging.getLogger("uvicorn.access").addFilter(_is_no_probe)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if options.drain:
            _drain_on_sigterm(health, options.drain)
        try:
            endpoint.start()
            yield
        finally:
            await endpoint.aclose()
            await endpoint.mux.aclose()

    return Starlette(routes=routes, lifespan=lifespan)


def _is_no_probe(record: logging.LogRecord) -> bool:
    """Return False for the record of a probe that has succeeded: they repeat every few seconds."""
    match record.args:
        case (_, _, path, _, 200):
            return path not in (HEALTH_PATH, READY_PATH)
    return True


def _drain_on_sigterm(health: Health, seconds: float) -> None:
    """Let the first SIGTERM make *health* not ready, and stop uvicorn *seconds* later.

    uvicorn closes its sockets as soon as it handles the signal. A load balancer would then send
    requests to a closed port until its next probe.
    """
    loop, server = asyncio.get_running_loop(), uvicorn_server()
    handle = signal.getsignal(signal.SIGTERM)
    if server is None or not callable(handle):
        return

    def drain(server: object, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, handle)  # a second signal stops the server at once
        health.drain()
        logger.info("draining: requests are accepted for %g seconds", seconds)
        loop.call_soon_threadsafe(loop.call_later, seconds, handle, number, frame)

    # Bound to the server, as its own handler is, because `uvicorn_server` reads `__self__`.
    signal.signal(signal.SIGTERM, MethodType(drain, server))


def _create_endpoint(options: ServeOptions, given: Server | None = None) -> Endpoint:
    """Return the target if it is an endpoint, else a new endpoint for the target or *given*."""
    if not options.path.startswith("/") or options.path in (HEALTH_PATH, READY_PATH):
        raise ConfigurationError(
            f"--path: {options.path!r} does not begin with a slash, or is that of a probe"
        )
    endpoint = _load_endpoint(options, given)
    if options.grace is not None:
        worker = endpoint.mux.tasks.service.worker
        worker.options = replace(worker.options, shutdown_grace=options.grace)
        endpoint.shutdown.grace = options.grace
    return endpoint


def _load_endpoint(options: ServeOptions, given: Server | None) -> Endpoint:
    found: Any = load_attribute(options.target) if given is None else given
    if not isinstance(found, Endpoint):
        # A mux keeps its own telemetry. Only a mux that is made here gets LoggingTelemetry.
        if isinstance(found, Server):
            mux = Mux(found, telemetry=LoggingTelemetry())
        else:
            mux = load_mux(options.target)
        security = Security(allowed_hosts=options.allowed_hosts or None)
        return Endpoint(mux, security=security, console=options.console)
    if options.allowed_hosts:
        raise ConfigurationError(
            f"--allowed-host: {options.target} is an Endpoint; set the hosts with its security="
        )
    if options.console:
        found.console = True
    return found


def serve_stdio_target(target: str | Server) -> None:
    """Serve *target* over standard input and output until the input ends, or SIGTERM or SIGINT.

    Output that the modules of the target print when they are imported goes to standard error.

    Raises:
        ConfigurationError: the target cannot be served, or a standard stream is closed.
        CommandError: its store can never be used with its settings.
    """
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if stream is None:
            raise ConfigurationError(f"--stdio: standard {name} is closed")
    if sys.stdin.isatty():
        remedy = "leave it out" if isinstance(target, str) else 'run(transport="http") is there'
        sys.stderr.write(
            "genmcp: waiting for JSON-RPC messages, one per line; Ctrl-D ends the input\n"
            f"(stdio is for a client that starts this process; {remedy} to serve HTTP)\n"
        )
    with private_streams() as streams:
        mux = load_mux(target) if isinstance(target, str) else Mux(target)
        asyncio.run(serve_until_stopped(mux, streams))


async def serve_until_stopped(mux: Mux, streams: tuple[int, int]) -> None:
    """Serve *mux* over *streams* until they end or a signal stops the process, and close it."""
    stop = asyncio.Event()
    # The mux is closed after a signal too, so that running jobs are returned to other processes at
    # once, not when their leases expire.
    try:
        with stop_on_signals(stop):
            await check_store(mux)
            serving = asyncio.ensure_future(serve_stdio(mux, streams=streams))
            await wait_for_first(serving, stop.wait())
            if not serving.cancelled():
                serving.result()
    finally:
        await mux.aclose()
