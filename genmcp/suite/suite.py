"""The ready-made server: tools, resources and prompts under one name."""

from collections.abc import Collection, Coroutine, Sequence
from threading import Lock
from typing import Any, Final, TypedDict

import msgspec
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.completion import complete
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, MethodNotFound
from genmcp.extension import Extension
from genmcp.metadata import check_metadata
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.completion import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.implementation import Icon, Implementation
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.server import Route, Server, route_of
from genmcp.subscription import Announcer
from genmcp.suite.extended import Extended
from genmcp.suite.kinds import KINDS, private
from genmcp.suite.stock import TOOLS, Part, Stock, extension_part, parts_of

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
    result_tool: whether to add a tool `get_call_result`, with which clients without tasks fetch the
        results of calls that were held over (`Tool.hold`). It is listed only if a call of a tool of
        the suite can be held over; True also lists it if there are extensions. None (default): it
        is added, unless another tool has that name.
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
        result_tool: bool | None = None,
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
        self._announcer = Announcer()
        self._changing = Lock()
        parts = [Part.of(kind, each) for kind in KINDS for each in components.get(kind.name, ())]  # type: ignore[attr-defined]
        self._result_tool = result_tool
        self._take([*parts, *map(extension_part, components.get("extensions", ()))])

    def __repr__(self) -> str:
        return f"<Suite {self._info.name} {self._info.version}, {self._stock!r}>"

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
        return self._stock.capabilities

    @property
    def methods(self) -> Collection[str]:
        """The methods of tools, and of what else there is."""
        return self._stock.methods

    @property
    def announcer(self) -> Announcer:
        """What says that something has changed here; `add` and `remove` use it."""
        return self._announcer

    def add(self, *components: object) -> None:
        """Add tools, resources, prompts and extensions behind those there are, all or none.

        Each is what the suite is made of. Whoever listens is told which lists have changed;
        calls that run go on. It may be called from any thread.

        Raises:
            ConfigurationError: one of them is none of these, is wrong, or is a tool whose name
                another has.
        """
        added = [part for each in components for part in parts_of(each)]
        with self._changing:
            self._take([*self._stock.parts, *added])
        self._tell(added)

    def remove(self, *components: object) -> None:
        """Remove what was given, or is known by a name, URI, or prefix; all or none.

        A resource repository, and a wildcard, are known by their prefix with a `*` behind it.
        Calls that run go on. What extensions yield is theirs.

        Raises:
            ConfigurationError: there is no such thing.
        """
        with self._changing:
            parts = self._stock.parts
            for each in components:
                if not any(part.is_known_as(each) for part in parts):
                    raise ConfigurationError(f"Suite: there is no {each!r} to remove")
            gone = [part for part in parts if any(map(part.is_known_as, components))]
            self._take([part for part in parts if part not in gone])
        self._tell(gone)

    def resource_updated(self, uri: str) -> None:
        """Tell whoever subscribed to the resource *uri* that it holds something else now."""
        self._announcer.resource_updated(uri)

    def find(self, method: str, key: str) -> Route | None:
        """Return the tool or prompt called *key*, or the resource there.

        What only an extension may have is looked for later: its route is pending.
        """
        if method == "tools/call":
            tool = self._tools.get(key)
            if tool is not None:
                return tool
        kind = _FOUND_BY.get(method)
        if kind is None:
            return None
        stock = self._stock
        found = kind.guarded(stock.shelves[kind.name].find(key), key)
        if found is None and kind.name in stock.extended:
            return Extended(kind=kind, key=key, extensions=stock.extensions)
        return found

    def handle(self, request: Request, channel: Channel) -> Coroutine[Any, Any, Result | Continue]:
        """Call, read or get what was found; or complete an argument."""
        route: Any = request.route
        if route is None:
            return self._complete(request, channel)
        answer: Coroutine[Any, Any, Result | Continue] = route.handle(request, channel)
        return answer

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on with a call of what was found."""
        return await route_of(channel.request).resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell what was found that its call was cancelled."""
        if channel.request.route is not None:
            await route_of(channel.request).cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return what is listed, in the order it was given."""
        kind = _LISTED_BY[method]
        size = self._page_size or (_TOOLS_OF_A_PAGE if kind is TOOLS else _OTHERS_OF_A_PAGE)
        stock = self._stock
        shelf = stock.shelves[kind.name]
        if kind.name not in stock.extended:
            return await kind.lists[method](shelf).page(cursor, channel, size=size)
        shelf = await stock.extensions.shelf(kind, shelf, channel)
        return private(await kind.lists[method](shelf).page(cursor, channel, size=size))

    async def _complete(self, request: Request, channel: Channel) -> CompleteResult:
        if not isinstance(request.params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        ref = request.params.ref
        if isinstance(ref, PromptReference):
            kind, key = _PROMPTS, ref.name
        else:
            kind, key = _RESOURCES, ref.uri
        stock = self._stock
        completer = stock.shelves[kind.name].completer(key, channel.principal)
        if completer is None and kind.name in stock.extended:
            completer = await stock.extensions.completer(kind, key, channel)
        return await complete(request, channel, completer)

    def _take(self, parts: Sequence[Part]) -> None:
        self._stock = Stock(parts, result_tool=self._result_tool)
        self._tools = self._stock.tools

    def _tell(self, parts: Sequence[Part]) -> None:
        for kind in dict.fromkeys(kind for part in parts for kind in part.kinds):
            getattr(self._announcer, f"{kind}_list_changed")()


_, _RESOURCES, _PROMPTS = KINDS
_FOUND_BY: Final = {kind.found_by: kind for kind in KINDS}
_LISTED_BY: Final = {method: kind for kind in KINDS for method in kind.lists}


def _check(components: Components) -> None:
    for option, given in components.items():
        if option not in Components.__annotations__:
            raise TypeError(f"Suite takes no {option!r}")
        if not isinstance(given, list | tuple):
            raise ConfigurationError(f"Suite: {option} must be a list of {option}, not {given!r}")
