"""What a hub serves: the pages of its lists, and who is asked for what is on them."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from genmcp.channel import Listener
from genmcp.core.request import Policy
from genmcp.core.subscription import Change
from genmcp.hub.member import Member
from genmcp.hub.members import Members
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.tools import ListToolsResult
from genmcp.protocol.value import PaginatedResult
from genmcp.server import Route

__all__ = ["LISTS", "HubRoute", "Index"]

#: The kind of each list's pages, and what their items are called.
LISTS: Final[Mapping[str, tuple[type[PaginatedResult], str]]] = {
    "tools/list": (ListToolsResult, "tools"),
    "prompts/list": (ListPromptsResult, "prompts"),
    "resources/list": (ListResourcesResult, "resources"),
    "resources/templates/list": (ListResourceTemplatesResult, "resource_templates"),
}


#: Calls of tools that take long are tasks, for those who know tasks.
_TOOLS: Final = Policy()


class HubRoute(Route, frozen=True, kw_only=True):
    """The route of a tool, prompt or resource to the first of *members* that has it.

    key: its name or URI at the member. owners: those of *members* whose error is the response; an
    error of any other member means that it does not have the resource.
    """

    members: Sequence[Member]
    key: str
    owners: Collection[Member] = ()


class Index(Listener):
    """What all *members* have, made anew after a change."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._stock: _Stock | None = None
        self._parts: Mapping[Member, _Part] = {}
        members.changes.follow(self)

    @property
    def now(self) -> "_Stock":
        """What there is now."""
        if self._stock is None:
            # A member is indexed again only if its lists have changed, and at the first look-up: a
            # member whose lists are long, or change all the time, slows no other member.
            self._parts = {each: self._part(each) for each in self._members}
            self._stock = _Stock([*self._parts.values()])
        return self._stock

    def announce(self, change: Change) -> None:
        """Look again when it is asked for."""
        if change.uri is None:
            self._stock = None

    def _part(self, member: Member) -> "_Part":
        part = self._parts.get(member)
        return part if part is not None and part.catalog is member.catalog else _Part(member)


class _Part:
    """The catalog of one member at one time, indexed by names and URIs."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.catalog = member.catalog

    @cached_property
    def tools(self) -> Mapping[str, HubRoute]:
        """Its tools, by their names at the member."""
        headers = self.catalog.headers
        return {
            each.name: HubRoute(
                members=[self.member],
                key=each.name,
                headers=headers.get(each.name, ()),
                policy=_TOOLS,
            )
            for each in self.catalog.tools
        }

    @cached_property
    def prompts(self) -> Mapping[str, HubRoute]:
        """Its prompts, by their names at the member."""
        return {
            each.name: HubRoute(members=[self.member], key=each.name)
            for each in self.catalog.prompts
        }

    @cached_property
    def uris(self) -> Collection[str]:
        """The URIs that it lists."""
        return {each.uri for each in self.catalog.resources}

    def claims(self, uri: str) -> bool:
        """Whether *uri* fits one of its templates that begins with a scheme."""
        return any(
            ":" in each.prefix and each.match(uri) is not None  # `{+path}` would match any URI
            for each in self.catalog.matchers
        )

    @cached_property
    def listed_tools(self) -> Sequence[Any]:
        """Its tools with the names that they have in the hub."""
        return self._renamed(self.catalog.tools)

    @cached_property
    def listed_prompts(self) -> Sequence[Any]:
        """Its prompts with the names that they have in the hub."""
        return self._renamed(self.catalog.prompts)

    def _renamed(self, items: Sequence[Any]) -> Sequence[Any]:
        name = self.member.name
        return [msgspec.structs.replace(item, name=f"{name}/{item.name}") for item in items]


class _Stock:
    """The catalogs of all members at one time, each of them a part."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self._by_member = {each.member.name: each for each in parts}
        self._longest = max(map(len, self._by_member), default=0)
        self._pages: dict[str, PaginatedResult] = {}

    def page(self, method: str) -> PaginatedResult:
        """Return the list that *method* asks for, all on one page; the same object each time."""
        page = self._pages.get(method)
        if page is None:
            kind, items = LISTS[method]
            said: dict[str, Any] = {items: self._listed(items), "ttl_ms": 0}
            page = self._pages[method] = kind(**said, cache_scope="private")
        return page

    def find(self, method: str, key: str) -> HubRoute | None:
        """Return whom to ask for the tool or prompt called *key*, or the resource there."""
        if method == "resources/read":
            for part in self._parts:
                if key in part.uris:
                    return HubRoute(members=[part.member], key=key)
            return self._unlisted(key)
        # No name of a member is a prefix of another's, so that at most one of them matches.
        at = key.find("/")
        while 0 <= at <= self._longest:
            part_of_key = self._by_member.get(key[:at])
            if part_of_key is not None:
                routes = part_of_key.tools if method == "tools/call" else part_of_key.prompts
                return routes.get(key[at + 1 :])
            at = key.find("/", at + 1)
        return None

    def completing(self, template: str) -> HubRoute | None:
        """Return whom to ask for the variables of the resource template *template*."""
        for part in self._parts:
            if any(each.uri_template == template for each in part.catalog.templates):
                return HubRoute(members=[part.member], key=template)
        return None

    def _unlisted(self, uri: str) -> HubRoute | None:
        """Return the route of a resource that is not listed, in the order of registration.

        A matching template does not give its member precedence over one that was registered earlier
        and may have the resource without listing it. It ends the search: members registered after
        the last one whose template matches are not asked.
        """
        owners = {part.member for part in self._parts if part.claims(uri)}
        able = [each.member for each in self._parts if each.catalog.reads or each.member in owners]
        while owners and able[-1] not in owners:
            able.pop()
        return HubRoute(members=able, key=uri, owners=owners) if able else None

    def _listed(self, kind: str) -> list[Any]:
        match kind:
            case "resources":
                return self._first_of_each("resources", "uri")
            case "resource_templates":
                return self._first_of_each("templates", "uri_template")
            case _:
                return [item for each in self._parts for item in getattr(each, f"listed_{kind}")]

    def _first_of_each(self, kind: str, key: str) -> list[Any]:
        found: dict[str, Any] = {}
        for part in self._parts:
            for item in getattr(part.catalog, kind):
                found.setdefault(getattr(item, key), item)
        return [*found.values()]
