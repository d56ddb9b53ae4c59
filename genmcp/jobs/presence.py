"""Whether this process was itself away, so that it cannot tell which others are gone."""

import logging
from collections.abc import Callable
from math import inf

from genmcp.stores.clocks import steady

__all__ = ["Presence"]

logger = logging.getLogger("genmcp")


class Presence:
    """The signs of life of this process, as its store has taken them.

    A process is gone when it has given no sign of life for a lease. One that has given none itself
    for a third of that was away: it was stopped, its event loop was blocked, the machine slept, the
    store took nothing, or a clock was set. The same may have kept the others from theirs. So it
    doubts that they are gone, until they have had a lease to show that they are not.

    Args:
        lease: seconds.
        wall: returns Unix time, which may be set; what leases may be measured by.
        clock: returns seconds, and cannot be set.
    """

    def __init__(
        self, lease: float, wall: Callable[[], float], clock: Callable[[], float] = steady
    ) -> None:
        self._lease = lease
        self._wall = wall
        self._clock = clock
        self._shown: tuple[float, float] | None = None
        self._doubts_until = -inf

    @property
    def doubts(self) -> bool:
        """Whether others may be alive although they have given no sign of life for a lease."""
        return self._clock() < self._doubts_until or self._away() > self._lease / 3

    def show(self) -> None:
        """Note that the store has taken a sign of life of this process."""
        if (away := self._away()) > self._lease / 3:
            self._doubts_until = self._clock() + self._lease
            logger.warning(
                "this process was away for %.1f seconds (stopped, blocked, without its store, or a "
                "clock was set): for a lease of %g seconds it takes no other process for gone",
                away,
                self._lease,
            )
        self._shown = self._clock(), self._wall()

    def forget(self) -> None:
        """Expect no signs of life, until the next is shown: this process stops working."""
        self._shown = None

    def _away(self) -> float:
        """Return for how long there was no sign of life, or by how much a clock was set."""
        if self._shown is None:
            return 0.0
        shown, at = self._shown
        passed = self._clock() - shown
        return max(passed, abs(self._wall() - at - passed))
