"""Patterns and comparisons of items, within limits of size and time.

jsonschema-rs cannot be interrupted, and the time of two keywords depends on more than the size of
the value. A `pattern` takes up to 0.1 us for each character and each kilobyte of the compiled
pattern, in which all repetitions are written out (`[ab]*a[ab]{1000}c`, on hostile text).
`uniqueItems` compares each pair of integers beyond 64 bits. jsonschema-rs therefore applies these
keywords by callbacks, which decide nothing more once they have taken too long for one value.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from math import inf
from time import thread_time
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions

from genmcp._schema.document import Document
from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import join_pointer

# CPU seconds for all patterns and comparisons of one value, and the fault of a value beyond them.
_SECONDS: Final = 0.010
_TOO_SLOW: Final = "takes too long to match against the patterns of the schema; send less"

# A compiled pattern of the first size runs as an automaton on any text, since all its states fit
# into the cache of the engine; so does one of a repeated character class, of any size. The texts
# for larger patterns are bounded, so that one match takes at most some 25 ms.
_SIZES: Final = (1 << 10, 1 << 13, 1 << 16, 1 << 18)
_SIZE_TIMES_LENGTH: Final = 1 << 28
_ONE_CLASS: Final = re.compile(
    r"\^(?:\.|\\[pP]\{[\w=]+\}|\\\w|\[(?:[^\[\]\\]|\\.)*\])(?:[*+]|\{\d+(?:,\d*)?\})\$"
)

# Characters that a pattern counts besides its own, and for each of its classes if it ignores case:
# folding a large class takes 7 ms.
_EACH_PATTERN: Final = 40
_FOLDED_CLASS: Final = 2_000
_ANY_CASE: Final = re.compile(r"\(\?[a-zA-Z-]*i")

# Items that are compared with each other; and the same if numbers among them are beyond 64 bits.
_MAX_COMPARED: Final = 10_000
_MAX_COMPARED_SLOWLY: Final = 200
_COMPARED_FAST: Final = Draft202012Validator(
    {
        "minimum": -(2**63),
        "maximum": 2**64 - 1,
        "items": {"$ref": "#"},
        "additionalProperties": {"$ref": "#"},
    }
)


class Meter:
    """Applies the patterns and comparisons of a schema. Owned by its `Schema`.

    Args:
        document: the schema.
        limits: bounds on its patterns.

    Attributes:
        keywords: the keywords that jsonschema-rs applies by callbacks, for its validators.

    Raises:
        ConfigurationError: a pattern is invalid or too large, or there are too many.
    """

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._budget = _Budget()
        self._lengths = _lengths_of_patterns(document, limits)
        self.keywords: dict[str, Any] = {}
        if min(self._lengths.values(), default=inf) < inf:
            self.keywords["pattern"] = partial(_Pattern, self._budget, self._lengths)
        if document.uses("uniqueItems"):
            self.keywords["uniqueItems"] = partial(_UniqueItems, self._budget)

    @property
    def fault(self) -> str:
        """The words for the last value in this thread if it is not decided; empty for others."""
        return self._budget.fault

    def start(self) -> None:
        """Begin with another value."""
        self._budget.seconds, self._budget.fault = _SECONDS, ""

    def fits(self, accepts: Callable[[Any], bool], value: Any) -> bool:
        """Return whether *accepts*, of a validator with these keywords, decides for *value*."""
        self.start()
        return accepts(value) and not self.fault


class _Budget(threading.local):
    """The seconds that the check of a value has left in its thread, and the fault that ended it."""

    seconds = 0.0
    fault = ""


class _Metered(ABC):
    """A keyword with its value in a schema, as jsonschema-rs calls it."""

    def __init__(self, budget: _Budget, keyword: str, given: Any) -> None:
        self._budget = budget
        self._accepts = _checker_of(keyword, given)

    @abstractmethod
    def excess(self, value: Any) -> str:
        """Return the words for a value that is too large for the keyword, or an empty text."""

    def validate(self, value: Any) -> None:
        """Raise ValueError if *value* does not fit; for every further value beyond a limit, too."""
        budget = self._budget
        if not budget.fault:
            budget.fault = self.excess(value) if budget.seconds > 0 else _TOO_SLOW
        began = thread_time()
        if budget.fault or not self._accepts(value):
            raise ValueError
        budget.seconds -= thread_time() - began


class _Pattern(_Metered):
    def __init__(
        self, budget: _Budget, lengths: Mapping[str, float], _schema: Any, pattern: str, _path: Any
    ) -> None:
        super().__init__(budget, "pattern", pattern)
        self._pattern = pattern
        self._length = lengths[pattern]

    def excess(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) <= self._length:
            return ""
        words = f"expected text of at most {self._length} characters for the pattern "
        return f"{words}{self._pattern[:200]}, got {len(value)}"


class _UniqueItems(_Metered):
    def __init__(self, budget: _Budget, _schema: Any, given: bool, _path: Any) -> None:
        super().__init__(budget, "uniqueItems", given)
        self._given = given

    def excess(self, value: Any) -> str:
        count = len(value) if self._given and isinstance(value, list | tuple) else 0
        most = _MAX_COMPARED
        if count > _MAX_COMPARED_SLOWLY and not _COMPARED_FAST.is_valid(value):
            most = _MAX_COMPARED_SLOWLY
        return f"expected at most {most} items that differ, got {count}" if count > most else ""


@lru_cache(maxsize=64)
def _checker_of(keyword: str, given: Any) -> Callable[[Any], bool]:
    return Draft202012Validator({keyword: given}, pattern_options=RegexOptions()).is_valid


def _lengths_of_patterns(document: Document, limits: SchemaLimits) -> dict[str, float]:
    """Return how many characters each pattern may be matched against.

    Raises ConfigurationError for a pattern that is invalid or too large, or too many of them.
    """
    lengths: dict[str, float] = {}
    counted = 0
    for pointer, pattern, most in _patterns(document, limits.pattern_size):
        if pattern not in lengths:
            counted += _count(pattern)
        if counted > limits.patterns:
            words = f"more than {limits.patterns} characters of patterns (SchemaLimits.patterns)"
            raise document.refuse(pointer, words)
        length = longest_text(pattern, most)
        if length is None:
            raise document.refuse(
                pointer,
                f"the pattern {pattern[:200]!r} is not one that can be run in linear time, or is "
                f"too large (SchemaLimits.pattern_size): look-around and back-references are not "
                f"supported, and repetitions are written out; bound lengths with maxLength instead",
            )
        lengths[pattern] = length
    return lengths


def _patterns(document: Document, most: int) -> Iterator[tuple[str, str, int]]:
    """Yield each pattern with its pointer and the bytes that it may have, usually *most*."""
    for pointer, schema in document.schemas.items():
        if schema.__class__ is not dict:
            continue
        if isinstance(schema.get("pattern"), str):
            yield join_pointer(pointer, "pattern"), schema["pattern"], most
        # jsonschema-rs has no callback for the patterns of property names.
        if isinstance(named := schema.get("patternProperties"), dict):
            for pattern in named:
                yield join_pointer(pointer, "patternProperties", pattern), pattern, most // 64


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
