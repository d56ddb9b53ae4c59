"""The words of faults, for a model to act on, and the JSON Pointers they begin with (RFC 6901)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from genmcp.faults import Fault, Mismatch
from genmcp.wire.jsonrpc import printable

#: The most faults that one answer lists. Further faults are only counted.
MAX_FAULTS: Final = 20

_TYPES: Final = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_FORMATS: Final = {
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
# Characters of a property name that is listed, and of one that is compared with 30 others, which
# takes quadratic time: 1 ms at most for so many.
_MAX_NAME: Final = 100
_MAX_COMPARED: Final = 40

# Keywords without effect on validation.
_ANNOTATIONS: Final = frozenset({"title", "description", "type", "examples", "default"})

_MAX_TEXT: Final = 60
# Alternatives that a message lists, and those that are merged from several schemas.
_MAX_LISTED: Final = 30
_MAX_MERGED: Final = 200


def join_pointer(pointer: str, *steps: str | int) -> str:
    """Return the JSON Pointer *pointer* with *steps* added."""
    return pointer + "".join("/" + escape(str(step)) for step in steps)


def escape(step: str) -> str:
    """Escape one step of a JSON Pointer."""
    if "~" in step or "/" in step:
        return step.replace("~", "~0").replace("/", "~1")
    return step


def to_json(value: Any) -> str:
    """Return *value* as JSON, shortened to about 60 characters."""
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        value = value[:_MAX_TEXT] + "…"
    return shorten(msgspec.json.encode(value).decode())


def shorten(json: str) -> str:
    """Return the JSON text *json*, of which 60 characters are left if it has more than 120."""
    return json if len(json) <= 2 * _MAX_TEXT else json[:_MAX_TEXT] + "…"


def count_of(count: int, singular: str, plural: str) -> str:
    """Return *count* with its noun."""
    return f"{count} {singular if count == 1 else plural}"


def join_words(words: Sequence[str], conjunction: str) -> str:
    """Return *words* as `a, b or c`; of more than 30, the first 30 and the count of the rest."""
    if len(words) > _MAX_LISTED + 1:
        words = [*words[:_MAX_LISTED], f"{len(words) - _MAX_LISTED} more"]
    return f" {conjunction} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def describe_value(value: Any) -> str:
    """Return the type and a short form of a JSON *value*."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {to_json(value)}"
        case int() | float():
            return f"the number {to_json(value)}"
        case str():
            return f"the string {to_json(value)}"
        case dict():
            return f"an object with {count_of(len(value), 'property', 'properties')}"
        case _:
            return f"an array of {count_of(len(value), 'item', 'items')}"


def describe_schema(schema: Any) -> str:
    """Return the values that *schema* accepts, as a noun if it is simple, else as its JSON."""
    match schema:
        case {"const": value}:
            return to_json(value)
        case {"enum": [_, *_] as values}:
            return f"one of {', '.join(map(to_json, values[:_MAX_LISTED]))}"
        case {"type": str(name), **others} if name in _TYPES and _is_only_annotated(others):
            return _TYPES[name]
        case {"required": [_, *_] as names, **others} if _is_only_annotated(others):
            return "an object with " + " and ".join(map(to_json, names))
        case {"format": str(name), **others} if _is_only_annotated(others):
            return _FORMATS.get(name, f"text in the format {to_json(name)}")
        case _:
            return f"what fits {to_json(schema)}"


def _is_only_annotated(keywords: Mapping[Any, Any]) -> bool:
    return keywords.keys() <= _ANNOTATIONS


def mismatch(keyword: str, given: Any, value: Any) -> str:
    """Return the words for a *value* that violates *keyword*; *given* is its value in the schema.

    The words are a `Mismatch` if the keyword has an expected and an actual value.
    """
    if words := _WORDS.get(keyword):
        return words(given, value)
    return f"{describe_value(value)} does not satisfy {to_json(keyword)}"


def accepted_values(keyword: str, given: Any) -> tuple[str, ...]:
    """Return the types or constants that *keyword* accepts, if it is about these."""
    match keyword:
        case "type":
            return _type_names(given)
        case "enum" if len(given) <= _MAX_MERGED:
            return tuple(map(to_json, given))
        case "const":
            return (to_json(given),)
        case _:
            return ()


def _type_names(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(_TYPES[name] for name in sorted([names] if isinstance(names, str) else names))


def _enum(options: Sequence[Any], value: Any) -> str:
    words = [to_json(option) for option in options[:_MAX_LISTED]]
    if len(options) > _MAX_LISTED:
        words.append(f"{len(options) - _MAX_LISTED} more")
    return Mismatch(join_words(words, "or"), describe_value(value), separator=";")


def _format(name: str, value: Any) -> str:
    noun = _FORMATS.get(name, f"text in the format {to_json(name)}")
    return Mismatch(noun, describe_value(value), separator=";")


Words = Callable[[Any, Any], str]


def _text(template: str) -> Words:
    return lambda given, value: Mismatch(template.format(given), describe_value(value))


def _number(words: str) -> Words:
    return lambda limit, value: Mismatch(f"{words} {to_json(limit)}", describe_value(value))


def _size(words: str, singular: str, plural: str) -> Words:
    return lambda limit, value: Mismatch(
        f"{words} {count_of(int(limit), singular, plural)}", f"{len(value)}"
    )


_WORDS: Final[dict[str, Words]] = {
    "type": lambda given, value: Mismatch(
        join_words(_type_names(given), "or"), describe_value(value)
    ),
    "enum": _enum,
    "format": _format,
    "const": lambda given, value: Mismatch(to_json(given), describe_value(value)),
    "required": lambda name, value: f"missing required property {to_json(name)}",
    "pattern": _text("text that matches the pattern {}"),
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
    "contentEncoding": _text("text encoded as {}"),
    "contentMediaType": _text("text that holds {}"),
}


#: The keywords without subschemas that have words, but for `required`, which has one for each name.
LEAVES: Final = _WORDS.keys() - {"required"}

Path = tuple[str | int, ...]


class Finding(msgspec.Struct):
    """One fault at *path*, which is relative to the value that was walked.

    *accepts* are the types or constants that would fit, where the keyword is about these.
    """

    words: str
    value: Any = None
    accepts: tuple[str, ...] = ()
    path: Path = ()
    is_type: bool = False


def nearest(branches: Sequence[list[Finding]]) -> list[Finding]:
    """Return why a value does not fit the alternative that it is nearest to.

    *branches* are the findings against each alternative. An alternative of another type, or with
    another constant in a property (a discriminator), is not near.
    """
    none = f"fits none of {len(branches)} alternatives"
    if not branches:
        return [Finding(none)]
    near = [*enumerate(branches, 1)]
    for is_far in (_has_another_type, _has_another_tag):
        near = [each for each in near if not is_far(each[1])] or near
    if len(near) == 1:
        return near[0][1]
    if merged := _merge([branch for _, branch in near]):
        return merged
    number, branch = min(near, key=lambda each: len(each[1]))
    faults = "; ".join(Fault(each.path, each.words) for each in branch[:3])
    return [Finding(f"{none}; nearest is number {number}: {faults}")]


def _has_another_type(branch: list[Finding]) -> bool:
    return any(each.is_type and not each.path for each in branch)


def _has_another_tag(branch: list[Finding]) -> bool:
    return any(each.accepts and not each.is_type and len(each.path) == 1 for each in branch)


def _merge(branches: list[list[Finding]]) -> list[Finding]:
    """Return one finding for each place where every branch accepts other types or constants."""
    places = [{each.path: each for each in branch if each.accepts} for branch in branches]
    merged = []
    for path, first in places[0].items():
        if all(path in place for place in places):
            accepts = tuple(dict.fromkeys(each for place in places for each in place[path].accepts))
            words = Mismatch(join_words(accepts, "or"), describe_value(first.value), separator=";")
            merged.append(Finding(words, first.value, accepts, path))
    return merged


def allowed_names(schema: dict[str, Any]) -> str:
    """Return the words for the property names that *schema* allows."""
    names = [*islice(schema.get("properties", ()), _MAX_LISTED)]
    patterns = islice(schema.get("patternProperties", ()), _MAX_LISTED)
    names += [f"names that match {each}" for each in patterns]
    if not names:
        return "none is allowed"
    return f"allowed are {', '.join(printable(each, _MAX_NAME) for each in names)}"


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return a question for the one of *names* that *name* may be meant for; empty if none is."""
    if len(name) > _MAX_COMPARED:
        return ""
    from difflib import get_close_matches  # rarely needed, and slow to import

    short = [each for each in islice(names, _MAX_LISTED) if len(each) <= _MAX_COMPARED]
    near = next(iter(get_close_matches(name, short, 1)), None)
    return f"did you mean {to_json(near)}? " if near else ""
