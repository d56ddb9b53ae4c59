"""Schemas and decoders of pydantic models; pydantic is imported with the first of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from genmcp._schema.words import MAX_FAULTS, describe_value, to_json
from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import Fault, Mismatch


def schema_of_pydantic(source: Any) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a pydantic model, with its aliases."""
    import pydantic

    try:
        return pydantic.TypeAdapter(source).json_schema()
    except pydantic.PydanticUserError as error:
        raise ConfigurationError(f"{source!r} cannot describe JSON: {error}") from error


def decoder_of_pydantic(source: Any) -> Callable[[Raw | bytes], Any]:
    """Return the decoder of JSON text to *source*, by pydantic; it raises ArgumentFaults."""
    import pydantic

    typed = pydantic.TypeAdapter(source).validate_json

    def decode(raw: Raw | bytes) -> Any:
        try:
            return typed(bytes(raw))
        except pydantic.ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
        whole = msgspec.json.decode(raw)
        faults = [_fault_of(each, whole) for each in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            faults.append(f"... and {len(found) - MAX_FAULTS} more")
        raise ArgumentFaults(faults)

    return decode


def _fault_of(found: Mapping[str, Any], whole: Any) -> str:
    """Convert an error of pydantic to a fault."""
    location: tuple[str | int, ...] = found["loc"]
    path = _path_of(location, whole)
    message: str = found["msg"]
    if found["type"] == "missing":
        return Fault(path, f"missing required property {to_json(location[-1])}")
    if found["type"] == "extra_forbidden":
        return Fault(path, "unexpected property")
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if found["type"] in ("value_error", "assertion_error"):
        return Fault(path, message)
    if message.startswith("Input should be "):
        return Fault(
            path, Mismatch(message.removeprefix("Input should be "), describe_value(found["input"]))
        )
    return Fault(path, f"{message}, got {describe_value(found['input'])}")


def _path_of(location: Sequence[str | int], whole: Any) -> list[str | int]:
    """Return the steps of *location* that exist in the value; pydantic adds union members."""
    path: list[str | int] = []
    for step in location:
        held = isinstance(whole, dict) and step in whole
        if held or (isinstance(whole, list) and isinstance(step, int) and step < len(whole)):
            whole = whole[step]
            path.append(step)
    return path
