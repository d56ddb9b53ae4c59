"""What extensions add to a suite, asked for when it is wanted."""

import inspect
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.errors import ContractError
from genmcp.extension import Extension
from genmcp.hook import overrides
from genmcp.server import Route
from genmcp.suite.kinds import Kind, Shelf

__all__ = ["Extended", "Extensions"]

_READY: Final = 4096
"""How many components that extensions yielded are kept ready."""


class Extensions:
    """The *extensions* of a suite, in their order."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._extensions = extensions
        self._ready: dict[tuple[str, int], tuple[object, Shelf]] = {}

    def may_have(self, kind: Kind) -> bool:
        """Whether any of them has components of this kind, for somebody."""
        return any(overrides(each, kind.name, Extension) for each in self._extensions)

    async def shelf(self, kind: Kind, first: Shelf, channel: Channel) -> Shelf:
        """Return what is on *first*, and what is there besides for the request of *channel*."""
        routes = list(first.routes)
        async for shelf in self._shelves(kind, channel):
            routes += shelf.routes
        return kind.shelf(routes)

    async def find(self, kind: Kind, key: str, channel: Channel) -> Route | None:
        """Return the first route for *key* that is there for the request of *channel*."""
        async with aclosing(self._shelves(kind, channel)) as shelves:
            async for shelf in shelves:
                found: Route | None = shelf.find(key)
                if found is not None:
                    return found if found.is_visible(channel.principal) else None
        return None

    async def completer(self, kind: Kind, key: str, channel: Channel) -> Completer | None:
        """Return what completes what is known by *key*, for the request of *channel*."""
        async with aclosing(self._shelves(kind, channel)) as shelves:
            async for shelf in shelves:
                found = shelf.completer(key, channel.principal)
                if found is not None:
                    return found
        return None

    async def _shelves(self, kind: Kind, channel: Channel) -> AsyncGenerator[Shelf, None]:
        """Yield each component there is for the request, on a shelf of its own."""
        for extension in self._extensions:
            given: Any = getattr(extension, kind.name)(channel.principal, channel.static)
            if inspect.isawaitable(given):
                given = await given
            try:
                components = iter(given)
            except TypeError:
                where = f"{type(extension).__name__}.{kind.name}"
                raise ContractError(
                    f"{where} returned {type(given).__name__}: it must yield, or return a list"
                ) from None
            for component in components:
                yield self._shelf(kind, component)

    def _shelf(self, kind: Kind, component: object) -> Shelf:
        key = (kind.name, id(component))
        known = self._ready.get(key)
        if known is not None:
            return known[1]
        if len(self._ready) >= _READY:
            self._ready.clear()
        shelf = kind.shelf([kind.route_of(component)])
        self._ready[key] = (component, shelf)  # both, so that nothing else gets the id
        return shelf


class Extended(Route, frozen=True, kw_only=True):
    """A *key* that the suite itself does not have, and an extension may.

    Only the extension can tell, and may have to wait for that: the route is *pending*.
    """

    eager: bool = True
    pending: bool = True

    kind: Kind
    key: str
    extensions: Extensions

    async def found(self, channel: Channel) -> Route:
        """Return the route of the first that has it."""
        route = await self.extensions.find(self.kind, self.key, channel)
        if route is None:
            raise self.kind.absent(self.key)
        return self.kind.kept_private(route, self.key)
