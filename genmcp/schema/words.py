"""Faults in words a model can act on: where, what was expected, and what came."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from jsonschema_rs import ValidationErrorKind as Kind

from genmcp.schema.document import joined

__all__ = [
    "MOST_FAULTS",
    "TYPES",
    "came",
    "counted",
    "described",
    "expected",
    "fault",
    "listed",
    "shown",
    "wanted",
]

MOST_FAULTS: Final = 20

TYPES: Final = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}

FORMATS: Final = {
    "date": "a date, such as 2026-07-28",
    "date-time": "a date and time, such as 2026-07-28T09:30:00Z",
    "duration": "a duration, such as P1DT12H",
    "email": "an e-mail address",
    "hostname": "a host name",
    "idn-email": "an e-mail address",
    "idn-hostname": "a host name",
    "ipv4": "an IPv4 address, such as 192.0.2.1",
    "ipv6": "an IPv6 address, such as 2001:db8::1",
    "iri": "an absolute IRI, such as https://example.com/",
    "iri-reference": "an IRI or a relative reference",
    "json-pointer": "a JSON Pointer, such as /a/0",
    "regex": "a regular expression",
    "relative-json-pointer": "a relative JSON Pointer, such as 1/a",
    "time": "a time with its offset, such as 09:30:00Z",
    "uri": "an absolute URI, such as https://example.com/",
    "uri-reference": "a URI or a relative reference",
    "uri-template": "a URI template, such as https://example.com/{id}",
    "uuid": "a UUID, such as 123e4567-e89b-12d3-a456-426614174000",
}

_LONGEST = 60


def fault(path: Sequence[str | int], words: str) -> str:
    """One line of an explanation: the JSON Pointer of *path*, then *words*."""
    return f"{joined('', *path) or '(root)'}: {words}"


def shown(value: Any) -> str:
    """*value* as JSON, shortened to about 60 characters."""
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[:_LONGEST] + "…"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 2 * _LONGEST else text[:_LONGEST] + "…"


def came(value: Any) -> str:
    """What *value* is, in a few words."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {shown(value)}"
        case int() | float():
            return f"the number {shown(value)}"
        case str():
            return f"the string {shown(value)}"
        case dict():
            return f"an object with {counted(len(value), 'property', 'properties')}"
        case _:
            return f"an array of {counted(len(value), 'item', 'items')}"


def listed(words: Sequence[str], last: str) -> str:
    """*words* as a phrase, `a, b or c` with *last* as `or`; past 30 of them, the first 30."""
    if len(words) > 30:
        words = [*words[:30], f"{len(words) - 30} more"]
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(count: int, one: str, many: str) -> str:
    """*count* with its noun."""
    return f"{count} {one if count == 1 else many}"


def described(schema: Any) -> str:
    """What a schema accepts, in a few words where it is simple enough for that."""
    match schema:
        case {"const": value}:
            return shown(value)
        case {"enum": [_, *_] as values}:
            return f"one of {', '.join(map(shown, values[:30]))}"
        case {"type": str(name), **others} if name in TYPES and not _asserts(others):
            return TYPES[name]
        case {"required": [_, *_] as names, **others} if not _asserts(others):
            return "an object with " + " and ".join(map(shown, names))
        case {"format": str(name), **others} if not _asserts(others):
            return FORMATS.get(name, f"text in the format {shown(name)}")
        case _:
            return f"what fits {shown(schema)}"


def _asserts(keywords: Mapping[Any, Any]) -> bool:
    return not keywords.keys() <= {"title", "description", "type", "examples", "default"}


def _type(kind: Kind.Type, value: Any) -> str:
    return f"expected {listed([TYPES[name] for name in kind.types], 'or')}, got {came(value)}"


def _enum(kind: Kind.Enum, value: Any) -> str:
    options = [shown(option) for option in kind.options]
    return f"expected {listed(options, 'or')}; got {came(value)}"


def _required(kind: Kind.Required, value: Any) -> str:
    return f"missing required property {shown(kind.property)}"


def _format(kind: Kind.Format, value: Any) -> str:
    wanted = FORMATS.get(kind.format, f"text in the format {shown(kind.format)}")
    return f"expected {wanted}; got {came(value)}"


def _pattern(kind: Kind.Pattern, value: Any) -> str:
    return f"expected text that matches the pattern {kind.pattern}, got {came(value)}"


def _unique(kind: Kind.UniqueItems, value: Any) -> str:
    seen: dict[bytes, int] = {}
    for index, item in enumerate(value):
        first = seen.setdefault(msgspec.json.encode(item, order="deterministic"), index)
        if first != index:
            return f"expected items that all differ, but items {first} and {index} are equal"
    return "expected items that all differ, but some are equal"


def _number(words: str) -> Callable[[Any, Any], str]:
    return lambda kind, value: f"expected {words} {shown(kind.limit)}, got {came(value)}"


def _size(words: str, one: str, many: str) -> Callable[[Any, Any], str]:
    return lambda kind, value: (
        f"expected {words} {counted(kind.limit, one, many)}, got {len(value)}"
    )


_WORDS: Final[dict[type[Kind], Callable[[Any, Any], str]]] = {
    Kind.Type: _type,
    Kind.Enum: _enum,
    Kind.Required: _required,
    Kind.Format: _format,
    Kind.Pattern: _pattern,
    Kind.UniqueItems: _unique,
    Kind.Constant: lambda kind, value: f"expected {shown(kind.expected_value)}, got {came(value)}",
    Kind.Minimum: _number("a number of at least"),
    Kind.Maximum: _number("a number of at most"),
    Kind.ExclusiveMinimum: _number("a number greater than"),
    Kind.ExclusiveMaximum: _number("a number less than"),
    Kind.MultipleOf: lambda kind, value: (
        f"expected a multiple of {shown(kind.multiple_of)}, got {came(value)}"
    ),
    Kind.MinLength: _size("at least", "character", "characters"),
    Kind.MaxLength: _size("at most", "character", "characters"),
    Kind.MinItems: _size("at least", "item", "items"),
    Kind.MaxItems: _size("at most", "item", "items"),
    Kind.MinProperties: _size("at least", "property", "properties"),
    Kind.MaxProperties: _size("at most", "property", "properties"),
    Kind.ContentEncoding: lambda kind, value: (
        f"expected text encoded as {kind.content_encoding}, got {came(value)}"
    ),
    Kind.ContentMediaType: lambda kind, value: (
        f"expected text that holds {kind.content_media_type}, got {came(value)}"
    ),
}


def expected(kind: Kind, value: Any) -> str:
    """What a single keyword wanted and what came instead, from the checker's own finding."""
    if words := _WORDS.get(type(kind)):
        return words(kind, value)
    return f"{came(value)} does not satisfy {shown(kind.name)}"


def wanted(kind: Kind) -> tuple[str, ...]:
    """What *kind* would have accepted, where that is a type or a choice of values."""
    match kind:
        case Kind.Type(types):
            return tuple(TYPES[name] for name in types)
        case Kind.Enum(options):
            return tuple(map(shown, options))
        case Kind.Constant(value):
            return (shown(value),)
        case _:
            return ()
