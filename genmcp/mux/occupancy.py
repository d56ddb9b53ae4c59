"""How many calls or streams are open at once, held against their bounds."""

from collections import Counter
from collections.abc import Iterator
from threading import Lock

from genmcp.errors import Overloaded

__all__ = ["Occupancy"]


class Occupancy:
    """Counts what is open: at most *most* in all, and so many of one principal, of one tool.

    *what* is what errors call them, and the setting of `Limits` that bounds them; the keywords
    say the bounds for one of a kind, whose settings are called `<what>_of_<kind>`. Who has no
    such key (is not authenticated, say) counts in all only. Any number of threads may use it.

    full: whether there may be no place for somebody.
    """

    def __init__(self, what: str, most: int, **most_of_one: int) -> None:
        self.full = False
        self._what = what
        self._most = most
        self._most_of_one = most_of_one
        self._lock = Lock()
        self._total = 0
        self._of: Counter[tuple[str, str]] = Counter()
        self._full_ones = 0

    def __len__(self) -> int:
        return self._total

    def check(self, **keys: str | None) -> None:
        """Check that there is a place for one more of these *keys*.

        Raises:
            Overloaded: 503, all places are taken; 429, one of them has taken all of its own.
        """
        what = self._what
        if self._total >= self._most:
            raise Overloaded(f"Too many {what} are open: {self._most} (limit: {what})")
        for kind, key in _given(keys):
            if self._of[kind, key] >= self._most_of_one[kind]:
                raise Overloaded(
                    f"Too many {what} of one {kind} are open: {self._most_of_one[kind]} "
                    f"(limit: {what}_of_{kind})",
                    status=429,
                )

    def take(self, **keys: str | None) -> None:
        """Take a place; whoever may not should have been told."""
        with self._lock:
            self._total += 1
            for place in _given(keys):
                self._of[place] += 1
                self._full_ones += self._of[place] == self._most_of_one[place[0]]
            self._judge()

    def leave(self, **keys: str | None) -> None:
        """Give a place back that was taken."""
        with self._lock:
            self._total -= 1
            for place in _given(keys):
                self._full_ones -= self._of[place] == self._most_of_one[place[0]]
                self._of[place] -= 1
                if not self._of[place]:
                    del self._of[place]
            self._judge()

    def _judge(self) -> None:
        self.full = self._total >= self._most or self._full_ones > 0


def _given(keys: dict[str, str | None]) -> Iterator[tuple[str, str]]:
    return ((kind, key) for kind, key in keys.items() if key is not None)
