"""What a hub serves: the pages of its lists, and who is asked for what is on them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from genmcp.core.subscription import Change
from genmcp.errors import ConfigurationError
from genmcp.hub.member import Member
from genmcp.hub.members import Members
from genmcp.policy import Policy
from genmcp.protocol.prompts import ListPromptsResult
from genmcp.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from genmcp.protocol.result import PaginatedResult
from genmcp.protocol.tools import ListToolsResult, ToolDefinition
from genmcp.schema.document import Document
from genmcp.schema.headers import header_rules
from genmcp.schema.limits import FOREIGN_LIMITS
from genmcp.server import Route
from genmcp.subscription import Listener
from genmcp.uri_template.template import UriTemplate
from genmcp.wire.mirror import HeaderRule

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
    """Who is asked, the first of *members* that has it, and what it is called there.

    owners: those of *members* whose error is the answer. Another one that refuses does not have it.
    """

    members: Sequence[Member]
    key: str
    owners: Collection[Member] = ()


class Index(Listener):
    """What all *members* have, made anew after a change."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._stock: _Stock | None = None
        members.announcer.follow(self)

    @property
    def now(self) -> "_Stock":
        """What there is now."""
        if self._stock is None:
            self._stock = _Stock([*self._members])
        return self._stock

    def announce(self, change: Change) -> None:
        """Look again when it is asked for."""
        if change.uri is None:
            self._stock = None


class _Stock:
    """What some members have at one time."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
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
            return self._by_uri.get(key) or self._unlisted(key)
        return self._by_name[method].get(key)

    def completing(self, template: str) -> HubRoute | None:
        """Return whom to ask for the variables of the resource template *template*."""
        for text, member in self._templates:
            if text == template:
                return HubRoute(members=[member], key=template)
        return None

    @cached_property
    def _by_name(self) -> Mapping[str, Mapping[str, HubRoute]]:
        tools, prompts = {}, {}
        for member in self._members:
            for tool in member.catalog.tools:
                route = HubRoute(
                    members=[member], key=tool.name, headers=_headers(tool), policy=_TOOLS
                )
                tools[f"{member.name}/{tool.name}"] = route
            for prompt in member.catalog.prompts:
                route = HubRoute(members=[member], key=prompt.name)
                prompts[f"{member.name}/{prompt.name}"] = route
        return {"tools/call": tools, "prompts/get": prompts}

    @cached_property
    def _by_uri(self) -> Mapping[str, HubRoute]:
        found: dict[str, HubRoute] = {}
        for member in self._members:
            for each in member.catalog.resources:
                found.setdefault(each.uri, HubRoute(members=[member], key=each.uri))
        return found

    @cached_property
    def _templates(self) -> Sequence[tuple[str, Member]]:
        return [
            (each.uri_template, member)
            for member in self._members
            for each in member.catalog.templates
        ]

    @cached_property
    def _matchers(self) -> Sequence[tuple[UriTemplate, Member]]:
        found = []
        for text, member in self._templates:
            try:
                template = UriTemplate(text)
            except ConfigurationError:
                continue  # what is no template fits nothing
            if ":" in template.prefix:  # without a scheme, as `{+path}`, it would fit everything
                found.append((template, member))
        return found

    def _unlisted(self, uri: str) -> HubRoute | None:
        """Return who may have what is not listed: those with resources, the first one first.

        A template is no claim to what a member that was registered earlier may have without listing
        it. It ends the search: whoever was registered after the last one whose template fits is not
        asked.
        """
        owners = {member for template, member in self._matchers if template.match(uri) is not None}
        able = [each for each in self._members if each.catalog.reads or each in owners]
        while owners and able[-1] not in owners:
            able.pop()
        return HubRoute(members=able, key=uri, owners=owners) if able else None

    def _listed(self, kind: str) -> list[Any]:
        match kind:
            case "resources":
                return _first_of_each(self._members, "resources", "uri")
            case "resource_templates":
                return _first_of_each(self._members, "templates", "uri_template")
            case _:
                return [
                    msgspec.structs.replace(item, name=f"{each.name}/{item.name}")
                    for each in self._members
                    for item in getattr(each.catalog, kind)
                ]


def _first_of_each(members: Iterable[Member], kind: str, key: str) -> list[Any]:
    found: dict[str, Any] = {}
    for member in members:
        for item in getattr(member.catalog, kind):
            found.setdefault(getattr(item, key), item)
    return [*found.values()]


def _headers(tool: ToolDefinition) -> tuple[HeaderRule, ...]:
    """Return which arguments headers mirror; what a schema says wrongly, it does not say."""
    try:
        return header_rules(Document(tool.input_schema, "inputSchema", FOREIGN_LIMITS))
    except ConfigurationError:
        return ()
