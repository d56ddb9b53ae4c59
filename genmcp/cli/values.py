"""Arguments of tools and prompts, converted from `key=value` by the schemas of the server.

Schemas come from another party: they may be malformed, recursive or huge. Functions that read them
ignore malformed members and bound the number of subschemas they follow.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

_TRUE: Final = ("true", "yes", "y", "1")
_FALSE: Final = ("false", "no", "n", "0")

_TYPE_NAMES: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_EXPECTED: Final = {"integer": "a whole number", "number": "a number", "boolean": "yes or no"}
_BOUNDS: Final = (
    ("minLength", "maxLength", " characters"),
    ("minimum", "maximum", ""),
    ("minItems", "maxItems", " values"),
)
_OTHER_BOUNDS: Final = {
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
    "pattern": "matching",
}
_MAX_DEPTH: Final = 8  # of nested alternatives
_MAX_SUBSCHEMAS: Final = 1_000


def parse_pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of *texts*, each `key=value`. A key may end with `:`.

    Raises:
        ConfigurationError: a text is not `key=value`, or a key occurs twice.
    """
    pairs: dict[str, str] = {}
    seen: set[str] = set()
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{text!r} is not key=value")
        # `count=1` and `count:=1` set the same argument.
        if (name := key.removesuffix(":")) in seen:
            raise ConfigurationError(f"{name} is given twice")
        seen.add(name)
        pairs[key] = value
    return pairs


def convert_arguments(schema: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in *texts*, converted by the input schema of a tool.

    Args:
        schema: the input schema.
        texts: `key=value`, converted by `convert_value`, or `key:=value`, which is always
            JSON.

    Raises:
        ConfigurationError: a text is malformed, or its value has a type that *schema* forbids.
    """
    properties = properties_of(schema)
    arguments: dict[str, Any] = {}
    for key, text in parse_pairs(texts).items():
        if key.endswith(":"):
            arguments[key[:-1]] = _decode_json(key[:-1], text)
        else:
            arguments[key] = convert_value(key, properties.get(key, {}), text, schema)
    return arguments


def convert_value(key: str, schema: Any, text: str, root: Mapping[str, Any] | None = None) -> Any:
    """Return the value that *text* stands for.

    A string is taken as it is, a list is split at commas, and other types are JSON. Without a type
    in the schema, text that is not JSON is a string.

    Args:
        key: the name of the argument, for errors.
        schema: the schema of the value.
        text: the text that the user typed.
        root: the schema that `$ref` refers to. Default: references are ignored.

    Raises:
        ConfigurationError: the schema does not allow the value.
    """
    types = types_of(schema, root or {})
    if "string" in types:
        return text
    if "boolean" in types and text.lower() in _TRUE + _FALSE and "integer" not in types:
        return text.lower() in _TRUE
    if "array" in types and not text.lstrip().startswith("["):
        items = types["array"].get("items")
        item_types = {*types_of(items, root or {})} - {"null"}
        if text and item_types and item_types <= {"object", "array"}:
            example = "[{...}]" if "object" in item_types else "[[...]]"
            raise ConfigurationError(f"{key}: the value must be JSON, such as {key}={example}")
        return [convert_value(key, items, part, root) for part in split_list(text)]
    if types:
        expected = " or ".join(_EXPECTED.get(name, name) for name in sorted(types))
        return _decode_json(key, text, expected)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def split_list(text: str) -> list[str]:
    """Return the parts of *text* between commas, without surrounding spaces."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Check *arguments* against the input *schema* of a tool.

    If the schema is malformed or exceeds the bounds for schemas of servers, nothing is checked
    here, and the server decides.

    Raises:
        ConfigurationError: the arguments do not conform.
    """
    try:
        checker = Schema(schema, formats=False, limits=FOREIGN_LIMITS)
    except ConfigurationError:
        return
    if faults := checker.check(checker.fill(dict(arguments))):
        texts = (fault.removeprefix("(root): ").removeprefix("/") for fault in faults)
        raise ConfigurationError("; ".join(texts))


def unknown_keys(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the keys of *arguments* that *schema* allows but does not list: likely mistakes.

    Empty if the schema lists no keys, or describes further keys.
    """
    known = properties_of(schema)
    if not known or schema.get("patternProperties") or schema.get("additionalProperties"):
        return []
    return [key for key in arguments if key not in known]


def types_of(schema: Any, root: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the JSON types that *schema* allows, each with the subschema that names it.

    Empty if the schema allows any type. References are resolved in *root*.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for subschema in subschemas(schema, root):
        declared = subschema.get("type", ())
        names = [declared] if isinstance(declared, str) else declared
        names = [n for n in names if isinstance(n, str)] if isinstance(names, list) else []
        values = subschema.get("enum", [subschema["const"]] if "const" in subschema else ())
        if not names and isinstance(values, list):
            names = [_TYPE_NAMES.get(type(value), "") for value in values]
        found.update({name: subschema for name in names if name not in found})
    return found


def choices_of(schema: Any) -> list[tuple[Any, str]]:
    """Return the values that *schema* enumerates, each with its title; empty without an `enum`."""
    if not isinstance(schema, Mapping):
        return []
    if isinstance(values := schema.get("enum"), list):
        given = schema.get("enumNames")
        titles = given if isinstance(given, list) else []
        padded = [*map(str, titles), *map(str, values[len(titles) :])]
        return list(zip(values, padded, strict=False))
    for keyword in ("oneOf", "anyOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and all(
            isinstance(option, Mapping) and "const" in option for option in options
        ):
            return [(o["const"], str(o.get("title", o["const"]))) for o in options]
    return []


def bounds_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the bounds that *schema* sets, in words such as "1 to 9", without its choices."""
    for minimum, maximum, unit in _BOUNDS:
        least, most = schema.get(minimum), schema.get(maximum)
        if least is not None and most is not None:
            yield f"{least} to {most}{unit}"
        elif least is not None:
            yield f"at least {least}{unit}"
        elif most is not None:
            yield f"at most {most}{unit}"
    for keyword, words in _OTHER_BOUNDS.items():
        if (value := schema.get(keyword)) is not None:
            yield f"{words} {value}"


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `properties` of *schema*; empty if they are missing or malformed."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def subschemas(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield *schema*, its alternatives and the targets of its `$ref`, each once."""
    # Without `seen`, recursive references within alternatives are followed exponentially often.
    pending, seen = [(schema, 0)], set[int]()
    while pending and len(seen) < _MAX_SUBSCHEMAS:
        current, depth = pending.pop()
        if not isinstance(current, Mapping) or depth > _MAX_DEPTH or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        nested: list[Any] = []
        if isinstance(reference := current.get("$ref"), str):
            nested.append(_resolve(reference, root))
        for keyword in ("anyOf", "oneOf", "allOf"):
            options = current.get(keyword)
            nested += options[:_MAX_SUBSCHEMAS] if isinstance(options, list) else ()
        pending += [(option, depth + 1) for option in reversed(nested)]


def _resolve(reference: str, root: Any) -> Any:
    """Return the target of a JSON pointer within *root*, None if it does not exist."""
    if not reference.startswith("#"):
        return None
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _decode_json(key: str, text: str, expected: str = "JSON") -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise ConfigurationError(f"{key}: {text!r} is not {expected}") from None
