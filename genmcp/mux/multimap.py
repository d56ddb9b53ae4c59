"""Tables with several values for a key."""

from threading import Lock
from typing import Generic, TypeVar

__all__ = ["Multimap"]

K = TypeVar("K")
V = TypeVar("V")


class Multimap(Generic[K, V]):
    """A table with several values for a key. A key without values is not in it. Thread-safe."""

    def __init__(self) -> None:
        self._values: dict[K, dict[V, None]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def of(self, key: K) -> list[V]:
        """Return the values of *key*, in the order in which they were added."""
        with self._lock:
            return [*self._values.get(key, ())]

    def add(self, key: K, value: V) -> None:
        """Add *value* to those of *key*."""
        with self._lock:
            self._values.setdefault(key, {})[value] = None

    def discard(self, key: K, value: V) -> None:
        """Remove *value* from those of *key*, if it is one of them."""
        with self._lock:
            values = self._values.get(key, {})
            values.pop(value, None)
            if not values:
                self._values.pop(key, None)
