"""The components that a suite has at one time."""

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.decorator import tool
from genmcp.errors import ConfigurationError
from genmcp.hook import overrides
from genmcp.metadata import instance_of
from genmcp.policy import HOLD, RESULT_TOOL
from genmcp.protocol.capabilities import (
    TASKS,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.server import Route
from genmcp.suite.collection import KINDS, TOOLS, Collection, ComponentKind
from genmcp.suite.providers import Provider, Providers, VisibilityGuard

__all__ = ["ComponentSnapshot", "Registration"]


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A component as it was *given*, its *kind* and its *route*; or a provider without a kind."""

    given: object
    kind: ComponentKind | None
    route: Any

    @classmethod
    def of(cls, kind: ComponentKind | None, given: object) -> "Registration":
        """Return the registration of *given* as one of *kind*, or as a provider.

        Raises:
            ConfigurationError: it is of another kind, or one of its attributes is invalid.
        """
        if kind is not None:
            return cls(given, kind, kind.route_of(given))
        provider = instance_of(given, Provider)
        if provider is None:
            raise ConfigurationError(f"{given!r} is not a Provider")
        return cls(given, None, provider)

    @classmethod
    def all_of(cls, given: object) -> "Sequence[Registration]":
        """Return the registrations of *given*; a function under two decorators has two.

        Raises:
            ConfigurationError: it is not a component, or one of its attributes is invalid.
        """
        cls_of = given if isinstance(given, type) else type(given)
        if issubclass(cls_of, Provider):
            return [cls.of(None, given)]
        found = [cls.of(kind, given) for kind in KINDS if kind.accepts(given)]
        if not found:
            raise ConfigurationError(f"{given!r} is no tool, resource, prompt or provider")
        return found

    @property
    def kinds(self) -> Sequence[str]:
        """The names of the kinds whose lists it changes."""
        if self.kind is not None:
            return [self.kind.name]
        return [kind.name for kind in KINDS if overrides(self.route, kind.name, Provider)]

    def is_known_as(self, sought: object) -> bool:
        """Return whether *sought* is the object that was given, or its name, URI or prefix."""
        if self.given is sought or self.given == sought:
            return True
        return self.kind is not None and bool(self.route.pattern == sought)


class ComponentSnapshot:
    """The components of a suite at one time, in the order of their lists. Owned by the suite.

    routes: by method and key, those of a single key, as `Suite.find` returns them. extended: the
    names of the kinds that providers add to. methods, capabilities: those of the server.

    Raises:
        ConfigurationError: two tools have the same name.
    """

    def __init__(
        self, registrations: Sequence[Registration], *, result_tool: bool | None = False
    ) -> None:
        self.registrations = registrations
        providers = [each.route for each in registrations if each.kind is None]
        self.providers = Providers(providers)
        routes = {
            kind: [each.route for each in registrations if each.kind is kind] for kind in KINDS
        }
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
        """Return *route* as it is found under *key*: itself if every principal may see it."""
        if route.visible is None:
            return route  # type: ignore[no-any-return]
        return VisibilityGuard(
            on_disconnect=route.on_disconnect,
            visible=route.visible,
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
async def get_call_result(id: str, channel: Channel) -> CallToolResult:
    """Gets the result of an earlier call by its id, if that was still running when answered."""
    return await channel.outcome_of(id)


def _has_result_tool(tools: Sequence[Any], result_tool: bool | None, *, extended: bool) -> bool:
    """Return whether to add the tool that fetches the results of calls past their `max_hold`."""
    if result_tool is None and any(each.definition.name == RESULT_TOOL for each in tools):
        return False
    if any(each.policy.auto_hold or each.policy.max_hold is not None for each in tools):
        return result_tool is not False
    return result_tool is True and extended


def _with_default_hold(route: Any) -> Any:
    """Return the *route* of a tool, with `HOLD` for `hold = "auto"`."""
    if not route.policy.auto_hold:
        return route
    return replace(route, policy=replace(route.policy, max_hold=HOLD))
