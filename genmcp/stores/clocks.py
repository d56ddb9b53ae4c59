"""Clocks that are not affected by changes of the system time."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from typing import Final, Protocol

__all__ = ["Deadlines", "Mortal", "Waiter", "boot", "steady", "unix_clock"]

_BOOT_TIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES: Final = Path("/proc/self/ns")
_OFFSETS: Final = Path("/proc/self/timens_offsets")


def _ahead() -> float | None:
    """Return by how many seconds this process's boot clock is ahead of that of its machine.

    A container may have a time namespace of its own. None if the offset is unknown: the file has
    that of the namespace of new child processes, which is nearly always the same one.
    """
    try:
        if len({(_NAMESPACES / name).readlink() for name in ("time", "time_for_children")}) > 1:
            return None
        lines = _OFFSETS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0  # Linux before 5.6 has no time namespaces
    offsets = {name: float(s) + float(ns) / 1e9 for name, s, ns in map(str.split, lines)}
    return offsets.get("boottime", 0.0)


def _since_boot() -> Callable[[], float]:
    if _BOOT_TIME is None:
        return time.monotonic  # may stop while the machine is suspended
    clock, ahead = _BOOT_TIME, _ahead() or 0.0
    if ahead:
        return lambda: time.clock_gettime(clock) - ahead
    return partial(time.clock_gettime, clock)  # without a Python frame: each store access asks


steady: Final = _since_boot()
"""Returns seconds since an arbitrary moment in the past.

Includes the time that the machine was suspended where the system reports it (Linux).
"""


def unix_clock() -> Callable[[], float]:
    """Return a clock that is Unix time now, and is not affected when the system time is set."""
    ahead = time.time() - steady()
    return lambda: steady() + ahead


def boot() -> str | None:
    """Return an identifier of the clock behind `steady`, None if processes may not share it.

    Processes with the same identifier read the same clock: they run on one machine, since the same
    boot, in whatever time namespace.
    """
    if _BOOT_TIME is None or _ahead() is None:
        return None
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return None


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


class Waiter:
    """The sleep of one follower, in the event loop that runs when it is made.

    Before a follower looks at its log it calls `clear`, so that what is appended while it looks
    ends the `wait` that comes next.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Let the next `wait` sleep. Only for the follower itself."""
        self._event.clear()

    async def wait(self) -> None:
        """Sleep until `wake` was called after the last `clear`."""
        await self._event.wait()

    def wake(self) -> bool:
        """End the sleep, from any thread. Return False if the follower's event loop was closed."""
        if self._loop.is_closed():
            return False
        if not self._event.is_set():
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if self._loop is running:
                # The same as below, without the write to the loop's pipe.
                self._event.set()
            else:
                with suppress(RuntimeError):  # the loop is closed meanwhile
                    self._loop.call_soon_threadsafe(self._event.set)
        return True
