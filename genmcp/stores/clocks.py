"""Time in stores: clocks that cannot be set, deadlines, pauses, and the signal that ends a wait."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from typing import Final, Protocol

from genmcp._core.backoff import backoff

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

# Linux has a clock that also runs while the machine is suspended. Each access to a store reads it:
# a partial of a C function needs no Python frame.
_SINCE_BOOT: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
steady: Final[Callable[[], float]] = (
    time.monotonic if _SINCE_BOOT is None else partial(time.clock_gettime, _SINCE_BOOT)
)
"""Return seconds since an arbitrary moment in the past; setting the system time has no effect.

All processes of a machine read the same clock.
"""


def reconnect_pause(failures: int) -> float:
    """Return the seconds before the next attempt to connect, after *failures* failures in a row.

    At most 1. They vary at random, so that the processes of a deployment do not connect at once.
    """
    return backoff(failures, 0.05, 1.0) * random.uniform(0.5, 1)


def unix_clock() -> Callable[[], float]:
    """Return a clock that shows Unix time now, and that setting the system time does not change."""
    ahead = time.time() - steady()
    return lambda: steady() + ahead


def boot_id() -> str | None:
    """Return an identifier of the present boot of this machine, None if the system has none.

    As long as it is the same, `steady` was not restarted.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


_MAX_DUE: Final = 64  # names returned per call: examining them takes some 30 us
_MAX_STALE: Final = 64  # superseded deadlines kept in addition to two per name


class Expiring(Protocol):
    """An item with a deadline, in seconds of the clock of its store. `inf`: it never expires."""

    deadline: float


class Deadlines:
    """A heap of the deadlines of *items*, the earliest first. Owned by a store in memory.

    A name is added each time that its deadline changes. The superseded entry stays in the heap,
    because removing it would take linear time, so a name may be returned before its deadline.
    The heap is rebuilt when most of it is superseded entries, and therefore stays proportional to
    the number of items.
    """

    def __init__(self, items: Mapping[str, Expiring]) -> None:
        self._items = items
        self._heap: list[tuple[float, str]] = []
        self.first = inf  # nothing is due before this time

    def add(self, name: str, deadline: float) -> None:
        """Register the new *deadline* of the item *name*."""
        if deadline == inf:
            return
        heappush(self._heap, (deadline, name))
        if len(self._heap) > _MAX_STALE + 2 * len(self._items):
            self._heap = [(item.deadline, name) for name, item in self._items.items()]
            heapify(self._heap)
        self.first = self._heap[0][0]

    def due(self, now: float) -> list[str]:
        """Remove and return some names whose deadline may have passed."""
        names: list[str] = []
        while self._heap and self._heap[0][0] <= now and len(names) < _MAX_DUE:
            names.append(heappop(self._heap)[1])
        self.first = self._heap[0][0] if self._heap else inf
        return names

    def next(self) -> float:
        """Return the earliest deadline of an item, `inf` if no item has one."""
        while self._heap:
            deadline, name = self._heap[0]
            item = self._items.get(name)
            if item is not None and item.deadline == deadline:
                break
            heappop(self._heap)
        self.first = self._heap[0][0] if self._heap else inf
        return self.first


class WakeSignal:
    """An event that any thread can set, for one waiter on the event loop that creates it.

    The waiter calls `clear` *before* it looks at the data. A change that happens while it looks
    then ends the next `wait`, so that no wake-up is lost.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Make the next `wait` block. Only for the waiter itself."""
        self._event.clear()

    async def wait(self) -> None:
        """Wait until `wake` is called; return at once if it was called since the last `clear`."""
        await self._event.wait()

    def wake(self) -> bool:
        """End the wait, from any thread. Return False if the waiter's event loop was closed."""
        if self._loop.is_closed():
            return False
        if not self._event.is_set():
            try:
                running = asyncio.get_running_loop()
            except RuntimeError:
                running = None
            if self._loop is running:
                # Like `call_soon_threadsafe` below, but without a write to the loop's self-pipe.
                self._event.set()
            else:
                with suppress(RuntimeError):  # the loop was closed in the meantime
                    self._loop.call_soon_threadsafe(self._event.set)
        return True
