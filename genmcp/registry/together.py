"""All servers of a registry as one: its tools and prompts are called `server/name`."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast
from weakref import WeakMethod, finalize

from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.subscription import Change
from genmcp.core.waiting import Continue
from genmcp.errors import (
    ConfigurationError,
    InvalidParams,
    McpError,
    MethodNotFound,
    PromptNotFound,
    ResourceNotFound,
)
from genmcp.mux.mux import Mux
from genmcp.policy import Policy
from genmcp.protocol.capabilities import (
    TASKS,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.completion import CompleteRequestParams, PromptReference
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.registry.in_process import LISTING
from genmcp.server import Route, Server
from genmcp.subscription import ChangeNotifier, Listener

__all__ = ["Together"]

logger = logging.getLogger("genmcp.registry")

_PAGE: Final = 1000
"""How many there are on a page at least, if there are more behind it."""

_SEPARATOR: Final = re.compile(r"[A-Za-z0-9_./-]+", re.ASCII)


def _without_auto_hold(policy: Policy) -> Policy:
    return replace(policy, max_hold=None) if policy.auto_hold else policy


class _Qualified(Route, frozen=True, kw_only=True):
    """The *route* of what the server of *mux* calls *key*."""

    mux: Mux
    route: Route
    key: str

    @classmethod
    def of(cls, mux: Mux, route: Route | None, key: str) -> "_Qualified | None":
        """Return *route* as it is found here, if there is one."""
        if route is None:
            return None
        return cls(
            headers=route.headers,
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            # The result tool has another name here, which a held-over result would not mention.
            policy=_without_auto_hold(route.policy),
            eager=route.eager,
            pending=route.pending,
            mux=mux,
            route=route,
            key=key,
        )

    async def found(self, channel: Channel) -> Route:
        """Return the route that the server has found."""
        channel._give(self.mux.assigns)
        return self.of(self.mux, await self.route.found(channel), self.key) or self

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on as the route does."""
        return await self.route.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the route."""
        await self.route.cancelled(channel)


def _mux_of(request: Request) -> Mux:
    assert isinstance(request.route, _Qualified)
    return request.route.mux


class _Relay(Listener):
    """Passes on what one server announces."""

    def __init__(self, changes: ChangeNotifier) -> None:
        self._changes = changes

    def announce(self, change: Change) -> None:
        """Announce *change*, whose name or URI is the same here."""
        if change.uri is not None:
            self._changes.resource_updated(change.uri)
        else:
            _TELL[change.method](self._changes)


class Together(Server):
    """All *enabled* servers of a registry as one, which changes as those do.

    A tool, or prompt, has the name of its server and *separator* before its own; hooks find it
    like that in `channel.request`. A resource keeps its URI; of two servers that have it, the
    first counts. The static assigns of a server's own mux count over those of the mux of all;
    nothing else of it does. name, version: what it says of itself. watch: tells of changes.

    Raises:
        ConfigurationError: no tool may be called so.
    """

    def __init__(
        self,
        enabled: Callable[[], Mapping[str, Mux]],
        watch: Callable[[Callable[[int], None]], Callable[[], None]] | None = None,
        *,
        name: str = "registry",
        version: str = "1.0.0",
        separator: str = "/",
    ) -> None:
        if not isinstance(separator, str) or not _SEPARATOR.fullmatch(separator):
            raise ConfigurationError(
                f"separator: names of tools have letters, digits, '_', '-', '.' and '/', "
                f"unlike {separator!r}"
            )
        self._enabled = enabled
        self._separator = separator
        self._info = Implementation(name=name, version=version)
        self._changes = ChangeNotifier()
        self._relays: dict[Mux, _Relay] = {}
        if watch is not None:  # for as long as somebody else holds this
            changed = WeakMethod(self._changed)
            finalize(self, watch(lambda _: _call(changed())))
        self._follow()

    def __repr__(self) -> str:
        return f"<Together of {', '.join(self._enabled()) or 'nothing'}>"

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
    def changes(self) -> ChangeNotifier:
        """What tells when a server comes or goes, or one of them has changed."""
        return self._changes

    @asynccontextmanager
    async def hearing(self, uris: Collection[str]) -> AsyncIterator[Collection[str]]:
        """Have the servers whose resources they are see to it."""
        routes: Any = [(self.find("resources/read", uri), uri) for uri in uris]
        told: list[str] = []
        async with AsyncExitStack() as stack:
            for mux in {route.mux for route, _ in routes if route is not None}:
                own = [uri for route, uri in routes if route is not None and route.mux is mux]
                told += await stack.enter_async_context(mux.server.hearing(own))
            yield told

    def find(self, method: str, key: str) -> Route | None:
        """Return what the server that *key* begins with calls by the rest of it."""
        found = [each for each in self._found(method, key) if each is not None]
        # A route that an extension may have is pending, and may not exist anywhere. A route that is
        # hidden from some callers is pending too, but exists.
        return min(found, key=lambda route: route.pending and route.visible is None, default=None)

    def _found(self, method: str, key: str) -> Iterator["_Qualified | None"]:
        if method == "resources/read":
            for mux in self._servers:
                yield _Qualified.of(mux, mux.find(method, key), key)
        else:
            for mux, own in self._named(key):
                yield _Qualified.of(mux, mux.find(method, own), own)

    def _named(self, key: str) -> Iterator[tuple[Mux, str]]:
        """Yield each server that *key* may begin with, and the rest of it.

        Names may hold the separator, unless it is a slash.
        """
        enabled, separator = self._enabled(), self._separator
        at = key.find(separator)
        while at >= 0:
            if (mux := enabled.get(key[:at])) is not None:
                yield mux, key[at + len(separator) :]
            at = key.find(separator, at + 1)

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Let the server answer whose it is."""
        route: Any = request.route
        if route is None:
            return await self._complete(request, channel)
        params: Any = request.params
        if request.method != "resources/read":
            params = replace(params, name=route.key)
        own = replace(request, route=route.route, params=params)
        channel._give(route.mux.assigns)
        step: Result | Continue = await route.mux.server.handle(own, channel)
        return step

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Let the server go on whose it is."""
        mux = _mux_of(channel.request)
        channel._give(mux.assigns)
        return await mux.server.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the server whose it is."""
        if channel.request.route is not None:
            mux = _mux_of(channel.request)
            channel._give(mux.assigns)
            await mux.server.cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return what all servers list, in the order of the registry.

        One that cannot, or not within 5 seconds, is left out; the log tells of it. Of one URI
        on a page the first counts.

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
            page = await _page(name, mux, method, own, channel)
            if page is None:
                continue
            pages.append(page)
            items += [self._qualified(name, each, member) for each in getattr(page, member)]
            items = _first_of_each(items, member)
            if page.next_cursor is not None:
                after = f"{name}/{page.next_cursor}"
                break
        ttl = min((page.ttl_ms for page in pages), default=0)
        return replace(empty, **{member: items}, next_cursor=after, ttl_ms=ttl)

    def _qualified(self, name: str, item: Any, member: str) -> Any:
        if member not in ("tools", "prompts"):
            return item
        return replace(item, name=f"{name}{self._separator}{item.name}")

    @property
    def _servers(self) -> Collection[Mux]:
        return self._enabled().values()

    def _from(self, cursor: str | None) -> Iterator[tuple[str, Mux, str | None]]:
        """Yield the servers from where *cursor* points to, each with its own cursor."""
        enabled = self._enabled()
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
            route: Any = self.find("prompts/get", ref.name)
            if route is None:
                raise PromptNotFound(ref.name)
            own = replace(params, ref=replace(ref, name=route.key))
            channel._give(route.mux.assigns)
            step = await route.mux.server.handle(replace(request, params=own), channel)
            return cast(Result | Continue, step)
        for mux in self._servers:
            if "completion/complete" in mux.server.methods:
                channel._give(mux.assigns)
                try:
                    return await mux.server.handle(request, channel)
                except InvalidParams:  # it is of another one
                    continue
        raise ResourceNotFound(ref.uri)

    def _changed(self) -> None:
        self._follow()
        for tell in _TELL.values():
            tell(self._changes)

    def _follow(self) -> None:
        """Pass on what the servers announce that are there now."""
        muxes = [*self._servers]
        self._relays = {mux: self._relays.get(mux) or self._relay(mux) for mux in muxes}

    def _relay(self, mux: Mux) -> _Relay:
        relay = _Relay(self._changes)
        mux.changes.follow(relay)
        return relay


def _first_of_each(items: list[Any], member: str) -> list[Any]:
    """Return *items* without those resources, or templates, that another server has before."""
    if (key := _KEYS.get(member)) is None:
        return items
    found: dict[str, Any] = {}
    for item in items:
        found.setdefault(getattr(item, key), item)
    return [*found.values()]


def _call(function: Callable[[], None] | None) -> None:
    if function is not None:
        function()


async def _page(
    name: str, mux: Mux, method: str, cursor: str | None, channel: Channel
) -> PaginatedResult | None:
    """Return one page of what the server *name* lists; None if it cannot.

    Raises:
        InvalidParams: it has not given out this *cursor*.
    """
    channel._give(mux.assigns)
    try:
        async with asyncio.timeout(LISTING):
            return await mux.server.listed(method, cursor, channel)
    except TimeoutError:
        logger.warning("server %s left out of %s: it took too long", name, method)
    except Exception as error:
        if cursor is not None and isinstance(error, InvalidParams):
            raise
        trace = not isinstance(error, McpError)
        logger.warning("server %s left out of %s: %s", name, method, error, exc_info=trace)
    return None


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
_KEYS: Final = {"resources": "uri", "resource_templates": "uri_template"}
_METHODS: Final = frozenset(
    {*_LISTS, "tools/call", "prompts/get", "resources/read", "completion/complete"}
)
_TELL: Final[dict[str, Callable[[ChangeNotifier], None]]] = {
    "notifications/tools/list_changed": ChangeNotifier.tools_list_changed,
    "notifications/prompts/list_changed": ChangeNotifier.prompts_list_changed,
    "notifications/resources/list_changed": ChangeNotifier.resources_list_changed,
}
