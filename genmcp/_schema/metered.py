"""Patterns and comparisons, within limits of size and time.

jsonschema-rs cannot be interrupted, and the time of two keywords depends on more than the size of
the value. A `pattern` takes up to 0.1 us for each character and each kilobyte of the compiled
pattern, in which all repetitions are written out (`[ab]*a[ab]{1000}c`, on hostile text). `enum`
takes up to 3 us for each number in it. jsonschema-rs therefore applies these keywords by callbacks,
which decide nothing more once they have taken too long for one value.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import inf
from time import perf_counter, thread_time
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions

from genmcp._schema.document import Document
from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import join_pointer

# Seconds for all patterns and comparisons of one value, and the fault of a value beyond them.
_SECONDS: Final = 0.010
_TOO_SLOW: Final = "takes too long to check; send fewer or shorter texts, or fewer items"
# Seconds of the worst match, for each kilobyte of its pattern and each character; and the same for
# a number of an `enum`, in such units.
_SECONDS_OF_WORK: Final = 0.000_000_1
_WORK_OF_NUMBER: Final = 30
_LONG_WORK: Final = 1_000
# Seconds that are not counted, of each match: most take less.
_SHORT: Final = 0.000_002

# A compiled pattern of the first size runs as an automaton on any text, since all its states fit
# into the cache of the engine; so does one of a repeated character class, of any size. The texts
# for larger patterns are bounded, so that one match takes at most some 15 ms.
_SIZES: Final = (1 << 10, 1 << 11, 1 << 13, 1 << 16, 1 << 18)
_SIZE_TIMES_LENGTH: Final = 1 << 27
_ONE_CLASS: Final = re.compile(
    r"\^(?:\.|\\[pP]\{[\w=]+\}|\\\w|\[(?:[^\[\]\\]|\\.)*\])(?:[*+]|\{\d+(?:,\d*)?\})\$"
)

# Bytes that a compiled pattern may have for each character of all patterns.
_BYTES_OF_CHARACTER: Final = 16

# Characters that a pattern counts besides its own, and for each of its classes if it ignores case:
# folding a large class takes 7 ms.
_EACH_PATTERN: Final = 40
_FOLDED_CLASS: Final = 2_000
_ANY_CASE: Final = re.compile(r"\(\?[a-zA-Z-]*i")


class Meter:
    """Applies the patterns and numeric enums of a schema. Owned by its `Schema`.

    Args:
        document: the schema.
        limits: bounds on its patterns.

    Attributes:
        max_names: characters that all property names of a value may have together.

    Raises:
        ConfigurationError: a pattern is invalid or too large, or there are too many.
    """

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._budget = _Budget()
        self._lengths = _lengths_of_patterns(document, limits)
        schemas = [each for each in document.schemas.values() if each.__class__ is dict]
        # jsonschema-rs has no callback for the patterns of names.
        names = {pattern for each in schemas for pattern in _of_names(each)}
        large = [int(each) for each in map(self._lengths.__getitem__, names) if each < inf]
        self.max_names = min(large, default=sys.maxsize) // max(1, len(large))
        self._compares_numbers = any(_numbers_of(each.get("enum")) for each in schemas)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords that jsonschema-rs applies by callbacks, for its validators."""
        found: dict[str, Any] = {}
        if min(self._lengths.values(), default=inf) < inf:
            found["pattern"] = self._pattern
        if self._compares_numbers:
            found["enum"] = self._enum
        return found

    @property
    def fault(self) -> str:
        """The words for the last value in this thread if it is not decided; empty for others."""
        return self._budget.fault

    def fits(self, accepts: Callable[[Any], bool], value: Any) -> bool:
        """Return whether *accepts*, of a validator with these keywords, decides for *value*."""
        self._budget.seconds, self._budget.fault = _SECONDS, ""
        return accepts(value) and not self.fault

    def _pattern(self, _schema: Any, pattern: str, _path: Any) -> "_Metered":
        most = self._lengths[pattern]
        kilobytes = int(_SIZE_TIMES_LENGTH / 1024 / most)

        def work(value: Any) -> int:
            count = len(value) if isinstance(value, str) else 0
            if count > most:
                words = f"expected text of at most {most} characters for the pattern "
                self._budget.fault = f"{words}{pattern[:200]}, got {count}"
            return count * kilobytes

        return _Metered(self._budget, _matcher_of(pattern), work)

    def _enum(self, _schema: Any, given: list[Any], _path: Any) -> "_Metered":
        numbers = _WORK_OF_NUMBER * _numbers_of(given)

        def work(value: Any) -> int:
            is_word = value.__class__ is int and value.bit_length() <= 64
            return 0 if is_word or value.__class__ not in (int, float) else numbers

        return _Metered(self._budget, Draft202012Validator({"enum": given}).is_valid, work)


class _Budget(threading.local):
    """What is left for the value that this thread checks, or the fault of that value."""

    seconds = 0.0
    fault = ""


class _Metered:
    """A keyword with its value in a schema, as jsonschema-rs calls it.

    *accepts* applies it. *work* returns the work for a value, or sets the fault of the budget.
    """

    def __init__(
        self, budget: _Budget, accepts: Callable[[Any], bool], work: Callable[[Any], int]
    ) -> None:
        self._budget = budget
        self._accepts = accepts
        self._work = work

    def validate(self, value: Any) -> None:
        """Raise ValueError if *value* does not fit; for every further value beyond a limit, too."""
        budget = self._budget
        work = 0 if budget.fault else self._work(value)
        if budget.fault:
            raise ValueError
        fits = self._metered(value, work) if work else self._accepts(value)
        if not fits:
            raise ValueError

    def _metered(self, value: Any, work: int) -> bool:
        # The clock of CPU time takes longer than a short match. The other one also counts pauses of
        # the process, but for no more than the worst match.
        clock = perf_counter if work < _LONG_WORK else thread_time
        began = clock()
        fits = self._accepts(value)
        self._budget.seconds -= min(max(0, clock() - began - _SHORT), work * _SECONDS_OF_WORK)
        if self._budget.seconds < 0:
            self._budget.fault = _TOO_SLOW
        return fits


def _numbers_of(options: Any) -> int:
    """Return how many *options* of an `enum` are numbers."""
    given = options if isinstance(options, list) else []
    return sum(each.__class__ in (int, float) for each in given)


@lru_cache(maxsize=64)
def _matcher_of(pattern: str) -> Callable[[Any], bool]:
    return Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions()).is_valid


def _lengths_of_patterns(document: Document, limits: SchemaLimits) -> dict[str, float]:
    """Return how many characters each pattern may be matched against.

    Raises ConfigurationError for a pattern that is invalid or too large, or too many of them.
    """
    lengths: dict[str, float] = {}
    counted = 0
    for pointer, pattern in _patterns(document):
        if pattern not in lengths:
            counted += _count(pattern)
        if counted > limits.patterns:
            raise document.refuse(pointer, f"more than {limits.patterns} characters of patterns")
        length = longest_text(pattern, _BYTES_OF_CHARACTER * limits.patterns)
        if length is None:
            raise document.refuse(
                pointer,
                f"the pattern {pattern[:200]!r} is not one that can be run in linear time, or is "
                f"too large: look-around and back-references are not supported, and repetitions "
                f"are written out; bound lengths with maxLength instead",
            )
        lengths[pattern] = length
    return lengths


def _patterns(document: Document) -> Iterator[tuple[str, str]]:
    """Yield each pattern with its pointer."""
    for pointer, schema in document.schemas.items():
        if schema.__class__ is not dict:
            continue
        if isinstance(pattern := schema.get("pattern"), str):
            yield join_pointer(pointer, "pattern"), pattern
        for pattern in _of_names(schema):
            yield join_pointer(pointer, "patternProperties", pattern), pattern


def _of_names(schema: dict[str, Any]) -> Iterable[str]:
    """Return the patterns of property names in *schema*."""
    named = schema.get("patternProperties")
    return named if isinstance(named, dict) else ()


def _count(pattern: str) -> int:
    folded = pattern.count("[") + pattern.count("\\") if _ANY_CASE.search(pattern) else 0
    return len(pattern) + _EACH_PATTERN + _FOLDED_CLASS * folded


@lru_cache(maxsize=1024)
def longest_text(pattern: str, most: int) -> float | None:
    """Return how many characters *pattern* may be matched against; infinite for most patterns.

    None if it is invalid, or takes more than *most* bytes once it is compiled.
    """
    if _ONE_CLASS.fullmatch(pattern):
        return inf if _compiles(pattern, most) else None
    for size in _SIZES:
        if _compiles(pattern, min(size, most)):
            return inf if size == _SIZES[0] else _SIZE_TIMES_LENGTH // size
    return None


def _compiles(pattern: str, size: int) -> bool:
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
    except ValueError:  # ValidationError is one
        return False
    return True
