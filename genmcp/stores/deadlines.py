"""When to look at what runs out: a heap that does not grow with what changed its mind."""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Protocol

__all__ = ["Deadlines", "Mortal"]

_DUE_AT_ONCE: Final = 64  # names given at once: some 30 us to look at
_STALE_AT_MOST: Final = 64  # deadlines kept beyond two for each name


class Mortal(Protocol):
    """Something with a deadline, in seconds of the owner's clock; `inf` is never."""

    deadline: float


class Deadlines:
    """When to look at what is *held*, the next first.

    A name is added each time its deadline changes, so it may come up when its time has not run out.
    """

    def __init__(self, held: Mapping[str, Mortal]) -> None:
        self._held = held
        self._heap: list[tuple[float, str]] = []
        self.first = inf  # nothing is due before this time

    def add(self, name: str, deadline: float) -> None:
        """Have *name* come up at *deadline*, which is the one it has in what is held."""
        if deadline == inf:
            return
        heappush(self._heap, (deadline, name))
        if len(self._heap) > _STALE_AT_MOST + 2 * len(self._held):
            self._heap = [(held.deadline, name) for name, held in self._held.items()]
            heapify(self._heap)
        self.first = self._heap[0][0]

    def due(self, now: float) -> list[str]:
        """Return and forget some names whose deadline may have come; none if there are none."""
        names: list[str] = []
        while self._heap and self._heap[0][0] <= now and len(names) < _DUE_AT_ONCE:
            names.append(heappop(self._heap)[1])
        self.first = self._heap[0][0] if self._heap else inf
        return names

    def next(self) -> float:
        """Return the deadline that comes next, `inf` if none does."""
        while self._heap:
            deadline, name = self._heap[0]
            held = self._held.get(name)
            if held is not None and held.deadline == deadline:
                break
            heappop(self._heap)
        self.first = self._heap[0][0] if self._heap else inf
        return self.first
