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

from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Outcome
from genmcp._core.request import Request, RouteFacts
from genmcp._core.server_dispatch import with_route
from genmcp._core.waiting import Continue
from genmcp.channel import ChangeNotifier, Channel
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import Visible
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.value import PaginatedResult, Result


class Route(RouteFacts, frozen=True, kw_only=True):
    """A tool, resource or prompt as `Server.find` returns it, before any of its hooks runs.

    Attributes:
        visible: whether a principal may use it; None: all may. `find` does not call it: the
            principal is known only to `handle`.
        headers, on_disconnect, policy, eager, pending: see `RouteFacts`.
    """

    visible: Visible | None = None

    def is_visible(self, principal: str | None) -> bool:
        """Return whether *principal* may use it."""
        return self.visible is None or self.visible(principal)

    async def resolve(self, channel: Channel) -> "Route":
        """Return the final route, if this one is *pending*.

        Raises:
            McpError: the component does not exist for the principal of *channel*.
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
    # The core knows only the facts of a route; those that `find` returns are always a Route.
    assert isinstance(request.route, Route)
    return request.route


async def resolve_route(channel: Channel) -> Request:
    """Resolve the route of the request of *channel*, and return the request with it.

    Raises:
        McpError: the route does not exist, or rejects the request.
    """
    # This comes before the hook runs: the policy of the route decides whether the call becomes a
    # task, and the headers that repeat arguments have not been checked yet.
    request = channel.request
    if request.route is not None and request.route.pending:
        route = await route_of(request).resolve(channel)
        channel.request = request = with_route(request, route)
        channel._sink.route_resolved()
    return request


class Server(ABC):
    """A set of tools, resources and prompts that a mux serves. Subclass it to write your own.

    `find` and `methods` are called for every request before it is accepted. They must not block,
    and their cost should not depend on the number of components.
    """

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
        """The capabilities that are declared to clients; see also `methods`."""

    @property
    @abstractmethod
    def methods(self) -> Collection[str]:
        """The methods that `handle` and `listed` serve; all others are unknown methods."""

    @property
    def changes(self) -> ChangeNotifier | None:
        """The notifier of changes, always the same object; None: the server never changes.

        `capabilities` declare which changes it announces.
        """
        return None

    def watch_resources(
        self, uris: Collection[str]
    ) -> AbstractAsyncContextManager[Collection[str]]:
        """Return a context in which updates of resources are announced.

        A mux enters it while clients are subscribed to these resources, all of which `find` has
        found. Override it if the server itself has to subscribe somewhere; that should be complete
        when the context is entered.

        Args:
            uris: the URIs that clients have subscribed to.

        Returns:
            A context manager that yields the URIs of *uris* that will be announced.
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
        """Run *request*; its `route` was returned by `find`.

        Returns:
            The result; or a `Continue`: `resume` is called after its wait.

        Raises:
            ToolError: the call failed in a way that the model should read.
            McpError: the request fails with this error.
            Exception: any other is logged, and the client gets a reference to the log.
        """

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call for which `handle` or `resume` has returned a `Continue`.

        It may run in another process: `channel.request` is then the same request with the route
        that `find` returned there.

        Args:
            continuation: names the step in which the call continues.
            outcome: the value or error of the wait.
            channel: the channel of the request.

        Raises:
            ToolError, McpError, Exception: as for `handle`.
        """
        raise ContractError(f"{type(self).__name__} answers with Continue, and has no resume")

    async def cancelled(self, channel: Channel) -> None:
        """Handle the cancellation of the request of *channel*, of which nothing runs any more."""
        return

    @abstractmethod
    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return one page of a list.

        Return the same object as long as the list does not change: it is then encoded only once.

        Args:
            method: the list, such as `"tools/list"`.
            cursor: None for the first page, then the `next_cursor` of the previous page. The mux
                seals it and binds it to the list and the principal, so that it may be any text.
            channel: the channel of the request.

        Raises:
            InvalidParams: the cursor was not returned by this server.
        """


class Middleware(Server):
    """A server that forwards everything to an inner one. Subclass it and override some methods.

    Args:
        inner: the server.

    Raises:
        ConfigurationError: *inner* is not a server.
    """

    def __init__(self, inner: Server) -> None:
        # A class instead of an instance, or a hub, would fail only at the first request.
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
