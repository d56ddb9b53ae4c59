"""A clock that tests can shift. It is only on the path of processes under test, and runs first.

CHAOS_CLOCK is a file with the seconds by which the wall clock of the process is shifted.
"""

import os
import time
from pathlib import Path

if "CHAOS_CLOCK" in os.environ:
    _file = Path(os.environ["CHAOS_CLOCK"])
    _right = time.time

    def _wrong() -> float:
        try:
            return _right() + float(_file.read_text() or 0)
        except (OSError, ValueError):  # the file is being written
            return _right()

    time.time = _wrong
