"""Clocks that nobody sets: how much time has passed, whatever was done to the time of day."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["boot", "steady"]

_BOOT_TIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = Path("/proc/self/ns/time")


def _since_boot() -> Callable[[], float]:
    if _BOOT_TIME is None:
        return time.monotonic  # it may stand still while the machine sleeps
    clock = _BOOT_TIME
    return lambda: time.clock_gettime(clock)


_steady: Final = _since_boot()


def steady() -> float:
    """Return seconds since some moment in the past.

    Where the system can tell (Linux), the time that the machine was suspended counts as well.
    """
    return _steady()


def boot() -> str | None:
    """Return what names the clock that `steady` is, None where other processes may have another.

    Processes for which this is the same measure the same time: those of one machine since it was
    started last, and within it of one time namespace (a container may have its own).
    """
    if _BOOT_TIME is None:
        return None
    with suppress(OSError):
        namespace = ""
        with suppress(OSError):  # before Linux 5.6 there is only one
            namespace = str(_TIME_NAMESPACE.readlink())
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {namespace}".strip()
    return None
