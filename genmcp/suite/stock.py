"""What a suite has at one time: a value, which another takes the place of."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.errors import ConfigurationError
from genmcp.extension import Extension
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
from genmcp.suite.call_result import GetCallResult
from genmcp.suite.extended import Extensions
from genmcp.suite.kinds import KINDS, Kind, Shelf

__all__ = ["TOOLS", "Part", "Stock", "parts_of"]

TOOLS: Final = KINDS[0]


class Part(msgspec.Struct, frozen=True, eq=False):
    """A component as it was *given*, and its *route*.

    An extension is of no kind, and stands in place of its route.
    """

    given: object
    kind: Kind | None = None
    route: Any = None

    @classmethod
    def of(cls, kind: Kind, given: object) -> "Part":
        """Return what is *given* as one of this kind.

        Raises:
            ConfigurationError: it is none, or what it says of itself is wrong.
        """
        return cls(given, kind, kind.route_of(given))

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds whose lists are others without it."""
        if self.kind is not None:
            return [self.kind.name]
        return [kind.name for kind in KINDS if overrides(self.route, kind.name, Extension)]

    def is_known_as(self, sought: object) -> bool:
        """Whether *sought* is what was given, or what it is known by."""
        if self.given is sought or self.given == sought:
            return True
        return self.kind is not None and self.kind.key_of(self.route) == sought


def parts_of(component: object) -> Sequence[Part]:
    """Return what *component* is: a tool, a resource, a prompt, an extension.

    A function under two decorators is two things.

    Raises:
        ConfigurationError: it is none, or what it says of itself is wrong.
    """
    if isinstance(component, Extension) or (
        isinstance(component, type) and issubclass(component, Extension)
    ):
        return [extension_part(component)]
    parts = [Part.of(kind, component) for kind in KINDS if kind.takes(component)]
    if not parts:
        raise ConfigurationError(f"{component!r} is no tool, resource, prompt or extension")
    return parts


def extension_part(given: object) -> Part:
    """Return what is *given* as an extension.

    Raises:
        ConfigurationError: it is none.
    """
    made = instance_of(given, Extension)
    if made is None:
        raise ConfigurationError(f"{given!r} is not an Extension")
    return Part(given, None, made)


class Stock:
    """A snapshot of the components of a suite, in the order of their lists. Owned by the suite.

    result_tool: as for `Suite`.

    Raises:
        ConfigurationError: two tools have one name.
    """

    def __init__(self, parts: Sequence[Part], *, result_tool: bool | None = False) -> None:
        self.parts = tuple(parts)
        self.extensions = Extensions([part.route for part in parts if part.kind is None])
        if _offers_results(parts, result_tool):
            parts = [*map(_held, parts), Part.of(TOOLS, GetCallResult)]
        self.shelves = {kind.name: _shelf(kind, parts) for kind in KINDS}
        self.tools = {
            route.definition.name: TOOLS.guarded(route, route.definition.name)
            for route in self.shelves["tools"].routes
        }
        self.extended = {kind.name for kind in KINDS if self.extensions.may_have(kind)}
        offered = {name for name, shelf in self.shelves.items() if shelf.routes} | self.extended
        self.capabilities = self._offered(offered)
        self.methods = _methods(offered, completes=self.capabilities.completions is not None)

    def __repr__(self) -> str:
        counts = [(len(shelf.routes), name) for name, shelf in self.shelves.items()]
        return ", ".join(f"{count} {name}" for count, name in counts if count or name == "tools")

    def _offered(self, kinds: Collection[str]) -> ServerCapabilities:
        completes = any(shelf.completes for shelf in self.shelves.values())
        resources = ResourcesCapability(subscribe=True, list_changed=True)
        prompts = PromptsCapability(list_changed=True)
        return ServerCapabilities(
            logging={},
            tools=ToolsCapability(list_changed=True),
            resources=resources if "resources" in kinds else None,
            prompts=prompts if "prompts" in kinds else None,
            completions={} if completes or self.extended - {"tools"} else None,
            extensions={TASKS: {}} if self._may_have_tasks else None,
        )

    @property
    def _may_have_tasks(self) -> bool:
        policies = [route.policy for route in self.shelves["tools"].routes]
        return "tools" in self.extended or any(each.task != "never" for each in policies)


def _offers_results(parts: Sequence[Part], result_tool: bool | None) -> bool:
    """Whether to offer the tool that fetches the results of calls that were held over."""
    tools = [part.route for part in parts if part.kind is TOOLS]
    if result_tool is None and any(each.definition.name == RESULT_TOOL for each in tools):
        return False
    if any(each.policy.auto_hold or each.policy.hold is not None for each in tools):
        return result_tool is not False
    return result_tool is True and any(part.kind is None for part in parts)


def _held(part: Part) -> Part:
    """Return *part*; if it is a tool with `hold = "auto"`, its time is set to `HOLD`."""
    if part.kind is not TOOLS or not part.route.policy.auto_hold:
        return part
    policy = replace(part.route.policy, hold=HOLD)
    return replace(part, route=replace(part.route, policy=policy))


def _methods(kinds: Collection[str], *, completes: bool) -> frozenset[str]:
    offered = [kind for kind in KINDS if kind is TOOLS or kind.name in kinds]
    methods = {method for kind in offered for method in (kind.found_by, *kind.lists)}
    return frozenset(methods | {"completion/complete"} if completes else methods)


def _shelf(kind: Kind, parts: Sequence[Part]) -> Shelf:
    routes = [part.route for part in parts if part.kind is kind]
    shelf = kind.shelf(routes)
    if kind is TOOLS and len(shelf.routes) < len(routes):
        names = [route.definition.name for route in routes]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"Suite: two tools are called {twice!r}")
    return shelf
