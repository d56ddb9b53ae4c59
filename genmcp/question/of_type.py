"""The form a type asks for: its JSON Schema, reduced to what a form may have.

What a form cannot say (a pattern, a bound that is not met itself) is left out: the type checks
the answer anyway.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import ceil, floor
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from genmcp.question.restricted import FORMATS, KEYWORDS

__all__ = ["Reduced", "reduced"]

_NULL = {"type": "null"}


class Reduced(NamedTuple):
    """A type as a form: what is asked for, and which properties are null if they are left empty."""

    document: dict[str, Any]
    nulls: Sequence[str]


def reduced(kind: type, schema: Mapping[str, Any]) -> Reduced:
    """Return *kind*, whose JSON Schema is *schema*, as a form.

    Where it has something that no form has, so has the form: that is for the caller to refuse.
    """
    choices = _choices(kind)
    required = schema.get("required", ())
    asked, nulls = {}, []
    for name, given in schema.get("properties", {}).items():
        property_, may_be_null = _flat(given, schema.get("$defs", {}))
        asked[name] = _plain(_in_order(property_, choices.get(name, ())))
        if may_be_null and name in required:
            nulls.append(name)
    document = {"type": schema.get("type"), "properties": asked}
    if described := schema.get("description"):
        document["description"] = inspect.cleandoc(described)
    if needed := [name for name in required if name not in nulls]:
        document["required"] = needed
    return Reduced(document, nulls)


def _flat(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return *schema* without references, alternatives and null; and whether null was allowed."""
    flat = dict(schema)
    while "$ref" in flat:
        target = dict(definitions[flat.pop("$ref").removeprefix("#/$defs/")])
        target.pop("title", None)  # the name of a class
        flat = {**target, **flat}
    alternatives = flat.get("anyOf", ())
    others = [each for each in alternatives if each != _NULL]
    may_be_null = len(others) < len(alternatives)
    if {each.get("type") for each in others} == {"integer", "number"}:
        others = [each for each in others if each["type"] == "number"]
    if len(others) == 1 < len(alternatives):
        del flat["anyOf"]
        below, nullable_below = _flat(others[0], definitions)
        return {**below, **flat}, may_be_null or nullable_below
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]
    if None in flat.get("enum", ()):
        flat["enum"] = [each for each in flat["enum"] if each is not None]
        may_be_null = True
    if "enum" in flat:
        flat.pop("type", None)  # the choices of a form are strings only
    if "items" in flat:
        flat["items"], _ = _flat(flat["items"], definitions)
    return flat, may_be_null


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the *schema* of one property with no more than a form may say."""
    if "enum" in schema or "oneOf" in schema:
        schema.setdefault("type", "string")
    if schema.get("type") == "array":
        schema["items"] = _plain_items(schema.get("items", {}))
    if schema.get("format") not in FORMATS:
        schema.pop("format", None)
    _include_bounds(schema)
    if schema.get("default", ...) is None:
        del schema["default"]
    keywords = KEYWORDS.get(str(schema.get("type")))
    if keywords is None:
        return schema
    return {keyword: schema[keyword] for keyword in keywords if keyword in schema}


def _plain_items(items: dict[str, Any]) -> dict[str, Any]:
    for titled in ("anyOf", "oneOf"):
        if titled in items:
            return {"anyOf": items[titled]}
    items.setdefault("type", "string")
    return {keyword: items[keyword] for keyword in ("type", "enum") if keyword in items}


def _include_bounds(schema: dict[str, Any]) -> None:
    """Turn exclusive bounds into the nearest a form may have."""
    whole = schema.get("type") == "integer"
    if (above := schema.pop("exclusiveMinimum", None)) is not None:
        schema["minimum"] = floor(above) + 1 if whole else above
    if (below := schema.pop("exclusiveMaximum", None)) is not None:
        schema["maximum"] = ceil(below) - 1 if whole else below


def _in_order(schema: dict[str, Any], choices: Sequence[str]) -> dict[str, Any]:
    """Return *schema* with what there is to choose from as it was declared: msgspec sorts it."""
    holder = schema.get("items", schema)
    if "enum" in holder and all(each in choices for each in holder["enum"]):
        holder["enum"] = [each for each in choices if each in holder["enum"]]
    return schema


def _choices(kind: type) -> dict[str, list[str]]:
    """Return the texts to choose from in each property of *kind*, as they are declared."""
    names = {}
    if issubclass(kind, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    return {
        names.get(name, name): list(dict.fromkeys(_texts(hint)))
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def _texts(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (each for each in get_args(hint) if isinstance(each, str))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield from (each.value for each in hint if isinstance(each.value, str))
    else:
        for each in get_args(hint):
            yield from _texts(each)
