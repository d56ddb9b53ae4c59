"""`genmcp serve`: a server, over HTTP or over standard streams."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import uvicorn
from starlette.applications import Starlette

from genmcp.cli.target import load, mux_of
from genmcp.cli.worker import first, told_by_signals
from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.transports.endpoint import Endpoint
from genmcp.transports.stdio import Streams, private_streams, serve_streams

__all__ = ["Http", "application", "over_http", "over_streams", "serve_until_told"]

logger = logging.getLogger("genmcp")

_TARGET: Final = "GENMCP_SERVE"
"""The environment variable in which worker processes find what to serve, and where."""


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """Where a *target*, `module:attribute`, is served."""

    target: str
    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    workers: int = 1


def over_http(http: Http) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the target, or where it is to be served, is wrong.
    """
    endpoint = endpoint_of(http)  # what is wrong with it is told here, once
    logger.info("serving %s at http://%s:%d%s", http.target, http.host, http.port, http.path)
    if http.workers == 1:
        uvicorn.run(served(endpoint, http.path), host=http.host, port=http.port)
        return
    if not endpoint.mux.store.shared:
        logger.warning(
            "each of the %d workers keeps tasks, log levels and subscriptions to itself: give them "
            "a store that they share (store=, or GENMCP_STORE), such as sqlite:///jobs.db",
            http.workers,
        )
    os.environ[_TARGET] = msgspec.json.encode(http).decode()
    application = f"{__name__}:application"
    uvicorn.run(application, factory=True, host=http.host, port=http.port, workers=http.workers)


def application() -> Starlette:
    """Return the application of a worker process."""
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
    found = load(http.target)
    return found if isinstance(found, Endpoint) else Endpoint(mux_of(http.target))


def over_streams(target: str) -> None:
    """Serve over standard input and output, until the input ends, or SIGTERM or SIGINT.

    Nothing that the target's modules print when they are imported reaches the client.

    Raises:
        ConfigurationError: the target is wrong.
    """
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
