"""What those listen for whom a hub serves: heard of at the servers that have it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from genmcp.channel import ChangeNotifier, Listener
from genmcp.core.subscription import RESOURCES, Change
from genmcp.errors import Overloaded
from genmcp.hub.index import Index
from genmcp.hub.member import Member

__all__ = ["Interests"]

#: How many resources are listened for; for how many seconds after nobody does any more; and how
#: long it may take until a server says whether it tells of them.
_MOST: Final = 10_000
_LINGER: Final = 5.0
_WAIT: Final = 5.0


class Interests(Listener):
    """The resources that somebody listens for; each server is subscribed to once for all of them.

    Who has come, or has other resources, is subscribed to as well. changes: tells of that, and
    is told where a resource is another server's now.
    """

    def __init__(self, index: Index, changes: ChangeNotifier) -> None:
        self._index = index
        self._changes = changes
        self._listeners: Counter[str] = Counter()
        self._asked: dict[str, list[Member]] = {}
        self._looking: asyncio.Handle | None = None
        changes.follow(self)

    @asynccontextmanager
    async def hearing(self, uris: Collection[str]) -> AsyncIterator[Collection[str]]:
        """Give those of *uris* whose servers tell of them, for as long as this is entered.

        Raises:
            Overloaded: too many are listened for.
        """
        wanted = [*dict.fromkeys(uris)]
        if len(self._asked.keys() | wanted) > _MOST:
            raise Overloaded(f"Too many resources are listened for: {_MOST}", status=429)
        for uri in wanted:
            self._listeners[uri] += 1
            if uri not in self._asked:
                self._look(uri)
        heard = set(wanted)
        try:
            heard = await self._told_of(wanted)
            for uri in wanted:
                if uri not in heard:
                    self._drop(uri, 0)  # who asks again may be told otherwise
            yield [uri for uri in wanted if uri in heard]
        finally:
            for uri in heard:
                self._drop(uri, _LINGER)

    def announce(self, change: Change) -> None:
        """Look again whose the resources are, once whoever else is told has heard of it."""
        if change == RESOURCES and self._asked and self._looking is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look_again)

    def _drop(self, uri: str, linger: float) -> None:
        self._listeners[uri] -= 1
        if not self._listeners[uri]:
            asyncio.get_running_loop().call_later(linger, self._forget, uri)

    def _forget(self, uri: str) -> None:
        if not self._listeners[uri]:
            del self._listeners[uri]
            for member in self._asked.pop(uri, ()):
                member.updates.unwant(uri)

    async def _told_of(self, uris: Collection[str]) -> set[str]:
        """Return those of *uris* of which some server tells, or has not said that it does not."""
        answers = {uri: [each.updates.answer(uri) for each in self._asked[uri]] for uri in uris}
        waiting = [each for some in answers.values() for each in some if not each.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=_WAIT)
        return {uri for uri, some in answers.items() if any(map(_hopeful, some))}

    def _look(self, uri: str) -> bool:
        """Subscribe to *uri* where it is now; return whether it is somewhere else than before."""
        before = self._asked.get(uri, [])
        route = self._index.now.find("resources/read", uri)
        now = [each for each in route.members if each.catalog.tells] if route else []
        self._asked[uri] = now
        for member in now:
            if member not in before:
                member.updates.want(uri)
        for member in before:
            if member not in now:
                member.updates.unwant(uri)
        return bool(now) and not any(each in now for each in before)

    def _look_again(self) -> None:
        self._looking = None
        for uri in [*self._asked]:
            if self._look(uri):
                self._changes.resource_updated(uri)


def _hopeful(answer: asyncio.Future[bool]) -> bool:
    return not answer.done() or (not answer.cancelled() and answer.result())
