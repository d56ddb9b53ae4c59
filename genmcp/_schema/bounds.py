"""The cost of applying a schema, and the limits on values that follow from that cost.

jsonschema-rs matches a pattern in time linear in the text. The time for each character is 1 ns if
the pattern runs as an automaton. Otherwise it is up to 0.1 us for each kilobyte of the compiled
pattern, in which all repetitions are written out (`[ab]*a[ab]{1000}c`, on hostile text). The
constants of this module are fitted to measurements.
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
from msgspec import structs

from genmcp._schema.document import Document
from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import join_pointer

# Keywords whose subschemas are applied to any number of parts of one value.
_REPEATING: Final = (
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
)

# Under these keywords, a subschema that rejects a part of a value can make the whole value valid.
_INVERTING: Final = ("not", "if", "oneOf")

# The number of subschemas that can be applied in 12 ms. The constants below are the
# cost of expensive keywords and formats, as a multiple of the cost of one subschema.
_APPLIED: Final = 400_000
_CONSTANT: Final = 2
_DIVISION: Final = 7
_EXACT_DIVISION: Final = 36
_FORMATS: Final = {"email": 4, "idn-email": 6, "idn-hostname": 25}

# The lower bound of the limit of values, for the most expensive schemas.
_MIN_VALUES: Final = 2_000


class SchemaBounds(NamedTuple):
    """The limits for the values of a schema, and its patterns for any number of texts."""

    limits: SchemaLimits
    patterns: list[str]


def bound_parts(parts: Document, limits: SchemaLimits, *, formats: bool) -> SchemaBounds:
    """Bound the expensive keywords in *parts*; return the limits of whole values, and patterns.

    Where possible, `maxLength` and `maxItems` are added to the schema itself, since the checker
    applies them before it reads the content. Under `not`, `if` and `oneOf` that would make a long
    value valid instead of invalid, so the returned limits bound the whole value.

    Raises:
        ConfigurationError: a pattern is too large.
    """
    schemas = {key: each for key, each in parts.schemas.items() if each.__class__ is dict}
    repeated = {*schemas} if parts.is_recursive() else parts.under(*_REPEATING)
    inverted = parts.under(*_INVERTING, *(("contains",) if parts.uses("maxContains") else ()))
    text, values = limits.text, min(limits.values, _max_values(parts, repeated, formats))
    _bound_patterns(parts, schemas, limits)
    patterns = []
    for pointer, schema in schemas.items():
        for pattern in _names(schema):
            text = min(text, _length_of(parts, pointer, pattern, limits))
            patterns.append(pattern)
        length = limits.text
        if isinstance(given := schema.get("pattern"), str):
            length = _length_of(parts, pointer, given, limits)
            if pointer in repeated:
                patterns.append(given)
        elif formats and _format(schema):
            length = limits.matched
        if pointer in inverted:
            text = min(text, length)
            if schema.get("uniqueItems") is True:
                values = min(values, limits.compared)
            continue
        if length < limits.text:
            _lower(schema, "maxLength", length)
        if schema.get("uniqueItems") is True:
            _lower(schema, "maxItems", limits.compared)
    return SchemaBounds(structs.replace(limits, text=text, values=values), patterns)


def _names(schema: dict[str, Any]) -> Iterable[str]:
    """Return the patterns for property names."""
    named = schema.get("patternProperties")
    return named if isinstance(named, dict) else ()


def _bound_patterns(
    parts: Document, schemas: dict[str, dict[str, Any]], limits: SchemaLimits
) -> None:
    """Reject too many patterns, or too expensive ones in total, before they are compiled."""
    found: dict[str, str] = {}
    for pointer, schema in schemas.items():
        for each in _names(schema):
            found.setdefault(each, join_pointer(pointer, "patternProperties", each))
        if isinstance(given := schema.get("pattern"), str):
            found.setdefault(given, join_pointer(pointer, "pattern"))
    work = size = 0
    for number, (pattern, pointer) in enumerate(found.items(), 1):
        work += _parsing_cost(pattern)
        if number > limits.patterns:
            raise parts.refuse(pointer, _too_much("patterns", "patterns", limits))
        if work > limits.pattern_work:
            raise parts.refuse(
                pointer, _too_much("steps to parse patterns", "pattern_work", limits)
            )
    for pattern, pointer in found.items():
        measured = _measure(pattern, min(limits.pattern_size, _MAX_COMPILED))
        if measured is None:
            raise parts.refuse(
                pointer,
                f"the pattern {pattern[:200]!r} is not one that can be run in linear time; "
                f"look-around and back-references are not supported, nor are huge repetitions",
            )
        size += measured.size
        if size > limits.pattern_size:
            raise parts.refuse(pointer, _too_much("bytes of patterns", "pattern_size", limits))


def _too_much(noun: str, setting: str, limits: SchemaLimits) -> str:
    return (
        f"more than {getattr(limits, setting)} {noun} (SchemaLimits.{setting}); "
        f"use fewer patterns, or bound lengths with maxLength"
    )


def _max_values(parts: Document, repeated: set[str], formats: bool) -> int:
    """Return how many values can be checked in 12 ms."""
    costs: dict[str, int] = {}
    for pointer in parts.order:
        schema = parts.schemas[pointer]
        own = _cost(schema, formats=formats) if schema.__class__ is dict else 1
        costs[pointer] = own + sum(costs[below] for below in parts.applied(pointer))
    most = max((costs[pointer] for pointer in repeated), default=1)
    return max(_MIN_VALUES, _APPLIED // most)


def _cost(schema: dict[str, Any], *, formats: bool) -> int:
    cost = 1
    if "const" in schema:
        cost += _CONSTANT
    if "multipleOf" in schema:
        cost += _EXACT_DIVISION if isinstance(schema["multipleOf"], float) else _DIVISION
    if formats and (named := _format(schema)):
        cost += _FORMATS[named]
    return cost


def _format(schema: dict[str, Any]) -> str | None:
    """Return the format of *schema* if it is a slow one."""
    named = schema.get("format")
    return named if isinstance(named, str) and named in _FORMATS else None


def _length_of(parts: Document, pointer: str, pattern: str, limits: SchemaLimits) -> int:
    length = max_length(pattern)
    if not length:
        raise parts.refuse(
            pointer,
            f"the pattern {pattern[:200]!r} is too large: with its repetitions written out it "
            f"takes more than {_MAX_PATTERN} bytes; bound lengths with maxLength instead",
        )
    return int(min(limits.matched, length))


def _lower(schema: dict[str, Any], keyword: str, limit: int) -> None:
    given = schema.get(keyword, limit)
    # Other types are rejected by the meta-schema.
    if isinstance(given, int | float):
        schema[keyword] = min(given, limit)


# Bytes of a compiled pattern times characters of text; takes at most about 15 ms.
_WORK: Final = 1 << 27
_MAX_PATTERN: Final = 1 << 19

# Bytes of the largest pattern that is compiled at all; the default of the engine.
_MAX_COMPILED: Final = 10 << 20

# A pattern up to this size runs as an automaton, since all its states fit into the cache of the
# engine. So does a pattern of one repeated character class, of any size.
_SMALL: Final = 1 << 10
_ONE_CLASS: Final = re.compile(
    r"\^(?:\.|\\[pP]\{[\w=]+\}|\\\w|\[(?:[^\[\]\\]|\\.)*\])\{\d+(?:,\d*)?\}\$"
)

# CPU seconds for the trial of all texts of a value.
_TRIAL_SECONDS: Final = 0.010


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


def _parsing_cost(pattern: str) -> int:
    """Return the cost of parsing *pattern* before its size is known, in units of some 0.3 us.

    It is the number of parsed characters: the whole pattern, once more for each character class.
    Classes without regard to case are folded, which takes time, too.
    """
    classes = len(_COSTLY.findall(pattern)) + 3 * len(_COSTLIEST.findall(pattern))
    if _ANY_CASE.search(pattern):
        classes += 3 * (pattern.count("[") + pattern.count("\\"))
    return len(pattern) * (1 + classes)


class _Measure(NamedTuple):
    """The longest text that a pattern may be matched against, and its compiled size in bytes."""

    length: float
    size: int


@lru_cache(maxsize=1024)
def _measure(pattern: str, limit: int = _MAX_COMPILED) -> _Measure | None:
    """Measure *pattern*; return None if it cannot be compiled within *limit* bytes.

    The length is infinite if the pattern always runs as an automaton, and 0 if the pattern is too
    large for any text.
    """
    plain = _CLASS.sub(lambda each: _CLASSES.get(each[1], each[0]), pattern)
    is_one_class = _ONE_CLASS.fullmatch(pattern) is not None
    if not _compiles(plain, _MAX_PATTERN):
        if not _compiles(pattern, limit):
            return None
        if not _compiles(pattern, _MAX_PATTERN):
            return _Measure(inf if is_one_class else 0, limit)
        plain = pattern  # invalid after the replacement: measure the original
    sizes = [_SMALL << power for power in range((_MAX_PATTERN // _SMALL).bit_length())]
    size = sizes[bisect_left(sizes, True, hi=len(sizes) - 1, key=lambda it: _compiles(plain, it))]
    return _Measure(inf if is_one_class or size == _SMALL else _WORK / size, size)


def max_length(pattern: str) -> float:
    """Return the maximal length of a text for *pattern*.

    It is infinite for an invalid pattern, which is rejected when its schema is compiled.
    """
    measured = _measure(pattern)
    return inf if measured is None else measured.length


def _compiles(pattern: str, size: int) -> bool:
    try:
        Draft202012Validator({"pattern": pattern}, pattern_options=RegexOptions(size_limit=size))
    except ValueError:  # ValidationError is one
        return False
    return True


class Matching:
    """A time limit for the *patterns* that one schema applies to any number of texts.

    Args:
        patterns: the patterns.
        limit: characters of a text that is matched.
        clock: returns the CPU seconds of this thread.
    """

    def __init__(
        self, patterns: Iterable[str], limit: int, clock: Callable[[], float] = thread_time
    ) -> None:
        self._lengths = {each: max_length(each) for each in patterns if max_length(each) < inf}
        self._room = min(self._lengths.values(), default=inf)
        self._limit = limit
        self._clock = clock

    def excess(self, value: Any, raw: Sized | None) -> str | None:
        """Return the words for a *value* that takes too long to match; None for others.

        *raw* is its JSON text. If its length does not rule that out, all texts are matched, in
        pieces, until the time is used up: the checker itself cannot be interrupted.
        """
        if self._room == inf or (raw is not None and len(raw) <= self._room):
            return None
        left = _TRIAL_SECONDS
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
        """Checkers, one a pattern, that match all items of an array and accept it in any case."""
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
    """Split *texts* into lists of at most about *room* characters and 500 texts."""
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
    """Yield every text in *value*, property names included."""
    level = [value]
    while level:
        yield from [each for each in level if each.__class__ is str]
        objects = [each for each in level if each.__class__ is dict]
        arrays = [each for each in level if each.__class__ in (list, tuple)]
        level = [*chain(*objects, *arrays, *[each.values() for each in objects])]
