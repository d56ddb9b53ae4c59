"""Bounds on schemas and on the values checked against them.

2026-07-28, basic, "Composition-Keyword Resource Use": implementations should bound the cost of
schemas. A schema that exceeds its limits is a configuration error. A value that exceeds them has a
fault, which is found before the schema is applied.
"""

from collections.abc import Collection
from itertools import chain
from typing import Any, Final, NamedTuple

from jsonschema_rs import Draft202012Validator
from msgspec import Raw


class SchemaLimits(NamedTuple):
    """Bounds on a schema.

    schema_size: bytes as JSON; each item and property counts as 16 bytes at least. The JSON
    Pointers of all its subschemas together may have as many characters. subschemas: their number.
    patterns: characters of all distinct patterns. Each pattern counts 40 more, and 2,000 for each
    of its character classes if it ignores case. A compiled pattern, in which all repetitions are
    written out, may have 16 times as many bytes. trusted: whether alternatives that differ in the
    constant of a property count as one of them, although the property is not required. Values
    without it are then expensive to check.
    """

    schema_size: int = 16_777_216
    subschemas: int = 5_000
    patterns: int = 1_048_576
    trusted: bool = True


#: Limits for schemas of this process.
DEFAULT_LIMITS: Final = SchemaLimits()
#: Limits for schemas of other servers: the most expensive one takes about 50 ms and 20 MiB.
FOREIGN_LIMITS: Final = SchemaLimits(
    schema_size=262_144, subschemas=1_500, patterns=4_096, trusted=False
)

# Levels of arrays and objects in a value, and of subschemas in a schema: the checker is recursive.
MAX_DEPTH: Final = 64
# Characters in one string: a pattern that runs as an automaton takes 8 ms for so many.
_MAX_TEXT: Final = 4_194_304
# Digits of an integer: one of 4,000 is converted in 0.6 ms for each keyword that compares it.
_MAX_DIGITS: Final = 100
# An integer of more bits may be equal to others as a float. It has 16 digits at least.
_EXACT_BITS: Final = 53
_INEXACT: Final = b"0" * 16
_LONG: Final = b"0" * (_MAX_DIGITS + 1)
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)


class ValueLimits(NamedTuple):
    """Bounds on the values that a schema is applied to; lower if it is expensive to apply.

    values: items and properties, at all levels. names: characters of all property names. alike:
    different integers that are equal to others as floats, if they may have to be compared.
    """

    values: int = 200_000
    names: int = _MAX_TEXT
    alike: int | None = None


# Accepts values of at most that depth. It checks ten million values per second.
_DEEPEST: Final = {"not": {"type": ["array", "object"]}}
_BELOW: Final = [{"$ref": f"#/$defs/{level + 1}"} for level in range(MAX_DEPTH)]
_LEVELS: Final = [{"items": each, "additionalProperties": each} for each in _BELOW]
_SHALLOW: Final = Draft202012Validator(
    {
        "$ref": "#/$defs/0",
        "$defs": {str(level): each for level, each in enumerate([*_LEVELS, _DEEPEST])},
    }
)


def excess(value: Any, raw: Raw | bytes | None, limits: ValueLimits) -> str | None:
    """Return the words for the limit that *value* exceeds; None if it exceeds none.

    *raw* is its JSON text. The length, brackets and commas of that are upper bounds, so most values
    need not be walked.
    """
    if raw is not None and _is_small(value, bytes(raw), limits):
        return None
    return _excess_by_walk(value, limits)


def _is_small(value: Any, text: bytes, limits: ValueLimits) -> bool:
    brackets = text.count(b"[") + text.count(b"{")
    digits = _LONG if limits.alike is None else _INEXACT
    return (
        len(text) <= limits.names
        and brackets + text.count(b",") <= limits.values
        and (len(text) < len(digits) or digits not in text.translate(_AS_ZEROS))
        and (brackets <= MAX_DEPTH or _SHALLOW.is_valid(value))
    )


def _excess_by_walk(value: Any, limits: ValueLimits) -> str | None:
    level: Collection[Any] = (value,)
    depth = count = named = 0
    inexact: set[int] = set()
    while level:
        texts = (len(each) for each in level if each.__class__ is str)
        if (longest := max(texts, default=0)) > _MAX_TEXT:
            return f"expected text of at most {_MAX_TEXT} characters, got {longest}"
        numbers = [each for each in level if each.__class__ is int]
        if max(map(int.bit_length, numbers), default=0) > _MAX_DIGITS * 10 // 3:
            return f"expected integers of at most {_MAX_DIGITS} digits, got a longer one"
        if limits.alike is not None:
            inexact |= {each for each in numbers if each.bit_length() > _EXACT_BITS}
            if len(inexact) - len({*map(float, inexact)}) > limits.alike:
                return f"expected at most {limits.alike} integers that are equal as floats"
        objects = [each for each in level if each.__class__ is dict]
        arrays = [each for each in level if each.__class__ in (list, tuple)]
        named += sum(map(len, chain(*objects)))
        if named > limits.names:
            return f"expected property names of at most {limits.names} characters in all, got more"
        depth += bool(objects or arrays)
        if depth > MAX_DEPTH:
            return f"expected at most {MAX_DEPTH} levels of nesting, got more"
        count += sum(map(len, objects)) + sum(map(len, arrays))
        if count > limits.values:
            return f"expected at most {limits.values} items and properties in all, got more"
        level = [*chain(*arrays, *map(dict.values, objects))]
    return None
