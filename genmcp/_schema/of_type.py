"""Schemas and decoders of types: msgspec structs, dataclasses, TypedDicts, attrs and pydantic."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from genmcp._schema.inline import inlined, with_subschemas
from genmcp._schema.of_pydantic import decoder_of_pydantic, is_pydantic, schema_of_pydantic
from genmcp._schema.schema import Schema
from genmcp.binding import decoded, described
from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import decoding_fault


def schema_of(source: Any, *, origin: str = "", output: bool = False) -> dict[str, Any]:
    """Return the self-contained JSON Schema (2020-12) of a type.

    Descriptions come from docstrings, `Annotated[..., msgspec.Meta(...)]` and pydantic's fields.
    References are resolved, except those of recursive types: many clients pass schemas to the API
    of a model that takes none.

    Args:
        source: the type.
        origin: the option that *source* is from, for error messages.
        output: whether it is the schema of values that are sent; it matters to pydantic.

    Raises:
        ConfigurationError: the type has no JSON form, or *source* is not a type.
    """
    if isinstance(source, str | bytes | int | float | list | tuple | set):
        raise ConfigurationError(
            f"{origin or 'type'}: expected a type or a JSON Schema, not {source!r}"
        )
    if is_pydantic(source):
        schema = schema_of_pydantic(source, output=output)
    else:
        schema = _schema_of(source)
    schema = inlined(schema)
    # A class name is of no use to a model, and costs tokens with every listing.
    if schema.get("title") == getattr(source, "__name__", None):
        del schema["title"]
    return schema


def _schema_of(source: Any) -> dict[str, Any]:
    try:
        schema = msgspec.json.schema(source, schema_hook=described)
        # Defaults are given as Python values; in the schema they are JSON.
        schema = msgspec.json.decode(msgspec.json.encode(schema))
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigurationError(f"{source!r} cannot describe JSON: {reason}") from error
    definitions = schema.pop("$defs", {})
    whole = _with_types(schema)
    if definitions:
        whole["$defs"] = {name: _with_types(each) for name, each in definitions.items()}
    return dict(whole)


_KINDS: Final[dict[type, str]] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    type(None): "null",
}


def _with_types(schema: Any) -> Any:
    """Return *schema* with a `type` beside each `enum`, at every level.

    JSON Schema does not require it and msgspec leaves it out, but clients that build forms or
    classes from schemas read `type` alone, and treat a choice as any string.
    """
    if not isinstance(schema, dict):
        return schema
    schema = with_subschemas(schema, _with_types)
    choice = schema.get("enum")
    if isinstance(choice, list) and "type" not in schema:
        kinds = [*dict.fromkeys(_KINDS.get(type(each), "") for each in choice)]
        if kinds and "" not in kinds:
            schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    return schema


def allows_extra(source: Any) -> bool:
    """Return whether *source* itself configures how undefined properties are handled.

    This applies to an open TypedDict (PEP 728), to a pydantic model with `extra` in its
    configuration, and to one that accepts names besides those of its schema (alias choices, field
    names besides aliases, a validator of the raw value).
    """
    if not is_pydantic(source):
        return getattr(source, "__closed__", None) is False
    if not hasattr(source, "__pydantic_decorators__"):  # a plain dataclass that contains models
        return False
    config = getattr(source, "model_config", None) or getattr(source, "__pydantic_config__", {})
    if any(config.get(key) for key in ("extra", "populate_by_name", "validate_by_name")):
        return True
    fields = getattr(source, "__pydantic_fields__", {}).values()
    if not all(isinstance(each.validation_alias, str | None) for each in fields):
        return True
    validators = source.__pydantic_decorators__.model_validators.values()
    return any(each.info.mode != "after" for each in validators)


def decoder_of(
    source: Any,
    schema: Schema,
    *,
    known: Callable[[Raw | bytes], object] | None = None,
    check_text: Callable[[Raw | bytes], None] | None = None,
) -> Callable[[Raw | bytes], Any]:
    """Return the decoder of JSON text to *source*; *schema*, of the same type, explains faults.

    It raises ArgumentFaults, and any exception of the code of the type. An empty text is an empty
    object. *known* decodes the text a second time, and rejects unknown members. *check_text* is
    called with a text that was rejected, and may raise a better error.
    """
    of_pydantic = is_pydantic(source)
    if of_pydantic:
        typed = decoder_of_pydantic(source, schema)
    else:
        typed = msgspec.json.Decoder(source, dec_hook=decoded).decode
    # msgspec matches patterns with `re`, which may take exponential time. It only gets values that
    # the linear engine of jsonschema-rs has accepted.
    checks_first = not of_pydantic and schema.parts.uses("pattern")

    def decode(raw: Raw | bytes) -> Any:
        text = raw or b"{}"
        try:
            if checks_first and (faults := schema.check(msgspec.json.decode(text), text)):
                raise ArgumentFaults(faults)
            value = typed(text)
            if known is not None:
                known(text)
            return value
        except (ArgumentFaults, ValueError, RecursionError) as error:
            if check_text is not None:
                check_text(text)
            if not isinstance(error, msgspec.ValidationError):
                raise
            found = schema.check(msgspec.json.decode(text), text)
            faults = found or (decoding_fault(str(error)),)
        raise ArgumentFaults(faults)

    return decode
