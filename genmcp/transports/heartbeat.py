"""Silences that are broken, so that nobody takes a held response for a dead one."""

import asyncio
from collections.abc import Callable

__all__ = ["Heartbeat"]


class Heartbeat:
    """Calls *beat* whenever nothing was said for *seconds*; *spoke* tells when something was.

    With one timer for each response, which is not touched when something is said.
    """

    __slots__ = ("_beat", "_loop", "_seconds", "_spoke", "_timer")

    def __init__(
        self, seconds: float, spoke: Callable[[], float], beat: Callable[[], None]
    ) -> None:
        self._seconds = seconds
        self._spoke = spoke
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def stop(self) -> None:
        """Break no more silences."""
        self._timer.cancel()

    def _look(self) -> None:
        silent = self._loop.time() - self._spoke()
        if silent >= self._seconds:
            self._beat()
            silent = 0.0
        self._timer = self._loop.call_later(self._seconds - silent, self._look)
