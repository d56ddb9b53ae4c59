"""Bounds on schemas and on the values checked against them.

2026-07-28, basic, "Composition-Keyword Resource Use": implementations should bound what a
schema may cost. A schema past its bounds is a configuration error; a value past its bounds has
a fault, found before any keyword of the schema is looked at.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

__all__ = ["DEFAULT_LIMITS", "SchemaLimits", "excess"]


class SchemaLimits(Struct, frozen=True):
    """How much a value, and a schema, may hold.

    `matched` and `compared` hold where the schema's own keywords make length expensive: time
    spent on a `pattern` grows with the string, and time spent on `uniqueItems` with the array.
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
    schema_depth: int = 64
    """Levels of subschemas in a schema."""
    subschemas: int = 5_000
    """Subschemas in a schema."""
    applied: int = 10_000
    """Subschemas that one schema applies to one and the same value, through references too."""


DEFAULT_LIMITS = SchemaLimits()


def excess(value: Any, raw: bytes | None, limits: SchemaLimits) -> str | None:
    """What of *value* is past *limits*, as a sentence; None when nothing is.

    *raw* is the JSON text the value came from. It bounds depth, count and lengths from above,
    so that the value itself is walked only when its text leaves the question open.
    """
    if raw is not None:
        opened = raw.count(b"[") + raw.count(b"{")
        if (
            opened <= limits.depth
            and len(raw) <= limits.text
            and (len(raw) <= limits.values or opened + raw.count(b",") <= limits.values)
        ):
            return None
    return _walked(value, limits)


def _walked(value: Any, limits: SchemaLimits) -> str | None:
    level = [value]
    depth = count = 0
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, str):
                if len(each) > limits.text:
                    return _too_long("text", limits.text, len(each))
            elif isinstance(each, dict | list | tuple):
                count += len(each)
                below.extend(_held(each))
        if count > limits.values:
            return f"expected at most {limits.values} items and properties in all, got more"
        level = below
        depth += any(isinstance(each, dict | list | tuple) for each in level)
        if depth >= limits.depth:
            return f"expected at most {limits.depth} levels of nesting, got more"
    return None


def _held(container: Any) -> Iterable[Any]:
    return (*container, *container.values()) if isinstance(container, dict) else container


def _too_long(what: str, limit: int, length: int) -> str:
    return f"expected {what} of at most {limit} characters, got {length}"
