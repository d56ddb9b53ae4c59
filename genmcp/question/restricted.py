"""What a form may ask for: the restricted form of a JSON Schema.

2026-07-28, client/elicitation, "Requested Schema", and schema, PrimitiveSchemaDefinition.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from genmcp.schema.schema import Schema

__all__ = ["FORMATS", "KEYWORDS", "faults_of"]

FORMATS: Final = ("email", "uri", "date", "date-time")

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_NUMBER: Final = {"type": "number"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_CHOICES: Final = {**_TEXTS, "minItems": 1, "uniqueItems": True}
_TITLED: Final = {
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
    "then": {"properties": {"anyOf": _TITLED}, "additionalProperties": False},
    "else": {
        "properties": {"type": {"const": "string"}, "enum": _CHOICES},
        "required": ["type", "enum"],
        "additionalProperties": False,
    },
}

_NUMBERS: Final = {"minimum": _NUMBER, "maximum": _NUMBER, "default": _NUMBER}
_OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {
        "minLength": _COUNT,
        "maxLength": _COUNT,
        "format": {"enum": FORMATS},
        "enum": _CHOICES,
        "enumNames": _TEXTS,
        "oneOf": _TITLED,
        "default": _TEXT,
    },
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "boolean": {"default": {"type": "boolean"}},
    "array": {"minItems": _COUNT, "maxItems": _COUNT, "items": _ITEMS, "default": _TEXTS},
}

_ALL: Final = {"type": {}, "title": _TEXT, "description": _TEXT}

#: The keywords that a property may have, by its type.
KEYWORDS: Final = {kind: (*_ALL, *own) for kind, own in _OWN.items()}


def _of_kind(kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
        "then": {
            "properties": {**_ALL, **own},
            "required": ["items"] if "items" in own else [],
            "additionalProperties": False,
        },
    }


_PROPERTY: Final = {
    "type": "object",
    "properties": {"type": {"enum": [*_OWN]}},
    "required": ["type"],
    "allOf": [_of_kind(kind, own) for kind, own in _OWN.items()],
}

# `title` and `description` of the whole are not among what the specification names, nor does it
# forbid them; schemas made of types have them.
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
    """Return why a form may not ask for *document*, each beginning with its JSON Pointer."""
    faults = _FORM.check(document)
    if faults:
        return faults
    required, properties = document.get("required", ()), document["properties"]
    return [
        f"/required: {name!r} is not one of the properties"
        for name in required
        if name not in properties
    ]
