"""Faults in words a model can act on: where, what was expected, and what came."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.faults import Fault, Mismatch

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
# Alternatives that a message lists, and those that are merged from several schemas.
_MOST_LISTED: Final = 30
_MOST_WANTED: Final = 200

Words = Callable[[Any, Any], str]
"""Words for one keyword: of what a schema gives for it, and of the value that came."""


def fault(path: Sequence[str | int], words: str) -> Fault:
    """Return one line of an explanation: the JSON Pointer of *path*, then *words*."""
    return Fault(path, words)


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
    if len(words) > _MOST_LISTED + 1:
        words = [*words[:_MOST_LISTED], f"{len(words) - _MOST_LISTED} more"]
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


def _type(names: str | Sequence[str], value: Any) -> str:
    return Mismatch(listed(_types(names), "or"), came(value))


def _types(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(TYPES[name] for name in sorted([names] if isinstance(names, str) else names))


def _enum(options: Sequence[Any], value: Any) -> str:
    words = [shown(option) for option in options[:_MOST_LISTED]]
    if len(options) > _MOST_LISTED:
        words.append(f"{len(options) - _MOST_LISTED} more")
    return Mismatch(listed(words, "or"), came(value), separator=";")


def _format(name: str, value: Any) -> str:
    wanted = FORMATS.get(name, f"text in the format {shown(name)}")
    return Mismatch(wanted, came(value), separator=";")


def _said(words: str) -> Words:
    return lambda given, value: Mismatch(words.format(given), came(value))


def _number(words: str) -> Words:
    return lambda limit, value: Mismatch(f"{words} {shown(limit)}", came(value))


def _size(words: str, one: str, many: str) -> Words:
    return lambda limit, value: Mismatch(
        f"{words} {counted(int(limit), one, many)}", f"{len(value)}"
    )


_WORDS: Final[dict[str, Words]] = {
    "type": _type,
    "enum": _enum,
    "format": _format,
    "const": lambda given, value: Mismatch(shown(given), came(value)),
    "required": lambda name, value: f"missing required property {shown(name)}",
    "pattern": _said("text that matches the pattern {}"),
    "minimum": _number("a number of at least"),
    "maximum": _number("a number of at most"),
    "exclusiveMinimum": _number("a number greater than"),
    "exclusiveMaximum": _number("a number less than"),
    "multipleOf": _number("a multiple of"),
    "minLength": _size("at least", "character", "characters"),
    "maxLength": _size("at most", "character", "characters"),
    "minItems": _size("at least", "item", "items"),
    "maxItems": _size("at most", "item", "items"),
    "minProperties": _size("at least", "property", "properties"),
    "maxProperties": _size("at most", "property", "properties"),
    "contentEncoding": _said("text encoded as {}"),
    "contentMediaType": _said("text that holds {}"),
}


def expected(keyword: str, given: Any, value: Any) -> str:
    """What a *keyword* wanted, by what is *given* for it in a schema, and what came instead."""
    if words := _WORDS.get(keyword):
        return words(given, value)
    return f"{came(value)} does not satisfy {shown(keyword)}"


def wanted(keyword: str, given: Any) -> tuple[str, ...]:
    """What *keyword* would have accepted, where that is a type or a choice of values."""
    match keyword:
        case "type":
            return _types(given)
        case "enum" if len(given) <= _MOST_WANTED:
            return tuple(map(shown, given))
        case "const":
            return (shown(given),)
        case _:
            return ()
