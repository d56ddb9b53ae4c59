"""All servers of a registry as one: its tools and prompts are called `server/name`."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.continuation import Continue
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.subscription import Change
from genmcp.errors import InvalidParams, MethodNotFound, PromptNotFound, ResourceNotFound
from genmcp.mux.mux import Mux
from genmcp.protocol.capabilities import (
    TASKS,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.completion import CompleteRequestParams, PromptReference
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.protocol.tools import ListToolsResult
from genmcp.registry.live import LiveRegistry
from genmcp.server import Route, Server
from genmcp.subscription import Announcer, Listener

__all__ = ["Together"]

_PAGE: Final = 1000
"""How many there are on a page at least, if there are more behind it."""


class _Qualified(Route, frozen=True, kw_only=True):
    """The *route* of what *server* calls *key*."""

    server: Server
    route: Route
    key: str

    @classmethod
    def of(cls, server: Server, route: Route | None, key: str) -> "_Qualified | None":
        """Return *route* as it is found here, if there is one."""
        if route is None:
            return None
        return cls(
            headers=route.headers,
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            policy=route.policy,
            eager=route.eager,
            pending=route.pending,
            server=server,
            route=route,
            key=key,
        )

    async def found(self, channel: Channel) -> Route:
        """Return the route that the server has found."""
        return self.of(self.server, await self.route.found(channel), self.key) or self

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on as the route does."""
        return await self.route.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the route."""
        await self.route.cancelled(channel)


class _Relay(Listener):
    """Passes on what one server announces."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer

    def announce(self, change: Change) -> None:
        """Announce *change*, whose name or URI is the same here."""
        if change.uri is not None:
            self._announcer.resource_updated(change.uri)
        else:
            _TELL[change.method](self._announcer)


class Together(Server):
    """The enabled servers of *registry* as one, which changes as that does.

    A tool, or prompt, has the name of its server and a slash before its own; hooks find it like
    that in `channel.request`. A resource keeps its URI; of two servers that have it, the first
    counts. name, version: what it says of itself.
    """

    def __init__(
        self, registry: LiveRegistry, *, name: str = "registry", version: str = "1.0.0"
    ) -> None:
        self._registry = registry
        self._info = Implementation(name=name, version=version)
        self._announcer = Announcer()
        self._relays: dict[Mux, _Relay] = {}
        self._unwatch = registry.watch(self._changed)
        self._follow()

    def __repr__(self) -> str:
        return f"<Together of {self._registry!r}>"

    @property
    def info(self) -> Implementation:
        """The name and version it was given."""
        return self._info

    @property
    def capabilities(self) -> ServerCapabilities:
        """All that a server may have: others may come at any time."""
        return ServerCapabilities(
            logging={},
            completions={},
            tools=ToolsCapability(list_changed=True),
            prompts=PromptsCapability(list_changed=True),
            resources=ResourcesCapability(subscribe=True, list_changed=True),
            extensions={TASKS: {}},
        )

    @property
    def methods(self) -> Collection[str]:
        """All that a server may have."""
        return _METHODS

    @property
    def announcer(self) -> Announcer:
        """What tells when a server comes or goes, or one of them has changed."""
        return self._announcer

    def find(self, method: str, key: str) -> Route | None:
        """Return what the server that *key* begins with calls by the rest of it."""
        found = [each for each in self._found(method, key) if each is not None]
        # One that is pending may turn out to be of nobody.
        return min(found, key=lambda route: route.pending, default=None)

    def _found(self, method: str, key: str) -> Iterator["_Qualified | None"]:
        if method == "resources/read":
            for mux in self._servers:
                yield _Qualified.of(mux.server, mux.find(method, key), key)
        else:
            name, _, own = key.partition("/")
            named = self._registry.current.enabled.get(name)
            if named is not None:
                yield _Qualified.of(named.server, named.find(method, own), own)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Let the server answer whose it is."""
        route: Any = request.route
        if route is None:
            return await self._complete(request, channel)
        params: Any = request.params
        if request.method != "resources/read":
            params = replace(params, name=route.key)
        own = replace(request, route=route.route, params=params)
        step: Result | Continue = await route.server.handle(own, channel)
        return step

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Let the server go on whose it is."""
        server: Server = channel.request.route.server
        return await server.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the server whose it is."""
        if channel.request.route is not None:
            await channel.request.route.server.cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return what all servers list, in the order of the registry.

        Raises:
            InvalidParams: the cursor is not one that was given out.
        """
        member, empty = _LISTS[method]
        pages: list[PaginatedResult] = []
        items: list[Any] = []
        after: str | None = None
        for name, mux, own in self._from(cursor):
            if method not in mux.server.methods:
                continue
            if len(items) >= _PAGE:
                after = f"{name}/"
                break
            page = await mux.server.listed(method, own, channel)
            pages.append(page)
            items += [_qualified(name, each, member) for each in getattr(page, member)]
            if page.next_cursor is not None:
                after = f"{name}/{page.next_cursor}"
                break
        ttl = min((page.ttl_ms for page in pages), default=0)
        return replace(empty, **{member: items}, next_cursor=after, ttl_ms=ttl)

    def close(self) -> None:
        """Follow the registry no more."""
        self._unwatch()
        self._relays.clear()

    @property
    def _servers(self) -> Collection[Mux]:
        return self._registry.current.enabled.values()

    def _from(self, cursor: str | None) -> Iterator[tuple[str, Mux, str | None]]:
        """Yield the servers from where *cursor* points to, each with its own cursor."""
        enabled = self._registry.current.enabled
        first, _, rest = (cursor or "").partition("/")
        if cursor is not None and first not in enabled:
            raise InvalidParams("The cursor is of a server that is not there any more")
        begun = cursor is None
        for name, mux in enabled.items():
            own = (rest or None) if name == first and not begun else None
            begun = begun or name == first
            if begun:
                yield name, mux, own

    async def _complete(self, request: Request, channel: Channel) -> Result | Continue:
        """Let the server complete whose prompt or resource template it is."""
        params = request.params
        if not isinstance(params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        ref = params.ref
        if isinstance(ref, PromptReference):
            name, _, own = ref.name.partition("/")
            mux = self._registry.current.enabled.get(name)
            if mux is None:
                raise PromptNotFound(ref.name)
            asked = replace(request, params=replace(params, ref=replace(ref, name=own)))
            return await mux.server.handle(asked, channel)
        for mux in self._servers:
            if "completion/complete" in mux.server.methods:
                try:
                    return await mux.server.handle(request, channel)
                except InvalidParams:  # it is of another one
                    continue
        raise ResourceNotFound(ref.uri)

    def _changed(self, version: int) -> None:
        self._follow()
        for tell in _TELL.values():
            tell(self._announcer)

    def _follow(self) -> None:
        """Pass on what the servers announce that are there now."""
        muxes = [*self._servers]
        self._relays = {mux: self._relays.get(mux) or self._relay(mux) for mux in muxes}

    def _relay(self, mux: Mux) -> _Relay:
        relay = _Relay(self._announcer)
        mux.announcer.follow(relay)
        return relay


def _qualified(name: str, item: Any, member: str) -> Any:
    return replace(item, name=f"{name}/{item.name}") if member in ("tools", "prompts") else item


_LISTS: Final[dict[str, tuple[str, PaginatedResult]]] = {
    "tools/list": ("tools", ListToolsResult(tools=[], ttl_ms=0, cache_scope="private")),
    "prompts/list": ("prompts", ListPromptsResult(prompts=[], ttl_ms=0, cache_scope="private")),
    "resources/list": (
        "resources",
        ListResourcesResult(resources=[], ttl_ms=0, cache_scope="private"),
    ),
    "resources/templates/list": (
        "resource_templates",
        ListResourceTemplatesResult(resource_templates=[], ttl_ms=0, cache_scope="private"),
    ),
}
_METHODS: Final = frozenset(
    {*_LISTS, "tools/call", "prompts/get", "resources/read", "completion/complete"}
)
_TELL: Final[dict[str, Callable[[Announcer], None]]] = {
    "notifications/tools/list_changed": Announcer.tools_list_changed,
    "notifications/prompts/list_changed": Announcer.prompts_list_changed,
    "notifications/resources/list_changed": Announcer.resources_list_changed,
}
