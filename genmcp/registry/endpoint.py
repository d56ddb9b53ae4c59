"""A registry over HTTP: all of its servers at one URL, and each at its own."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from genmcp.errors import ConfigurationError, InvalidRequest
from genmcp.mux.mux import Mux
from genmcp.registry.errors import RegistryError
from genmcp.registry.live import LiveRegistry
from genmcp.registry.registry import Registry
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint, route_to
from genmcp.transports.request import ClientLeft, Receive, Scope, Send, Serve, reply
from genmcp.wire import jsonrpc

if TYPE_CHECKING:
    from starlette.routing import Route

__all__ = ["RegistryEndpoint"]


class _All(Endpoint):
    """That of all servers together; loop: that in which it has been called last."""

    loop: asyncio.AbstractEventLoop | None = None

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, serve: Serve | None = None
    ) -> None:
        """Serve one ASGI scope."""
        self.loop = asyncio.get_running_loop()
        await super().__call__(scope, receive, send, serve)


class RegistryEndpoint:
    """Serves the servers of a registry, as they are at each time. It is an ASGI application.

        app = Starlette(routes=RegistryEndpoint(registry).routes("/mcp"))

    At `/mcp` are the tools of all servers that are enabled, each called `server/tool`; at
    `/mcp/server` are those of one. serve: makes the mux of all of them together. separator: what
    stands in those names instead of the slash. The others are options of an Endpoint, for every
    one of them.

    An Endpoint of its own for each server keeps what only an HTTP endpoint knows (who may call,
    what is open) where it is for every other server; it is made when its first request comes, and
    closed when the server is registered no more, with the mux if the registry made that: also one
    that was called at `/mcp` only.
    """

    def __init__(
        self,
        registry: Registry | LiveRegistry,
        *,
        serve: Callable[[Server], Mux] = Mux,
        separator: str = "/",
        **options: Any,
    ) -> None:
        if not isinstance(registry, Registry | LiveRegistry):
            raise ConfigurationError(f"registry must be a Registry, not {registry!r}")
        self.registry = registry if isinstance(registry, LiveRegistry) else LiveRegistry(registry)
        self._options = options
        self._all = _All(serve(self.registry.server(separator=separator)), **options)
        self._endpoints: dict[Mux, Endpoint] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._unwatch = self.registry.watch(self._changed)

    def __repr__(self) -> str:
        return f"<RegistryEndpoint of {self.registry!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope; what is left of its path is the name of a server, or nothing."""
        if scope["type"] != "http":
            await self._all(scope, receive, send)
            return
        root, path = scope.get("root_path", ""), scope["path"]
        name = scope.get("path_params", {}).get("server")
        if name is None:
            name = path.removeprefix(root).strip("/")
        if not name:
            await self._all(scope, receive, send)
            return
        try:
            mux = self.registry.current.find(name)
        except RegistryError as error:
            body = jsonrpc.encode_error(None, InvalidRequest(str(error)))
            with suppress(ClientLeft):
                await reply(send, 404, body)
            return
        await self._endpoint(mux)(scope, receive, send)

    def routes(self, path: str) -> "list[Route]":
        """Return Starlette routes that answer at *path*, and below it for each server.

        Raises:
            ConfigurationError: the path does not begin with a slash.
        """
        return [route_to(self._all, path), route_to(self, path.rstrip("/") + "/{server}")]

    async def aclose(self) -> None:
        """End what is open, and close the mux of all together.

        Those of the servers are the registry's, which may be served elsewhere, too: its own
        `aclose` closes those it has made.
        """
        self._unwatch()
        if self._ending:
            await asyncio.wait(self._ending)
        for endpoint in (self._all, *self._endpoints.values()):
            await endpoint.aclose()
        await self._all.mux.aclose()

    def _endpoint(self, mux: Mux) -> Endpoint:
        endpoint = self._endpoints.get(mux)
        if endpoint is None:
            self._all.loop = asyncio.get_running_loop()
            self._let_go()
            endpoint = self._endpoints[mux] = Endpoint(mux, **self._options)
        return endpoint

    def _changed(self, version: int) -> None:
        """Look whether a server is gone, in the loop that serves: this may be any thread."""
        loop = self._all.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        """End what is open at the endpoints of servers that are registered no more."""
        muxes = {entry.mux for entry in self.registry.current.entries.values()}
        for mux in ({*self._endpoints} | self.registry.left) - muxes:
            ending = asyncio.get_running_loop().create_task(
                self._end(mux, self._endpoints.pop(mux, None))
            )
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, mux: Mux, endpoint: Endpoint | None) -> None:
        if endpoint is not None:
            await endpoint.aclose()
        await self.registry.release(mux)
