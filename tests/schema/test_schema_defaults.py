"""Missing properties are filled in with their defaults."""

from typing import Any

from genmcp._schema.schema import Schema

WITH_DEFAULTS: dict[str, Any] = {
    "properties": {
        "unit": {"default": "C"},
        "tags": {"default": []},
        "place": {
            "$ref": "#/$defs/place",
        },
        "named": {"$ref": "#/$defs/named"},
    },
    "$defs": {
        "place": {"properties": {"country": {"default": "NO"}, "part": {"$ref": "#/$defs/place"}}},
        "named": {"default": "x"},
        "any": True,
    },
}


def test_missing_properties_get_their_defaults() -> None:
    """At all levels of the value, through references and recursion."""
    filled = Schema(WITH_DEFAULTS).fill({"place": {"part": {"city": "Oslo"}}})

    assert filled == {
        "place": {"part": {"city": "Oslo", "country": "NO"}, "country": "NO"},
        "unit": "C",
        "tags": [],
        "named": "x",
    }


def test_existing_values_are_not_replaced() -> None:
    """Null is a value, and so is a value of another type."""
    value = {"unit": None, "tags": [1], "place": "Oslo", "named": ""}

    assert value == Schema(WITH_DEFAULTS).fill(value)


def test_default_is_copied_for_each_call() -> None:
    """A change of a list does not affect the next call."""
    schema = Schema(WITH_DEFAULTS)
    schema.fill({})["tags"].append(1)

    assert schema.fill({})["tags"] == []


def test_value_without_defaults_is_not_copied() -> None:
    """Boolean schemas have no defaults; neither does a property named `default`."""
    schema = Schema({"properties": {"a": True, "default": {}}})
    value = {"b": 1}

    assert value is schema.fill(value)
