"""Waking the followers of a SQLite file, after writes of this process and of others."""

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

from genmcp.stores.clocks import WakeSignal


class Watch:
    """The waiters of one process: followers of logs, and workers that wait for deliveries.

    A commit of this process wakes the waiters that it concerns directly (`wake_for_commit`).
    Commits of other processes are noticed by the reader's thread, which calls `look`.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_log: dict[str, set[WakeSignal]] = {}
        self._for_news: set[WakeSignal] = set()
        self._version: int | None = None  # PRAGMA data_version at the last look
        self._seen: tuple[int, int] | None = None  # the counters (event, news) at that time

    @property
    def has_waiters(self) -> bool:
        """Whether a write could wake a waiter."""
        return bool(self._by_log or self._for_news)

    @contextmanager
    def log_signal(self, name: str) -> Iterator[WakeSignal]:
        """Yield a signal that is set when an event is appended to the log *name*."""
        signal = WakeSignal()
        with self._lock:
            self._by_log.setdefault(name, set()).add(signal)
        try:
            yield signal
        finally:
            with self._lock:
                signals = self._by_log[name]
                signals.discard(signal)
                if not signals:
                    del self._by_log[name]

    @contextmanager
    def news_signal(self) -> Iterator[WakeSignal]:
        """Yield a signal that is set when a delivery may have become due, or was removed."""
        signal = WakeSignal()
        with self._lock:
            self._for_news.add(signal)
        try:
            yield signal
        finally:
            with self._lock:
                self._for_news.discard(signal)

    def wake_for_commit(
        self, logs: Iterable[str], before: tuple[int, int], after: tuple[int, int]
    ) -> None:
        """Wake the waiters that a commit of this process concerns.

        *before* and *after* are the counters (event, news). If *before* is not the state seen last,
        another process has committed in between: then `look` finds both commits.
        """
        with self._lock:
            if self._seen == before:
                self._seen = after
            self._wake(logs, news=before[1] != after[1])

    def wake_all(self) -> None:
        """Wake all waiters, for an unknown change."""
        with self._lock:
            self._wake(self._by_log, news=True)

    def reset(self) -> None:
        """Forget the state seen last, so that the next `look` wakes all waiters."""
        self._version = self._seen = None

    def look(self, connection: Connection) -> None:
        """Wake the waiters that commits of other processes since the last look concern."""
        if not self.has_waiters:
            self.reset()
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
            # Event ids are counted over all logs: one query finds every log that was appended to.
            written = connection.execute(
                "SELECT name FROM logs WHERE number IN (SELECT log FROM events WHERE id > ?)",
                (seen[0],),
            ).fetchall()
            with self._lock:
                self._wake((name for (name,) in written), news=seen[1] != now_seen[1])

    def _wake(self, logs: Iterable[str], *, news: bool) -> None:
        for name in logs:
            for signal in self._by_log.get(name, ()):
                signal.wake()
        if news:
            for signal in self._for_news:
                signal.wake()


# <sys/inotify.h>
_NONBLOCK: Final = os.O_NONBLOCK if sys.platform == "linux" else 0
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_MODIFY: Final = 0x002
_IGNORED: Final = 0x8000  # the file was removed, and the watch with it
_EVENT_BYTES: Final = 16  # of `struct inotify_event`; events of a watched file carry no name
_READ_BYTES: Final = 4096


class InotifyWatch:
    """Calls *on_write*, in its own thread, soon after any process has written to *file*.

    Used in place of polling, where the system has inotify (Linux).

    Args:
        file: an existing file.
        on_write: also called a last time when the watch ends.
        pause: the minimum number of seconds between two calls: a busy file would otherwise keep the
            thread running.

    Attributes:
        armed: whether writes are reported. False once the watch is closed or the file is removed;
            it does not restart.

    Raises:
        OSError: the file does not exist, or the system has no inotify.
    """

    def __init__(self, file: Path, on_write: Callable[[], object], *, pause: float) -> None:
        self.armed = True
        self._on_write = on_write
        self._pause = pause * 1000
        self._lock = Lock()  # protects the descriptors while they are used and closed
        self._watch = _inotify_descriptor(file)
        self._end, self._ending = os.pipe()
        Thread(target=self._run, name="genmcp-sqlite-inotify", daemon=True).start()

    def close(self) -> None:
        """Stop watching. *on_write* is called once more when the thread ends."""
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
                events = os.read(self._watch, _READ_BYTES)
                last = events[-_EVENT_BYTES:]
                if int.from_bytes(last[4:8], sys.byteorder) & _IGNORED:
                    break
            self._on_write()
            end.poll(self._pause)
        with self._lock:
            self.armed = False
            for each in (self._watch, self._end, self._ending):
                os.close(each)
        self._on_write()


def _inotify_descriptor(file: Path) -> int:
    """Return a non-blocking descriptor that becomes readable when *file* is written to."""
    if sys.platform != "linux":
        raise OSError("inotify is not available on this system")
    library = ctypes.CDLL(None, use_errno=True)
    watch: int = library.inotify_init1(_NONBLOCK | _CLOEXEC)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    if library.inotify_add_watch(watch, os.fsencode(file), _MODIFY) < 0:
        os.close(watch)
        raise OSError(ctypes.get_errno(), "inotify_add_watch", str(file))
    return watch
