"""How often a task is asked about: SEP-2663, "Task Polling"."""

from typing import Final

__all__ = ["Polling"]

_USUAL: Final = 1.0  # seconds between two requests, where the server does not say
_LEAST: Final = 0.01


class Polling:
    """The pauses between two looks at one task, each twice the one before.

    A server that says 5 s means a task that takes minutes; one of 0.1 s would take 5 s as well. The
    pauses grow to what the server says, so that it gets about eight more requests for a task in
    all, and a task is known to be over after at most twice its time.

    Args:
        first: seconds of the first pause; 0 for what the server says from the beginning.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._next = first

    def restart(self) -> None:
        """Begin with short pauses again: the task goes on with something new."""
        self._next = self._first

    def pause(self, interval: float | None) -> float:
        """Return the seconds to wait now; *interval* is what the server says, in milliseconds."""
        longest = _USUAL if interval is None else max(interval / 1000, _LEAST)
        seconds = min(self._next or longest, longest)
        self._next = min(2 * self._next, longest)
        return seconds
