"""Paginated lists of components, of which repositories return their parts on demand."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec

from genmcp.channel import Channel
from genmcp.component import ComponentRoute
from genmcp.content import json_of
from genmcp.errors import ContractError, InvalidParams
from genmcp.protocol.value import CacheScope, PaginatedResult

__all__ = ["Listing", "ListingEntry"]


class ListingEntry(msgspec.Struct, frozen=True):
    """A component in a list.

    key: unique among the entries that are listed alike. value: the definition that is listed; None
    if *route* is that of a repository, whose `list` hook returns the definitions.
    """

    key: str
    route: ComponentRoute
    value: Any


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """The start of a page: an entry; *within* it, in the page that its hook lists at a *cursor*."""

    key: str
    within: bool = False
    cursor: Any = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class Listing:
    """The pages of *entries*, in their order, each a *result*.

    *find* returns the route for a key: a repository lists only what it is asked for itself. All
    pages may be cached as long as the entry with the shortest time allows, and shared only if all
    entries allow it (2026-07-28, server/utilities, "Caching", "Interaction with Pagination").
    """

    def __init__(
        self,
        result: type[PaginatedResult],
        entries: Sequence[ListingEntry],
        find: Callable[[str], ComponentRoute | None],
    ) -> None:
        self._entries = entries
        self._result = result
        (self._member,) = {*result.__struct_fields__} - {*PaginatedResult.__struct_fields__}
        self._find = find
        self._places = {(each.key, each.value is None): place for place, each in enumerate(entries)}
        routes = [each.route for each in entries]
        public = all(each.cache_scope == "public" and each.visible is None for each in routes)
        self._cache_scope: CacheScope = "public" if public else "private"
        self._ttl_ms = min((each.ttl_ms for each in routes), default=0)
        self._pages: dict[tuple[int, int], PaginatedResult] = {}

    async def page(self, cursor: str | None, channel: Channel, *, size: int) -> PaginatedResult:
        """Return up to *size* items, from the position of *cursor*.

        A page ends when it is full, or when a repository has returned a page: a request calls one
        repository at most once. A page that is the same for all clients is created once.

        Raises:
            InvalidParams: the cursor was not issued by this list, or is out of date.
            ContractError: a repository did not return a page.
        """
        place, position = self._position(cursor)
        known = None if position.within else self._pages.get((place, size))
        if known is not None:
            return known
        found: dict[str, Any] = {}
        following: _Position | None = None
        varies = position.within
        for entry in islice(self._entries, place, None):
            if (visible := entry.route.visible) is not None:
                varies = True
                if not visible(channel.principal):
                    continue
            if len(found) >= size:
                following = _Position(entry.key, entry.value is None)
            elif entry.value is not None:
                found.setdefault(entry.key, entry.value)
            else:
                varies = True
                is_here = position.within and position.key == entry.key
                begin = position if is_here else _Position(entry.key, True)
                part, following = await self._part(entry, begin, size - len(found), channel)
                for key, each in part:
                    found.setdefault(key, each)
            if following is not None:
                break
        members: dict[str, Any] = {
            self._member: [*found.values()],
            "ttl_ms": self._ttl_ms,
            "cache_scope": self._cache_scope,
            "next_cursor": None if following is None else json_of(following).decode(),
        }
        result = self._result(**members)
        if not varies:
            self._pages[place, size] = result
        return result

    async def _part(
        self, entry: ListingEntry, begin: _Position, size: int, channel: Channel
    ) -> tuple[list[tuple[str, Any]], _Position | None]:
        """Return up to *size* items of a repository with their keys, and the position after them.

        Raises:
            ContractError: the hook did not return a page.
        """
        route = entry.route
        assert route.lister is not None
        page, after = await route.lister(channel, begin.cursor, channel), None
        if isinstance(page, tuple) and len(page) == 2 and isinstance(page[0], list | tuple):
            page, after = page
        if not isinstance(page, list | tuple):
            raise route.broken("list", page, "it must return a list, or a list and a cursor")
        end = begin.offset + size
        keyed = [(route.key_of(each), each) for each in page[begin.offset : end]]
        found = [(key, each) for key, each in keyed if self._is_of(route, key)]
        if end < len(page):
            return found, _Position(entry.key, True, begin.cursor, end)
        if after is None:
            return found, None
        try:
            json_of(after)
        except ContractError as error:
            raise route.broken("list", after, f"as a cursor, {error}") from error
        return found, _Position(entry.key, True, after)

    def _is_of(self, route: ComponentRoute, key: str) -> bool:
        owner = self._find(key)
        return owner is None or owner is route

    def _position(self, cursor: str | None) -> tuple[int, _Position]:
        if cursor is None:
            return 0, _Position("")
        try:
            position = _decode(cursor)
            return self._places[position.key, position.within], position
        except (msgspec.DecodeError, ValueError, RecursionError, KeyError):
            raise InvalidParams(f"Invalid cursor: {cursor}") from None


_decode = msgspec.json.Decoder(_Position).decode
