"""Arguments of tools and prompts, as they are written on a command line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.schema.limits import FOREIGN_LIMITS
from genmcp.schema.schema import Schema

__all__ = [
    "alternatives",
    "arguments_of",
    "check",
    "choices_of",
    "kinds_of",
    "pairs",
    "parts_of",
    "properties_of",
    "strangers",
    "value_of",
]

TRUE: Final = ("true", "yes", "y", "1")
FALSE: Final = ("false", "no", "n", "0")

_KINDS: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ARTICLES: Final = {"integer": "a whole number", "number": "a number", "boolean": "yes or no"}
# How many levels of alternatives are followed, and how many subschemas in all.
_DEEPEST: Final = 8
_MOST: Final = 1_000


def pairs(given: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of what is *given*, each `key=value`.

    Raises:
        ConfigurationError: one of them is none, or a key is there twice.
    """
    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{each!r} is not key=value")
        if key.removesuffix(":") in (known.removesuffix(":") for known in found):
            raise ConfigurationError(f"{key.removesuffix(':')} is given twice")
        found[key] = value
    return found


def arguments_of(schema: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that *given* says, each `key=value`, by a tool's input *schema*.

    A value is read as what its schema wants: text as it stands, lists at their commas, anything
    else as JSON. `key:=value` is JSON whatever the schema says.

    Raises:
        ConfigurationError: one of them is neither, or its value is not what it should be.
    """
    properties = properties_of(schema)
    arguments: dict[str, Any] = {}
    for key, value in pairs(given).items():
        if key.endswith(":"):
            arguments[key[:-1]] = _json(key[:-1], value)
        else:
            arguments[key] = value_of(key, properties.get(key, {}), value, schema)
    return arguments


def check(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """See whether *arguments* are what the input *schema* of a tool wants.

    A schema that cannot be used here is left to the server.

    Raises:
        ConfigurationError: they are not.
    """
    try:
        checker = Schema(schema, formats=False, limits=FOREIGN_LIMITS)
    except ConfigurationError:
        return
    if faults := checker.check(checker.fill(dict(arguments))):
        words = (each.removeprefix("(root): ").removeprefix("/") for each in faults)
        raise ConfigurationError("; ".join(words))


def strangers(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the keys that *schema* takes, but does not know."""
    known = properties_of(schema)
    if not known or schema.get("patternProperties") or schema.get("additionalProperties"):
        return []
    return [key for key in arguments if key not in known]


def value_of(key: str, schema: Any, text: str, whole: Mapping[str, Any] | None = None) -> Any:
    """Return the value of *key* that *text* says, by its *schema*, a part of the *whole* one.

    Raises:
        ConfigurationError: it is not what the schema wants.
    """
    kinds = kinds_of(schema, whole or {})
    if "string" in kinds:
        return text
    if "boolean" in kinds and text.lower() in TRUE + FALSE and "integer" not in kinds:
        return text.lower() in TRUE
    if "array" in kinds and not text.lstrip().startswith("["):
        items = kinds["array"].get("items")
        inner = {*kinds_of(items, whole or {})} - {"null"}
        if text and inner and inner <= {"object", "array"}:
            example = "[{...}]" if "object" in inner else "[[...]]"
            raise ConfigurationError(f"{key}: JSON is wanted, {key}={example}")
        return [value_of(key, items, each, whole) for each in parts_of(text)]
    if kinds:
        wanted = " or ".join(_ARTICLES.get(each, each) for each in sorted(kinds))
        return _json(key, text, wanted)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def parts_of(text: str) -> list[str]:
    """Return the parts of a list that is written with commas."""
    return [each.strip() for each in text.split(",")] if text.strip() else []


def kinds_of(schema: Any, whole: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the types that *schema* allows, each with the part that says so; none: any."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in alternatives(schema, whole):
        named = each.get("type", ())
        names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        names = [name for name in names if isinstance(name, str)]
        values = each.get("enum", [each["const"]] if "const" in each else ())
        if not names and isinstance(values, list):
            names = [_KINDS.get(type(value), "") for value in values]
        found.update({name: each for name in names if name not in found})
    return found


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties that *schema* lists; empty if a server's schema is malformed there."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def alternatives(schema: Any, whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield *schema*, its alternatives and the targets of `$ref`, each once.

    Recursive references in nested alternatives would otherwise be followed exponentially often.
    """
    pending, seen = [(schema, 0)], set[int]()
    while pending and len(seen) < _MOST:
        each, depth = pending.pop()
        if not isinstance(each, Mapping) or depth > _DEEPEST or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        below: list[Any] = []
        if isinstance(reference := each.get("$ref"), str):
            below.append(_referred(reference, whole))
        for word in ("anyOf", "oneOf", "allOf"):
            inner = each.get(word)
            below += inner[:_MOST] if isinstance(inner, list) else ()
        pending += [(part, depth + 1) for part in reversed(below)]


def choices_of(schema: Any) -> list[tuple[Any, str]]:
    """Return the values that *schema* lets one choose from, each with its title."""
    if not isinstance(schema, Mapping):
        return []
    if isinstance(values := schema.get("enum"), list):
        given = schema.get("enumNames")
        names = given if isinstance(given, list) else []
        named = [*map(str, names), *map(str, values[len(names) :])]
        return list(zip(values, named, strict=False))
    for word in ("oneOf", "anyOf"):
        titled = schema.get(word)
        if isinstance(titled, list) and all(
            isinstance(each, Mapping) and "const" in each for each in titled
        ):
            return [(each["const"], str(each.get("title", each["const"]))) for each in titled]
    return []


def _referred(reference: str, whole: Any) -> Any:
    if not reference.startswith("#"):
        return None
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        whole = whole.get(step) if isinstance(whole, Mapping) else None
    return whole


def _json(key: str, text: str, wanted: str = "JSON") -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ConfigurationError(f"{key}: {text!r} is not {wanted}") from None
