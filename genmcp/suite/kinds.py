"""What tools, resources and prompts have in common for a suite, and where they differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.completion import Completer
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.waiting import Continue
from genmcp.errors import McpError, PromptNotFound, ResourceNotFound, ToolNotFound
from genmcp.listing import Listing
from genmcp.prompt.prompt import Prompt
from genmcp.prompt.prompts import Prompts, prompt_route
from genmcp.prompt.repo import PromptRepo, RepoRoute
from genmcp.protocol.result import CacheableResult, PaginatedResult, Result
from genmcp.resource.repo import ResourceRepo
from genmcp.resource.resource import Resource
from genmcp.resource.resources import Resources
from genmcp.resource.route import ResourceRoute
from genmcp.server import Route
from genmcp.suite.tools import Tools, tool_route
from genmcp.tool import Tool

__all__ = ["KINDS", "Guarded", "Kind", "Shelf", "private"]

R = TypeVar("R", bound=Result | Continue)


class Shelf(Protocol):
    """The components of one kind: `Tools`, `Resources`, `Prompts`."""

    @property
    def routes(self) -> Sequence[Any]:
        """Those that count, in their order."""

    @property
    def completes(self) -> bool:
        """Whether any of them has something to complete."""

    def find(self, key: str) -> Any:
        """Return the route that answers for a name or URI, or None."""

    def completer(self, key: str, principal: str | None) -> Completer | None:
        """Return what completes arguments of what has this name or template, if it is there."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of component.

    found_by: the method whose requests name one. lists: its lists, by method. route_of: makes
    the route of what a user gives. shelf: holds routes. absent: the error where there is none.
    bases: what its classes and instances are of. mark: what its decorator leaves on functions.
    key_of: what a route is known by.
    """

    name: str
    found_by: str
    lists: Mapping[str, Callable[[Any], Listing[PaginatedResult]]]
    route_of: Callable[[object], Route]
    shelf: Callable[[Sequence[Any]], Shelf]
    absent: Callable[[str], McpError]
    bases: tuple[type, ...]
    mark: str
    key_of: Callable[[Any], str]

    def takes(self, given: object) -> bool:
        """Whether *given* is of this kind."""
        fits = issubclass if isinstance(given, type) else isinstance
        return fits(given, self.bases) or hasattr(given, self.mark)  # type: ignore[arg-type]

    def guarded(self, route: Any, key: str) -> Route | None:
        """Return *route* as it is found under *key*: itself where everybody may see it."""
        if route is None or route.visible is None:
            return route  # type: ignore[no-any-return]
        return Hidden(
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            route=route,
            key=key,
            kind=self,
        )

    def kept_private(self, route: Any, key: str) -> "Guarded":
        """Return *route* under *key*, guarded by its visibility."""
        return Guarded(
            headers=route.headers,
            on_disconnect=route.on_disconnect,
            visible=route.visible,
            policy=route.policy,
            eager=route.eager,
            route=route,
            key=key,
            absent=self.absent,
        )


class Hidden(Route, frozen=True, kw_only=True):
    """A *route* with restricted visibility, before the principal is known.

    It is pending, so that visibility is decided first: header rules, required tasks and a task that
    is created in advance would disclose that *key* exists.
    """

    eager: bool = True
    pending: bool = True

    route: Any
    key: str
    kind: Kind

    async def found(self, channel: Channel) -> Route:
        """Return the route itself.

        Raises:
            McpError: it does not exist for the principal of *channel*.
        """
        if not self.is_visible(channel.principal):
            raise self.kind.absent(self.key)
        return self.kind.kept_private(self.route, self.key)

    async def cancelled(self, channel: Channel) -> None:
        """Notify the route: a call of it was cancelled, even if it is hidden meanwhile."""
        await self.route.cancelled(channel)


class Guarded(Route, frozen=True, kw_only=True):
    """A *route* with restricted visibility, for a caller who may see it.

    Visibility is checked again when a call is resumed; *absent* makes the error for other callers
    from the *key*.
    """

    route: Any
    key: str
    absent: Callable[[str], McpError]

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Answer as the route does."""
        step: Result | Continue = await self.route.handle(request, channel)
        return private(step)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Go on as the route does, if it is still there for whoever asked."""
        if not self.is_visible(channel.principal):
            raise self.absent(self.key)
        step: Result | Continue = await self.route.resume(continuation, outcome, channel)
        return private(step)

    async def cancelled(self, channel: Channel) -> None:
        """Tell the route."""
        await self.route.cancelled(channel)


def private(result: R) -> R:
    """Return *result*, which not everybody may have, so that nobody hands it on."""
    if isinstance(result, CacheableResult) and result.cache_scope == "public":
        return replace(result, cache_scope="private")
    return result


KINDS: Final = (
    Kind(
        "tools",
        "tools/call",
        {"tools/list": lambda shelf: shelf.listing},
        tool_route,
        Tools,
        ToolNotFound,
        (Tool,),
        "__genmcp_tool__",
        lambda route: route.definition.name,
    ),
    Kind(
        "resources",
        "resources/read",
        {
            "resources/list": lambda shelf: shelf.listing,
            "resources/templates/list": lambda shelf: shelf.templates,
        },
        ResourceRoute.of,
        Resources,
        ResourceNotFound,
        (Resource, ResourceRepo),
        "",
        lambda route: route.pattern,
    ),
    Kind(
        "prompts",
        "prompts/get",
        {"prompts/list": lambda shelf: shelf.listing},
        prompt_route,
        Prompts,
        PromptNotFound,
        (Prompt, PromptRepo),
        "__genmcp_prompt__",
        lambda route: route.prefix if isinstance(route, RepoRoute) else route.definition.name,
    ),
)
