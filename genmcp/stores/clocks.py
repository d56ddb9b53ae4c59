"""Clocks that are not affected by changes of the system time."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

__all__ = ["boot", "steady", "unix_clock"]

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
