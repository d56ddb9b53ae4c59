"""The ready-made server: tools (resources, prompts) under one name."""

from collections.abc import Collection, Coroutine, Sequence
from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.function import tool_of
from genmcp.metadata import check_metadata
from genmcp.protocol.capabilities import ServerCapabilities, ToolsCapability
from genmcp.protocol.implementation import Icon, Implementation
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.protocol.tools import ListToolsResult
from genmcp.server import Route, Server
from genmcp.tool import Tool, ToolRoute

__all__ = ["About", "Suite"]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite says of itself beyond its name.

    title: its name for people. instructions: what a model should know in order to use it.
    """

    title: str | None = None
    description: str | None = None
    instructions: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None


class Suite(Server):
    """A server made of tools.

    tools: classes, instances, or functions under `@tool`. A class is made here, without
    arguments. Two of one name are refused.

    Raises:
        ConfigurationError: a tool, or what the suite says of itself, is wrong.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        tools: Sequence[object] = (),
        about: About | None = None,
    ) -> None:
        for option, value in (("name", name), ("version", version)):
            if not isinstance(value, str) or not value.strip():
                raise ConfigurationError(f"Suite: {option} must be a text, not {value!r}")
        if not isinstance(about, About | None):
            raise ConfigurationError(f"Suite: about must be an About, not {about!r}")
        if not isinstance(tools, list | tuple):
            raise ConfigurationError(f"Suite: tools must be a list of tools, not {tools!r}")
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
        self._tools = _by_name([ToolRoute.of(_instance(tool)) for tool in tools])
        self._tool_list = ListToolsResult(
            tools=[route.definition for route in self._tools.values()],
            ttl_ms=0,
            cache_scope="public",
        )

    def __repr__(self) -> str:
        return f"<Suite {self._info.name} {self._info.version}, {len(self._tools)} tools>"

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
        """Tools, and log messages from them."""
        return ServerCapabilities(logging={}, tools=ToolsCapability())

    @property
    def methods(self) -> Collection[str]:
        """The methods of tools."""
        return _METHODS

    def find(self, method: str, key: str) -> Route | None:
        """Return the tool called *key*."""
        return self._tools.get(key) if method == "tools/call" else None

    def handle(self, request: Request, channel: Channel) -> Coroutine[Any, Any, Result]:
        """Call the tool that was found."""
        route: ToolRoute = request.route
        return route.handle(request, channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the tools, in the order they were given."""
        if cursor is not None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        return self._tool_list


_METHODS = frozenset({"tools/list", "tools/call"})


def _instance(tool: object) -> Tool[Any]:
    if isinstance(tool, Tool):
        return tool
    if isinstance(tool, type) and issubclass(tool, Tool):
        try:
            return tool()
        except TypeError as error:
            raise ConfigurationError(
                f"{tool.__name__} takes arguments; give an instance of it: {error}"
            ) from error
    return tool_of(tool)


def _by_name(routes: Sequence[ToolRoute]) -> dict[str, ToolRoute]:
    found: dict[str, ToolRoute] = {}
    for route in routes:
        name = route.definition.name
        if name in found:
            raise ConfigurationError(f"Suite: two tools are called {name!r}")
        found[name] = route
    return found
