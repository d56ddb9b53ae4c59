"""The intervals at which a task is polled: SEP-2663, "Task Polling"."""

from typing import Final

__all__ = ["Polling"]

_USUAL: Final = 1.0  # seconds between two polls, if the server gives no interval
_LEAST: Final = 0.01


class Polling:
    """Exponential backoff between two polls of one task. Owned by the task's handle.

    An interval of 5 s suits tasks that take minutes, but with it a task of 0.1 s would take 5 s as
    well. The pauses double up to the server's interval: this costs about eight more requests for
    each task, and the end of a task is noticed after at most twice its duration.

    Args:
        first: seconds of the first pause; 0 for the server's interval from the beginning.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._next = first

    def restart(self) -> None:
        """Restart with the first pause: the task has resumed work."""
        self._next = self._first

    def pause(self, interval: float | None) -> float:
        """Return the next pause in seconds; *interval* is the server's, in milliseconds."""
        longest = _USUAL if interval is None else max(interval / 1000, _LEAST)
        seconds = min(self._next or longest, longest)
        self._next = min(2 * self._next, longest)
        return seconds
