"""What a server does wrong without a request failing by it, as the log tells of it."""

import logging

__all__ = ["Complaints"]

logger = logging.getLogger("genmcp.client")


class Complaints:
    """Warns of the first fault of a kind, and at the end of how many followed.

    A server that writes something else than messages does so line by line.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._kinds: set[type[Exception]] = set()
        self._more = 0

    def add(self, fault: Exception, text: str) -> None:
        """Tell of *fault*, as *text* does."""
        first = type(fault) not in self._kinds
        self._kinds.add(type(fault))
        self._more += not first
        level = logging.WARNING if first else logging.DEBUG
        logger.log(level, "%s", text)

    def close(self) -> None:
        """Tell how many there were that nobody was warned of."""
        if self._more:
            logger.warning("%s: %d more of such faults (at DEBUG)", self._where, self._more)
            self._more = 0
