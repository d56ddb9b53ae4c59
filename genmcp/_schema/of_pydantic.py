"""Schemas and decoders of pydantic models; pydantic is imported with the first of them."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import combinations, product
from typing import Any, Final, Literal, get_args, get_type_hints, is_typeddict

import msgspec
from jsonschema_rs import Draft202012Validator
from msgspec import Raw

from genmcp._schema.document import Document
from genmcp._schema.limits import MAX_DEPTH
from genmcp._schema.schema import Schema
from genmcp._schema.words import MAX_FAULTS, describe_value, to_json
from genmcp.errors import ArgumentFaults, ConfigurationError
from genmcp.faults import Fault, Mismatch

# Errors of pydantic that are converted: 10 us each.
_MAX_ERRORS: Final = 1_000
# Values that all errors of pydantic together may copy: 1 us each.
_MAX_COPIED: Final = 50_000
# Characters that the places of all errors may have, each of which has all names above it; and those
# of one name in a value that may have more.
_MAX_NAMED: Final = 20_000_000
_MAX_NAME: Final = 500
_BELOW: Final = {"$ref": "#"}
_SHORT_NAMES: Final = Draft202012Validator(
    {"propertyNames": {"maxLength": _MAX_NAME}, "items": _BELOW, "additionalProperties": _BELOW}
)
# Keywords of which the subschemas apply to the same value, in schemas of pydantic.
_TO_SAME: Final = frozenset({"$ref", "anyOf", "oneOf", "allOf"})


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


def decoder_of_pydantic(source: Any, schema: Schema) -> Callable[[Raw | bytes], Any]:
    """Return the decoder of JSON text to *source*, by pydantic; it raises ArgumentFaults.

    Pydantic has no bounds of its own. So *schema*, of the same type, is applied to large values
    first, and explains why one does not fit if pydantic has found too many errors to list them.

    Raises:
        ConfigurationError: pydantic would take exponential time.
    """
    import pydantic

    _refuse_exponential(schema.parts)
    typed = pydantic.TypeAdapter(source).validate_json
    most = _most_values(schema.parts)

    def decode(raw: Raw | bytes) -> Any:
        text = bytes(raw)
        count = sum(map(text.count, (b",", b"[", b"{")))
        if count > most or count * len(text) > _MAX_NAMED:
            whole = msgspec.json.decode(text)
            if faults := schema.check(whole, text):
                raise ArgumentFaults(faults)
            if not _SHORT_NAMES.is_valid(whole):
                words = (
                    f"expected property names of at most {_MAX_NAME} characters, got a longer one"
                )
                raise ArgumentFaults((Fault((), words),))
        try:
            return typed(text)
        except pydantic.ValidationError as error:
            whole = msgspec.json.decode(text)
            count = error.error_count()
            if count > _MAX_ERRORS:
                general = Fault((), f"{describe_value(whole)} does not fit, for {count} reasons")
                raise ArgumentFaults(schema.check(whole, text) or (general,)) from None
            found = error.errors(include_url=False, include_context=False)
        faults = [_fault_of(each, whole) for each in found[:MAX_FAULTS]]
        if count > MAX_FAULTS:
            faults.append(f"... and {count - MAX_FAULTS} more")
        raise ArgumentFaults(faults)

    return decode


def _most_values(document: Document) -> int:
    """Return how many values pydantic may get unchecked.

    An error of pydantic has a copy of the faulty value, as does each error of the objects that it
    is in: 100 missing properties of an object with 50,000 others take 5 s.
    """
    schemas = [each for each in document.schemas.values() if isinstance(each, dict)]
    errors = sum(len(each.get(word, ())) for each in schemas for word in ("required", "anyOf"))
    levels = MAX_DEPTH // 2 if document.uses("$ref") else 1  # only recursive types have references
    return _MAX_COPIED // (max(1, errors) * levels)


def _refuse_exponential(document: Document) -> None:
    """Refuse a union of which two alternatives lead back to it from the same place of a value.

    Pydantic tries both, at each level: a value of 20 levels takes a minute, in each mode of the
    union. With a discriminator, of which the schema has `oneOf`, it tries one.
    """
    above: dict[str, list[str]] = {}
    for pointer in document.schemas:
        for _, below in document.applied(pointer):
            above.setdefault(below, []).append(pointer)
    for union in document.schemas if document.uses("$ref") else ():
        branches = [each for word, each in document.applied(union) if word == "anyOf"]
        returning = _closure([union], lambda pointer: above.get(pointer, ()))
        pairs = combinations([each for each in branches if each in returning], 2)
        if any(_meet(document, pair, union, returning) for pair in pairs):
            raise document.refuse(
                union,
                "pydantic takes exponential time for a recursive union of which two alternatives "
                "read the same values; select one of them with Field(discriminator=...)",
            )


def _meet(document: Document, pair: tuple[str, str], union: str, returning: set[str]) -> bool:
    """Return whether both subschemas of *pair* lead to *union* by the same steps into a value."""

    def same(pointer: str) -> set[str]:
        """Return the subschemas that are applied to the same value."""
        return _closure([pointer], lambda it: (to for word, to in applied(it) if word in _TO_SAME))

    def steps(pointers: Iterable[str]) -> list[tuple[str | None, str]]:
        """Return the subschemas of parts of the value; None stands for any name."""
        found = [each for pointer in pointers for each in applied(pointer)]
        return [
            (_step_of(word, to), to)
            for word, to in found
            if word not in _TO_SAME and to in returning
        ]

    applied = document.applied
    pending, seen = [pair], {pair}
    for first, second in pending:  # which grows
        ours, theirs = same(first), same(second)
        if union in ours and union in theirs:
            return True
        for (step, one), (other, two) in product(steps(ours), steps(theirs)):
            is_same = step == other or (None in (step, other) and "/" not in (step, other))
            if is_same and (one, two) not in seen:
                seen.add((one, two))
                pending.append((one, two))
    return False


def _step_of(keyword: str, pointer: str) -> str | None:
    """Return the name of the part of a value that *keyword* applies the schema at *pointer* to.

    None stands for any name, and a slash, which is in no escaped name, for any item.
    """
    if keyword == "properties":
        return pointer.rpartition("/")[2]
    return "/" if keyword in ("items", "prefixItems") else None


def _closure(pointers: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Return *pointers* and all that follow them."""
    pending = [*pointers]
    found = {*pending}
    for pointer in pending:  # which grows
        new = {*following(pointer)} - found
        found |= new
        pending += new
    return found


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
