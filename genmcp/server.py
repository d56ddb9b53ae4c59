"""The behaviour below everything: what a mux asks of a server.

`Suite` is the ready-made one. Write your own to serve tools from somewhere else, or wrap one to
see every call go by, as ASGI applications are wrapped:

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

from genmcp.channel import ChangeNotifier, Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request, RouteFacts
from genmcp.core.server_dispatch import with_route
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hook import Visible
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.value import PaginatedResult, Result

__all__ = ["Middleware", "Route", "Server", "resolve_route", "route_of"]


class Route(RouteFacts, frozen=True, kw_only=True):
    """A tool, resource or prompt as `Server.find` returns it, before any of its hooks runs.

    visible: whether a principal may see it; None: everybody. Checked by the code that finds it.
    See `RouteFacts` for the other members.
    """

    visible: Visible | None = None

    def is_visible(self, principal: str | None) -> bool:
        """Whether it is there for *principal*."""
        return self.visible is None or self.visible(principal)

    async def found(self, channel: Channel) -> "Route":
        """Return the route itself, of one that is *pending*.

        Raises:
            McpError: there is none for the request of *channel*.
        """
        return self

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on with a call that has waited, as `Server.resume` does."""
        raise ContractError(f"{type(self).__name__} has no resume")

    async def cancelled(self, channel: Channel) -> None:
        """Take in that the call of *channel* was cancelled."""


def route_of(request: Request) -> Route:
    """Return the route of *request*, which `Server.find` returned."""
    assert isinstance(request.route, Route)
    return request.route


async def resolve_route(channel: Channel) -> Request:
    """Return the request of *channel* with its route resolved, and give it to the channel.

    The policy of the route counts from now on, so this comes before the hook runs.

    Raises:
        McpError: the route does not exist, or rejects the request.
    """
    request = channel.request
    if request.route is not None and request.route.pending:
        route = await route_of(request).found(channel)
        channel.request = request = with_route(request, route)
        channel._sink.route_resolved()
    return request


class Server(ABC):
    """What a mux needs to serve a set of tools (and resources, and prompts).

    `find` and `methods` are asked for every request before it is accepted: they do not wait,
    and cost the same whatever the server holds.
    """

    @property
    @abstractmethod
    def info(self) -> Implementation:
        """The server's name and version."""

    @property
    def instructions(self) -> str | None:
        """What a model should know in order to use this server, or None."""
        return None

    @property
    @abstractmethod
    def capabilities(self) -> ServerCapabilities:
        """What the server offers, as it tells its clients. `methods` says what it answers."""

    @property
    @abstractmethod
    def methods(self) -> Collection[str]:
        """The methods of `handle` and `listed` that this server answers."""

    @property
    def changes(self) -> ChangeNotifier | None:
        """What says that something of this server has changed; None: nothing ever does.

        The same one each time. `capabilities` tell which changes it speaks of.
        """
        return None

    def hearing(self, uris: Collection[str]) -> AbstractAsyncContextManager[Collection[str]]:
        """Give those of *uris* whose updates will be announced while this is entered.

        A mux enters it for as long as somebody listens for these resources, each of which `find`
        has found. Override it where hearing of them takes something: by then it should be done.
        """
        return nullcontext(uris)

    @abstractmethod
    def find(self, method: str, key: str) -> Route | None:
        """Return the route of the tool or prompt named, or the resource at, *key*.

        *method* is `"tools/call"`, `"prompts/get"` or `"resources/read"`. None: there is none.
        """

    @abstractmethod
    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Answer *request*, whose `route` is what `find` returned; or say what to wait for.

        Raises:
            ToolError: the call failed in a way the model should read.
            McpError: the request is answered with this error.
            Exception: anything else is logged, and shown as a reference to the log only.
        """

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on with a call that `handle`, or `resume`, has said to wait for something.

        `channel.request` is the request again, perhaps in another process, where *outcome* says
        how the wait has ended; its `route` is what `find` returned there.

        Raises:
            ToolError, McpError, Exception: as for `handle`.
        """
        raise ContractError(f"{type(self).__name__} answers with Continue, and has no resume")

    async def cancelled(self, channel: Channel) -> None:
        """Take in that the request of *channel* was cancelled; nothing of it runs any more."""
        return

    @abstractmethod
    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the page of the list *method* (`"tools/list"`, ...) that *cursor* points to.

        An unchanged list should be the same object every time: it is then encoded once. A cursor
        is any text the server makes and understands again; it is no secret here, nor bound to
        anything: the mux sees to both.

        Raises:
            InvalidParams: the cursor is not one this server gave out.
        """


class Middleware(Server):
    """A server that forwards everything to another, *inner*; override what should differ.

    Raises:
        ConfigurationError: *inner* is not a server.
    """

    def __init__(self, inner: Server) -> None:
        if not isinstance(inner, Server):
            raise ConfigurationError(
                f"{type(self).__name__}: inner must be a Server (a Suite), not {inner!r}"
            )
        self.inner = inner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}>"

    @property
    def info(self) -> Implementation:
        """That of the inner server."""
        return self.inner.info

    @property
    def instructions(self) -> str | None:
        """Those of the inner server."""
        return self.inner.instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """Those of the inner server."""
        return self.inner.capabilities

    @property
    def methods(self) -> Collection[str]:
        """Those of the inner server."""
        return self.inner.methods

    @property
    def changes(self) -> ChangeNotifier | None:
        """That of the inner server."""
        return self.inner.changes

    def hearing(self, uris: Collection[str]) -> AbstractAsyncContextManager[Collection[str]]:
        """Have the inner server see to it."""
        return self.inner.hearing(uris)

    def find(self, method: str, key: str) -> Route | None:
        """Ask the inner server."""
        return self.inner.find(method, key)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Let the inner server answer."""
        return await self.inner.handle(request, channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Let the inner server go on."""
        return await self.inner.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the inner server."""
        await self.inner.cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Let the inner server list."""
        return await self.inner.listed(method, cursor, channel)
