"""Arguments of tools and prompts, as they are written on a command line."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from genmcp.errors import ConfigurationError

__all__ = ["arguments_of", "split", "value_of"]


def arguments_of(schema: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that *given* says, each `key=value`, by a tool's input *schema*.

    A value is read as what its schema wants: text as it stands, anything else as JSON.
    `key:=value` is JSON whatever the schema says.

    Raises:
        ConfigurationError: one of them is neither, or its value is not what it should be.
    """
    properties = schema.get("properties", {})
    arguments: dict[str, Any] = {}
    for each in given:
        key, value = split(each)
        if key.endswith(":"):
            arguments[key[:-1]] = _json(key[:-1], value)
        else:
            arguments[key] = value_of(key, properties.get(key, {}), value)
    return arguments


def split(given: str) -> tuple[str, str]:
    """Return the key and the value of `key=value`.

    Raises:
        ConfigurationError: it is none.
    """
    key, equals, value = given.partition("=")
    if not equals or not key:
        raise ConfigurationError(f"{given!r} is not key=value")
    return key, value


def value_of(key: str, schema: Any, text: str) -> Any:
    """Return the value of *key* that *text* says, by its *schema*.

    Raises:
        ConfigurationError: it is not what the schema wants.
    """
    types = _types(schema)
    if "string" in types:
        return text
    if types:
        return _json(key, text, " or ".join(sorted(types)))
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _types(schema: Any) -> set[str]:
    """Return the types that *schema* names; none: it allows any."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type", ())
    types = {named} if isinstance(named, str) else set(named)
    for word in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(word, ()):
            types |= _types(each)
    if not types and "enum" in schema and all(isinstance(each, str) for each in schema["enum"]):
        types = {"string"}
    return types


def _json(key: str, text: str, wanted: str = "JSON") -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ConfigurationError(f"{key}: {text!r} is not {wanted}") from None
