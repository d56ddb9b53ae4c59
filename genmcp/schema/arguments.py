"""The arguments of a tool: how they are listed, which have headers, and how they are read."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from genmcp.errors import ArgumentFaults, ConfigurationError, MalformedParams
from genmcp.schema.headers import header_rules
from genmcp.schema.limits import DEFAULT_LIMITS, SchemaLimits
from genmcp.schema.of_type import decoder_of, schema_of
from genmcp.schema.schema import Formats, Schema
from genmcp.schema.words import fault
from genmcp.wire.mirror import HeaderRule

__all__ = ["Arguments", "arguments_of"]

_read = msgspec.json.Decoder().decode


class Arguments(Struct, frozen=True):
    """What a tool takes.

    `schema` is listed as the tool's `inputSchema`. `decode` reads the JSON text of a call's
    arguments (empty text when there are none) and raises

    - `MalformedParams` where they are not a JSON object,
    - `ArgumentFaults` where they do not fit the schema,
    - whatever the code of a given type raises of its own.
    """

    schema: Mapping[str, Any]
    headers: tuple[HeaderRule, ...]
    decode: Callable[[Raw | bytes], Any]


def arguments_of(
    source: Any, *, formats: Formats = True, limits: SchemaLimits = DEFAULT_LIMITS
) -> Arguments:
    """The arguments described by *source*: a schema, a type, or None for any object.

    With a schema they are read as a dict, with its defaults filled in; with a type, as that
    type. Raises ConfigurationError for a schema or a type that cannot describe arguments
    (2026-07-28, tools, "Tool": the root of `inputSchema` has the type object).
    """
    if source is None:
        source = {"type": "object"}
    is_schema = isinstance(source, Mapping)
    document = source if is_schema else schema_of(source)
    if document.get("type") != "object":
        raise ConfigurationError(
            'input_schema: arguments are an object; the root of the schema needs "type": "object"'
            if is_schema
            else f"input_schema: {source!r} is not read from a JSON object"
        )
    schema = Schema(document, formats=formats, limits=limits)
    decode = _dict_decoder(schema) if is_schema else _typed_decoder(source, schema)
    return Arguments(document, header_rules(schema.parts), decode)


def _dict_decoder(schema: Schema) -> Callable[[Raw | bytes], Any]:
    check, fill, fits, small = schema.check, schema.fill, schema.fits, schema.small

    def decode(raw: Raw | bytes) -> Any:
        try:
            arguments = _read(raw) if len(raw) else {}
        except _UNREADABLE as error:
            raise _refused(error) from None
        if arguments.__class__ is not dict:
            raise MalformedParams("arguments must be an object")
        if len(raw) <= small and fits(arguments):  # what `check` would say of nearly every call
            return fill(arguments)
        if faults := check(arguments, raw):
            raise ArgumentFaults(faults)
        return fill(arguments)

    return decode


def _typed_decoder(source: Any, schema: Schema) -> Callable[[Raw | bytes], Any]:
    typed = decoder_of(source, schema)

    def decode(raw: Raw | bytes) -> Any:
        text = raw if len(raw) else b"{}"
        try:
            return typed(text)
        except (ArgumentFaults, ValueError, RecursionError, msgspec.DecodeError):
            _check_object(text)
            raise

    return decode


_UNREADABLE: Final = (RecursionError, msgspec.DecodeError, UnicodeDecodeError)


def _refused(error: Exception) -> Exception:
    """What is said of arguments that could not be read."""
    if isinstance(error, RecursionError):
        return ArgumentFaults((fault((), "nested too deeply"),))
    if isinstance(error, msgspec.ValidationError):
        return ArgumentFaults((fault((), "a number is out of range"),))
    return MalformedParams("arguments cannot be read: not JSON in UTF-8")


def _check_object(text: Raw | bytes) -> None:
    """Check that *text* is a JSON object that can be read."""
    try:
        arguments = _read(text)
    except _UNREADABLE as error:
        raise _refused(error) from None
    if arguments.__class__ is not dict:
        raise MalformedParams("arguments must be an object")
