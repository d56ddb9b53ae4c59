"""Patterns and comparisons, within limits of size and time.

jsonschema-rs cannot be interrupted, and the time of some keywords depends on more than the size of
the value. A `pattern` takes up to 0.1 us for each character and each kilobyte of the compiled
pattern, in which all repetitions are written out (`[ab]*a[ab]{1000}c`, on hostile text). `enum`
takes up to 3 us for each number in it, and `uniqueItems` compares each pair of integers beyond 64
bits. jsonschema-rs therefore applies these keywords by callbacks, which decide nothing more once
they have taken too long for one value.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from math import inf
from time import perf_counter, thread_time
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions, Validator

from genmcp._schema.document import Document
from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import join_pointer

# Seconds for all patterns and comparisons of one value, and the fault of a value beyond them.
_SECONDS: Final = 0.010
_TOO_SLOW: Final = "takes too long to check; send fewer or shorter texts, or fewer items"
# Seconds of the worst match, for each kilobyte of its pattern and each character; and the same for
# an item of an array, and for a number of an `enum`, in such units.
_SECONDS_OF_WORK: Final = 0.000_000_1
_WORK_OF_ITEM: Final = 20
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
        lengths = _lengths_of_patterns(document, limits)
        self.keywords: dict[str, Any] = {}
        if min(lengths.values(), default=inf) < inf:
            self.keywords["pattern"] = partial(_Pattern, self._budget, lengths)
        if document.uses("uniqueItems"):
            self.keywords["uniqueItems"] = partial(_UniqueItems, self._budget)
        schemas = [each for each in document.schemas.values() if each.__class__ is dict]
        if any(_numbers_of(each.get("enum")) for each in schemas):
            self.keywords["enum"] = partial(_Enum, self._budget)
        names = {
            each for _, each in _patterns(document, "patternProperties") if lengths[each] < inf
        }
        self._names = self._matcher_of_names(names) if names else None

    @property
    def fault(self) -> str:
        """The words for the last value in this thread if it is not decided; empty for others."""
        return self._budget.fault

    def fits(self, accepts: Callable[[Any], bool], value: Any) -> bool:
        """Return whether *accepts*, of a validator with these keywords, decides for *value*."""
        self._budget.seconds, self._budget.fault = _SECONDS, ""
        if self._names is not None:
            self._names.is_valid(value)
        return not self.fault and accepts(value) and not self.fault

    def _matcher_of_names(self, patterns: Iterable[str]) -> Validator:
        """Return a validator that accepts every value, and matches the names of its properties.

        jsonschema-rs has no callback for the patterns of names. With this validator, those that
        take too long are found before they are applied.
        """
        below = {"$ref": "#"}
        return Draft202012Validator(
            {
                "propertyNames": {"allOf": [{"anyOf": [{"pattern": it}, True]} for it in patterns]},
                "items": below,
                "additionalProperties": below,
            },
            keywords=self.keywords,
        )


class _Budget(threading.local):
    """The seconds that the check of a value has left in its thread, and the fault that ended it."""

    seconds = 0.0
    fault = ""


class _Metered(ABC):
    """A keyword with its value in a schema, as jsonschema-rs calls it."""

    def __init__(self, budget: _Budget, accepts: Callable[[Any], bool]) -> None:
        self._budget = budget
        self._accepts = accepts

    @abstractmethod
    def work(self, value: Any) -> int:
        """Return the work for *value*; set the fault of the budget if *value* is too large.

        Raise ValueError if it is known without the work that *value* does not fit.
        """

    def validate(self, value: Any) -> None:
        """Raise ValueError if *value* does not fit; for every further value beyond a limit, too."""
        budget = self._budget
        work = 0 if budget.fault else self.work(value)
        if budget.fault:
            raise ValueError
        # The clock of CPU time takes longer than a short match. The other one also counts pauses of
        # the process, but for no more than the worst match.
        clock = perf_counter if work < _LONG_WORK else thread_time
        began = clock()
        fits = self._accepts(value)
        budget.seconds -= min(max(0, clock() - began - _SHORT), work * _SECONDS_OF_WORK)
        if budget.seconds < 0:
            budget.fault = _TOO_SLOW
        if not fits:
            raise ValueError


class _Pattern(_Metered):
    def __init__(
        self, budget: _Budget, lengths: Mapping[str, float], _schema: Any, pattern: str, _path: Any
    ) -> None:
        super().__init__(budget, _matcher_of(pattern))
        self._pattern = pattern
        self._length = lengths[pattern]
        self._kilobytes = int(_SIZE_TIMES_LENGTH / 1024 / self._length)

    def work(self, value: Any) -> int:
        count = len(value) if isinstance(value, str) else 0
        if count > self._length:
            words = f"expected text of at most {self._length} characters for the pattern "
            self._budget.fault = f"{words}{self._pattern[:200]}, got {count}"
        return count * self._kilobytes


class _UniqueItems(_Metered):
    def __init__(self, budget: _Budget, _schema: Any, given: bool, _path: Any) -> None:
        super().__init__(budget, Draft202012Validator({"uniqueItems": given}).is_valid)
        self._given = given

    def work(self, value: Any) -> int:
        count = len(value) if self._given and isinstance(value, list | tuple) else 0
        most = _MAX_COMPARED
        if count > _MAX_COMPARED_SLOWLY and not _COMPARED_FAST.is_valid(value):
            most = _MAX_COMPARED_SLOWLY
        if count > most:
            self._budget.fault = f"expected at most {most} items that differ, got {count}"
        return count * _WORK_OF_ITEM


class _Enum(_Metered):
    def __init__(self, budget: _Budget, _schema: Any, given: list[Any], _path: Any) -> None:
        super().__init__(budget, Draft202012Validator({"enum": given}).is_valid)
        self._given = given
        self._work = _WORK_OF_NUMBER * _numbers_of(given)

    def work(self, value: Any) -> int:
        # jsonschema-rs converts a large integer again for each number: 0.5 ms for 4,000 digits.
        if value.__class__ is int and value.bit_length() > 64 and value not in self._given:
            raise ValueError
        return self._work if value.__class__ is float else 0


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
    for keyword in ("pattern", "patternProperties"):
        for pointer, pattern in _patterns(document, keyword):
            if pattern not in lengths:
                counted += _count(pattern)
            if counted > limits.patterns:
                words = f"more than {limits.patterns} characters of patterns"
                raise document.refuse(pointer, f"{words} (SchemaLimits.patterns)")
            length = longest_text(pattern, _BYTES_OF_CHARACTER * limits.patterns)
            if length is None:
                raise document.refuse(
                    pointer,
                    f"the pattern {pattern[:200]!r} is not one that can be run in linear time, or "
                    f"is too large (SchemaLimits.patterns): look-around and back-references are "
                    f"not supported, and repetitions are written out; bound lengths with maxLength "
                    f"instead",
                )
            lengths[pattern] = length
    return lengths


def _patterns(document: Document, keyword: str) -> Iterator[tuple[str, str]]:
    """Yield each pattern of *keyword*, `pattern` or `patternProperties`, with its pointer."""
    for pointer, schema in document.schemas.items():
        given = schema.get(keyword) if schema.__class__ is dict else None
        if isinstance(given, str):
            yield join_pointer(pointer, keyword), given
        elif isinstance(given, dict):
            for pattern in given:
                yield join_pointer(pointer, keyword, pattern), pattern


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
