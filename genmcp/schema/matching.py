"""What it costs to match text against patterns.

The engine is linear in the text, but what it does for each character grows with the pattern once
that is compiled, its repetitions written out: from a nanosecond where it can run as an automaton
to a tenth of a microsecond a kilobyte where it cannot (`[ab]*a[ab]{1000}c`, on text made for it).
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cached_property, lru_cache
from itertools import chain
from math import inf
from time import thread_time
from typing import Any, Final, NamedTuple

from jsonschema_rs import Draft202012Validator, RegexOptions, Validator

__all__ = ["LARGEST", "MOST", "Matching", "Measure", "longest", "measured", "work_of"]

# Bytes of a compiled pattern, times characters of text: at most some 15 ms.
_WORK: Final = 1 << 27
LARGEST: Final = 1 << 19

# Bytes of the largest pattern that is compiled at all; the default of the engine.
MOST: Final = 10 << 20

# A pattern that is no larger runs as an automaton: all its states fit into the engine's cache. So
# does one class of characters that is repeated, and nothing more, however large.
_SMALL: Final = 1 << 10
_ONE_CLASS: Final = re.compile(
    r"\^(?:\.|\\[pP]\{[\w=]+\}|\\\w|\[(?:[^\[\]\\]|\\.)*\])\{\d+(?:,\d*)?\}\$"
)

# For how many seconds of the thread's own time all texts of a value may be tried.
_TRIAL: Final = 0.010


# jsonschema-rs replaces the character classes of ECMA 262 one by one, and parses the whole pattern
# again after each: 500 times `\\S` takes 0.4 s. The pattern with all classes replaced at once has
# the same size when compiled, so that pattern is measured.
_CLASS: Final = re.compile(r"\\(.)", re.DOTALL)
_BLANKS: Final = (
    r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
)
_CLASSES: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "s": f"[{_BLANKS}]",
    "S": f"[^{_BLANKS}]",
}
_COSTLY: Final = re.compile(r"\\[dDwWpP]")
_COSTLIEST: Final = re.compile(r"\\[sS]")
_ANY_CASE: Final = re.compile(r"\(\?[a-zA-Z-]*i")


def work_of(pattern: str) -> int:
    """Return the cost of parsing *pattern* before its size is known, in units of some 0.3 us.

    It is the number of parsed characters: the whole pattern, once more for each character class.
    Classes without regard to case are folded, which takes time, too.
    """
    classes = len(_COSTLY.findall(pattern)) + 3 * len(_COSTLIEST.findall(pattern))
    if _ANY_CASE.search(pattern):
        classes += 3 * (pattern.count("[") + pattern.count("\\"))
    return len(pattern) * (1 + classes)


class Measure(NamedTuple):
    """The longest text that a pattern may be matched against, and its compiled size in bytes."""

    length: float
    size: int


@lru_cache(maxsize=1024)
def measured(pattern: str, most: int = MOST) -> Measure | None:
    """Return the measure of *pattern*; None if it cannot be compiled within *most* bytes.

    The length is infinite if the pattern always runs as an automaton, and 0 if it is too large to
    be used.
    """
    plain = _CLASS.sub(lambda each: _CLASSES.get(each[1], each[0]), pattern)
    is_one_class = _ONE_CLASS.fullmatch(pattern) is not None
    if not _compiles(plain, LARGEST):
        if not _compiles(pattern, most):
            return None
        if not _compiles(pattern, LARGEST):
            return Measure(inf if is_one_class else 0, most)
        plain = pattern  # invalid after the replacement: measure the original
    sizes = [_SMALL << power for power in range((LARGEST // _SMALL).bit_length())]
    size = sizes[bisect_left(sizes, True, hi=len(sizes) - 1, key=lambda it: _compiles(plain, it))]
    return Measure(inf if is_one_class or size == _SMALL else _WORK / size, size)


def longest(pattern: str) -> float:
    """Return how many characters of any text *pattern* may be matched against.

    A pattern that cannot be compiled has no limit here: compiling its schema refuses it.
    """
    measure = measured(pattern)
    return inf if measure is None else measure.length


def _compiles(pattern: str, size: int) -> bool:
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
    except ValueError:  # ValidationError is one
        return False
    return True


class Matching:
    """A trial of the *patterns* that one schema applies to any number of texts.

    No text of a value is longer than *limit* where it is matched. *clock* gives the seconds that
    the thread has worked.
    """

    def __init__(
        self, patterns: Iterable[str], limit: int, clock: Callable[[], float] = thread_time
    ) -> None:
        self._lengths = {each: longest(each) for each in patterns if longest(each) < inf}
        self._room = min(self._lengths.values(), default=inf)
        self._limit = limit
        self._clock = clock

    def excess(self, value: Any, raw: Sized | None) -> str | None:
        """Why *value*, made of the JSON text *raw*, is too much to match, if it is.

        Where the length alone does not show that it is not, all texts are tried, in pieces, until
        the time for that has run out.
        """
        if self._room == inf or (raw is not None and len(raw) <= self._room):
            return None
        left = _TRIAL
        for piece in _pieces(_texts(value), int(self._room)):
            start = self._clock()
            for checker in self._checkers:
                checker.is_valid(piece)
            left -= self._clock() - start
            if left < 0:
                return "takes too long to match against the patterns of the schema; send less"
        return None

    @cached_property
    def _checkers(self) -> list[Validator]:
        """For each pattern what takes every array, once it has matched all of its items."""
        return [
            Draft202012Validator(
                {
                    "items": {
                        "anyOf": [
                            {"maxLength": int(min(length, self._limit)), "pattern": pattern},
                            True,
                        ]
                    }
                },
                pattern_options=RegexOptions(),
            )
            for pattern, length in self._lengths.items()
        ]


def _pieces(texts: Iterable[str], room: int) -> Iterator[list[str]]:
    """*texts* in lists of at most about *room* characters, and of 500 texts."""
    piece: list[str] = []
    left = room
    for text in texts:
        piece.append(text)
        left -= len(text) + room // 500
        if left <= 0:
            yield piece
            piece, left = [], room
    yield piece


def _texts(value: Any) -> Iterator[str]:
    """Every text in *value*, names of properties too."""
    level = [value]
    while level:
        yield from [each for each in level if each.__class__ is str]
        objects = [each for each in level if each.__class__ is dict]
        arrays = [each for each in level if each.__class__ in (list, tuple)]
        level = [*chain(*objects, *arrays, *[each.values() for each in objects])]
