"""Which revision a server spoke last: 2026-07-28, basic/versioning, "Backward Compatibility"."""

from collections import OrderedDict

__all__ = ["ERAS", "Eras"]


class Eras:
    """The revision each server was found to speak, so that the next client need not find out.

    A server is known by its URL without query, as one origin may serve many, or by its command. At
    most *most* are remembered, those met last. What is remembered may be wrong by now; whoever
    finds it so finds out again, and remembers that.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._met: OrderedDict[str, str] = OrderedDict()

    def get(self, server: str) -> str | None:
        """Return the version *server* spoke, None if it is not known."""
        return self._met.get(server)

    def remember(self, server: str, version: str) -> None:
        """Remember that *server* speaks *version*."""
        self._met[server] = version
        self._met.move_to_end(server)
        if len(self._met) > self._most:
            self._met.popitem(last=False)


#: Those that clients of this process have met.
ERAS = Eras()
