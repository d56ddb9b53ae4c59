"""Log records of this package that no other handler writes."""

import logging
import sys
from typing import Final, TextIO


class FallbackHandler(logging.StreamHandler[TextIO]):
    """Writes records to standard error, with time and level, while nothing else handles them.

    `logging.lastResort` writes the message only. Decided at each record, because an application may
    configure logging at any time, and must not get its lines twice.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None and not is_handled(logging.getLogger(record.name)):
            self.stream = sys.stderr  # an application may replace it
            super().emit(record)  # which survives a full disk


def is_handled(logger: logging.Logger | None) -> bool:
    """Return whether the records of *logger* have another handler than the fallback."""
    while logger is not None:
        if any(not isinstance(each, FallbackHandler) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


FALLBACK: Final = FallbackHandler()
FALLBACK.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
logging.getLogger("genmcp").addHandler(FALLBACK)
