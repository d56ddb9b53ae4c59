"""Which revision a server spoke last: 2026-07-28, basic/versioning, "Backward Compatibility"."""

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["ERAS", "Eras"]


class Eras:
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
ERAS = Eras()
