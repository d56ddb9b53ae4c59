"""The cache of a client: the results of requests that are fresh."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.subscription import is_at_or_below
from genmcp.protocol.value import CacheableResult, decoder_for

#: The methods whose results each notification makes stale.
_STALE: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/prompts/list_changed": ("prompts/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
}
_UPDATED: Final = "notifications/resources/updated"
_READ: Final = "resources/read"

# Bytes of all results of one client, as JSON with their keys. A result above a tenth of it is not
# stored: it would displace too many others.
_MAX_BYTES: Final = 16 * 1024 * 1024

Key = tuple[str, str]


class ResultCache:
    """The fresh results of one client: 2026-07-28, server/utilities, "Caching".

    Owned by a `Connection`. A client is one authorization context. So the cache stores results
    of both cache scopes, and shares none with other clients. Results are stored as JSON, so that
    each caller gets a copy, which it may change.

    Args:
        max_entries: maximum number of results; the least recently used is evicted.
        clock: returns the time in seconds.

    The key of a result is its method, and the URI of a resource or "".
    """

    def __init__(self, max_entries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[float, type[CacheableResult], bytes]] = OrderedDict()
        self._size = 0  # bytes of all entries
        self._generation = 0

    @property
    def generation(self) -> int:
        """The number of invalidations. To be read before a request is sent, for `put`."""
        return self._generation

    def get(self, method: str, key: str = "") -> Any:
        """Return a copy of the fresh result, or None."""
        entry = self._entries.get((method, key))
        if entry is None:
            return None
        until, kind, encoded = entry
        if self._clock() >= until:
            self._pop((method, key))
            return None
        self._entries.move_to_end((method, key))
        return decoder_for(kind).decode(encoded)

    def put(self, method: str, key: str, result: CacheableResult, generation: int) -> None:
        """Store *result* for its `ttlMs`, unless the cache was invalidated since *generation*.

        An invalidation while the request was pending may concern this result: it could have been
        read before the change and received after the notification.
        """
        if result.ttl_ms <= 0 or self._max_entries == 0 or generation != self._generation:
            return
        self._pop((method, key))
        encoded = msgspec.json.encode(result)
        if (size := _size(key, encoded)) > _MAX_BYTES // 10:
            return
        until = self._clock() + result.ttl_ms / 1000
        self._entries[method, key] = (until, type(result), encoded)
        self._size += size
        while len(self._entries) > self._max_entries or self._size > _MAX_BYTES:
            self._pop(next(iter(self._entries)))

    def discard(self, method: str, key: str | None = None) -> None:
        """Remove the results of *method*: that of *key*, or all."""
        self._remove(lambda each: each[0] == method and key in (None, each[1]))

    def clear(self) -> None:
        """Remove all results."""
        self._remove(lambda _: True)

    def invalidate(self, method: str, params: Any) -> None:
        """Remove the results that a notification makes stale ("Interaction with Notifications").

        An update of a resource also removes the cached resources above it in the path.
        """
        if method == _UPDATED:
            uri: str = params.uri
            self._remove(lambda each: each[0] == _READ and is_at_or_below(uri, each[1]))
        elif (stale := _STALE.get(method)) is not None:
            self._remove(lambda each: each[0] in stale)

    def _remove(self, matches: Callable[[Key], bool]) -> None:
        self._generation += 1
        for key in [key for key in self._entries if matches(key)]:
            self._pop(key)

    def _pop(self, key: Key) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._size -= _size(key[1], entry[2])


def _size(key: str, encoded: bytes) -> int:
    return len(key) + len(encoded)
