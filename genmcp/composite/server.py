"""Many servers as one server: qualified names, merged lists, and routing to the right member.

A tool or prompt is called `server/name`: the member's name, a separator, and the member's own name
for it. A resource keeps its URI; if several members list one URI, the first member is used.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Outcome
from genmcp._core.request import Request
from genmcp._core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange
from genmcp._core.waiting import Continue
from genmcp.channel import ChangeNotifier, Channel, Listener
from genmcp.composite.member import Alternative, Certainty, CompositeRoute, Member
from genmcp.errors import (
    ConfigurationError,
    InsufficientScope,
    InvalidParams,
    McpError,
    MethodNotFound,
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
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Server

logger = logging.getLogger("genmcp.composite")

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

# The codes of an error that means "no such resource": 2026-07-28, and earlier revisions.
_NOT_FOUND: Final = (InvalidParams.code, -32002)


class CompositeServer(Server):
    """All members of a hub or registry as one server.

    Returned by `Hub.server`, `Registry.server` and `LiveRegistry.server`, for a `Mux`, an
    `Endpoint`, `serve_stdio` or a `Client`.

    Args:
        members: returns the members by name, in order. It is called for every request, and must
            return the same mapping object until a member is added or removed.
        name: the name of the composite server.
        version: its version.
        separator: what separates the names of a member and of its tool. Default `/`.
        page_size: the number of items from which a page of a list gets no items of further members.
            Default 1000.
        list_timeout: seconds that one member may take to return a page. A slower member is left out
            of the list, with a warning in the log. Default 5.

    Raises:
        ConfigurationError: *separator* has characters that a tool's name cannot have, or
            *page_size* or *list_timeout* is not positive.
    """

    def __init__(
        self,
        members: Callable[[], Mapping[str, Member]],
        *,
        name: str,
        version: str,
        separator: str = "/",
        page_size: int = 1000,
        list_timeout: float = 5.0,
    ) -> None:
        if not isinstance(separator, str) or not _SEPARATOR.fullmatch(separator):
            raise ConfigurationError(
                f"separator: names of tools have letters, digits, '_', '-', '.' and '/', "
                f"unlike {separator!r}"
            )
        self._current = members
        self._separator = separator
        self._lists = _Lists(page_size, list_timeout)
        self._info = Implementation(name=name, version=version)
        self._names = _Names({}, separator)
        self._changes = ChangeNotifier()
        self._forwarders: dict[Member, _Forwarder] = {}
        self._follow()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._members) or 'no servers'}>"

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
            extensions={TASKS: {}},
        )

    @property
    def methods(self) -> Collection[str]:
        """The methods of tools, prompts, resources and completion."""
        return _METHODS

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
        names = self._names_now()
        is_uri = method == "resources/read"
        candidates = ((each, key) for each in names.members.values())
        alternatives: list[Alternative] = []
        for member, own in candidates if is_uri else names.split(key):
            found = member.find(method, own)
            if found is None:
                continue
            alternative = Alternative(member, own, *found)
            if alternative.certainty is Certainty.CERTAIN:
                return CompositeRoute.of([alternative])
            alternatives.append(alternative)
        # A member with a matching template has no precedence over earlier members, which may have
        # the resource without listing it. But the members after it are not tried: a later member,
        # which may be trusted less, must not take over the resource.
        claimed = [i for i, each in enumerate(alternatives) if each.certainty is Certainty.CLAIMED]
        if claimed:
            del alternatives[claimed[-1] + 1 :]
        return CompositeRoute.of(alternatives) if alternatives else None

    async def handle(self, request: Request, channel: Channel) -> Result | Continue:
        """Forward *request* to the member that has the component.

        If several members may have a resource, each is tried until one of them has the resource.
        """
        if request.route is None:
            return await self._complete(request, channel)
        alternatives = _alternatives(request)
        # The usual case: only one member may have it, and each of its errors goes to the client.
        if len(alternatives) == 1:
            return await alternatives[0].member.handle(alternatives[0].request(request), channel)
        failure: McpError | None = None
        for each in alternatives:
            try:
                if each.route.scopes:
                    channel.context.caller.require_scopes(each.route.scopes)
                return await each.member.handle(each.request(request), channel)
            except InsufficientScope:
                raise
            except McpError as error:
                absent = error.code in _NOT_FOUND
                if each.certainty is Certainty.CLAIMED and not absent:
                    raise
                # Other errors of a `POSSIBLE` member also lead to the next member, since servers
                # use various codes for a resource that they do not have.
                failure = failure or (None if absent else error)
        raise failure or ResourceNotFound(alternatives[0].key)

    async def resume(
        self, continuation: Continuation, outcome: Outcome, channel: Channel
    ) -> Result | Continue:
        """Resume the call at its member."""
        member = _alternatives(channel.request)[0].member
        return await member.resume(continuation, outcome, channel)

    async def cancelled(self, channel: Channel) -> None:
        """Cancel the call at its member."""
        if channel.request.route is not None:
            await _alternatives(channel.request)[0].member.cancelled(channel)

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the members' items, in the order of the members.

        A member that fails, or takes longer than `list_timeout`, is left out with a warning. If
        several items on a page have the same URI, only the first is listed.

        Raises:
            InvalidParams: *cursor* is unknown to its member, or that member was removed.
        """
        return await self._lists.page(self._names_now(), method, cursor, channel)

    async def _complete(self, request: Request, channel: Channel) -> Result | Continue:
        """Complete an argument at the member that has the prompt or resource template."""
        params = request.params
        if not isinstance(params, CompleteRequestParams):
            raise MethodNotFound(request.method)
        ref = params.ref
        if isinstance(ref, PromptReference):
            route = self.find("prompts/get", ref.name)
            if route is None:
                raise PromptNotFound(ref.name)
            owner = route.alternatives[0]
            own = replace(params, ref=replace(ref, name=owner.key))
            return await owner.member.handle(replace(request, params=own), channel)
        for member in self._members.values():
            if "completion/complete" in member.methods:
                try:
                    return await member.handle(request, channel)
                except InvalidParams:  # the template belongs to another member
                    continue
        raise ResourceNotFound(ref.uri)

    @property
    def _members(self) -> Mapping[str, Member]:
        return self._names_now().members

    def _names_now(self) -> "_Names":
        members = self._current()
        # Compared by identity: a comparison of the names would cost time in every request.
        if members is not self._names.members:
            self._names = _Names(members, self._separator)
        return self._names

    def _follow(self) -> None:
        """Forward the changes of the current members only."""
        # A member references its listeners weakly. A forwarder that is not kept in this mapping is
        # therefore garbage-collected, and no longer called.
        members = [*self._members.values()]
        self._forwarders = {
            each: self._forwarders.get(each) or _Forwarder(each, self._changes) for each in members
        }


@asynccontextmanager
async def _subscribed(owners: Mapping[Member, Sequence[str]]) -> AsyncIterator[Collection[str]]:
    async with AsyncExitStack() as stack:
        yield [
            uri
            for member, uris in owners.items()
            for uri in await stack.enter_async_context(member.watch_resources(uris))
        ]


def _alternatives(request: Request) -> Sequence[Alternative]:
    assert isinstance(request.route, CompositeRoute)
    return request.route.alternatives


class _Lists:
    """The merged lists of a composite. Owned by the composite."""

    def __init__(self, page_size: int, timeout: float) -> None:
        if page_size < 1:
            raise ConfigurationError(f"page_size must be 1 or more, not {page_size!r}")
        if timeout <= 0:
            raise ConfigurationError(f"list_timeout must be above 0, not {timeout!r}")
        self._page_size = page_size
        self._timeout = timeout
        self._first_pages: dict[str, tuple[Sequence[object], PaginatedResult]] = {}

    async def page(
        self, names: "_Names", method: str, cursor: str | None, channel: Channel
    ) -> PaginatedResult:
        """Return the page of the list *method* at *cursor*; see `CompositeServer.listed`."""
        pages: dict[str, PaginatedResult] = {}
        count = 0
        following: str | None = None
        for name, member, own in names.following(cursor):
            if method not in member.methods:
                continue
            if count >= self._page_size:
                # A cursor is a member's name, a line feed, and the member's own cursor. The name
                # is part of tool names, which cannot contain a line feed.
                following = f"{name}\n"
                break
            page = await self._member_page(name, member, method, own, channel)
            if page is None:
                continue
            pages[name] = page
            count += len(getattr(page, _LISTS[method].field))
            if page.next_cursor is not None:
                following = f"{name}\n{page.next_cursor}"
                break
        if cursor is not None or following is not None:
            return _merged(names, method, pages, following)
        # If no page has changed, the same object is returned: a mux encodes one object only once.
        sources: list[object] = [names, *pages.values()]
        known, result = self._first_pages.get(method, ((), None))
        if result is None or not _same(known, sources):
            result = _merged(names, method, pages, None)
            self._first_pages[method] = sources, result
        return result

    async def _member_page(
        self, name: str, member: Member, method: str, cursor: str | None, channel: Channel
    ) -> PaginatedResult | None:
        """Return a page of one member; None if it cannot be listed.

        Raises:
            InvalidParams: *cursor* is unknown to the member. The client has to list from the
                beginning. Otherwise the list would look complete without the member's other items.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await member.listed(method, cursor, channel)
        except TimeoutError:
            logger.warning(
                "server %s left out of %s: it took longer than %g s (list_timeout)",
                name,
                method,
                self._timeout,
            )
        except Exception as error:
            if cursor is not None and isinstance(error, InvalidParams):
                raise
            trace = not isinstance(error, McpError)
            logger.warning("server %s left out of %s: %s", name, method, error, exc_info=trace)
        return None


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _merged(
    names: "_Names", method: str, pages: Mapping[str, PaginatedResult], following: str | None
) -> PaginatedResult:
    kind, field, key = _LISTS[method]
    first: dict[str, Any] = {}
    for name, page in pages.items():
        items = names.qualified(method, name, page) if key == "name" else getattr(page, field)
        for item in items:
            first.setdefault(getattr(item, key), item)
    values: dict[str, Any] = {
        field: [*first.values()],
        # The page is as fresh as the member's page that expires first.
        "ttl_ms": min((page.ttl_ms for page in pages.values()), default=0),
        # The items that a member lists may depend on the principal, so that clients must not share
        # a page.
        "cache_scope": "private",
        "next_cursor": following,
    }
    return kind(**values)


class _Names:
    """The members until the next change, and the conversion of their names to qualified names."""

    def __init__(self, members: Mapping[str, Member], separator: str) -> None:
        self.members = members
        self._separator = separator
        self._items: dict[tuple[str, str], tuple[PaginatedResult, list[Any]]] = {}
        self._longest = max(map(len, members), default=0)

    def split(self, qualified: str) -> Iterator[tuple[Member, str]]:
        """Yield each member that *qualified* may belong to, and the name that follows its prefix.

        The name of a member may itself contain the separator, so that several members are possible.
        Positions beyond the longest member name are not tried, so that a name of a megabyte costs
        no more than a short one.
        """
        at = qualified.find(self._separator)
        while 0 <= at <= self._longest:
            if (member := self.members.get(qualified[:at])) is not None:
                yield member, qualified[at + len(self._separator) :]
            at = qualified.find(self._separator, at + 1)

    def following(self, cursor: str | None) -> Iterator[tuple[str, Member, str | None]]:
        """Yield the name, member and member's own cursor for each member from *cursor* on.

        The member's own cursor is None where its list begins.

        Raises:
            InvalidParams: the member of *cursor* was removed.
        """
        first, _, rest = (cursor or "").partition("\n")
        if cursor is not None and first not in self.members:
            raise InvalidParams("The cursor belongs to a server that was removed")
        reached = cursor is None
        for name, member in self.members.items():
            own = (rest or None) if name == first and not reached else None
            reached = reached or name == first
            if reached:
                yield name, member, own

    def qualified(self, method: str, name: str, page: PaginatedResult) -> list[Any]:
        """Return the items of *page*, a result of the member *name*, under qualified names.

        They are cached until the member returns another page object.
        """
        known, items = self._items.get((method, name), (None, []))
        if known is not page:
            items = [
                replace(item, name=f"{name}{self._separator}{item.name}")
                for item in getattr(page, _LISTS[method].field)
            ]
            self._items[method, name] = page, items
        return items


class _Forwarder(Listener):
    """Forwards the changes of one member to the composite's listeners."""

    def __init__(self, member: Member, changes: ChangeNotifier) -> None:
        self._changes = changes
        member.follow(self)

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
