"""What a server said may be kept for a while: 2026-07-28, server/utilities, "Caching"."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from genmcp.protocol.value import CacheableResult, Value, decoder_for

__all__ = ["REVISION_CACHE", "ResultCache", "RevisionCache", "copied"]

#: Of which methods a notification says that what they brought is stale.
_STALE: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
_UPDATED: Final = "notifications/resources/updated"
_READ: Final = "resources/read"

Key = tuple[str, str]


class ResultCache:
    """The fresh results of one client, each under its method and what was asked for.

    A client is one authorization context, so results of both scopes are kept for it, and none
    is given to another. What is asked for is a cursor or a URI; "" is the first page. At most
    *entries* are kept, those used last; as JSON, so that whoever gets one has it to himself,
    dictionaries and lists included. *now* tells the time in seconds.
    """

    def __init__(self, entries: int, now: Callable[[], float] = time.monotonic) -> None:
        self._entries = entries
        self._now = now
        self._kept: OrderedDict[Key, tuple[float, type[CacheableResult], bytes]] = OrderedDict()
        self._changes = 0

    @property
    def changes(self) -> int:
        """How often something became stale; to be read before a request is sent, for `keep`."""
        return self._changes

    def get(self, method: str, what: str = "") -> Any:
        """Return the result that is kept and fresh, or None."""
        found = self._kept.get((method, what))
        if found is None:
            return None
        until, kind, kept = found
        if self._now() >= until:
            del self._kept[method, what]
            return None
        self._kept.move_to_end((method, what))
        return decoder_for(kind).decode(kept)

    def size(self, method: str, what: str = "") -> int:
        """Return the size of the cached result as JSON, in bytes; 0 if there is none."""
        found = self._kept.get((method, what))
        return 0 if found is None else len(found[2])

    def keep(self, method: str, what: str, result: CacheableResult, changes: int) -> None:
        """Keep *result* for as long as it says, from now on.

        *changes* is what it was when the request was sent: what is told of a change meanwhile may
        concern this result.
        """
        if result.ttl_ms <= 0 or self._entries == 0 or changes != self._changes:
            return
        until = self._now() + result.ttl_ms / 1000
        self._kept[method, what] = (until, type(result), msgspec.json.encode(result))
        self._kept.move_to_end((method, what))
        if len(self._kept) > self._entries:
            self._kept.popitem(last=False)

    def forget(self, method: str, what: str | None = None) -> None:
        """Forget what *method* brought: for *what*, or all of it."""
        self._drop(lambda key: key[0] == method and what in (None, key[1]))

    def clear(self) -> None:
        """Forget everything."""
        self._drop(lambda _: True)

    def heard(self, method: str, params: Any) -> None:
        """Forget what a notification says is stale ("Interaction with Notifications").

        *params* is the value it came with; the update of a resource concerns what it is part of.
        """
        if method == _UPDATED:
            uri: str = params.uri
            self._drop(lambda key: key[0] == _READ and uri.startswith(key[1]))
        elif (stale := _STALE.get(method)) is not None:
            self._drop(lambda key: key[0] in stale)

    def _drop(self, concerns: Callable[[Key], bool]) -> None:
        self._changes += 1
        for key in [key for key in self._kept if concerns(key)]:
            del self._kept[key]


class RevisionCache:
    """The revision each server was found to speak, so that the next client need not find out.

    A server is known by its URL without query, as one origin may serve many, or by its command. At
    most *most* are remembered, those met last. What is remembered may be wrong by now; whoever
    finds it so finds out again, and remembers that.
    """

    def __init__(self, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._met: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def get(self, server: str, ttl: float) -> str | None:
        """Return the revision of *server*; None if it is unknown or was learned *ttl* seconds ago.

        A server that was upgraded still accepts the handshake of earlier revisions, so that only a
        new probe finds its current revision.
        """
        version, since = self._met.get(server, (None, 0.0))
        if self._clock() - since < ttl:
            return version
        self._met.pop(server, None)
        return None

    def remember(self, server: str, version: str) -> None:
        """Remember that *server* speaks *version*; its age counts from the first time it did."""
        known, since = self._met.get(server, (None, 0.0))
        self._met[server] = version, since if known == version else self._clock()
        self._met.move_to_end(server)
        if len(self._met) > self._most:
            self._met.popitem(last=False)


#: Those that clients of this process have met.
REVISION_CACHE = RevisionCache()


V = TypeVar("V", bound=Value)


def copied(value: V) -> V:
    """Return a copy of *value*, of the lists and dictionaries in it as well."""
    copy: V = decoder_for(type(value)).decode(msgspec.json.encode(value))
    return copy
