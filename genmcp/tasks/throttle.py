"""Throttling of log messages about a failure that affects thousands of tasks at once."""

import logging
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Throttle"]


class Throttle:
    """Logs at most one message in *every* seconds, and the number of those suppressed before it."""

    def __init__(
        self,
        logger: logging.Logger,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._every = every
        self._clock = clock
        self._next = 0.0
        self._left_out = 0

    def log(self, level: int, message: str, *arguments: Any, exc_info: Any = None) -> None:
        """Log *message*, or count it as suppressed."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        if self._left_out:
            message, arguments = f"{message} (and %d more like this)", (*arguments, self._left_out)
        self._next, self._left_out = now + self._every, 0
        self._logger.log(level, message, *arguments, exc_info=exc_info)
