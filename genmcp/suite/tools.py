"""The tools of a suite: found by name, and listed."""

from collections.abc import Sequence

from genmcp.completion import Completer
from genmcp.function import tool_of
from genmcp.listing import Item, Listing
from genmcp.metadata import instance_of, milliseconds
from genmcp.protocol.tools import ListToolsResult
from genmcp.tool import Tool, ToolRoute

__all__ = ["Tools", "tool_route"]


class Tools:
    """Routes in the order they were declared; of two of one name the first one counts.

    routes: those that count. listing: what is listed of them.
    """

    def __init__(self, routes: Sequence[ToolRoute]) -> None:
        self._by_name: dict[str, ToolRoute] = {}
        for route in routes:
            self._by_name.setdefault(route.definition.name, route)
        self.routes = tuple(self._by_name.values())
        items = [
            Item(
                key=name,
                ttl_ms=milliseconds(route.provider.cache_ttl),
                cache_scope=route.provider.cache_scope,
                visible=route.visible,
                value=route.definition,
            )
            for name, route in self._by_name.items()
        ]
        self.listing = Listing(items, ListToolsResult, "tools")

    @property
    def completes(self) -> bool:
        """Nothing completes a tool's arguments."""
        return False

    def find(self, name: str) -> ToolRoute | None:
        """Return the tool called *name*, or None."""
        return self._by_name.get(name)

    def completer(self, key: str, principal: str | None) -> Completer | None:
        """Return None: nothing completes a tool's arguments."""
        return None


def tool_route(given: object) -> ToolRoute:
    """Return the route of a tool: a class, an instance, or a function under `@tool`.

    Raises:
        ConfigurationError: it is none of them, or what it says of itself is wrong.
    """
    return ToolRoute.of(instance_of(given, Tool) or tool_of(given))
