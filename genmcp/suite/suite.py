"""The ready-made server: tools, resources and prompts under one name."""

from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final, TypedDict

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.completion import complete
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, MethodNotFound
from genmcp.extension import Extension
from genmcp.metadata import check_metadata
from genmcp.protocol.capabilities import (
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.completion import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.implementation import Icon, Implementation
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.server import Route, Server
from genmcp.suite.extended import Extended, Extensions
from genmcp.suite.kinds import KINDS, Kind, Shelf, private

__all__ = ["About", "Components", "Suite"]

# A tool on a second page does not exist for the many clients that never ask for one. Resources
# and prompts are chosen by people, and may be more than anybody wants at once.
_TOOLS_OF_A_PAGE: Final = 1000
_OTHERS_OF_A_PAGE: Final = 100


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite says of itself beyond its name.

    title: its name for people. instructions: what a model should know in order to use it.
    """

    title: str | None = None
    description: str | None = None
    instructions: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None


class Components(TypedDict, total=False):
    """What a suite is made of, each in the order in which it is listed."""

    tools: Sequence[object]
    resources: Sequence[object]
    prompts: Sequence[object]
    extensions: Sequence[Extension | type[Extension]]


class Suite(Server):
    """A server made of tools, resources and prompts.

    tools: `Tool`, and functions under `@tool`. Two of one name are refused.
    resources: `Resource` and `ResourceRepo`.
    prompts: `Prompt` and `PromptRepo`, and functions under `@prompt`.
    extensions: what yields all these for one principal and not for another; the suite's own
        come first.
    page_size: how many a page of a list has at most; by default 1000 tools, and 100 resources,
        templates or prompts.

    Each is an instance, or a class, which is made here without arguments. Of two for one name or
    URI the first one counts, and is listed.

    Raises:
        ConfigurationError: one of them, or what the suite says of itself, is wrong.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        about: About | None = None,
        page_size: int | None = None,
        **components: Unpack[Components],
    ) -> None:
        for option, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"Suite: {option} must be a text, not {value!r}")
        if not isinstance(about, About | None):
            raise ConfigurationError(f"Suite: about must be an About, not {about!r}")
        if page_size is not None and (type(page_size) is not int or page_size < 1):
            raise ConfigurationError(f"Suite: page_size must be 1 or more, not {page_size!r}")
        _check(components)
        self._about = about or About()
        check_metadata("About", msgspec.structs.asdict(self._about))
        self._info = Implementation(
            name=name,
            version=version,
            title=self._about.title,
            description=self._about.description,
            website_url=self._about.website_url,
            icons=self._about.icons,
        )
        self._page_size = page_size
        self._extensions = Extensions(components.get("extensions", ()))
        self._shelves = {
            kind.name: _shelf(kind, components.get(kind.name, ()))  # type: ignore[arg-type]
            for kind in KINDS
        }
        self._tools = {
            route.definition.name: _TOOLS.guarded(route, route.definition.name)
            for route in self._shelves["tools"].routes
        }
        self._extended = {kind.name for kind in KINDS if self._extensions.may_have(kind)}
        offered = {name for name, shelf in self._shelves.items() if shelf.routes} | self._extended
        self._capabilities = self._offered(offered)
        self._methods = _methods(offered, completes=self._capabilities.completions is not None)

    def __repr__(self) -> str:
        counts = [(len(shelf.routes), name) for name, shelf in self._shelves.items()]
        held = [f"{count} {name}" for count, name in counts if count or name == "tools"]
        return f"<Suite {self._info.name} {self._info.version}, {', '.join(held)}>"

    @property
    def info(self) -> Implementation:
        """The suite's name and version, and what `about` adds to them."""
        return self._info

    @property
    def instructions(self) -> str | None:
        """What `about` says a model should know."""
        return self._about.instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """Tools, log messages from them, and what else there is."""
        return self._capabilities

    @property
    def methods(self) -> Collection[str]:
        """The methods of tools, and of what else there is."""
        return self._methods

    def find(self, method: str, key: str) -> Route | None:
        """Return the tool or prompt called *key*, or the resource there.

        What only an extension may have is looked for when it answers.
        """
        if method == "tools/call":
            tool = self._tools.get(key)
            if tool is not None:
                return tool
        kind = _FOUND_BY.get(method)
        if kind is None:
            return None
        found = kind.guarded(self._shelves[kind.name].find(key), key)
        if found is None and kind.name in self._extended:
            return Extended(kind=kind, key=key, extensions=self._extensions)
        return found

    def handle(self, request: Request, channel: Channel) -> Coroutine[Any, Any, Result]:
        """Call, read or get what was found; or complete an argument."""
        route: Any = request.route
        if route is None:
            return self._complete(request, channel)
        answer: Coroutine[Any, Any, Result] = route.handle(request, channel)
        return answer

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return what is listed, in the order it was given."""
        kind = _LISTED_BY[method]
        size = self._page_size or (_TOOLS_OF_A_PAGE if kind is _TOOLS else _OTHERS_OF_A_PAGE)
        shelf = self._shelves[kind.name]
        if kind.name not in self._extended:
            return await kind.lists[method](shelf).page(cursor, channel, size=size)
        shelf = await self._extensions.shelf(kind, shelf, channel)
        return private(await kind.lists[method](shelf).page(cursor, channel, size=size))

    async def _complete(self, request: Request, channel: Channel) -> CompleteResult:
        if not isinstance(request.params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        ref = request.params.ref
        if isinstance(ref, PromptReference):
            kind, key = _PROMPTS, ref.name
        else:
            kind, key = _RESOURCES, ref.uri
        completer = self._shelves[kind.name].completer(key, channel.principal)
        if completer is None and kind.name in self._extended:
            completer = await self._extensions.completer(kind, key, channel)
        return await complete(request, channel, completer)

    def _offered(self, kinds: Collection[str]) -> ServerCapabilities:
        completes = any(shelf.completes for shelf in self._shelves.values())
        return ServerCapabilities(
            logging={},
            tools=ToolsCapability(),
            resources=ResourcesCapability() if "resources" in kinds else None,
            prompts=PromptsCapability() if "prompts" in kinds else None,
            completions={} if completes or self._extended - {"tools"} else None,
        )


_TOOLS, _RESOURCES, _PROMPTS = KINDS
_FOUND_BY: Final = {kind.found_by: kind for kind in KINDS}
_LISTED_BY: Final = {method: kind for kind in KINDS for method in kind.lists}


def _methods(kinds: Collection[str], *, completes: bool) -> frozenset[str]:
    offered = [kind for kind in KINDS if kind is _TOOLS or kind.name in kinds]
    methods = {method for kind in offered for method in (kind.found_by, *kind.lists)}
    return frozenset(methods | {"completion/complete"} if completes else methods)


def _check(components: Components) -> None:
    for option, given in components.items():
        if option not in Components.__annotations__:
            raise TypeError(f"Suite takes no {option!r}")
        if not isinstance(given, list | tuple):
            raise ConfigurationError(f"Suite: {option} must be a list of {option}, not {given!r}")


def _shelf(kind: Kind, components: Sequence[object]) -> Shelf:
    routes = [kind.route_of(each) for each in components]
    shelf = kind.shelf(routes)
    if kind is _TOOLS and len(shelf.routes) < len(routes):
        names = [route.definition.name for route in routes]  # type: ignore[attr-defined]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"Suite: two tools are called {twice!r}")
    return shelf
