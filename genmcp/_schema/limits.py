"""Bounds on schemas and on the values checked against them.

2026-07-28, basic, "Composition-Keyword Resource Use": implementations should bound the cost of
schemas. A schema that exceeds its limits is a configuration error. A value that exceeds them has a
fault, which is found before the schema is applied.
"""

from collections.abc import Collection
from itertools import chain
from typing import Any, Final

from jsonschema_rs import Draft202012Validator
from msgspec import Raw, Struct

from genmcp._options import Count, check_bounds


class SchemaLimits(Struct, frozen=True):
    """Bounds on a schema, and on the values that are checked against it.

    The defaults apply to schemas that are defined in this process. `FOREIGN_LIMITS` apply to
    schemas that another server has sent.
    """

    schema_size: Count = 16_777_216
    """Bytes of a schema as JSON. Each item and property counts as 16 bytes at least. The JSON
    Pointers of all its subschemas together may have as many characters."""
    subschemas: Count = 5_000
    """Subschemas in a schema."""
    patterns: Count = 1_048_576
    """Characters of all distinct patterns in a schema. Each pattern counts 40 more, and 2,000 for
    each of its character classes if it ignores case. A compiled pattern, in which all repetitions
    are written out, may have 16 times as many bytes."""
    values: Count = 200_000
    """Items and properties in a value, at all levels; fewer if a schema is expensive to apply."""
    trusted: bool = True
    """Whether alternatives that differ in the constant of a property count as one of them, although
    the property is not required. Values without it are then expensive to check."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_bounds(self)


DEFAULT_LIMITS: Final = SchemaLimits()
#: Limits for schemas of other servers: the most expensive one takes about 50 ms and 20 MiB.
FOREIGN_LIMITS: Final = SchemaLimits(
    schema_size=262_144, subschemas=1_500, patterns=4_096, trusted=False
)

# Levels of arrays and objects in a value, and of subschemas in a schema: the checker is recursive.
MAX_DEPTH: Final = 64
# Characters in one string: a pattern that runs as an automaton takes 8 ms for so many.
_MAX_TEXT: Final = 4_194_304
# Digits of all integers with more than 100: the checker converts one of 4,000 digits, the most that
# are decoded, in 0.6 ms for each keyword that compares it.
_FEW_DIGITS: Final = 8_192
_LONG: Final = b"0" * 100
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)


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


def excess(value: Any, raw: Raw | bytes | None, most: int) -> str | None:
    """Return the words for the limit that *value* exceeds; None if it exceeds none.

    *most* is the limit of items and properties. *raw* is the JSON text of the value. Its length,
    brackets and commas are upper bounds, so most values need not be walked.
    """
    if raw is not None and _is_small(value, bytes(raw), most):
        return None
    return _excess_by_walk(value, most)


def _is_small(value: Any, text: bytes, most: int) -> bool:
    brackets = text.count(b"[") + text.count(b"{")
    return (
        len(text) <= _MAX_TEXT
        and brackets + text.count(b",") <= most
        and (len(text) < _FEW_DIGITS or _LONG not in text.translate(_AS_ZEROS))
        and (brackets <= MAX_DEPTH or _SHALLOW.is_valid(value))
    )


def _excess_by_walk(value: Any, most: int) -> str | None:
    level: Collection[Any] = (value,)
    depth = count = digits = 0
    while level:
        kinds = {*map(type, level)}
        texts = [each for each in level if each.__class__ is str] if str in kinds else ()
        if (longest := max(map(len, texts), default=0)) > _MAX_TEXT:
            return f"expected text of at most {_MAX_TEXT} characters, got {longest}"
        numbers = [each for each in level if each.__class__ is int] if int in kinds else ()
        digits += sum(each // 3 for each in map(int.bit_length, numbers) if each > 3 * len(_LONG))
        if digits > _FEW_DIGITS:
            return f"expected integers of at most {len(_LONG)} digits, got longer ones"
        objects = [each for each in level if each.__class__ is dict]
        arrays = [each for each in level if each.__class__ in (list, tuple)]
        depth += bool(objects or arrays)
        if depth > MAX_DEPTH:
            return f"expected at most {MAX_DEPTH} levels of nesting, got more"
        count += sum(map(len, objects)) + sum(map(len, arrays))
        if count > most:
            return f"expected at most {most} items and properties in all, got more"
        level = [*chain(*arrays, *map(dict.values, objects))]
    return None
