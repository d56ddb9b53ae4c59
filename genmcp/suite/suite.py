"""`Suite`, the ready-made server: tools, resources and prompts under one name.

The components of a suite are held in an immutable snapshot. `add` and `remove` replace the whole
snapshot, so that a request needs no lock to look up a component.
"""

from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence, Set
from operator import methodcaller
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from genmcp.channel import ChangeNotifier, Channel
from genmcp.component import check_metadata, instance_of
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import HOLD, RESULT_TOOL, Request
from genmcp.core.waiting import Continue
from genmcp.decorator import tool
from genmcp.errors import ConfigurationError, InvalidParams, MethodNotFound, PromptNotFound
from genmcp.hook import overrides
from genmcp.protocol.capabilities import (
    TASKS,
    Icon,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.methods import Method
from genmcp.protocol.prompts import CompleteRequestParams, CompleteResult, PromptReference
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route, Server, route_of
from genmcp.suite.collection import KINDS, PROMPTS, RESOURCES, TOOLS, Collection, ComponentKind
from genmcp.suite.providers import Provider, Providers, VisibilityGuard, bounded, private
from genmcp.tools import check_overflow

if TYPE_CHECKING:
    from genmcp.extensions.extension import Extension
    from genmcp.extensions.serving import ServedExtensions


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A component that was added to a suite, or a provider.

    Attributes:
        given: the object that was passed to the suite.
        kind: the kind of the component; None for a provider.
        route: the route of the component; None for a provider.
    """

    given: object
    kind: ComponentKind | None
    route: Any

    @classmethod
    def of(cls, kind: ComponentKind | None, given: object) -> "Registration":
        """Return the registration of *given* as a component of *kind*, or for None as a provider.

        Raises:
            ConfigurationError: *given* is of another kind, or one of its attributes is invalid.
        """
        if kind is not None:
            return cls(given, kind, kind.route_of(given))
        provider = instance_of(given, Provider)
        if provider is None:
            raise ConfigurationError(f"{given!r} is not a Provider")
        return cls(given, None, provider)

    @staticmethod
    def takes(kind: ComponentKind | None, given: object) -> bool:
        """Return whether *given* is one component of *kind*; for None, one provider."""
        if kind is not None:
            return kind.accepts(given) or (kind is TOOLS and isinstance(given, Mapping))
        return issubclass(given if isinstance(given, type) else type(given), Provider)

    @classmethod
    def all_of(cls, given: object) -> "Sequence[Registration]":
        """Return the registrations of *given*; a function under two decorators has two.

        Raises:
            ConfigurationError: *given* is not a component, or one of its attributes is invalid.
        """
        found = [cls.of(kind, given) for kind in (*KINDS, None) if cls.takes(kind, given)]
        if not found:
            raise ConfigurationError(f"{given!r} is no tool, resource, prompt or provider")
        return found

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of lists, such as `tools`, that change with this component."""
        if self.kind is not None:
            return [self.kind.name]
        return [kind.name for kind in KINDS if overrides(self.route, kind.name, Provider)]

    def is_known_as(self, sought: object) -> bool:
        """Return whether *sought* is the object that was added, or its name, URI or prefix."""
        if self.given is sought or self.given == sought:
            return True
        return self.kind is not None and bool(self.route.pattern == sought)


class ComponentSnapshot:
    """All components of a suite between two changes, in the order of their lists. Immutable.

    The suite replaces its snapshot when components are added or removed.

    Attributes:
        routes: by method, the routes of components with one key, by that key.
        extended: the names of the kinds of which providers may have components.
        methods: the methods that the suite serves.
        capabilities: the capabilities that the suite declares.

    Raises:
        ConfigurationError: two tools have the same name.
    """

    def __init__(
        self, registrations: Sequence[Registration], result_tool: bool | None, overflow: int | None
    ) -> None:
        self.registrations = registrations
        providers = [each.route for each in registrations if each.kind is None]
        self.providers = Providers(providers, overflow)
        routes = {
            kind: [each.route for each in registrations if each.kind is kind] for kind in KINDS
        }
        if overflow or any(each.provider.overflow for each in routes[TOOLS]):
            from genmcp.overflow import KeptResults  # here: most suites do not need it

            routes[TOOLS] = [bounded(each, overflow) for each in routes[TOOLS]]
            # The first one, so that no repository of the user hides it.
            routes[RESOURCES].insert(0, RESOURCES.route_of(KeptResults()))
        if _has_result_tool(routes[TOOLS], result_tool, extended=bool(providers)):
            tools = map(_with_default_hold, routes[TOOLS])
            routes[TOOLS] = [*tools, TOOLS.route_of(get_call_result)]
        self.collections = {kind: Collection(kind, routes[kind]) for kind in KINDS}
        names = Counter(route.key for route in routes[TOOLS])
        if twice := [name for name, count in names.items() if count > 1]:
            raise ConfigurationError(f"Suite: two tools are called {twice[0]!r}")
        self.routes: dict[str, dict[str, Route]] = {
            kind.method: {key: self.guarded(kind, key, route) for key, route in held.exact.items()}
            for kind, held in self.collections.items()
        }
        self.extended = {kind.name for kind in KINDS if self.providers.have(kind)}
        present = {kind.name for kind, held in self.collections.items() if held.routes}
        self.capabilities = self._capabilities(present | self.extended)
        offered = [kind for kind in KINDS if kind.name in {*present, *self.extended, TOOLS.name}]
        self.methods = {method for kind in offered for method in (kind.method, *kind.lists)}
        if self.capabilities.completions is not None:
            self.methods.add("completion/complete")

    def __repr__(self) -> str:
        counts = [(len(held.routes), kind.name) for kind, held in self.collections.items()]
        return ", ".join(f"{count} {name}" for count, name in counts if count or name == "tools")

    def guarded(self, kind: ComponentKind, key: str, route: Any) -> Route:
        """Return *route* if every client may see the component, otherwise a guard of it."""
        if route.visible is None:
            return route  # type: ignore[no-any-return]
        return VisibilityGuard(
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            scopes=route.scopes,
            kind=kind,
            key=key,
            providers=self.providers,
            route=route,
        )

    def _capabilities(self, kinds: Set[str]) -> ServerCapabilities:
        completes = any(held.completes for held in self.collections.values())
        tasks = any(route.policy.task != "never" for route in self.collections[TOOLS].routes)
        resources = ResourcesCapability(subscribe=True, list_changed=True)
        prompts = PromptsCapability(list_changed=True)
        # A provider may have components with completions, and tools that become tasks: their
        # capabilities are declared before a request shows whether it has.
        return ServerCapabilities(
            logging={},
            tools=ToolsCapability(list_changed=True),
            resources=resources if "resources" in kinds else None,
            prompts=prompts if "prompts" in kinds else None,
            completions={} if completes or self.extended - {"tools"} else None,
            extensions={TASKS: {}} if tasks or "tools" in self.extended else None,
        )


@tool(
    name=RESULT_TOOL,
    title="Get the result of a call",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    task="never",
)
async def get_call_result(
    id: Annotated[str, "The id in the answer to the call."], channel: Channel
) -> CallToolResult:
    """Gets the result of an earlier call by its id, if that was still running when answered."""
    return await channel.context.services.result_of(id, channel.principal)


def _has_result_tool(tools: Sequence[Any], result_tool: bool | None, *, extended: bool) -> bool:
    """Return whether to add the tool that fetches the results of calls past their `max_hold`."""
    if result_tool is None and any(each.definition.name == RESULT_TOOL for each in tools):
        return False
    # The tool is of use only if some call may outlast its `max_hold`.
    if any(each.policy.auto_hold or each.policy.max_hold is not None for each in tools):
        return result_tool is not False
    return result_tool is True and extended


def _with_default_hold(route: Any) -> Any:
    """Return the *route* of a tool; if its `max_hold` is "auto", with `HOLD` seconds for that."""
    if not route.policy.auto_hold:
        return route
    return replace(route, policy=replace(route.policy, max_hold=HOLD))


# Many clients never request a second page of tools, so the page of tools is large. People browse
# resources and prompts, and may not need all of them at once.
_TOOLS_PER_PAGE: Final = 1000


_OTHERS_PER_PAGE: Final = 100


class _Absent:
    """A name that servers of other frameworks have. To read it is an AttributeError with a hint.

    `hasattr` does not find it, and a subclass may define it. A `__getattr__` would slow down the
    attributes that exist.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__} has no such attribute: {self._hint}")


class Suite(Server):
    """A server made of tools, resources and prompts.

    Args:
        name: the name of the server.
        version: the version of the server. Default "0.1.0".
        title: a name that clients show to people.
        description: a sentence that clients show to people.
        website_url: the page of the server, which clients show to people.
        icons: icons that clients show to people.
        instructions: explains to a model how to use the server.
        tools: instances of `Tool`, functions under `@tool`, and mappings of a `function` and the
            options of `@tool`. Two tools with the same name are an error.
        resources: instances of `Resource` and `ResourceRepo`, and functions under `@resource`.
        prompts: instances of `Prompt` and `PromptRepo`, and functions under `@prompt`.
        providers: sources of components that depend on the client. They are searched after the
            components of the suite.
        extensions: extensions of the protocol, see `genmcp.extensions`; their components come after
            those of the suite. Default: none.
        result_tool: whether to add the tool `get_call_result`, with which clients without the tasks
            extension fetch the results of calls that ran longer than their `Tool.max_hold`. None
            (default): add it unless another tool has that name. The tool is listed only if a tool
            of the suite has a `max_hold`; with True it is also listed if there are providers.
        overflow: the `Tool.overflow` of the tools that set none: the number of characters of a
            result that are sent, while the whole is kept in the store. Default None: results are
            sent whole.
        page_size: the maximum number of items in one page of a list. Default: 1000 tools; 100
            resources, templates or prompts.

    Instead of an instance, a class may be passed that is instantiated without arguments, and
    instead of a list one component. If two components have the same name or URI, only the first is
    found and listed.

    Raises:
        ConfigurationError: an option or a component is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.1.0",
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Icon] | None = None,
        tools: object = (),
        resources: object = (),
        prompts: object = (),
        providers: Sequence[Provider | type[Provider]] | Provider | type[Provider] = (),
        extensions: "Sequence[Extension]" = (),
        result_tool: bool | None = None,
        overflow: int | None = None,
        page_size: int | None = None,
    ) -> None:
        for option, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"Suite: {option} must be a text, not {value!r}")
        if page_size is not None and (type(page_size) is not int or page_size < 1):
            raise ConfigurationError(f"Suite: page_size must be 1 or more, not {page_size!r}")
        check_overflow("Suite", overflow)
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
        self._result_tool, self._overflow = result_tool, overflow
        self._extensions = _served(extensions)
        registrations: list[Registration] = []
        components = {TOOLS: tools, RESOURCES: resources, PROMPTS: prompts, None: providers}
        for kind, given in components.items():
            option = "providers" if kind is None else kind.name
            if not isinstance(given, list | tuple) and Registration.takes(kind, given):
                given = (given,)
            if not isinstance(given, list | tuple):
                raise ConfigurationError(
                    f"Suite: {option} must be a list of {option}, not {given!r}"
                )
            registrations += [Registration.of(kind, each) for each in given]
        if self._extensions is not None:
            for added in self._extensions.all:
                for kind in KINDS:
                    registrations += [
                        Registration.of(kind, each) for each in getattr(added, kind.name)
                    ]
        self._replace(registrations)

    if not TYPE_CHECKING:
        tool = resource = prompt = _Absent(
            "import the decorator from genmcp, and pass the function: Suite(tools=[function])"
        )
        add_tool = add_resource = add_prompt = _Absent("write suite.add(component)")

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
        """The capabilities: always tools and log messages; others if there are such components."""
        declared = self._snapshot.capabilities
        return declared if self._extensions is None else self._extensions.declared(declared)

    @property
    def methods(self) -> Set[str]:
        """The methods that the suite serves: always those of tools; others as in `capabilities`."""
        methods = self._snapshot.methods
        return methods if self._extensions is None else {*methods, *self._extensions.methods}

    def added(self, method: str) -> Method:
        """Return the types of *method*, a method of an extension."""
        known = None if self._extensions is None else self._extensions.methods.get(method)
        return known or super().added(method)

    @property
    def changes(self) -> ChangeNotifier:
        """The notifier of changes. `add` and `remove` notify clients with it of changed lists."""
        return self._changes

    def add(self, *components: object) -> None:
        """Add tools, resources, prompts and providers after the existing ones.

        Subscribed clients are notified of the lists that have changed. Running calls continue. The
        method may be called from any thread.

        Raises:
            ConfigurationError: an object is not a component, is invalid, or is a tool with the name
                of another tool. Then none of *components* is added.
        """
        added = [each for given in components for each in Registration.all_of(given)]
        # The lock serves threads that change the suite at the same time. Readers need none: the new
        # snapshot is complete before it replaces the old one.
        with self._changing:
            self._replace([*self._snapshot.registrations, *added])
        self._announce(added)

    def remove(self, *components: object) -> None:
        """Remove components, each given as the object that was added, or by its name or URI.

        The name of a repository is its prefix followed by `*`. Running calls continue. Components
        of providers cannot be removed.

        Raises:
            ConfigurationError: a component does not exist. Then none of *components* is removed.
        """
        with self._changing:
            known = self._snapshot.registrations
            for sought in components:
                if not any(each.is_known_as(sought) for each in known):
                    raise ConfigurationError(f"Suite: {sought!r} is not registered")
            removed = [each for each in known if any(map(each.is_known_as, components))]
            self._replace([each for each in known if each not in removed])
        self._announce(removed)

    def resource_updated(self, uri: str) -> None:
        """Notify the subscribers of the resource *uri* that its contents have changed."""
        self._changes.resource_updated(uri)

    def find(self, method: str, key: str) -> Route | None:
        """Return the route of the tool or prompt with the name *key*, or of the resource at *key*.

        The route is pending if it depends on the client or on a provider.
        """
        # Read the attribute only once: another thread may replace the snapshot between two reads.
        # A component that both snapshots have could then be found in neither.
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
        """Run the first hook of the component, or return the completions of an argument."""
        route: Any = request.route
        extensions = self._extensions
        if route is None:
            if extensions is not None and request.method in extensions.methods:
                return extensions.handle(request, channel)
            return self._complete(request, channel)
        answer: Coroutine[Any, Any, Result | Continue] = route.handle(request, channel)
        return answer if extensions is None else extensions.extended(answer, channel)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Continue a call of the component after a wait."""
        answer = route_of(channel.request).resume(continuation, outcome, channel)
        if self._extensions is not None:
            return await self._extensions.extended(answer, channel)
        return await answer

    async def cancelled(self, channel: Channel) -> None:
        """Call the component's `on_cancel` after its call was cancelled."""
        if channel.request.route is not None:
            await route_of(channel.request).cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the page of a list at *cursor*, in the order in which components were added."""
        extensions = self._extensions
        if extensions is not None and method in extensions.methods:
            return await extensions.listed(method, cursor, channel)
        kind, snapshot = _BY_LIST[method], self._snapshot
        size = self._page_size or (_TOOLS_PER_PAGE if kind is TOOLS else _OTHERS_PER_PAGE)
        held = snapshot.collections[kind]
        if kind.name not in snapshot.extended:
            page = await held.lists[method].page(cursor, channel, size=size)
            return page if extensions is None else extensions.extend(page, channel)
        others = snapshot.providers.collections(kind, channel)
        routes = [*held.routes, *[route async for each in others for route in each.routes]]
        page = await Collection(kind, routes).lists[method].page(cursor, channel, size=size)
        page = private(page)
        return page if extensions is None else extensions.extend(page, channel)

    async def _complete(self, request: Request, channel: Channel) -> CompleteResult:
        params, snapshot = request.params, self._snapshot
        if not isinstance(params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        if isinstance(params.ref, PromptReference):
            kind, key = PROMPTS, params.ref.name
        else:
            kind, key = RESOURCES, params.ref.uri
        completer = snapshot.collections[kind].completer(key, channel.access)
        if completer is None and kind.name in snapshot.extended:
            look = methodcaller("completer", key, channel.access)
            completer = await snapshot.providers.first(kind, channel, look)
        if completer is not None:
            return await completer.complete(params, channel)
        if kind is PROMPTS:
            raise PromptNotFound(key)
        raise InvalidParams(f"Unknown resource template: {key}", {"uri": key})

    def _replace(self, registrations: Sequence[Registration]) -> None:
        self._snapshot = ComponentSnapshot(registrations, self._result_tool, self._overflow)

    def _announce(self, registrations: Sequence[Registration]) -> None:
        for kind in dict.fromkeys(kind for each in registrations for kind in each.kinds):
            getattr(self._changes, f"{kind}_list_changed")()


def _served(extensions: "Sequence[Extension]") -> "ServedExtensions | None":
    if not extensions and isinstance(extensions, list | tuple):
        return None
    # Here: a suite without extensions does not load them.
    from genmcp.extensions.serving import ServedExtensions

    return ServedExtensions("Suite", extensions)


_BY_METHOD: Final = {kind.method: kind for kind in KINDS}


_BY_LIST: Final = {method: kind for kind in KINDS for method in kind.lists}
