"""Providers, which supply components that depend on the client, and the guard of visibility."""

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from operator import methodcaller
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ContractError
from genmcp.hook import overrides
from genmcp.protocol.value import CacheableResult, Result
from genmcp.server import Route
from genmcp.suite.collection import Collection, ComponentKind
from genmcp.tools import ToolRoute

T = TypeVar("T")
R = TypeVar("R", bound=Result | Continue)

_CACHED: Final = 4096
"""The maximum number of components of providers whose routes are cached."""


class Provider:
    """A source of tools, resources and prompts for a client. Subclass it and write its methods.

        class OfficeTools(Provider):
            def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Iterable[object]:
                if access is not None and access.subject in assigns["staff"]:
                    yield self.close_books

    *access* is that of the request (`channel.access`), or None; *assigns* are the static assigns of
    the mount. A list must not depend on the connection (2026-07-28, server/tools).

    Each method returns or yields components of the kinds that a `Suite` accepts, or is an
    `async def` that returns a list. A `def` must not block. A method is called for each list
    request, and for each request that names a component that neither the suite nor an earlier
    provider has; a generator is then closed at the first component of that name. Routes are cached
    by the identity of the component: return the same instances and functions each time.
    """

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        """Return the tools for the client with this *access*."""
        return ()

    def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        """Return the resources, and repositories of them, for the client with this *access*."""
        return ()

    def prompts(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        """Return the prompts, and repositories of them, for the client with this *access*."""
        return ()


class Providers:
    """The providers of a suite, in the order in which they are searched. Owned by the snapshot."""

    def __init__(self, providers: Sequence[Provider], overflow: int | None = None) -> None:
        self._providers = providers
        self._overflow = overflow
        self._cached: dict[tuple[str, int], tuple[object, Collection]] = {}

    def have(self, kind: ComponentKind) -> bool:
        """Return whether a provider overrides the method that returns components of *kind*."""
        return any(overrides(each, kind.name, Provider) for each in self._providers)

    async def first(
        self, kind: ComponentKind, channel: Channel, look: Callable[[Collection], T | None]
    ) -> T | None:
        """Call *look* with each component until it returns a value other than None; return that.

        Returns None if no component has such a value.
        """
        async with aclosing(self.collections(kind, channel)) as collections:
            async for each in collections:
                found = look(each)
                if found is not None:
                    return found
        return None

    async def collections(
        self, kind: ComponentKind, channel: Channel
    ) -> AsyncGenerator[Collection, None]:
        """Yield the components for the request of *channel*, each in a collection of its own."""
        # Pass a copy: a provider that changes its assigns must not change the assigns of the mux.
        static = {**(channel.context.static or {}), **(channel.context.given or {})}
        for provider in self._providers:
            given: Any = getattr(provider, kind.name)(channel.access, static)
            if inspect.isawaitable(given):
                given = await given
            try:
                components = iter(given)
            except TypeError:
                where = f"{type(provider).__name__}.{kind.name}"
                raise ContractError(
                    f"{where} returned {type(given).__name__}: it must yield, or return a list"
                ) from None
            for component in components:
                yield self._collection(kind, component)

    def _collection(self, kind: ComponentKind, component: object) -> Collection:
        key = (kind.name, id(component))
        cached = self._cached.get(key)
        if cached is None:
            if len(self._cached) >= _CACHED:
                self._cached.clear()
            route = kind.route_of(component)
            if isinstance(route, ToolRoute):
                # Without it the suite does not serve what is kept.
                if route.provider.overflow and not self._overflow:
                    raise ContractError(f"{route.owner}.overflow: set Suite(overflow=), too")
                route = bounded(route, self._overflow)
            # The component is kept too, so that no other object gets its id.
            cached = (component, Collection(kind, [route]))
            self._cached[key] = cached
        return cached[1]


class VisibilityGuard(Route, frozen=True, kw_only=True):
    """A route for *key* that is resolved once the access of the request is known.

    It stands for a component with restricted visibility, or for one that a provider may have.
    Before the access is known, the facts of the component's route are not used: an error for a
    header or a missing capability, or a task, would disclose that the component exists. Visibility
    is checked again when a call resumes. Results must not be cached for other clients.
    """

    eager: bool = True
    pending: bool = True

    kind: ComponentKind
    key: str
    providers: Providers
    route: Any = None

    async def resolve(self, channel: Channel) -> Route:
        """Return a guard of the component's route that states the facts of that route.

        Raises:
            McpError: the component does not exist for the client of *channel*.
        """
        find = methodcaller("find", self.key)
        route: Any = self.route or await self.providers.first(self.kind, channel, find)
        if route is None or not route.is_visible(channel.access):
            raise self.kind.absent(self.key)
        return replace(
            self,
            header_rules=route.header_rules,
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            scopes=route.scopes,
            policy=route.policy,
            eager=route.eager,
            pending=False,
            route=route,
        )

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Run the first hook of the component, and mark a result as private to the client."""
        # `resolve_route` was called before, here and in `resume`. *self* is therefore the guard
        # that `resolve` returned, whose route the client may see.
        step: Result | Continue = await self.route.handle(request, channel)
        return private(step)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call of the component after a wait, and mark a result as private.

        Raises:
            McpError: the component is no longer visible to the client.
        """
        if not self.is_visible(channel.access):
            raise self.kind.absent(self.key)
        step: Result | Continue = await self.route.resume(continuation, outcome, channel)
        return private(step)

    async def cancelled(self, channel: Channel) -> None:
        """Call the component's `on_cancel`, even if the client may no longer see the component.

        Does nothing if the component no longer exists.
        """
        if self.route is not None:
            await self.route.cancelled(channel)


def bounded(route: ToolRoute, default: int | None) -> ToolRoute:
    """Return *route* with the bound on its results, if `Tool.overflow` or *default* sets one."""
    limit = route.provider.overflow or default
    if limit is None:
        return route
    # Here: a suite without such a limit does not load it.
    from genmcp.overflow import OverflowRoute

    return OverflowRoute.wrapping(route, limit)


def private(result: R) -> R:
    """Return *result*, marked as not to be cached for other clients."""
    if isinstance(result, CacheableResult) and result.cache_scope == "public":
        return replace(result, cache_scope="private")
    return result
