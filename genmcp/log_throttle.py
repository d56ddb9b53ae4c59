"""Log messages whose rate is limited."""

import logging
import time
from collections.abc import Callable
from typing import Any


class LogThrottle:
    """Logs at most one message in *interval* seconds, with the number of suppressed messages.

    A store that fails affects thousands of tasks at once.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._interval = interval
        self._clock = clock
        self._next = 0.0
        self._suppressed = 0

    def log(self, level: int, message: str, *arguments: Any, exc_info: Any = None) -> None:
        """Log *message*, or count it as suppressed."""
        now = self._clock()
        if now < self._next:
            self._suppressed += 1
            return
        if self._suppressed:
            message = f"{message} (and %d more like this)"
            arguments = (*arguments, self._suppressed)
        self._next, self._suppressed = now + self._interval, 0
        self._logger.log(level, message, *arguments, exc_info=exc_info)
