"""Defaults of properties are filled in."""

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
    """At the top, below, through references, and through recursion as deep as the value goes."""
    filled = Schema(WITH_DEFAULTS).fill({"place": {"part": {"city": "Oslo"}}})

    assert filled == {
        "place": {"part": {"city": "Oslo", "country": "NO"}, "country": "NO"},
        "unit": "C",
        "tags": [],
        "named": "x",
    }


def test_what_is_there_is_never_replaced() -> None:
    """Null is a value too, and so is one of another type."""
    value = {"unit": None, "tags": [1], "place": "Oslo", "named": ""}

    assert value == Schema(WITH_DEFAULTS).fill(value)


def test_a_default_belongs_to_one_call() -> None:
    """Changing a filled-in list does not change the next call's."""
    schema = Schema(WITH_DEFAULTS)
    schema.fill({})["tags"].append(1)

    assert schema.fill({})["tags"] == []


def test_without_defaults_the_value_itself_is_given_back() -> None:
    """Nothing is copied where there is nothing to fill in; boolean schemas have no defaults."""
    schema = Schema({"properties": {"a": True, "default": {}}})
    value = {"b": 1}

    assert value is schema.fill(value)
