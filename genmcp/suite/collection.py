"""The kinds of components, and the collection of those of one kind in a suite."""

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from operator import neg
from typing import Final

import msgspec

from genmcp.completion import Completer
from genmcp.component import ComponentRoute
from genmcp.decorator import FunctionPrompt, FunctionTool, function_component
from genmcp.errors import McpError, PromptNotFound, ResourceNotFound, ToolNotFound
from genmcp.listing import Listing, ListingEntry
from genmcp.metadata import instance_of
from genmcp.prompt.prompt import Prompt, PromptRepo, PromptRoute
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import PaginatedResult
from genmcp.resource.resource import Resource, ResourceRepo
from genmcp.resource.route import ResourceRoute
from genmcp.tool import Tool, ToolRoute

__all__ = ["KINDS", "PROMPTS", "RESOURCES", "TOOLS", "Collection", "ComponentKind"]


class ComponentKind(msgspec.Struct, frozen=True, eq=False):
    """A kind of component.

    name: the option of a suite. method: of the requests that name a component. lists: the results
    of its lists, by method. route_of: makes the route of a component. absent: the error for an
    unknown key. bases: the base classes.
    """

    name: str
    method: str
    lists: Mapping[str, type[PaginatedResult]]
    route_of: Callable[[object], ComponentRoute]
    absent: Callable[[str], McpError]
    bases: tuple[type, ...]

    def accepts(self, given: object) -> bool:
        """Return whether *given*, a class, an instance or a function, is of this kind."""
        fits = issubclass if isinstance(given, type) else isinstance
        return fits(given, self.bases) or hasattr(given, f"__genmcp_{self.name[:-1]}__")  # type: ignore[arg-type]


class Collection:
    """The components of one *kind*, in the order in which they are listed. It does not change.

    A key, such as a name or URI, belongs to the first component that was declared for it, or for a
    prefix of it. A component that has no key of its own is left out.

    routes: those that are found. exact: those of a single key. lists: their lists, by method.
    """

    def __init__(self, kind: ComponentKind, routes: Sequence[ComponentRoute] = ()) -> None:
        self.exact: dict[str, ComponentRoute] = {}
        self._prefixes: dict[str, ComponentRoute] = {}
        self._lengths: list[int] = []  # of the prefixes, each once, the longest first
        self._kind = kind
        self.routes = tuple(route for route in routes if self._add(route))
        self._templates: dict[str, ComponentRoute] = {}
        for route in self.routes:
            if route.template is not None:
                self._templates.setdefault(route.template.uri_template, route)
        listed = [each for each in self.routes if each.definition is not None or each.lister]
        entries = [ListingEntry(each.pattern, each, each.definition) for each in listed]
        templates = [
            ListingEntry(key, each, each.template) for key, each in self._templates.items()
        ]
        self.lists = {
            method: Listing(result, templates if "template" in method else entries, self.find)
            for method, result in kind.lists.items()
        }

    def __repr__(self) -> str:
        return f"<Collection of {len(self.routes)} {self._kind.name}>"

    @property
    def completes(self) -> bool:
        """Whether a component has completions: the `completions` capability."""
        completers = [route.completer for route in self.routes]
        return any(each.hook or each.options for each in completers if each is not None)

    def find(self, key: str) -> ComponentRoute | None:
        """Return the route for *key*, or None. The cost does not depend on the number of routes."""
        return self.exact.get(key) or self.covering(key)

    def completer(self, key: str, principal: str | None) -> Completer | None:
        """Return the completer of a prompt or resource template, if *principal* may see it."""
        route = self._templates.get(key) if self._kind is RESOURCES else self.find(key)
        visible = route is not None and route.is_visible(principal)
        return route.completer_of(key) if route is not None and visible else None

    def _add(self, route: ComponentRoute) -> bool:
        """Add *route*, unless earlier ones cover all of its keys.

        Therefore, of two prefixes of one key, the longer one was declared first.
        """
        # An exact key declared earlier does not hide a prefix, which has other keys besides. `find`
        # looks among the exact keys first, so that each of the two is found.
        known = self.covering(route.key) if route.is_prefix else self.find(route.key)
        if known is not None:
            return False
        if not route.is_prefix:
            self.exact[route.key] = route
            return True
        self._prefixes[route.key] = route
        if len(route.key) not in self._lengths:
            insort(self._lengths, len(route.key), key=neg)
        return True

    def covering(self, key: str) -> ComponentRoute | None:
        """Return the route whose prefix *key* begins with, or None."""
        for length in self._lengths:
            route = self._prefixes.get(key[:length])
            if route is not None:
                return route
        return None


def _tool_route(given: object) -> ComponentRoute:
    return ToolRoute.of(instance_of(given, Tool) or function_component(FunctionTool, given))


def _prompt_route(given: object) -> ComponentRoute:
    made = instance_of(given, Prompt) or instance_of(given, PromptRepo)
    return PromptRoute.of(made or function_component(FunctionPrompt, given))


TOOLS: Final = ComponentKind(
    "tools",
    "tools/call",
    {"tools/list": ListToolsResult},
    _tool_route,
    ToolNotFound,
    (Tool,),
)
RESOURCES: Final = ComponentKind(
    "resources",
    "resources/read",
    {
        "resources/list": ListResourcesResult,
        "resources/templates/list": ListResourceTemplatesResult,
    },
    ResourceRoute.of,
    ResourceNotFound,
    (Resource, ResourceRepo),
)
PROMPTS: Final = ComponentKind(
    "prompts",
    "prompts/get",
    {"prompts/list": ListPromptsResult},
    _prompt_route,
    PromptNotFound,
    (Prompt, PromptRepo),
)
KINDS: Final = (TOOLS, RESOURCES, PROMPTS)
