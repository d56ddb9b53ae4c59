"""How many calls or streams are open at once, held against their bounds."""

from collections import Counter
from threading import Lock

from genmcp.errors import Overloaded

__all__ = ["Occupancy"]


class Occupancy:
    """Counts what is open: at most *most* in all, and *most_of_one* of one principal.

    *what* is what errors call them, and the setting of `Limits` that bounds them. Whoever is not
    authenticated counts in all only. full: whether there may be no place for somebody. Any number
    of threads may use it.
    """

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._lock = Lock()
        self._total = 0
        self._of: Counter[str] = Counter()
        self._full_ones = 0
        self.full = False

    def __len__(self) -> int:
        return self._total

    def check(self, principal: str | None) -> None:
        """Check that there is a place for one more.

        Raises:
            Overloaded: 503, all places are taken; 429, *principal* has taken all of its own.
        """
        if self._total >= self._most:
            raise Overloaded(f"Too many {self._what} are open: {self._most} (limit: {self._what})")
        if principal is not None and self._of[principal] >= self._most_of_one:
            raise Overloaded(
                f"Too many {self._what} of one principal are open: {self._most_of_one} "
                f"(limit: {self._what}_of_principal)",
                status=429,
            )

    def take(self, principal: str | None) -> None:
        """Take a place; whoever may not should have been told."""
        with self._lock:
            self._total += 1
            if principal is not None:
                self._of[principal] += 1
                self._full_ones += self._of[principal] == self._most_of_one
            self.full = self._total >= self._most or self._full_ones > 0

    def leave(self, principal: str | None) -> None:
        """Give a place back that was taken."""
        with self._lock:
            self._total -= 1
            if principal is not None:
                self._full_ones -= self._of[principal] == self._most_of_one
                self._of[principal] -= 1
                if not self._of[principal]:
                    del self._of[principal]
            self.full = self._total >= self._most or self._full_ones > 0
