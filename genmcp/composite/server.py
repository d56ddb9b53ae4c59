"""Many servers as one server: qualified names, merged lists, and routing to the right member.

A tool or prompt is called `server/name`: the member's name, a separator, and the member's own name
for it. A resource keeps its URI; if several members list one URI, the first member is used.
"""

import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from genmcp.channel import ChangeNotifier, Channel, Listener
from genmcp.client.errors import ClientError
from genmcp.composite.member import Alternative, CompositeRoute, M, Member
from genmcp.composite.pages import pages_of
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Outcome
from genmcp.core.request import Request
from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange
from genmcp.core.waiting import Continue
from genmcp.errors import (
    ConfigurationError,
    InsufficientScope,
    InvalidParams,
    McpError,
    PromptNotFound,
    ResourceNotFound,
)
from genmcp.protocol.capabilities import (
    TASKS,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.prompts import CompleteRequestParams, ListPromptsResult, PromptReference
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.revisions.chain import RESOURCE_NOT_FOUND
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Server

_SEPARATOR: Final = re.compile(r"[A-Za-z0-9_./-]+", re.ASCII)


class _List(NamedTuple):
    """A list method: the type of its pages, the field of their items, and the key of an item."""

    page: type[PaginatedResult]
    field: str
    key: str


_LISTS: Final[Mapping[str, _List]] = {
    "tools/list": _List(ListToolsResult, "tools", "name"),
    "prompts/list": _List(ListPromptsResult, "prompts", "name"),
    "resources/list": _List(ListResourcesResult, "resources", "uri"),
    "resources/templates/list": _List(
        ListResourceTemplatesResult, "resource_templates", "uri_template"
    ),
}
_METHODS: Final = frozenset(
    {*_LISTS, "tools/call", "prompts/get", "resources/read", "completion/complete"}
)

R = TypeVar("R")


class Members(Generic[M]):
    """The members of a hub or registry by name, and the composite servers that serve them.

    current: the members, in order. Replaced by another mapping at each change, never modified: a
    composite server detects changes by its identity.
    """

    def __init__(self) -> None:
        self.current: Mapping[str, M] = {}
        self._longest = 0
        self._servers: WeakSet[CompositeServer] = WeakSet()

    def __iter__(self) -> Iterator[M]:
        return iter(self.current.values())

    def change(self, members: Mapping[str, M]) -> None:
        """Replace the members, and announce that to the clients of the composite servers."""
        # Never shortened, so that other threads find the members of either mapping.
        self._longest = max(self._longest, *map(len, members), 0)
        self.current = members
        for server in [*self._servers]:
            server.members_changed()

    def add_server(self, server: "CompositeServer") -> None:
        """Announce later changes to *server*, which is referenced weakly."""
        self._servers.add(server)

    def split(self, qualified: str, separator: str) -> Iterator[tuple[M, str]]:
        """Yield each member that *qualified* may belong to, and the name that follows its prefix.

        The name of a member may itself contain the separator, so that several members are possible.
        Positions beyond the longest member name are not tried, so that a name of a megabyte costs
        no more than a short one.
        """
        at = qualified.find(separator)
        while 0 <= at <= self._longest:
            if (member := self.current.get(qualified[:at])) is not None:
                yield member, qualified[at + len(separator) :]
            at = qualified.find(separator, at + 1)

    def find(self, method: str, key: str, separator: str) -> Sequence[Alternative[M]]:
        """Return the member that has *key*, or all members that may have it, in order."""
        candidates: Iterator[tuple[M, str]]
        if method == "resources/read":
            candidates = ((each, key) for each in self)
        else:
            candidates = self.split(key, separator)
        alternatives: list[Alternative[M]] = []
        for member, own in candidates:
            route = member.find(method, own)
            if route is None:
                continue
            alternative = Alternative(member, own, route)
            if alternative.is_certain:
                return [alternative]
            alternatives.append(alternative)
        # A member with a matching template has no precedence over earlier members, which may have
        # the resource without listing it. But the members after it are not tried: a later member,
        # which may be trusted less, must not take over the resource.
        claimed = [i for i, each in enumerate(alternatives) if each.is_claimed]
        if claimed:
            del alternatives[claimed[-1] + 1 :]
        return alternatives


async def first_result(
    alternatives: Sequence[Alternative[M]], attempt: Callable[[Alternative[M]], Awaitable[R]]
) -> R:
    """Return the result of *attempt* for the first of *alternatives* that has the resource.

    Raises:
        ResourceNotFound: none of them has it.
        McpError, ClientError: the error of the first that failed for another reason.
    """
    if len(alternatives) == 1:  # its error is the response, whatever it is
        return await attempt(alternatives[0])
    failure: Exception | None = None
    for each in alternatives:
        try:
            return await attempt(each)
        except InsufficientScope:
            raise
        except (McpError, ClientError) as error:
            absent = getattr(error, "code", None) in RESOURCE_NOT_FOUND
            if each.is_claimed and not absent:
                raise
            # Other errors of a member without a template also lead to the next member, since
            # servers use various codes for a resource that they do not have.
            failure = failure or (None if absent else error)
    raise failure or ResourceNotFound(alternatives[0].key)


def check_separator(separator: str) -> None:
    """Check that *separator* may be part of a tool's name.

    Raises:
        ConfigurationError: it has other characters, or is empty.
    """
    if not isinstance(separator, str) or not _SEPARATOR.fullmatch(separator):
        raise ConfigurationError(
            f"separator: names of tools have letters, digits, '_', '-', '.' and '/', "
            f"unlike {separator!r}"
        )


class CompositeServer(Server):
    """All members of a hub or registry as one server.

    Returned by `Hub.server` and `Registry.server`, for a `Mux`, an `Endpoint`, `serve_stdio` or a
    `Client`.

    Args:
        members: the members.
        name: the name of the composite server.
        version: its version.
        separator: what separates the names of a member and of its tool. Default `/`.
        list_timeout: seconds that one member may take to return a page. A slower member is left out
            of the list, with a warning in the log. Default 5.

    Attributes:
        page_size: the number of items from which a page of a list gets no items of further members.

    Raises:
        ConfigurationError: *separator* has characters that a tool's name cannot have.
    """

    page_size: int = 1000

    def __init__(
        self,
        members: Members[Any],
        *,
        name: str,
        version: str,
        separator: str = "/",
        list_timeout: float = 5.0,
    ) -> None:
        check_separator(separator)
        self._members = members
        self._separator = separator
        self._list_timeout = list_timeout
        # The first page of each list, with the members' pages of which it consists.
        self._first_pages: dict[str, tuple[Sequence[object], PaginatedResult]] = {}
        self._info = Implementation(name=name, version=version)
        self._changes = ChangeNotifier()
        self._forwarders: dict[Member, _Forwarder] = {}
        members.add_server(self)
        self._follow()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._members.current) or 'no servers'}>"

    @property
    def info(self) -> Implementation:
        """The name and version of the composite server."""
        return self._info

    @property
    def capabilities(self) -> ServerCapabilities:
        """All capabilities that a member may have, since members may be added at any time."""
        return ServerCapabilities(
            logging={},
            completions={},
            tools=ToolsCapability(list_changed=True),
            prompts=PromptsCapability(list_changed=True),
            resources=ResourcesCapability(subscribe=True, list_changed=True),
            extensions={TASKS: {}, **self._extensions()},
        )

    def _extensions(self) -> Mapping[str, Any]:
        """Return the extensions that members declare, besides tasks."""
        if not any((each.capabilities.extensions or {}).keys() - {TASKS} for each in self._members):
            return {}
        from genmcp.composite.relay import extensions_of  # here: most members have none

        return extensions_of(self._members.current)

    @property
    def methods(self) -> Collection[str]:
        """The methods of tools, prompts, resources and completion, and all that members add."""
        if not self._extensions():
            return _METHODS
        from genmcp.composite.relay import AnyMethod

        return AnyMethod(_METHODS)

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies of the members' changes, and of members that are added or removed."""
        return self._changes

    def members_changed(self) -> None:
        """Announce that members were added or removed. May be called from any thread."""
        self._follow()
        for announce in _LIST_CHANGED.values():
            announce(self._changes)

    def watch_resources(
        self, uris: Collection[str]
    ) -> AbstractAsyncContextManager[Collection[str]]:
        """Subscribe to *uris* at the members that have them."""
        owners: dict[Member, list[str]] = {}
        for uri in uris:
            route = self.find("resources/read", uri)
            if route is not None:
                owners.setdefault(route.alternatives[0].member, []).append(uri)
        return _subscribed(owners)

    def find(self, method: str, key: str) -> CompositeRoute | None:
        """Return the route to the member that has *key*, or to all members that may have *key*.

        None if no member may have *key*.
        """
        alternatives = self._members.find(method, key, self._separator)
        return CompositeRoute.of(alternatives) if alternatives else None

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Forward *request* to the member that has the component.

        If several members may have a resource, each is tried until one of them has the resource.
        """
        if request.route is None:
            if request.method == "completion/complete":
                return await self._complete(request, channel)
            from genmcp.composite.relay import relayed  # of a method that only an extension has

            return await relayed(
                self._members.current, channel, page_size=self.page_size, timeout=self._list_timeout
            )
        alternatives = _alternatives(request)
        # The usual case: only one member may have it, and each of its errors goes to the client.
        if len(alternatives) == 1:
            only = alternatives[0]
            return await only.member.at(channel).handle(only.request(request), channel)

        async def attempt(each: Alternative[Member]) -> Result | Continue:
            member = each.member.at(channel)
            # Pending: a provider of this member may have it. Only the first route was resolved.
            each = each._replace(route=await each.route.resolve(channel))
            if each.route.scopes:
                channel.context.caller.require_scopes(each.route.scopes)
            return await member.handle(each.request(request), channel)

        return await first_result(alternatives, attempt)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Resume the call at its member."""
        member = _alternatives(channel.request)[0].member
        return await member.at(channel).resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Cancel the call at its member."""
        if channel.request.route is not None:
            await _alternatives(channel.request)[0].member.at(channel).cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the members' items, in the order of the members.

        A member that fails, or takes longer than `list_timeout`, is left out with a warning. If
        several items on a page have the same URI, only the first is listed.

        Raises:
            InvalidParams: *cursor* is unknown to its member, or that member was removed.
        """
        members = self._members.current

        async def fetch(name: str, own: str | None) -> tuple[PaginatedResult, int, str | None]:
            page = await members[name].at(channel).listed(method, own, channel)
            return page, len(getattr(page, _LISTS[method].field)), page.next_cursor

        pages, following, _ = await pages_of(
            [name for name, each in members.items() if method in each.methods],
            cursor,
            fetch,
            method=method,
            page_size=self.page_size,
            timeout=self._list_timeout,
        )
        if cursor is not None or following is not None:
            return self._merged(method, pages, following)
        # If no page has changed, the same object is returned: a mux encodes one object only once.
        sources: list[object] = [members, *pages.values()]
        known, result = self._first_pages.get(method, ((), None))
        if result is None or [*map(id, known)] != [*map(id, sources)]:
            result = self._merged(method, pages, None)
            self._first_pages[method] = sources, result
        return result

    def _merged(
        self, method: str, pages: Mapping[str, PaginatedResult], following: str | None
    ) -> PaginatedResult:
        """Return one page of the items of *pages*, each under its qualified name or URI."""
        kind, field, key = _LISTS[method]
        first: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        for name, page in pages.items():
            meta = {**(page.meta or {}), **meta}
            for item in getattr(page, field):
                if key == "name":
                    item = replace(item, name=f"{name}{self._separator}{item.name}")
                first.setdefault(getattr(item, key), item)
        values: dict[str, Any] = {
            field: [*first.values()],
            # The page is as fresh as the member's page that expires first.
            "ttl_ms": min((page.ttl_ms for page in pages.values()), default=0),
            # The items that a member lists may depend on the principal, so that clients must not
            # share a page.
            "cache_scope": "private",
            "next_cursor": following,
            "meta": meta or None,
        }
        return kind(**values)

    async def _complete(self, request: Request, channel: Channel) -> Result | Continue:
        """Complete an argument at the member that has the prompt or resource template."""
        params = request.params
        assert isinstance(params, CompleteRequestParams)
        ref = params.ref
        if isinstance(ref, PromptReference):
            route = self.find("prompts/get", ref.name)
            if route is None:
                raise PromptNotFound(ref.name)
            owner = route.alternatives[0]
            own = replace(params, ref=replace(ref, name=owner.key))
            return await owner.member.at(channel).handle(replace(request, params=own), channel)
        member: Member
        for member in self._members:
            if "completion/complete" in member.methods:
                try:
                    return await member.at(channel).handle(request, channel)
                except InvalidParams:  # the template belongs to another member
                    continue
        raise ResourceNotFound(ref.uri)

    def _follow(self) -> None:
        """Forward the changes of the current members only."""
        # A member references its listeners weakly. A forwarder that is not kept in this mapping is
        # therefore garbage-collected, and no longer called.
        self._forwarders = {
            each: self._forwarders.get(each) or _Forwarder(each, self._changes)
            for each in self._members
        }


@asynccontextmanager
async def _subscribed(owners: Mapping[Member, Sequence[str]]) -> AsyncIterator[Collection[str]]:
    async with AsyncExitStack() as stack:
        yield [
            uri
            for member, uris in owners.items()
            for uri in await stack.enter_async_context(member.watch_resources(uris))
        ]


def _alternatives(request: Request) -> Sequence[Alternative[Member]]:
    assert isinstance(request.route, CompositeRoute)
    return request.route.alternatives


class _Forwarder(Listener):
    """Forwards the changes of one member to the composite's listeners."""

    def __init__(self, member: Member, changes: ChangeNotifier) -> None:
        self._changes = changes
        if member.changes is not None:
            member.changes.follow(self)

    def announce(self, change: ServerChange) -> None:
        """Announce *change* to the composite's listeners. URIs and methods need no conversion."""
        if change.uri is not None:
            self._changes.resource_updated(change.uri)
        else:
            _LIST_CHANGED[change](self._changes)


_LIST_CHANGED: Final[dict[ServerChange, Callable[[ChangeNotifier], None]]] = {
    TOOLS: ChangeNotifier.tools_list_changed,
    PROMPTS: ChangeNotifier.prompts_list_changed,
    RESOURCES: ChangeNotifier.resources_list_changed,
}
