"""What a schema costs to apply, and the bounds on values that follow from it."""

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

from genmcp.schema.document import Document
from genmcp.schema.limits import SchemaLimits
from genmcp.schema.words import join_pointer

__all__ = [
    "LARGEST",
    "MOST",
    "Bounds",
    "Matching",
    "Measure",
    "bound_parts",
    "longest",
    "measured",
    "work_of",
]

# Where a subschema is applied to any number of parts of one value.
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

# A part that fits less well can only make the whole fit less well, except below these.
_INVERTING: Final = ("not", "if", "oneOf")

# How many subschemas are applied in 12 ms, and how many of them some keywords and formats cost.
_APPLIED: Final = 400_000
_CONSTANT: Final = 2
_DIVISION: Final = 7
_EXACT_DIVISION: Final = 36
_FORMATS: Final = {"email": 4, "idn-email": 6, "idn-hostname": 25}

# Never fewer values than this, however much a schema applies to each.
_FEWEST: Final = 2_000


class Bounds(NamedTuple):
    """What a schema asks of values: limits, and patterns applied to any number of texts."""

    limits: SchemaLimits
    patterns: list[str]


def bound_parts(parts: Document, limits: SchemaLimits, *, formats: bool) -> Bounds:
    """Bound what is expensive in *parts*; what follows for whole values.

    Lengths are bounded in the schema itself, where the checker looks at lengths before it looks
    at contents. Where a part that does not fit could make the whole fit (below a `not`, say),
    that would let long values through, so there the whole value is bounded.

    Raises ConfigurationError for a pattern that is too large.
    """
    schemas = {key: each for key, each in parts.schemas.items() if each.__class__ is dict}
    repeated = {*schemas} if parts.is_recursive() else parts.under(*_REPEATING)
    inverted = parts.under(*_INVERTING, *(("contains",) if parts.uses("maxContains") else ()))
    text, values = limits.text, min(limits.values, _most_values(parts, repeated, formats))
    _bound_patterns(parts, schemas, limits)
    patterns = []
    for pointer, schema in schemas.items():
        for pattern in _names(schema):
            text = min(text, _longest(parts, pointer, pattern, limits))
            patterns.append(pattern)
        length = limits.text
        if isinstance(given := schema.get("pattern"), str):
            length = _longest(parts, pointer, given, limits)
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
    return Bounds(structs.replace(limits, text=text, values=values), patterns)


def _names(schema: dict[str, Any]) -> Iterable[str]:
    """The patterns that names of properties are matched against."""
    named = schema.get("patternProperties")
    return named if isinstance(named, dict) else ()


def _bound_patterns(
    parts: Document, schemas: dict[str, dict[str, Any]], limits: SchemaLimits
) -> None:
    """Refuse too many patterns, or too expensive ones in all, before they are compiled."""
    found: dict[str, str] = {}
    for pointer, schema in schemas.items():
        for each in _names(schema):
            found.setdefault(each, join_pointer(pointer, "patternProperties", each))
        if isinstance(given := schema.get("pattern"), str):
            found.setdefault(given, join_pointer(pointer, "pattern"))
    work = size = 0
    for number, (pattern, pointer) in enumerate(found.items(), 1):
        work += work_of(pattern)
        if number > limits.patterns:
            raise parts.refuse(pointer, _too_much("patterns", "patterns", limits))
        if work > limits.pattern_work:
            raise parts.refuse(
                pointer, _too_much("steps to parse patterns", "pattern_work", limits)
            )
    for pattern, pointer in found.items():
        measure = measured(pattern, min(limits.pattern_size, MOST))
        if measure is None:
            raise parts.refuse(
                pointer,
                f"the pattern {pattern[:200]!r} is not one that can be run in linear time; "
                f"look-around and back-references are not supported, nor are huge repetitions",
            )
        size += measure.size
        if size > limits.pattern_size:
            raise parts.refuse(pointer, _too_much("bytes of patterns", "pattern_size", limits))


def _too_much(what: str, setting: str, limits: SchemaLimits) -> str:
    return (
        f"more than {getattr(limits, setting)} {what} (SchemaLimits.{setting}); "
        f"use fewer patterns, or bound lengths with maxLength"
    )


def _most_values(parts: Document, repeated: set[str], formats: bool) -> int:
    """How many values may be checked in time."""
    costs: dict[str, int] = {}
    for pointer in parts.order:
        schema = parts.schemas[pointer]
        own = _cost(schema, formats=formats) if schema.__class__ is dict else 1
        costs[pointer] = own + sum(costs[below] for below in parts.applied(pointer))
    most = max((costs[pointer] for pointer in repeated), default=1)
    return max(_FEWEST, _APPLIED // most)


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
    """The name of the schema's format, if that is a slow one."""
    named = schema.get("format")
    return named if isinstance(named, str) and named in _FORMATS else None


def _longest(parts: Document, pointer: str, pattern: str, limits: SchemaLimits) -> int:
    length = longest(pattern)
    if not length:
        raise parts.refuse(
            pointer,
            f"the pattern {pattern[:200]!r} is too large: with its repetitions written out it "
            f"takes more than {LARGEST} bytes; bound lengths with maxLength instead",
        )
    return int(min(limits.matched, length))


def _lower(schema: dict[str, Any], keyword: str, limit: int) -> None:
    given = schema.get(keyword, limit)
    # Anything but a number is left for the dialect's own schema to refuse.
    if isinstance(given, int | float):
        schema[keyword] = min(given, limit)


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
