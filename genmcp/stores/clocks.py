"""Clocks that are not affected by changes of the system time."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["boot", "steady", "unix_clock"]

_BOOT_TIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = Path("/proc/self/ns/time")


def _since_boot() -> Callable[[], float]:
    if _BOOT_TIME is None:
        return time.monotonic  # may stop while the machine is suspended
    clock = _BOOT_TIME
    return lambda: time.clock_gettime(clock)


_steady: Final = _since_boot()


def steady() -> float:
    """Return seconds since an arbitrary moment in the past.

    Includes the time that the machine was suspended where the system reports it (Linux).
    """
    return _steady()


def unix_clock() -> Callable[[], float]:
    """Return a clock that is Unix time now, and is not affected when the system time is set."""
    ahead = time.time() - steady()
    return lambda: _steady() + ahead


def boot() -> str | None:
    """Return an identifier of the clock behind `steady`, None if processes may not share it.

    Processes with the same identifier read the same clock: they run on one machine, since the same
    boot and in the same time namespace (a container may have its own).
    """
    if _BOOT_TIME is None:
        return None
    with suppress(OSError):
        namespace = ""
        with suppress(OSError):  # Linux before 5.6 has no time namespaces
            namespace = str(_TIME_NAMESPACE.readlink())
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {namespace}".strip()
    return None
