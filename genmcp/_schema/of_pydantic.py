"""Schemas and decoders of pydantic models; pydantic is imported with the first of them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, Literal, get_args, get_type_hints, is_typeddict

import msgspec
from msgspec import Raw

from genmcp._schema.words import MAX_FAULTS, describe_value, to_json
from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import Fault, Mismatch


def is_pydantic(source: Any) -> bool:
    """Return whether *source* is, or contains, a type or an annotation that only pydantic reads."""
    return "pydantic" in sys.modules and _is_pydantic(source, set())


_PACKAGES: Final = frozenset({"pydantic", "pydantic_core", "annotated_types"})


def is_pydantic_note(value: object) -> bool:
    """Return whether *value* is a constraint or default for pydantic, such as `Field(ge=1)`."""
    return type(value).__module__.partition(".")[0] in _PACKAGES


def _is_pydantic(source: Any, seen: set[int]) -> bool:
    if id(source) in seen:  # a type that contains itself
        return False
    seen.add(id(source))
    module = str(getattr(source, "__module__", ""))
    if hasattr(source, "__pydantic_validator__") or module.partition(".")[0] in _PACKAGES:
        return True
    parts = list(get_args(source))
    if is_dataclass(source) or is_typeddict(source):
        try:
            parts += get_type_hints(source, include_extras=True).values()
        except (NameError, TypeError):
            return False  # msgspec explains the fault
    return any(is_pydantic_note(each) or _is_pydantic(each, seen) for each in parts)


def schema_of_pydantic(source: Any, *, output: bool = False) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a type that pydantic reads, with its aliases.

    With *output*, it is the schema of values that are sent: with computed fields, for example.

    Raises:
        ConfigurationError: the type has no JSON form.
    """
    import pydantic

    mode: Literal["serialization", "validation"] = "serialization" if output else "validation"
    try:
        return pydantic.TypeAdapter(source).json_schema(mode=mode)
    except pydantic.errors.PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"{source!r} cannot describe JSON: {reason}") from error


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
