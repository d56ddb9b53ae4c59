"""`genmcp worker`: a process that runs jobs, and serves no requests."""

import asyncio
import logging
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import click
import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Route
from uvicorn.lifespan.on import LifespanOn

from genmcp._mux.mux import Mux
from genmcp._transports.health import HEALTH_PATH, READY_PATH, Health
from genmcp.cli.output import CommandError
from genmcp.cli.parsing import COUNT, SECONDS, example
from genmcp.cli.target import SERVED_HELP, load_attribute, load_mux
from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.extras import missing_extra
from genmcp.log_throttle import LogThrottle
from genmcp.stores import log_problems

logger = logging.getLogger("genmcp")

_ADDRESS: Final = re.compile(
    r"(?:(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[^:/\[\]]+)):)?(?P<port>\d{1,5})"
)
_RETRY_DELAY: Final = 1.0  # seconds between attempts to start on an unavailable store
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class HostPort(NamedTuple):
    """A host and a port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(
    context: click.Context, option: click.Parameter, text: str | None
) -> HostPort | None:
    """Return the address in *text*: `HOST:PORT`, `[IPV6]:PORT`, or `PORT` for loopback."""
    if text is None:
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT", context, option)
    return HostPort(found["ipv6"] or found["host"] or "127.0.0.1", int(found["port"]))


metrics_option: Final = click.option(
    "--metrics",
    callback=parse_address,
    metavar="HOST:PORT",
    help="serve metrics for Prometheus here (extra: prometheus)",
)


@contextmanager
def serve_metrics(mux: Mux, address: HostPort | None) -> Iterator[None]:
    """Measure *mux*, and serve its metrics to Prometheus at *address*, in a thread; None: do not.

    Raises:
        ConfigurationError: the extra `prometheus` is not installed, or the address cannot be
            listened on.
    """
    if address is None:
        yield
        return
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import CollectorRegistry, start_http_server

        from genmcp.telemetry.metrics import OpenTelemetryMetrics
    except ImportError as error:
        raise missing_extra("--metrics", "prometheus", error) from error
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    mux.add_telemetry(OpenTelemetryMetrics(provider))
    try:
        server, _ = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise ConfigurationError(f"--metrics {address}: {error}") from error
    logger.info("serving metrics at http://%s", HostPort(address.host, server.server_port))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


async def check_store(mux: Mux) -> None:
    """Log the problems of the store of *mux*. One that is unavailable may be started later.

    Raises:
        CommandError: the store can never be used with its settings.
    """
    try:
        await log_problems(mux.store)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error


async def run_worker(
    mux: Mux,
    app: Any = None,
    *,
    health: HostPort | None = None,
    metrics: HostPort | None = None,
    **options: Any,
) -> None:
    """Run jobs of *mux* until SIGTERM or SIGINT, within the lifespan of *app*.

    While the store is unavailable, the start is repeated. After the first signal no more jobs are
    started. Jobs that have not finished when the grace period is over are returned to other
    workers. A second signal terminates the process at once: its jobs are run again when their
    leases expire.

    Args:
        mux: the mux; its store must be shared between processes.
        app: an ASGI application that sets up resources of the jobs in its lifespan. Default: none.
        health: the host and port at which `/health` and `/ready` are served. Default: none.
        metrics: those at which metrics are served for Prometheus. Default: none.
        options: fields of `JobOptions` that replace those of the mux.

    Raises:
        ConfigurationError: the store is not shared, the application does not start, or an address
            is in use.
        CommandError: the store can never be used with its settings.
    """
    if not mux.store.shared:
        raise ConfigurationError(
            f"{mux.store!r} is not shared with other processes, so a worker would find no jobs: "
            f"give the Mux a store that the servers share (store=, or GENMCP_STORE), such as "
            f"sqlite:///jobs.db"
        )
    jobs = mux.tasks.service
    jobs.worker.options = replace(jobs.worker.options, **options)
    stop = asyncio.Event()
    checks: Health | None = None
    # Closed in reverse order: the jobs end first, while the application is still up.
    async with AsyncExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        stack.push_async_callback(mux.aclose)
        await check_store(mux)
        stack.enter_context(serve_metrics(mux, metrics))
        if health is not None:
            checks = Health(mux)
            await stack.enter_async_context(serve_routes(checks.routes(), health))
        if app is not None:
            await stack.enter_async_context(run_lifespan(app))
        stack.push_async_callback(jobs.aclose)
        working = asyncio.create_task(_work(mux))
        await wait_for_first(stop.wait(), working)
        if not working.cancelled():
            working.result()
        if checks is not None:
            checks.drain()
        grace = jobs.worker.options.shutdown_grace
        logger.info("stopping: running jobs have %g seconds to finish", grace)


async def _work(mux: Mux) -> None:
    """Run jobs, as soon as the store is available, until this is cancelled.

    Raises:
        RuntimeError: the work has ended by itself.
    """
    jobs, warnings = mux.tasks.service, LogThrottle(logger, interval=60.0)
    while True:
        try:
            await jobs.start()
            break
        except StoreUnavailable as error:
            warnings.log(logging.ERROR, "no jobs are run until the store is available: %s", error)
        await asyncio.sleep(_RETRY_DELAY)
    logger.info("worker of %s started, %s", mux.server.info.name, jobs)
    await jobs.worker.ended()
    # The process must fail: a supervisor restarts a process that exits, but cannot see that a
    # running process does not work any more.
    raise RuntimeError("the worker ended unexpectedly; the log has the reason")


@click.command(
    "worker",
    epilog=example("worker shop.app:mux --queue heavy --concurrency 2", about=SERVED_HELP),
)
@click.argument("target")
@click.option("--lifespan", metavar="APP", help="an ASGI application to start, and to shut down")
@click.option("--queue", "queues", multiple=True, help="instead of those in JobOptions; repeatable")
@click.option("--concurrency", type=COUNT, help="the number of concurrent jobs")
@click.option("--grace", type=SECONDS, default=5.0, help="seconds at shutdown (5)")
@click.option(
    "--health",
    callback=parse_address,
    metavar="HOST:PORT",
    help=f"serve {HEALTH_PATH} and {READY_PATH} here, for the probes of a supervisor",
)
@metrics_option
def worker(
    target: str,
    lifespan: str | None,
    queues: Sequence[str],
    concurrency: int | None,
    grace: float,
    health: HostPort | None,
    metrics: HostPort | None,
) -> None:
    """Run the jobs of TARGET, without serving requests, until SIGTERM or SIGINT."""
    mux = load_mux(target)
    app = None if lifespan is None else load_attribute(lifespan)
    if app is not None and not callable(app):
        raise ConfigurationError(f"--lifespan: {lifespan} is not an ASGI application: {app!r}")
    given = {"queues": queues, "concurrency": concurrency}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    changes["shutdown_grace"] = grace
    asyncio.run(run_worker(mux, app, health=health, metrics=metrics, **changes))


class _ProbeServer(uvicorn.Server):
    """A server beside the worker, which handles the signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_routes(routes: Sequence[Route], address: HostPort) -> AsyncIterator[None]:
    """Serve the *routes* of probes at *address*, in this event loop.

    It is the loop of the jobs, so that a loop that a job blocks does not count as alive.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.create_server(address, family=family)
    except OSError as error:
        raise ConfigurationError(f"--health {address}: {error}") from error
    with listener:
        app = Starlette(routes=routes)
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
        server = _ProbeServer(config)
        serving = asyncio.create_task(server.serve([listener]))
        at = HostPort(*listener.getsockname()[:2])
        logger.info("serving %s at http://%s", ", ".join(each.path for each in routes), at)
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            await asyncio.wait({serving})


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set *stop* at the first SIGTERM or SIGINT, and restore the previous handlers.

    A user who presses Ctrl-C twice therefore need not wait for the end of the grace period.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: object) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    previous = {each: signal.signal(each, handle) for each in _SIGNALS}

    def restore() -> None:
        for each, handler in previous.items():
            signal.signal(each, handler)

    try:
        yield
    finally:
        restore()


async def wait_for_first(*awaitables: Any) -> None:
    """Wait until one of *awaitables* has finished, and cancel the others."""
    waiting = [asyncio.ensure_future(each) for each in awaitables]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


@asynccontextmanager
async def run_lifespan(app: Any) -> AsyncIterator[None]:
    """Start the ASGI application *app*, and shut it down at the end (ASGI, "Lifespan Protocol").

    Raises:
        ConfigurationError: the application does not start.
    """
    lifespan = LifespanOn(uvicorn.Config(app, lifespan="on", log_config=None, ws="none"))
    await lifespan.startup()
    if lifespan.should_exit:
        raise ConfigurationError("the application did not start; the log has the reason")
    try:
        yield
    finally:
        await lifespan.shutdown()
