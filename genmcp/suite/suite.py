"""The ready-made server: tools, resources and prompts under one name."""

from collections.abc import Coroutine, Sequence, Set
from operator import methodcaller
from threading import Lock
from typing import Any, Final

from genmcp.channel import Channel
from genmcp.completion import complete
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import ConfigurationError, MethodNotFound
from genmcp.metadata import check_metadata
from genmcp.protocol.capabilities import Icon, Implementation, ServerCapabilities
from genmcp.protocol.completion import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route, Server, route_of
from genmcp.subscription import ChangeNotifier
from genmcp.suite.collection import KINDS, PROMPTS, RESOURCES, TOOLS, Collection
from genmcp.suite.components import ComponentSnapshot, Registration
from genmcp.suite.providers import Provider, VisibilityGuard, private

__all__ = ["Suite"]

# A tool on a second page does not exist for the many clients that never ask for one. Resources
# and prompts are chosen by people, and may be more than anybody wants at once.
_TOOLS_PER_PAGE: Final = 1000
_OTHERS_PER_PAGE: Final = 100


class Suite(Server):
    """A server made of tools, resources and prompts.

    Args:
        name, version: those of the server.
        title, description, website_url, icons: shown to people by clients.
        instructions: how a model should use the server.
        tools: `Tool`, and functions under `@tool`. Two tools of one name are an error.
        resources: `Resource` and `ResourceRepo`.
        prompts: `Prompt` and `PromptRepo`, and functions under `@prompt`.
        providers: sources of components that depend on the principal; the suite's own come first.
        result_tool: whether to add a tool `get_call_result`, with which clients without tasks fetch
            the results of calls that ran longer than their `Tool.max_hold`. It is listed only if a
            tool of the suite has a `max_hold`; True also lists it if there are providers. None
            (default): it is added, unless another tool has that name.
        page_size: the maximum number of items of a page of a list; default 1000 tools, and 100
            resources, templates or prompts.

    A component is an instance, or a class that is instantiated without arguments. Of two for one
    name or URI, the first is found and listed.

    Raises:
        ConfigurationError: an option or a component is invalid.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] | None = None,
        tools: Sequence[object] = (),
        resources: Sequence[object] = (),
        prompts: Sequence[object] = (),
        providers: Sequence[Provider | type[Provider]] = (),
        result_tool: bool | None = None,
        page_size: int | None = None,
    ) -> None:
        for option, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"Suite: {option} must be a text, not {value!r}")
        if page_size is not None and (type(page_size) is not int or page_size < 1):
            raise ConfigurationError(f"Suite: page_size must be 1 or more, not {page_size!r}")
        described: dict[str, Any] = {
            "title": title,
            "description": description,
            "website_url": website_url,
            "icons": icons,
        }
        check_metadata("Suite", {**described, "instructions": instructions})
        self._instructions = instructions
        self._info = Implementation(name=name, version=version, **described)
        self._page_size = page_size
        self._changes = ChangeNotifier()
        self._changing = Lock()
        self._result_tool = result_tool
        registrations: list[Registration] = []
        components = {TOOLS: tools, RESOURCES: resources, PROMPTS: prompts, None: providers}
        for kind, given in components.items():
            option = "providers" if kind is None else kind.name
            if not isinstance(given, list | tuple):
                raise ConfigurationError(
                    f"Suite: {option} must be a list of {option}, not {given!r}"
                )
            registrations += [Registration.of(kind, each) for each in given]
        self._replace(registrations)

    def __repr__(self) -> str:
        return f"<Suite {self._info.name} {self._info.version}, {self._snapshot!r}>"

    @property
    def info(self) -> Implementation:
        """The suite's name, version and metadata."""
        return self._info

    @property
    def instructions(self) -> str | None:
        """How a model should use the suite."""
        return self._instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities: tools and log messages, and those of the other components."""
        return self._snapshot.capabilities

    @property
    def methods(self) -> Set[str]:
        """The methods for tools, and for the other components."""
        return self._snapshot.methods

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies clients of changes; `add` and `remove` use it."""
        return self._changes

    def add(self, *components: object) -> None:
        """Add tools, resources, prompts and providers after the existing ones, all or none.

        Clients that listen are notified of the lists that have changed; running calls continue. It
        may be called from any thread.

        Raises:
            ConfigurationError: one of them is not a component, is invalid, or is a tool whose name
                another tool has.
        """
        added = [each for given in components for each in Registration.all_of(given)]
        with self._changing:
            self._replace([*self._snapshot.registrations, *added])
        self._announce(added)

    def remove(self, *components: object) -> None:
        """Remove components, each given as the object or by its name, URI or prefix; all or none.

        A resource repository, and a wildcard, are known by their prefix with a `*` behind it.
        Running calls continue. Components of providers cannot be removed.

        Raises:
            ConfigurationError: one of them does not exist.
        """
        with self._changing:
            known = self._snapshot.registrations
            for sought in components:
                if not any(each.is_known_as(sought) for each in known):
                    raise ConfigurationError(f"Suite: there is no {sought!r} to remove")
            removed = [each for each in known if any(map(each.is_known_as, components))]
            self._replace([each for each in known if each not in removed])
        self._announce(removed)

    def resource_updated(self, uri: str) -> None:
        """Notify the subscribers of the resource *uri* that its contents have changed."""
        self._changes.resource_updated(uri)

    def find(self, method: str, key: str) -> Route | None:
        """Return the route of the tool or prompt called *key*, or of the resource at that URI.

        A route that depends on the principal, or on a provider, is pending.
        """
        # Read once: between two reads another thread may replace it, and a key that both the former
        # and the next snapshot have would then be found in neither.
        snapshot = self._snapshot
        routes = snapshot.routes.get(method)
        if routes is None:
            return None
        return routes.get(key) or self._find_other(snapshot, method, key)

    def _find_other(self, snapshot: ComponentSnapshot, method: str, key: str) -> Route | None:
        kind = _BY_METHOD[method]
        route = snapshot.collections[kind].covering(key)
        if route is not None:
            return snapshot.guarded(kind, key, route)
        if kind.name not in snapshot.extended:
            return None
        return VisibilityGuard(kind=kind, key=key, providers=snapshot.providers)

    def handle(self, request: Request, channel: Channel) -> Coroutine[Any, Any, Result | Continue]:
        """Run the first hook of the component, or complete an argument."""
        route: Any = request.route
        if route is None:
            return self._complete(request, channel)
        answer: Coroutine[Any, Any, Result | Continue] = route.handle(request, channel)
        return answer

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call of the component."""
        return await route_of(channel.request).resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Notify the component that its call was cancelled."""
        if channel.request.route is not None:
            await route_of(channel.request).cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the page of a list at *cursor*, in the order in which components were added."""
        kind, snapshot = _BY_LIST[method], self._snapshot
        size = self._page_size or (_TOOLS_PER_PAGE if kind is TOOLS else _OTHERS_PER_PAGE)
        held = snapshot.collections[kind]
        if kind.name not in snapshot.extended:
            return await held.lists[method].page(cursor, channel, size=size)
        others = snapshot.providers.collections(kind, channel)
        routes = [*held.routes, *[route async for each in others for route in each.routes]]
        page = await Collection(kind, routes).lists[method].page(cursor, channel, size=size)
        return private(page)

    async def _complete(self, request: Request, channel: Channel) -> CompleteResult:
        if not isinstance(request.params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        ref, snapshot = request.params.ref, self._snapshot
        if isinstance(ref, PromptReference):
            kind, key = PROMPTS, ref.name
        else:
            kind, key = RESOURCES, ref.uri
        completer = snapshot.collections[kind].completer(key, channel.principal)
        if completer is None and kind.name in snapshot.extended:
            look = methodcaller("completer", key, channel.principal)
            completer = await snapshot.providers.first(kind, channel, look)
        return await complete(request, channel, completer)

    def _replace(self, registrations: Sequence[Registration]) -> None:
        self._snapshot = ComponentSnapshot(registrations, result_tool=self._result_tool)

    def _announce(self, registrations: Sequence[Registration]) -> None:
        for kind in dict.fromkeys(kind for each in registrations for kind in each.kinds):
            getattr(self._changes, f"{kind}_list_changed")()


_BY_METHOD: Final = {kind.method: kind for kind in KINDS}
_BY_LIST: Final = {method: kind for kind in KINDS for method in kind.lists}
