"""The fields of a form: their prompts, and the conversion of input."""

from typing import Any

import pytest

from genmcp.cli.terminal import FormField
from genmcp.errors import ConfigurationError

RED = {"const": "r", "title": "Red"}
BLUE = {"const": "b", "title": "Blue"}


@pytest.mark.parametrize(
    ("schema", "asked"),
    [
        ({"type": "string", "title": "Your name"}, "Your name"),
        ({"type": "string", "minLength": 2, "maxLength": 9}, "key (2 to 9 characters)"),
        ({"type": "string", "format": "email"}, "key (format: email)"),
        ({"type": "string", "pattern": "^a+$", "minLength": 1}, "at least 1 characters; matching"),
        ({"type": "integer", "minimum": 18, "maximum": 99}, "key (a whole number; 18 to 99)"),
        ({"type": "number", "maximum": 9.5, "default": 1}, "key (a number; at most 9.5) [1]"),
        ({"type": "boolean", "default": False}, "key (y/n) [n]"),
        ({"type": "string", "enum": ["r", "b"]}, "key (r, b)"),
        ({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]}, "r (Red), b (Blue)"),
        ({"type": "string", "oneOf": [RED, BLUE]}, "key (r (Red), b (Blue))"),
        (
            {"type": "array", "items": {"enum": ["r", "b"]}, "default": ["r", "b"], "maxItems": 2},
            "key (r, b; separate several by commas; at most 2 values) [r,b]",
        ),
        ({"type": "array", "items": {"anyOf": [RED, BLUE]}}, "r (Red), b (Blue); separate"),
        ({"type": "string", "description": "As it is\nspelt."}, "  As it is spelt.\n  key"),
    ],
)
def test_field_prompt_shows_constraints(schema: dict[str, Any], asked: str) -> None:
    """Its title or key, bounds or choices, description and default."""
    assert asked in FormField("key", schema, required=True).prompt


@pytest.mark.parametrize(
    ("schema", "typed", "value"),
    [
        ({"type": "string"}, " Ann ", " Ann "),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "boolean"}, "YES", True),
        ({"type": "string", "enum": ["r", "b"]}, " b ", "b"),
        ({"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]}, "blue", "b"),
        ({"type": "string", "oneOf": [RED, BLUE]}, "RED", "r"),
        ({"type": "array", "items": {"enum": ["r", "b"]}}, "r,b", ["r", "b"]),
        ({"type": "array", "items": {"anyOf": [RED, BLUE]}}, "red, blue", ["r", "b"]),
        ({"type": "array", "items": {"enum": ["r"]}}, '["r"]', ["r"]),
        ({"type": "string", "pattern": "(?=x)"}, "y", "y"),
    ],
)
def test_field_converts_input(schema: dict[str, Any], typed: str, value: Any) -> None:
    """A choice by its value or title; an unsupported pattern is left to the server."""
    assert value == FormField("key", schema, required=True).convert(typed)


@pytest.mark.parametrize(
    ("schema", "typed", "why"),
    [
        ({"type": "integer"}, "x", "'x' is not a whole number"),
        ({"type": "integer", "maximum": 9}, "10", "10"),
        ({"type": "string", "minLength": 3}, "ab", "3"),
        ({"type": "string", "pattern": "^a+$"}, "b", "a+"),
        ({"type": "string", "format": "email"}, "nobody", "expected an e-mail address"),
        ({"type": "string", "enum": ["r", "b"]}, "green", "'green' is not one of r, b"),
        ({"type": "array", "items": {"anyOf": [RED]}}, "r,x", "'x' is not one of r .Red."),
        ({"type": "array", "items": {"enum": ["r", "b"]}, "maxItems": 1}, "r,b", "1"),
    ],
)
def test_field_rejects_invalid_input(schema: dict[str, Any], typed: str, why: str) -> None:
    """In words, for the user to type it again."""
    with pytest.raises(ConfigurationError, match=why) as refused:
        FormField("key", schema, required=True).convert(typed)
    assert "(root)" not in str(refused.value)
