"""Time in stores: clocks that cannot be set, pauses, and the signal that ends a wait."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import add
from pathlib import Path
from typing import Final

from genmcp.core.backoff import backoff

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
    # Each access to a store in memory reads it: added in C, without a Python frame.
    return map(add, iter(steady, None), repeat(time.time() - steady())).__next__


def boot_id() -> str | None:
    """Return an identifier of the present boot of this machine, None if the system has none.

    As long as it is the same, `steady` was not restarted.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None


CLOCK_ERROR: Final = 1.0
"""Seconds by which the estimate of a server's clock may be wrong."""


class ServerClock:
    """The clock of a server, as this process estimates it. Owned by a store.

    Attributes:
        skew: seconds to add to the time of the store, also in scripts. Tests let time pass by it.
        was_measured: whether the server was ever used.
    """

    def __init__(self) -> None:
        self.skew = 0.0
        self.was_measured = False
        self._ahead = time.time() - steady()

    def real(self) -> float:
        """Return the server's time, in seconds since 1970."""
        return steady() + self._ahead

    def now(self) -> float:
        """Return the time of the store."""
        return steady() + self._ahead + self.skew

    def measure(self, sent: float, received: float, time: float) -> None:
        """Record that the server's time was *time* at a moment between *sent* and *received*.

        A sample that took too long is used only if there is none yet.
        """
        if received - sent < CLOCK_ERROR or not self.was_measured:
            self._ahead = time - (sent + received) / 2
        self.was_measured = True


class WakeSignal:
    """An event that any thread can set, for one waiter on the event loop that creates it.

    The waiter calls `clear` *before* it looks at the data. A change that happens while it looks
    then ends the next `wait`, so that no wake-up is lost.

    Attributes:
        clear: makes the next `wait` block. Only for the waiter itself.
        wait: waits until `wake` is called; returns at once if it was called since the last `clear`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self.clear = self._event.clear
        self.wait = self._event.wait

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
