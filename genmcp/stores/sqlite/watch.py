"""Waking the followers of a SQLite file, after writes of this process and of others."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from threading import Lock
from typing import Final

from genmcp.stores.clocks import WakeSignal, steady

NEWS_RETENTION: Final = 3600.0
"""Seconds for which the table `news` keeps the last change of a queue."""

_LONGEST_PAUSE: Final = 60.0  # seconds between two looks, after which a row may have been removed
_ANY_QUEUE: Final = "queue "


def names_of_queues(queues: Iterable[str]) -> Collection[str]:
    """Return the names under which waiters for changes of *queues* are registered.

    A log may have such a name, too: its waiters are then woken without reason, which is allowed.
    """
    return [f"{_ANY_QUEUE}{queue}" for queue in queues]


class Watch:
    """The waiters of one process: followers of logs, and workers that wait for deliveries.

    A commit of this process wakes the waiters that it concerns directly (`wake_for_commit`).
    Commits of other processes are noticed by the reader's thread, which calls `look` every 20 ms
    while there are waiters.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._signals: dict[str, set[WakeSignal]] = {}  # by the name of a log or queue
        self._version: int | None = None  # PRAGMA data_version at the last look
        self._seen: int | None = None  # the counter `event` at that time
        self._looked = 0.0

    @property
    def has_waiters(self) -> bool:
        """Whether a write could wake a waiter."""
        return bool(self._signals)

    @contextmanager
    def signal(self, *names: str) -> Iterator[WakeSignal]:
        """Yield a signal that is set by changes of the logs or queues *names*; none: all queues."""
        signal = WakeSignal()
        with self._lock:
            for name in names or (_ANY_QUEUE,):
                self._signals.setdefault(name, set()).add(signal)
        try:
            yield signal
        finally:
            with self._lock:
                for name in names or (_ANY_QUEUE,):
                    self._remove(name, signal)

    def wake_for_commit(
        self, logs: Iterable[str], queues: Collection[str], before: int, after: int
    ) -> None:
        """Wake the waiters that a commit of this process concerns.

        *before* and *after* are the counter `event`. If *before* is not the state seen last,
        another process has committed in between: then `look` finds both commits.
        """
        with self._lock:
            if self._seen == before:
                self._seen = after
            self._wake(logs, queues)

    def wake_all(self) -> None:
        """Wake all waiters, for an unknown change."""
        with self._lock:
            self._wake(tuple(self._signals))

    def reset(self) -> None:
        """Forget the state seen last, so that the next `look` wakes all waiters."""
        self._version = self._seen = None

    def look(self, connection: Connection) -> None:
        """Wake the waiters that commits of other processes since the last look concern."""
        if not self.has_waiters:
            self.reset()
            return
        looked, self._looked = self._looked, steady()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        self._version = version
        (event,) = connection.execute("SELECT event FROM counts").fetchone()
        with self._lock:
            seen, self._seen = self._seen, event
        if seen is None or self._looked - looked > _LONGEST_PAUSE:
            self.wake_all()
        elif seen != event:
            # Changes are counted over all logs and queues: two queries find all of them.
            logs = connection.execute(
                "SELECT name FROM logs WHERE number IN (SELECT log FROM events WHERE id > ?)",
                (seen,),
            ).fetchall()
            queues = connection.execute("SELECT queue FROM news WHERE event > ?", (seen,))
            changed = [queue for (queue,) in queues]
            with self._lock:
                self._wake((name for (name,) in logs), changed)

    def _wake(self, names: Iterable[str], queues: Collection[str] = ()) -> None:
        any_queue = (_ANY_QUEUE,) if queues else ()
        for name in (*names, *names_of_queues(queues), *any_queue):
            for signal in tuple(self._signals.get(name, ())):
                if not signal.wake():  # its event loop was closed
                    self._remove(name, signal)

    def _remove(self, name: str, signal: WakeSignal) -> None:
        if signals := self._signals.get(name):
            signals.discard(signal)
            if not signals:
                del self._signals[name]
