"""Lists in pages, part of which is there and part of which is asked for when its turn comes."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from genmcp.channel import Channel
from genmcp.content import json_of
from genmcp.errors import ContractError, InvalidParams
from genmcp.hook import Hook, Visible
from genmcp.protocol.result import CacheScope, PaginatedResult

__all__ = ["Item", "Lister", "Listing"]

P = TypeVar("P", bound=PaginatedResult)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is listed, or lists.

    key: what it is known by, once among its kind. ttl_ms, cache_scope: for how long a list of it
    may be kept, and by whom. visible: who may see it; None: everybody.
    """

    key: str
    ttl_ms: int
    cache_scope: CacheScope
    visible: Visible | None = None


class Item(Source, frozen=True, kw_only=True):
    """Something that is there, and how it is listed."""

    value: Any


class Lister(Source, frozen=True, kw_only=True):
    """A repository that is asked for its items.

    owner: what errors call it. hook: gets the cursor of the page before (None for the first page)
    and the channel, and returns items, or a pair: items, next cursor. named: returns what an item
    is known by, None if it is somebody else's to list; it raises ContractError for what is none.
    """

    owner: str
    hook: Hook
    named: Callable[[Any], str | None]

    async def part(
        self, begin: "_Position", size: int, channel: Channel
    ) -> tuple[list[tuple[str, Any]], "_Position | None"]:
        """Return up to *size* items from *begin* on, each with its name, and where the next are.

        Raises:
            ContractError: the hook returned no page.
        """
        page, after = _page_of(self.owner, await self.hook(channel, begin.cursor, channel))
        end = begin.offset + size
        named = ((self.named(each), each) for each in page[begin.offset : end])
        found = [(name, each) for name, each in named if name is not None]
        if end < len(page):
            return found, _Position(self.key, True, begin.cursor, end)
        if after is None:
            return found, None
        try:
            json_of(after)
        except ContractError as error:
            raise _broken(self.owner, after, f"as a cursor, {error}") from error
        return found, _Position(self.key, True, after)


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins: with a source; *within* it, in the page it lists at a *cursor*."""

    key: str
    within: bool = False
    cursor: Any = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class Listing(Generic[P]):
    """The pages of *sources*, in their order.

    A page is a *kind*, whose *member* has the items. All pages may be kept as long as the briefest
    source allows, and by anybody only if all sources allow it (2026-07-28, server/utilities,
    "Caching", "Interaction with Pagination").
    """

    def __init__(self, sources: Sequence[Item | Lister], kind: type[P], member: str) -> None:
        self._sources = sources
        self._kind = kind
        self._member = member
        self._places = {
            (each.key, isinstance(each, Lister)): place for place, each in enumerate(sources)
        }
        public = all(each.cache_scope == "public" and each.visible is None for each in sources)
        self._cache_scope: CacheScope = "public" if public else "private"
        self._ttl_ms = min((each.ttl_ms for each in sources), default=0)
        self._kept: dict[tuple[int, int], P] = {}

    async def page(self, cursor: str | None, channel: Channel, *, size: int) -> P:
        """Return up to *size* items, from where *cursor* points to.

        Sources follow one another on a page until it is full, or a repository has given a page of
        its own: a repository is asked once, so that a page costs what is on it. A page that
        depends on nobody is the same object every time.

        Raises:
            InvalidParams: the cursor is not one that was given out, or no longer.
            ContractError: a repository did not return a page.
        """
        place, position = self._position(cursor)
        known = None if position.within else self._kept.get((place, size))
        if known is not None:
            return known
        found: dict[str, Any] = {}
        following: _Position | None = None
        depends = position.within
        for source in islice(self._sources, place, None):
            if source.visible is not None:
                depends = True
                if not source.visible(channel.principal):
                    continue
            if len(found) >= size:
                following = _Position(source.key, isinstance(source, Lister))
            elif isinstance(source, Item):
                found.setdefault(source.key, source.value)
            else:
                depends = True
                is_here = position.within and position.key == source.key
                begin = position if is_here else _Position(source.key, True)
                part, following = await source.part(begin, size - len(found), channel)
                for name, each in part:
                    found.setdefault(name, each)
            if following is not None:
                break
        result = self._result([*found.values()], following)
        if not depends:
            self._kept[place, size] = result
        return result

    def _result(self, items: list[Any], following: _Position | None) -> P:
        members: dict[str, Any] = {
            self._member: items,
            "ttl_ms": self._ttl_ms,
            "cache_scope": self._cache_scope,
            "next_cursor": None if following is None else json_of(following).decode(),
        }
        return self._kind(**members)

    def _position(self, cursor: str | None) -> tuple[int, _Position]:
        if cursor is None:
            return 0, _Position("")
        try:
            position = _position.decode(cursor)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise _invalid(cursor) from None
        place = self._places.get((position.key, position.within))
        if place is None:
            raise _invalid(cursor)
        return place, position


_position = msgspec.json.Decoder(_Position)


def _page_of(owner: str, returned: Any) -> tuple[Sequence[Any], Any]:
    page, after = returned, None
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], list | tuple):
        page, after = returned
    if not isinstance(page, list | tuple):
        raise _broken(owner, page, "it must return a list, or a list and a cursor")
    return page, after


def _broken(owner: str, value: Any, why: str) -> ContractError:
    return ContractError(f"{owner} returned {type(value).__name__}: {why}")


def _invalid(cursor: str | None) -> InvalidParams:
    return InvalidParams(f"Invalid cursor: {cursor}")
