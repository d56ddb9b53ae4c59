"""Notification of writes to a file by inotify, in place of polling."""

import ctypes
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Final

__all__ = ["Alarm"]

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
