"""Who is woken by what is written, in this process and in others."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from threading import Lock

from genmcp.stores.waiter import Waiter

__all__ = ["Watch"]


class Watch:
    """The followers of logs, and those who wait for news of deliveries, in one process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_log: dict[str, set[Waiter]] = {}
        self._of_news: set[Waiter] = set()
        self._version: int | None = None  # of the file, as the connection that looks sees it
        self._seen: tuple[int, int] | None = None  # the counts: last event, news

    @property
    def wanted(self) -> bool:
        """Whether anybody could be woken."""
        return bool(self._by_log or self._of_news)

    @contextmanager
    def of_log(self, name: str) -> Iterator[Waiter]:
        """Give a Waiter that is woken when something is appended to the log."""
        waiter = Waiter()
        with self._lock:
            self._by_log.setdefault(name, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                waiters = self._by_log[name]
                waiters.discard(waiter)
                if not waiters:
                    del self._by_log[name]

    @contextmanager
    def of_news(self) -> Iterator[Waiter]:
        """Give a Waiter that is woken when there is news of deliveries."""
        waiter = Waiter()
        with self._lock:
            self._of_news.add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._of_news.discard(waiter)

    def wrote(self, logs: Iterable[str], before: tuple[int, int], after: tuple[int, int]) -> None:
        """Wake whom this process's commit concerns; the counts say whether others came between."""
        with self._lock:
            if self._seen == before:
                self._seen = after
            self._wake(logs, news=before[1] != after[1])

    def wake_all(self) -> None:
        """Wake everybody: it is not known what happened."""
        with self._lock:
            self._wake(self._by_log, news=True)

    def forget(self) -> None:
        """Take nothing for known: the next look wakes everybody."""
        self._version = self._seen = None

    def look(self, connection: Connection) -> None:
        """Wake whom the commits concern that are not known yet: those of other processes."""
        if not self.wanted:
            self.forget()
            return
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return
        self._version = version
        now_seen: tuple[int, int] = connection.execute("SELECT event, news FROM counts").fetchone()
        with self._lock:
            seen, self._seen = self._seen, now_seen
        if seen is None:
            self.wake_all()
        elif seen != now_seen:
            written = connection.execute(
                "SELECT name FROM logs WHERE number IN (SELECT log FROM events WHERE id > ?)",
                (seen[0],),
            ).fetchall()
            with self._lock:
                self._wake((name for (name,) in written), news=seen[1] != now_seen[1])

    def _wake(self, logs: Iterable[str], *, news: bool) -> None:
        for name in logs:
            for waiter in self._by_log.get(name, ()):
                waiter.wake()
        if news:
            for waiter in self._of_news:
                waiter.wake()
