"""Servers: the interface that a mux serves, and middleware.

`Suite` is the ready-made server. Write your own to serve tools that are stored somewhere else, or
wrap one to observe or change every call, as ASGI applications are wrapped:

    class Timed(Middleware):
        async def handle(self, request: Request, channel: Channel) -> Result | Continue:
            began = time.perf_counter()
            try:
                return await self.inner.handle(request, channel)
            finally:
                log(request.method, time.perf_counter() - began)
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from typing import Any, Literal

import msgspec

from genmcp.channel import ChangeNotifier, Channel
from genmcp.core.access import Access, checked_scopes
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request as Request
from genmcp.core.request import RouteFacts
from genmcp.core.server_dispatch import with_route
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import Visible, check_words
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.methods import Method
from genmcp.protocol.params import RequestParams
from genmcp.protocol.value import PaginatedResult, Result


class Route(RouteFacts, frozen=True, kw_only=True):
    """A tool, resource or prompt that `Server.find` found for a request.

    A route runs the hooks of its component, and states the facts that the mux needs before the
    first hook runs (see `RouteFacts`).

    Attributes:
        visible: a function that returns whether a client may use the component, by its access;
            None: all may. `find` does not call this function, since the access is known only later,
            to `handle`.
        scopes: the scopes that a client needs; the mux checks them before `handle`.
        shared: whether another server behind a hub or registry may have what this one does not,
            under the same prefix.
    """

    shared: bool = False
    visible: Visible | None = None

    def __post_init__(self) -> None:
        if self.scopes:
            checked_scopes(f"{type(self).__name__}.scopes", self.scopes)

    def is_visible(self, access: Access | None) -> bool:
        """Return whether the client with this *access* may use the component."""
        return self.visible is None or self.visible(access)

    async def resolve(self, channel: Channel) -> "Route":
        """Return the route to run the request with; *self* unless the route is *pending*.

        A pending route cannot state its facts before the access of the request is known.

        Raises:
            McpError: the component does not exist for the client of *channel*.
        """
        return self

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call after its wait; see `Server.resume`."""
        raise ContractError(f"{type(self).__name__} has no resume")

    async def cancelled(self, channel: Channel) -> None:
        """Handle the cancellation of the call of *channel*."""


def route_of(request: Request) -> Route:
    """Return the route of *request*, which `Server.find` returned."""
    # `Request.route` is declared as RouteFacts, since `core` must not import this module. `find`
    # returns a Route, so the facts always belong to a Route.
    assert isinstance(request.route, Route)
    return request.route


async def resolve_route(channel: Channel) -> Request:
    """Resolve the route of the request of *channel* if it is pending, and return the request.

    The request of *channel* is replaced by a copy with the resolved route.

    Raises:
        McpError: the component does not exist for the client, or the resolved route rejects
            the request, for example because of its headers.
    """
    # Resolve before the hook runs: the policy of the resolved route decides whether the call
    # becomes a task, and its header rules have not been checked yet.
    request = channel.request
    if request.route is not None and request.route.pending:
        found = route_of(request)
        route = await found.resolve(channel)
        if not set(found.scopes) <= {*route.scopes}:  # those that a middleware has added
            needed = dict.fromkeys((*found.scopes, *route.scopes))
            route = msgspec.structs.replace(route, scopes=tuple(needed))
        # `resolve` may have replaced the request: one tool may name another in its arguments.
        channel.request = request = with_route(channel.request, route)
    return request


class Server(ABC):
    """A set of tools, resources and prompts that a mux serves. Subclass it to write your own.

    `find` and `methods` are called for every request before it is accepted. They must not block,
    and their cost should not depend on the number of components.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a misnamed hook, which would never be called."""
        super().__init_subclass__(**options)
        check_words(cls)

    def run(
        self,
        transport: Literal["stdio", "http"] = "stdio",
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
    ) -> None:
        """Serve, until the client leaves or a signal stops the process, as `genmcp serve` does.

            if __name__ == "__main__":
                suite.run()

        Args:
            transport: "stdio" for one client, which starts this process. "http" for clients of
                `http://HOST:PORT/mcp`. Default "stdio".
            host: the address to listen on. Default: only clients on this machine.
            port: the port; 0: any free port. Default 8000.

        Raises:
            ConfigurationError: the transport does not exist.
            SystemExit: the address cannot be used.
        """
        # By its name: the command is above all layers, and a server that is mounted needs none.
        import_module("genmcp.cli.serve").run(self, transport, host, port)

    @property
    @abstractmethod
    def info(self) -> Implementation:
        """The server's name and version."""

    @property
    def instructions(self) -> str | None:
        """Instructions for a model that uses the server, or None."""
        return None

    @property
    @abstractmethod
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that are declared to clients. `methods` must agree with them."""

    @property
    @abstractmethod
    def methods(self) -> Collection[str]:
        """The methods that `handle` and `listed` serve. Others get the error "Method not found".

        They may include methods of extensions, which no revision of the protocol defines.
        """

    def added(self, method: str) -> Method:
        """Return the types of *method*, a method of an extension that is among `methods`.

        Default: the params have no members but `_meta`, and `handle` reads `request.raw`.
        """
        return Method(method, RequestParams, Result)

    @property
    def changes(self) -> ChangeNotifier | None:
        """The notifier of changes, always the same object; None if the server never changes.

        `capabilities` declare the kinds of changes that the notifier announces.
        """
        return None

    def watch_resources(
        self, uris: Collection[str]
    ) -> AbstractAsyncContextManager[Collection[str]]:
        """Return a context manager; while it is entered, `changes` announces updates of *uris*.

        The mux enters the context when clients subscribe, and leaves it when they unsubscribe.
        Override this method if the server has to subscribe to another system: subscribe when the
        context is entered, and return from `__aenter__` only once the subscription is active.

        Args:
            uris: the URIs that clients have subscribed to. `find` has found a route for each.

        Returns:
            A context manager that yields those of *uris* of which updates will be announced.
        """
        return nullcontext(uris)

    @abstractmethod
    def find(self, method: str, key: str) -> Route | None:
        """Return the route of a component, or None if it does not exist.

        Args:
            method: `"tools/call"`, `"prompts/get"` or `"resources/read"`.
            key: the name of the tool or prompt, or the URI of the resource.
        """

    @abstractmethod
    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Run *request*. `request.route` is the route that `find` returned for it.

        Returns:
            The result of the request; or a `Continue`, after whose wait the mux calls `resume`.

        Raises:
            ToolError: the call failed. The model gets the text of the error.
            McpError: the client gets this error as the response.
            Exception: any other exception is logged; the client gets an error with the id of the
                log entry.
        """

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call for which `handle` or `resume` has returned a `Continue`.

        The method may run in another process than `handle`. `channel.request` is then the same
        request, with the route that `find` returned in that process.

        Args:
            continuation: names the step in which the call continues.
            outcome: the value or error of the wait.
            channel: the channel of the request.

        Raises:
            ToolError, McpError, Exception: as for `handle`.
        """
        raise ContractError(f"{type(self).__name__} answers with Continue, and has no resume")

    async def cancelled(self, channel: Channel) -> None:
        """Clean up after the request of *channel* was cancelled.

        None of its hooks still runs, unless one takes longer than `JobOptions.lease` to end.
        """
        return

    @abstractmethod
    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return one page of a list.

        Return the same object as long as the list does not change, so that the mux encodes it only
        once.

        Args:
            method: the list, such as `"tools/list"`.
            cursor: None for the first page, then the `next_cursor` of the previous page. A cursor
                may be any text: the mux seals it, and binds it to the list and the principal,
                before it is sent to the client.
            channel: the channel of the request.

        Raises:
            InvalidParams: the cursor was not returned by this server.
        """


def added_method(server: Server, method: str) -> Method | None:
    """Return the types of *method*, which no revision has, if *server* serves it; else None."""
    return server.added(method) if method in server.methods else None


class Middleware(Server):
    """A server that forwards every request to an inner server. Subclass it to change some methods.

    Args:
        inner: the server to forward to.

    Raises:
        ConfigurationError: *inner* is not a server.
    """

    def __init__(self, inner: Server) -> None:
        # Without the check, a class instead of an instance, or a hub, would fail only at the first
        # request.
        if not isinstance(inner, Server):
            raise ConfigurationError(
                f"{type(self).__name__}: inner must be a Server (a Suite), not {inner!r}"
            )
        self.inner = inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}>"

    @property
    def info(self) -> Implementation:
        """The name and version of the inner server."""
        return self.inner.info

    @property
    def instructions(self) -> str | None:
        """The instructions of the inner server."""
        return self.inner.instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the inner server."""
        return self.inner.capabilities

    @property
    def methods(self) -> Collection[str]:
        """The methods of the inner server."""
        return self.inner.methods

    def added(self, method: str) -> Method:
        """Return the types of a method of an extension of the inner server."""
        return self.inner.added(method)

    @property
    def changes(self) -> ChangeNotifier | None:
        """The notifier of changes of the inner server."""
        return self.inner.changes

    def watch_resources(
        self, uris: Collection[str]
    ) -> AbstractAsyncContextManager[Collection[str]]:
        """Forward to the inner server."""
        return self.inner.watch_resources(uris)

    def find(self, method: str, key: str) -> Route | None:
        """Forward to the inner server."""
        return self.inner.find(method, key)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Forward to the inner server."""
        return await self.inner.handle(request, channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Forward to the inner server."""
        return await self.inner.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Forward to the inner server."""
        await self.inner.cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Forward to the inner server."""
        return await self.inner.listed(method, cursor, channel)
