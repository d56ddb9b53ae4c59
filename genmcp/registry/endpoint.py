"""A registry over HTTP: all servers at one URL, and each at a URL of its own."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint, route_to
from genmcp._transports.request import HttpRequest, Receive, Scope, Send, Serve
from genmcp.channel import Listener
from genmcp.composite.errors import CompositeError
from genmcp.core.subscription import TOOLS, ServerChange
from genmcp.errors import ConfigurationError, InvalidRequest
from genmcp.registry.registry import Registry
from genmcp.server import Server

if TYPE_CHECKING:
    from starlette.routing import Route


class _CompositeEndpoint(Endpoint):
    """The endpoint of the composite server. *loop* is the event loop of its last request."""

    loop: asyncio.AbstractEventLoop | None = None

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, serve: Serve | None = None
    ) -> None:
        """Serve one ASGI scope."""
        self.loop = asyncio.get_running_loop()
        await super().__call__(scope, receive, send, serve)


class RegistryEndpoint(Listener):
    """An ASGI application that serves the servers of a registry.

        app = Starlette(routes=RegistryEndpoint(registry).routes("/mcp"))

    `/mcp` serves all enabled servers as one, with tools called `server/tool`; `/mcp/server` serves
    one server under its own names. The endpoint of a server is made at its first request. When the
    server is removed, its endpoint is closed. If the registry made its mux, the mux is closed too.

    Args:
        registry: the registry, which may change while it is served.
        serve: makes the mux of the composite server. Default `Mux`.
        separator: what separates the names of a server and of its tool. Default `/`.
        options: options of `Endpoint`, for the composite server and for each server. The tokens of
            `auth=` are valid for all of them.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        serve: Callable[[Server], Mux] = Mux,
        separator: str = "/",
        **options: Any,
    ) -> None:
        if not isinstance(registry, Registry):
            raise ConfigurationError(f"registry must be a Registry, not {registry!r}")
        self.registry = registry
        self._options = options
        self._server = registry.server(separator=separator)
        self._composite = _CompositeEndpoint(serve(self._server), **options)
        if self._composite.authenticator is not None:
            # One for all, so that each knows of a token that another has verified.
            self._options = {**options, "auth": self._composite.authenticator}
        self._endpoints: dict[Mux, Endpoint] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._server.changes.follow(self)

    def __repr__(self) -> str:
        return f"<RegistryEndpoint of {self.registry!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope. Its path below the root names a server; empty: all servers."""
        root, path = scope.get("root_path", ""), scope.get("path", "")
        name = scope.get("path_params", {}).get("server")
        if name is None:
            name = path.removeprefix(root).strip("/")
        if scope["type"] != "http" or not name or name.startswith(".well-known/"):
            await self._composite(scope, receive, send)
            return
        try:
            mux = self.registry.find(name)
        except CompositeError as error:
            # Admitted like a request to a server: strangers do not learn which servers exist. A
            # preflight comes without credentials, and gets the same response at each path.
            preflight = scope["method"] == "OPTIONS"
            reject = None if preflight else partial(_reject_unknown, str(error))
            await self._composite(scope, receive, send, reject)
            return
        await self._endpoint(mux)(scope, receive, send)

    def routes(self, path: str) -> "list[Route]":
        """Return Starlette routes for *path*, and for each server below it.

        With `auth=`, there are also those of `metadata_routes`, for an application's root.

        Raises:
            ConfigurationError: *path* does not begin with a slash.
        """
        metadata = [] if self._composite.authenticator is None else self.metadata_routes()
        below = path.rstrip("/") + "/{server}"
        return [self._composite.route(path), route_to(self, below), *metadata]

    def metadata_routes(self) -> "list[Route]":
        """Return Starlette routes to the metadata of `auth=`, for the root of the application.

        See `Endpoint.metadata_route`. All servers have the metadata of the whole registry.

        Raises:
            ConfigurationError: the endpoint has no `auth=`.
        """
        root = self._composite.metadata_route()
        auth = self._composite.authenticator
        assert auth is not None  # or else there would be no route
        below = auth.document.paths[0] + "/{server}"
        return [root, route_to(auth.document, below, name="mcp-metadata")]

    def start(self) -> None:
        """Start the work on stored jobs, of all servers and their composite: `Endpoint.start`."""
        self._composite.start()
        for mux in self.registry.enabled.values():
            self._endpoint(mux)

    async def aclose(self) -> None:
        """Close all endpoints, and the mux of the composite server.

        The muxes of the servers stay open, since other endpoints may serve them. The `aclose` of
        the registry closes the muxes that the registry made.
        """
        self._composite.loop = None  # later changes of the registry close nothing here
        if self._closing:
            await asyncio.wait(self._closing)
        for endpoint in (self._composite, *self._endpoints.values()):
            await endpoint.aclose()
        await self._composite.mux.aclose()

    def _endpoint(self, mux: Mux) -> Endpoint:
        endpoint = self._endpoints.get(mux)
        if endpoint is None:
            # A server may have been removed before the first request, when there was no event loop
            # in which its mux could be closed.
            self._composite.loop = asyncio.get_running_loop()
            self._close_removed()
            endpoint = self._endpoints[mux] = Endpoint(mux, **self._options)
            endpoint.start()
        return endpoint

    def announce(self, change: ServerChange) -> None:
        """Close what belongs to removed servers, in the event loop that serves them."""
        # Called from any thread.
        loop = self._composite.loop
        if change == TOOLS and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._close_removed)

    def _close_removed(self) -> None:
        """Begin to close the endpoints and muxes of servers that were removed.

        These include muxes without an endpoint, which were used only by the composite server.
        """
        for mux in self.registry.removed(self._endpoints):
            closing = asyncio.get_running_loop().create_task(
                self._close(mux, self._endpoints.pop(mux, None))
            )
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, mux: Mux, endpoint: Endpoint | None) -> None:
        if endpoint is not None:
            await endpoint.aclose()
        await self.registry.release(mux)


async def _reject_unknown(message: str, http: HttpRequest) -> None:
    raise InvalidRequest(message, status=404)
