"""What of many parts does not fit, found with few questions about pieces of the whole."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

__all__ = ["clash", "misfits"]

_PIECE = 512


def misfits(count: int, fits: Callable[[int, int], bool]) -> Iterator[int]:
    """The indices, below *count*, of the parts that do not fit, in their order.

    `fits(start, end)` tells of a piece whether all its parts fit. A piece that does not is halved:
    a thousand parts that fit are two questions, and one that does not is some ten more.
    """
    for first in range(0, count, _PIECE):
        pending = [(first, min(first + _PIECE, count))]
        while pending:
            start, end = pending.pop()
            if fits(start, end):
                continue
            if end - start == 1:
                yield start
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]


def clash(count: int, agree: Callable[[int, int], bool]) -> tuple[int, int]:
    """The indices of two of *count* parts that do not agree with each other, where some do not.

    `agree(start, end)` tells of a piece whether all its parts agree with each other.
    """
    end = bisect_left(range(count), True, key=lambda end: not agree(0, end))
    start = bisect_left(range(end), True, key=lambda start: agree(start, end)) - 1
    return start, end - 1
