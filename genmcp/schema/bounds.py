"""What a schema costs to apply, and the bounds on values that follow from it."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from msgspec import structs

from genmcp.schema.document import Document
from genmcp.schema.limits import SchemaLimits
from genmcp.schema.matching import LARGEST, MOST, longest, measured, work_of
from genmcp.schema.pointers import joined

__all__ = ["Bounds", "bound_parts"]

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
            found.setdefault(each, joined(pointer, "patternProperties", each))
        if isinstance(given := schema.get("pattern"), str):
            found.setdefault(given, joined(pointer, "pattern"))
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
