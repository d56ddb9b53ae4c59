"""The restricted JSON Schema of forms, and how the schema of a type is reduced to it.

2026-07-28, client/elicitation, "Requested Schema", and schema, PrimitiveSchemaDefinition: a form
has texts, numbers, booleans and choices, one level deep. Keywords that a form cannot have, such
as `pattern`, are left out of a type's form: the type itself validates the answer as well.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from math import ceil, floor
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from genmcp._schema.schema import Schema

_FORMATS: Final = ("email", "uri", "date", "date-time")
_NULL: Final = {"type": "null"}

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_NUMBER: Final = {"type": "number"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_CHOICES: Final = {**_TEXTS, "minItems": 1, "uniqueItems": True}
_TITLED_CHOICES: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"const": _TEXT, "title": _TEXT},
        "required": ["const", "title"],
        "additionalProperties": False,
    },
}
_ITEMS: Final = {
    "type": "object",
    "if": {"required": ["anyOf"]},
    "then": {"properties": {"anyOf": _TITLED_CHOICES}, "additionalProperties": False},
    "else": {
        "properties": {"type": {"const": "string"}, "enum": _CHOICES},
        "required": ["type", "enum"],
        "additionalProperties": False,
    },
}

_NUMBERS: Final = {"minimum": _NUMBER, "maximum": _NUMBER, "default": _NUMBER}
_BY_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {
        "minLength": _COUNT,
        "maxLength": _COUNT,
        "format": {"enum": _FORMATS},
        "enum": _CHOICES,
        "enumNames": _TEXTS,
        "oneOf": _TITLED_CHOICES,
        "default": _TEXT,
    },
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": {"default": {"type": "boolean"}},
    "array": {"minItems": _COUNT, "maxItems": _COUNT, "items": _ITEMS, "default": _TEXTS},
}
_COMMON: Final = {"type": {}, "title": _TEXT, "description": _TEXT}


def _property_of_type(name: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
        "then": {
            "properties": {**_COMMON, **keywords},
            "required": ["items"] if "items" in keywords else [],
            "additionalProperties": False,
        },
    }


_PROPERTY: Final = {
    "type": "object",
    "properties": {"type": {"enum": [*_BY_TYPE]}},
    "required": ["type"],
    "allOf": [_property_of_type(name, keywords) for name, keywords in _BY_TYPE.items()],
}

# `title` and `description` at the root are allowed: the specification does not mention them
# there, but the schemas of types have them.
_FORM: Final = Schema(
    {
        "type": "object",
        "properties": {
            "$schema": _TEXT,
            "type": {"const": "object"},
            "title": _TEXT,
            "description": _TEXT,
            "properties": {"type": "object", "additionalProperties": _PROPERTY},
            "required": _TEXTS,
        },
        "required": ["type", "properties"],
        "additionalProperties": False,
    },
    origin="restricted form",
)


def faults_of(document: Mapping[str, Any]) -> Sequence[str]:
    """Return the reasons why *document* cannot be the schema of a form, each with its pointer."""
    faults = _FORM.check(document)
    if faults:
        return faults
    required, properties = document.get("required", ()), document["properties"]
    return [
        f"/required: {name!r} is not one of the properties"
        for name in required
        if name not in properties
    ]


class FormSchema(NamedTuple):
    """The schema of a form for a type, and the properties that are null if they are left empty."""

    document: dict[str, Any]
    nulls: Sequence[str]


def form_schema(type_: type, schema: Mapping[str, Any]) -> FormSchema:
    """Reduce *schema*, the JSON Schema of *type_*, to that of a form.

    Properties of types that a form cannot have, such as a nested object, are kept, so that
    `faults_of` reports them.
    """
    choices = _choices(type_)
    required = schema.get("required", ())
    properties, nulls = {}, []
    for name, given in schema.get("properties", {}).items():
        property_, nullable = _flatten(given, schema.get("$defs", {}))
        properties[name] = _restrict(_sort_choices(property_, choices.get(name, ())))
        if nullable and name in required:
            nulls.append(name)
    document = {"type": schema.get("type"), "properties": properties}
    if description := schema.get("description"):
        document["description"] = inspect.cleandoc(description)
    if needed := [name for name in required if name not in nulls]:
        document["required"] = needed
    return FormSchema(document, nulls)


def _flatten(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Resolve references and optional types in *schema*; also return whether it allows null."""
    flat = dict(schema)
    while "$ref" in flat:
        target = dict(definitions[flat.pop("$ref").removeprefix("#/$defs/")])
        target.pop("title", None)  # the name of a class, not a label for the property
        flat = {**target, **flat}
    alternatives = flat.get("anyOf", ())
    others = [each for each in alternatives if each != _NULL]
    nullable = len(others) < len(alternatives)
    # A form has no alternatives, but `number` covers both types of `int | float`.
    if {each.get("type") for each in others} == {"integer", "number"}:
        others = [each for each in others if each["type"] == "number"]
    if len(others) == 1 < len(alternatives):
        del flat["anyOf"]
        inner, inner_nullable = _flatten(others[0], definitions)
        return {**inner, **flat}, nullable or inner_nullable
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]
    if None in flat.get("enum", ()):
        flat["enum"] = [each for each in flat["enum"] if each is not None]
        nullable = True
    if "enum" in flat:
        flat.pop("type", None)  # the choices of a form are always strings
    if "items" in flat:
        flat["items"], _ = _flatten(flat["items"], definitions)
    return flat, nullable


def _restrict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema*, that of one property, without the keywords that a form cannot have."""
    if "enum" in schema or "oneOf" in schema:
        schema.setdefault("type", "string")
    if schema.get("type") == "array":
        schema["items"] = _restrict_items(schema.get("items", {}))
    if schema.get("format") not in _FORMATS:
        schema.pop("format", None)
    _make_bounds_inclusive(schema)
    if schema.get("default", ...) is None:
        del schema["default"]
    own = _BY_TYPE.get(str(schema.get("type")))
    if own is None:
        return schema
    return {keyword: schema[keyword] for keyword in (*_COMMON, *own) if keyword in schema}


def _restrict_items(items: dict[str, Any]) -> dict[str, Any]:
    for titled in ("anyOf", "oneOf"):
        if titled in items:
            return {"anyOf": items[titled]}
    items.setdefault("type", "string")
    return {keyword: items[keyword] for keyword in ("type", "enum") if keyword in items}


def _make_bounds_inclusive(schema: dict[str, Any]) -> None:
    """Replace exclusive bounds in *schema*, which a form cannot have, by the nearest inclusive."""
    whole = schema.get("type") == "integer"
    if (above := schema.pop("exclusiveMinimum", None)) is not None:
        schema["minimum"] = floor(above) + 1 if whole else above
    if (below := schema.pop("exclusiveMaximum", None)) is not None:
        schema["maximum"] = ceil(below) - 1 if whole else below


def _sort_choices(schema: dict[str, Any], choices: Sequence[str]) -> dict[str, Any]:
    """Return *schema* with its choices in the order of *choices*; msgspec has sorted them."""
    holder = schema.get("items", schema)
    if "enum" in holder and all(each in choices for each in holder["enum"]):
        holder["enum"] = [each for each in choices if each in holder["enum"]]
    return schema


def _choices(type_: type) -> dict[str, list[str]]:
    """Return the choices of each property of *type_*, in the order of their declaration."""
    names = {}
    if issubclass(type_, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(type_)}
    return {
        names.get(name, name): list(dict.fromkeys(_texts(hint)))
        for name, hint in get_type_hints(type_, include_extras=True).items()
    }


def _texts(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (each for each in get_args(hint) if isinstance(each, str))
    elif isinstance(hint, type) and issubclass(hint, Enum):
        yield from (each.value for each in hint if isinstance(each.value, str))
    else:
        for each in get_args(hint):
            yield from _texts(each)
