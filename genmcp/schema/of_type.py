"""Schemas and decoders of types: msgspec structs, dataclasses, TypedDicts, attrs and pydantic."""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import decoding_fault
from genmcp.schema.of_pydantic import decoder_of_pydantic, schema_of_pydantic
from genmcp.schema.schema import Schema

__all__ = ["decoder_of", "schema_of"]


def schema_of(source: Any) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a type, self-contained: what it refers to is in its `$defs`.

    Descriptions come from docstrings, `Annotated[..., msgspec.Meta(...)]` and pydantic's fields.
    Raises ConfigurationError where the type has no JSON form.
    """
    schema = schema_of_pydantic(source) if is_pydantic(source) else _schema_of(source)
    # The name of a class tells a model nothing, and is paid for with every listing.
    if schema.get("title") == getattr(source, "__name__", None):
        del schema["title"]
    return schema


def _schema_of(source: Any) -> dict[str, Any]:
    try:
        schema = msgspec.json.schema(source)
        # Defaults are given as Python values; in the schema they are JSON.
        schema = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigurationError(f"{source!r} cannot describe JSON: {reason}") from error
    return _with_root(dict(schema))


def decoder_of(source: Any, schema: Schema) -> Callable[[Raw | bytes], Any]:
    """What reads JSON text as *source*; *schema*, made from the same type, explains faults.

    It raises ArgumentFaults, and whatever else the type's own code raises.
    """
    if is_pydantic(source):
        return decoder_of_pydantic(source)
    typed = msgspec.json.Decoder(source).decode

    def decode(raw: Raw | bytes) -> Any:
        try:
            return typed(raw)
        except msgspec.ValidationError as error:
            faults = schema.check(msgspec.json.decode(raw), raw) or (decoding_fault(str(error)),)
        raise ArgumentFaults(faults)

    if not schema.parts.uses("pattern"):
        return decode

    def decode_matched(raw: Raw | bytes) -> Any:
        # msgspec matches with `re`, which may take exponential time: only what the linear engine
        # has accepted gets there.
        if faults := schema.check(msgspec.json.decode(raw), raw):
            raise ArgumentFaults(faults)
        return decode(raw)

    return decode_matched


def is_pydantic(source: Any) -> bool:
    """Whether *source* is a pydantic model or pydantic dataclass."""
    return "pydantic" in sys.modules and hasattr(source, "__pydantic_validator__")


def _with_root(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* with its root written out, and kept in `$defs` only if it is referred to there."""
    reference = schema.pop("$ref", None)
    if reference is None:
        return schema
    definitions = schema.pop("$defs")
    name = reference.removeprefix("#/$defs/")
    root = definitions[name]
    if msgspec.json.encode(reference) not in msgspec.json.encode(definitions):
        del definitions[name]
    return {**root, "$defs": definitions} if definitions else dict(root)
