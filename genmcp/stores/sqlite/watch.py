"""Who is woken by what is written, in this process and in others."""

import ctypes
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from threading import Lock, Thread
from typing import Final

from genmcp.stores.clocks import Waiter

__all__ = ["Alarm", "Watch"]


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


# <sys/inotify.h>
_NONBLOCK: Final = os.O_NONBLOCK if sys.platform == "linux" else 0
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_MODIFY: Final = 0x002
_IGNORED: Final = 0x8000  # the file was removed, and the watch with it
_HEAD: Final = 16  # bytes of `struct inotify_event`; events of a watched file carry no name
_AT_ONCE: Final = 4096


class Alarm:
    """A watch on *file* that calls *ring*, in its own thread, soon after any process wrote to it.

    Calls are at least *pause* seconds apart, except the last one, when the watch ends. *armed* is
    True until then: the watch was closed or the file was removed, and it never restarts.

    Raises:
        OSError: the file cannot be watched: it does not exist, or the system has no inotify.
    """

    def __init__(self, file: Path, ring: Callable[[], object], *, pause: float) -> None:
        self.armed = True
        self._ring = ring
        self._pause = pause * 1000
        self._lock = Lock()  # protects the descriptors while they are used and closed
        self._watch = _watch(file)
        self._end, self._ending = os.pipe()
        Thread(target=self._run, name="genmcp-sqlite-alarm", daemon=True).start()

    def close(self) -> None:
        """Stop watching. *ring* may be called once more, when the thread ends."""
        with self._lock:
            if self.armed:
                self.armed = False
                os.write(self._ending, b".")

    def _run(self) -> None:
        written, end = select.poll(), select.poll()
        for polled in (written, end):
            polled.register(self._end, select.POLLIN)
        written.register(self._watch, select.POLLIN)
        while self.armed:
            written.poll()
            with suppress(BlockingIOError):
                events = os.read(self._watch, _AT_ONCE)
                last = events[-_HEAD:]
                if int.from_bytes(last[4:8], sys.byteorder) & _IGNORED:
                    break
            self._ring()
            end.poll(self._pause)
        with self._lock:
            self.armed = False
            for each in (self._watch, self._end, self._ending):
                os.close(each)
        self._ring()


def _watch(file: Path) -> int:
    """Return a non-blocking descriptor that becomes readable when *file* is written to."""
    if sys.platform != "linux":
        raise OSError("no inotify here")
    library = ctypes.CDLL(None, use_errno=True)
    watch: int = library.inotify_init1(_NONBLOCK | _CLOEXEC)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    if library.inotify_add_watch(watch, os.fsencode(file), _MODIFY) < 0:
        os.close(watch)
        raise OSError(ctypes.get_errno(), "inotify_add_watch", str(file))
    return watch
