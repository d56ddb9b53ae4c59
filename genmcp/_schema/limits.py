"""Bounds on schemas and on the values checked against them.

2026-07-28, basic, "Composition-Keyword Resource Use": implementations should bound the cost of
schemas. A schema that exceeds its limits is a configuration error. A value that exceeds them has a
fault, which is found before the schema is applied.
"""

from collections.abc import Collection
from functools import lru_cache
from itertools import chain
from typing import Any

from jsonschema_rs import Draft202012Validator, Validator
from msgspec import Raw, Struct

from genmcp._wire.jsonrpc import brackets


class SchemaLimits(Struct, frozen=True):
    """Bounds on a schema, and on the values that are checked against it.

    The defaults apply to schemas that are defined in this process. `FOREIGN_LIMITS` apply to
    schemas that another server has sent; `ClientOptions(schemas=...)` replaces them for a client.

    `matched` applies to `pattern`, with a time that grows with the string, and `compared` to
    `uniqueItems`, with one that grows with the array. For a schema that is expensive to apply, or
    has large patterns, `values` and `matched` are lowered further (`genmcp._schema.bounds`).
    """

    depth: int = 64
    """Levels of arrays and objects in a value."""
    values: int = 200_000
    """Items and properties in a value, at all levels."""
    text: int = 4_194_304
    """Characters in one string."""
    matched: int = 65_536
    """Characters in a string that a `pattern` is applied to."""
    compared: int = 10_000
    """Items in an array whose items must be unique."""
    explanation_time: float = 0.02
    """Seconds of CPU to find out why a value does not fit. If they pass, faults are less specific:
    they name a place, and that the value there does not fit."""
    schema_size: int = 16_777_216
    """Bytes of a schema as JSON."""
    schema_values: int = 1_048_576
    """Items and properties in a schema; commas and brackets within its strings count, too."""
    schema_depth: int = 64
    """Levels of subschemas in a schema."""
    subschemas: int = 5_000
    """Subschemas in a schema."""
    applied: int = 10_000
    """Subschemas that one schema applies to the same value, references included."""
    pointers: int = 4_194_304
    """Characters in the JSON Pointers of all subschemas together."""
    uri: int = 2_048
    """Characters in a URI that identifies a schema or a part of it."""
    patterns: int = 5_000
    """Distinct patterns in a schema."""
    pattern_work: int = 4_194_304
    """Cost of parsing these patterns: for each, its characters times 1 + its character classes.

    `\\d`, `\\w`, `\\p` and their negations count once, `\\s` and `\\S` three times; in patterns
    without regard to case, each `[` and backslash counts three times in addition.
    """
    pattern_size: int = 67_108_864
    """Bytes of all these patterns once they are compiled."""


DEFAULT_LIMITS = SchemaLimits()
FOREIGN_LIMITS = SchemaLimits(
    schema_size=262_144,
    schema_values=32_768,
    subschemas=1_500,
    pointers=262_144,
    uri=512,
    patterns=100,
    pattern_work=32_768,
    pattern_size=1_048_576,
)
"""Limits for schemas of other servers: the most expensive one takes about 50 ms and 20 MiB."""


def excess(value: Any, raw: Raw | bytes | None, limits: SchemaLimits) -> str | None:
    """Return the words for the limit that *value* exceeds; None if it exceeds none.

    *raw* is the JSON text of the value. Its brackets, commas and length are upper bounds for
    depth, count and lengths, so most values need not be walked.
    """
    if raw is None:
        return _excess_by_walk(value, limits)
    text = bytes(raw)
    opened = brackets(text, limits.depth)
    if len(text) > limits.values and _most_held(value, text, opened, limits) > limits.values:
        return _excess_by_walk(value, limits)
    if opened <= limits.depth and len(text) <= limits.text:
        return None
    longest = limits.text if len(text) > limits.text else None
    return None if _shape(limits.depth, longest).is_valid(value) else _excess_by_walk(value, limits)


def _most_held(value: Any, text: bytes, opened: int, limits: SchemaLimits) -> int:
    """Return an upper bound for the items and properties of *value*."""
    if opened > limits.depth:
        return text.count(b"[") + text.count(b"{") + text.count(b",")
    # Few arrays and objects: add up their lengths, and stop as soon as all of them are found.
    held = found = 0
    containers = [value] if isinstance(value, dict | list) else []
    while containers:
        found += len(containers)
        held += sum(map(len, containers))
        if found >= opened:
            break
        below = chain(*[each.values() if isinstance(each, dict) else each for each in containers])
        containers = [each for each in below if isinstance(each, dict | list)]
    return held


@lru_cache(maxsize=64)
def _shape(depth: int, text: int | None) -> Validator:
    """Return a checker of at most *depth* levels, and of at most *text* characters in a string.

    It checks ten million values per second.
    """
    long = {} if text is None else {"maxLength": text}
    names = {"propertyNames": long} if long else {}
    levels: dict[str, Any] = {str(depth): {"not": {"type": ["array", "object"]}, **long}}
    for level in range(depth):
        below = {"$ref": f"#/$defs/{level + 1}"}
        levels[str(level)] = {"items": below, "additionalProperties": below, **long, **names}
    return Draft202012Validator({"$ref": "#/$defs/0", "$defs": levels})


def _excess_by_walk(value: Any, limits: SchemaLimits) -> str | None:
    """Return the same as `excess`, by a walk over each level of the value."""
    level: Collection[Any] = (value,)
    depth = count = 0
    while level:
        longest = max([len(each) for each in level if each.__class__ is str], default=0)
        if longest > limits.text:
            return f"expected text of at most {limits.text} characters, got {longest}"
        objects = [each for each in level if each.__class__ is dict]
        arrays = [each for each in level if each.__class__ in (list, tuple)]
        depth += bool(objects or arrays)
        if depth > limits.depth:
            return f"expected at most {limits.depth} levels of nesting, got more"
        count += sum(map(len, objects)) + sum(map(len, arrays))
        if count > limits.values:
            return f"expected at most {limits.values} items and properties in all, got more"
        level = [*chain(*objects, *arrays, *[each.values() for each in objects])]
    return None
