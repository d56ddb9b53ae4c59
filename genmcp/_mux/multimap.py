"""A table with several values for a key: the calls of a session, the listeners of a change."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Multimap(Generic[K, V]):
    """A table with several values for a key. A key without values is not in it."""

    def __init__(self) -> None:
        self._values: dict[K, dict[V, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def of(self, key: K) -> list[V]:
        """Return the values of *key*, in the order in which they were added."""
        return [*self._values.get(key, ())]

    def add(self, key: K, value: V) -> None:
        """Add *value* to the values of *key*."""
        self._values.setdefault(key, {})[value] = None

    def discard(self, key: K, value: V) -> None:
        """Remove *value* from the values of *key*, if it is among them."""
        values = self._values.get(key, {})
        values.pop(value, None)
        if not values:
            self._values.pop(key, None)
