"""Collections: the components of one kind, the lookup of a component by key, and paged lists.

A repository is one component here. It finds and lists its own items when a request needs them.
"""

import inspect
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import neg
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.component import instance_of
from genmcp.component_route import ComponentRoute
from genmcp.content import json_of
from genmcp.core.access import Access
from genmcp.decorator import FunctionPrompt, FunctionResource, FunctionTool, function_component
from genmcp.errors import (
    ConfigurationError,
    ContractError,
    InvalidParams,
    McpError,
    PromptNotFound,
    ResourceNotFound,
    ToolNotFound,
)
from genmcp.prompts.prompt import Prompt, PromptRepo, PromptRoute
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import CacheScope, PaginatedResult
from genmcp.resources.resource import ReadableComponent, ResourceRoute, TemplateRoute
from genmcp.tools import Tool, ToolRoute


class ListingEntry(msgspec.Struct, frozen=True):
    """A component in a list.

    Attributes:
        key: the name or URI of a component, or the prefix of a repository. Two entries may have the
            same key only if one of them is a repository.
        value: the definition that is listed; None for a repository, whose `list` hook returns the
            definitions.
    """

    key: str
    route: ComponentRoute
    value: Any


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """The start of a page: the entry with *key*.

    If that entry is a repository, *within* is True, and the page starts at item *offset* of the
    page that the `list` hook returns for *cursor*.
    """

    key: str
    within: bool = False
    cursor: Any = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class Listing:
    """A list of components, in pages. Owned by a `Collection`.

    Clients may cache any page for the shortest time that one of the entries allows. A cache may
    share the pages only if all entries allow that (2026-07-28, server/utilities, "Caching",
    "Interaction with Pagination").

    Args:
        result: the type of a page.
        entries: the components, in the order of the list.
        find: returns the route that serves a key. An item that a repository lists is left out
            if another component serves its key.
    """

    def __init__(
        self,
        result: type[PaginatedResult],
        entries: Sequence[ListingEntry],
        find: Callable[[str], ComponentRoute | None],
    ) -> None:
        self._entries = entries
        self._result = result
        (self._member,) = {*result.__struct_fields__} - {*PaginatedResult.__struct_fields__}
        self._find = find
        self._places = {(each.key, each.value is None): place for place, each in enumerate(entries)}
        routes = [each.route for each in entries]
        public = all(each.cache_scope == "public" and each.visible is None for each in routes)
        self._cache_scope: CacheScope = "public" if public else "private"
        self._ttl_ms = min((each.ttl_ms for each in routes), default=0)
        self._pages: dict[tuple[int, int], PaginatedResult] = {}

    async def page(self, cursor: str | None, channel: Channel, *, size: int) -> PaginatedResult:
        """Return up to *size* items, from the position of *cursor*.

        A page may have fewer items than *size*: after a repository has returned items and has more,
        the page ends, so that one request never calls the same repository twice. A page that is the
        same for all clients is created once and then cached.

        Raises:
            InvalidParams: the cursor was not issued by this list, or its entry was removed.
            ContractError: the `list` hook of a repository did not return a page.
        """
        place, position = self._position(cursor)
        # Only the pages that are the same for all clients are cached, so that the number of cached
        # pages is bounded by the entries.
        known = None if position.within else self._pages.get((place, size))
        if known is not None:
            return known
        found: dict[str, Any] = {}
        following: _Position | None = None
        varies = position.within
        for entry in islice(self._entries, place, None):
            if (visible := entry.route.visible) is not None:
                varies = True
                if not visible(channel.access):
                    continue
            if len(found) >= size:
                following = _Position(entry.key, entry.value is None)
            elif entry.value is not None:
                # If a key has two definitions, list the first one, which is also the one that
                # `find` returns.
                found.setdefault(entry.key, entry.value)
            else:
                varies = True
                is_here = position.within and position.key == entry.key
                begin = position if is_here else _Position(entry.key, True)
                part, following = await self._part(entry, begin, size - len(found), channel)
                for key, each in part:
                    found.setdefault(key, each)
            if following is not None:
                break
        members: dict[str, Any] = {
            self._member: [*found.values()],
            "ttl_ms": self._ttl_ms,
            "cache_scope": self._cache_scope,
            "next_cursor": None if following is None else json_of(following).decode(),
        }
        result = self._result(**members)
        if not varies:
            self._pages[place, size] = result
        return result

    async def _part(
        self, entry: ListingEntry, begin: _Position, size: int, channel: Channel
    ) -> tuple[list[tuple[str, Any]], _Position | None]:
        """Return up to *size* items of a repository with their keys, and the position after them.

        Raises:
            ContractError: the hook did not return a page.
        """
        route = entry.route
        assert route.lister is not None
        page, after = await route.lister(channel, begin.cursor, channel), None
        if isinstance(page, tuple) and len(page) == 2 and isinstance(page[0], list | tuple):
            page, after = page
        if not isinstance(page, list | tuple):
            raise route.broken("list", page, "it must return a list, or a list and a cursor")
        end = begin.offset + size
        keyed = [(route.key_of(each), each) for each in page[begin.offset : end]]
        found = [(key, each) for key, each in keyed if self._is_of(route, key)]
        if end < len(page):
            return found, _Position(entry.key, True, begin.cursor, end)
        if after is None:
            return found, None
        try:
            json_of(after)
        except ContractError as error:
            raise route.broken("list", after, f"as a cursor, {error}") from error
        return found, _Position(entry.key, True, after)

    def _is_of(self, route: ComponentRoute, key: str) -> bool:
        owner = self._find(key)
        return owner is None or owner is route

    def _position(self, cursor: str | None) -> tuple[int, _Position]:
        if cursor is None:
            return 0, _Position("")
        try:
            position = _decode(cursor)
            return self._places[position.key, position.within], position
        except (msgspec.DecodeError, ValueError, RecursionError, KeyError):
            raise InvalidParams(f"Invalid cursor: {cursor}") from None


_decode = msgspec.json.Decoder(_Position).decode


class ComponentKind(msgspec.Struct, frozen=True, eq=False):
    """A kind of component: tools, resources or prompts.

    Attributes:
        name: the option of a suite that takes components of this kind.
        method: the method of requests that name a component, such as `"tools/call"`.
        lists: the result types of the lists of this kind, by method.
        route_of: returns the route of a component.
        absent: returns the error for an unknown key.
        bases: the base classes of components of this kind.
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
    """The components of one kind, in the order in which they are listed. Immutable.

    Two components may cover the same key (a name or URI): the key belongs to the one that was
    declared first. A component is left out if earlier ones cover all of its keys. The URI template
    of a function has only the keys that match it: after components with one key, the template with
    the longest prefix serves a key, and among equal prefixes the one that was declared first.

    Attributes:
        routes: the routes of all components that are not left out.
        exact: by key, the routes of the components with one key.
        lists: the lists of the components, by method.
    """

    def __init__(self, kind: ComponentKind, routes: Sequence[ComponentRoute] = ()) -> None:
        self.exact: dict[str, ComponentRoute] = {}
        self._prefixes: dict[str, list[ComponentRoute]] = {}
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
        """Whether any component has completions; the server then declares that capability."""
        completers = [route.completer for route in self.routes]
        return any(each.hook or each.options for each in completers if each is not None)

    def find(self, key: str) -> ComponentRoute | None:
        """Return the route for *key*, or None. The cost does not depend on the number of routes."""
        return self.exact.get(key) or self.covering(key)

    def completer(self, key: str, access: Access | None) -> Completer | None:
        """Return the completer of the prompt or resource template *key*.

        Returns None if it does not exist, is invisible to a client with this *access*, or has no
        completions.
        """
        route = self._templates.get(key) if self._kind is RESOURCES else self.find(key)
        if route is None or not route.is_visible(access):
            return None
        completer = route.completer_of(key)
        return None if completer is None else replace(completer, scopes=route.scopes)

    def _add(self, route: ComponentRoute) -> bool:
        """Add *route* and return True; return False if an earlier route covers all of its keys.

        Therefore, if two prefixes in the collection match a key, the longer one was declared first.
        """
        # An earlier component whose only key has this prefix does not hide the prefix, which covers
        # further keys. `find` looks among the exact keys first, so that both components are found.
        known = None if route.is_prefix else self.exact.get(route.key)
        if known is not None or self._covered(route):
            return False
        if not route.is_prefix:
            self.exact[route.key] = route
            return True
        self._prefixes.setdefault(route.key, []).append(route)
        if len(route.key) not in self._lengths:
            insort(self._lengths, len(route.key), key=neg)
        return True

    def covering(self, key: str) -> ComponentRoute | None:
        """Return the route whose prefix *key* begins with; None without such a route."""
        for route in self._with_prefix_of(key):
            if not isinstance(route, TemplateRoute) or route.uri.match(key) is not None:
                return route
        return None

    def _covered(self, route: ComponentRoute) -> bool:
        """Return whether an earlier route with a prefix covers all keys of *route*."""
        # A template covers the keys that match it: another may have the same prefix.
        earlier = self._with_prefix_of(route.key)
        return any(
            not isinstance(each, TemplateRoute) or each.pattern == route.pattern for each in earlier
        )

    def _with_prefix_of(self, key: str) -> Iterator[ComponentRoute]:
        for length in self._lengths:
            yield from self._prefixes.get(key[:length], ())


def _tool_route(given: object) -> ComponentRoute:
    if isinstance(given, Mapping):
        options = dict(given)
        function = options.pop("function", None)
        if not inspect.isfunction(function):
            raise ConfigurationError(
                f'a tool as a mapping has a "function", beside options of @tool: {given!r}'
            )
        return ToolRoute.of(FunctionTool(function, options, {}))
    return ToolRoute.of(instance_of(given, Tool) or function_component(FunctionTool, given))


def _prompt_route(given: object) -> ComponentRoute:
    made = instance_of(given, Prompt) or instance_of(given, PromptRepo)
    return PromptRoute.of(made or function_component(FunctionPrompt, given))


def _resource_route(given: object) -> ComponentRoute:
    if hasattr(given, "__genmcp_resource__"):
        given = function_component(FunctionResource, given)
    return ResourceRoute.of(given)


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
    _resource_route,
    ResourceNotFound,
    (ReadableComponent,),
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
