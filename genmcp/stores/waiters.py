"""The followers of logs and the workers of queues that wait for a change of a store."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from genmcp.stores.clocks import WakeSignal

ANY_QUEUE: Final = "n"
"""The name under which a worker of all queues waits; each change of a queue wakes it."""


log_name: Final[Callable[[str], str]] = "w:{}".format
"""Return the name under which followers of a log wait."""

queue_name: Final[Callable[[str], str]] = "n:{}".format
"""Return the name under which workers of a queue wait."""


class Waiters:
    """The signals of one process, or of one event loop, by the names of logs and queues.

    Args:
        changed: called with each name that gets its first waiter, or loses its last one, if given.
    """

    def __init__(self, changed: Callable[[str], object] | None = None) -> None:
        self._changed = changed
        self._lock = Lock()
        self.signals: dict[str, set[WakeSignal]] = {}

    @contextmanager
    def signal(self, names: Iterable[str]) -> Iterator[WakeSignal]:
        """Yield a signal that is set by changes of *names*."""
        signal = WakeSignal()
        for name in names:
            with self._lock:
                is_first = name not in self.signals
                self.signals.setdefault(name, set()).add(signal)
            if is_first and self._changed is not None:
                self._changed(name)
        try:
            yield signal
        finally:
            for name in names:
                self._remove(name, signal)

    def wake(self, names: Iterable[str]) -> None:
        """Wake the waiters of *names*, from any thread."""
        for name in names:
            with self._lock:
                signals = tuple(self.signals.get(name, ()))
            for signal in signals:
                if not signal.wake():  # its event loop was closed
                    self._remove(name, signal)

    def wake_all(self) -> None:
        """Wake all waiters, for an unknown change."""
        self.wake(tuple(self.signals))

    def _remove(self, name: str, signal: WakeSignal) -> None:
        with self._lock:
            signals = self.signals.get(name, set())
            is_last = signals == {signal}
            signals.discard(signal)
            if is_last:
                del self.signals[name]
        if is_last and self._changed is not None:
            self._changed(name)
