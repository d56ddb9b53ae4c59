"""Arguments on a command line: read as the tool's schema wants."""

from typing import Any

import pytest

from genmcp.cli.values import check_arguments, convert_arguments, unknown_keys
from genmcp.errors import ConfigurationError

DEEP = "[" * 100_000  # deeper than the interpreter's limit
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"type": ["number", "null"]},
        "color": {"enum": ["red"]},
        "size": {"$ref": "#/$defs/Size"},
        "sizes": {"type": "array", "items": {"$ref": "#/$defs/Size"}},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "fixed": {"const": "7"},
        "sure": {"type": "boolean"},
        "round": {"$ref": "#/properties/round"},
        "elsewhere": {"$ref": "https://a.example/schema"},
        "any": True,
        "parts": {"type": "array", "items": {"type": "object"}},
        "pairs": {"type": "array", "items": {"type": "array"}},
    },
    "$defs": {"Size": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text=1", "1"),
        ("text=a=b", "a=b"),
        ("count=1", 1),
        ("maybe=null", "null"),
        ("number=null", None),
        ("color=red", "red"),
        ("size=4", 4),
        ("sizes=4,5", [4, 5]),
        ("sizes=[6]", [6]),
        ("tags=a, b", ["a", "b"]),
        ("tags=", []),
        ("parts=", []),
        ('parts=[{"a": 1}]', [{"a": 1}]),
        ('tags=["a,b"]', ["a,b"]),
        ("fixed=7", "7"),
        ("sure=true", True),
        ("sure=Yes", True),
        ("sure=1", True),
        ("sure=NO", False),
        ("round=1", 1),
        ("elsewhere=1", 1),
        ("any=[1]", [1]),
        ("any=word", "word"),
        ("unknown=true", True),
        ("text:=5", 5),
        (f"any={DEEP}", DEEP),
    ],
)
def test_arguments_are_read_as_their_schema_wants(given: str, expected: Any) -> None:
    """Text as it stands, lists at their commas, yes and no, anything else as JSON."""
    ((_, value),) = convert_arguments(SCHEMA, [given]).items()

    assert expected == value
    assert type(expected) is type(value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["text:=x"], "text: 'x' is not JSON"),
        ([f"text:={DEEP}"], r"text: '\[.*' is not JSON"),
        ([f"pairs={DEEP}"], r"pairs: '\[.*' is not array"),
        (["count=x"], "count: 'x' is not a whole number"),
        (["sure=maybe"], "sure: 'maybe' is not yes or no"),
        (["sizes=4,x"], "sizes: 'x' is not a whole number"),
        (["parts=a"], r"parts: the value must be JSON, such as parts=\[{\.\.\.}\]"),
        (["pairs=1,2"], r"pairs: the value must be JSON, such as pairs=\[\[\.\.\.\]\]"),
        (["count"], "'count' is not key=value"),
        (["=1"], "'=1' is not key=value"),
        (["count=1", "count=2"], "count is given twice"),
        (["count=1", "count:=2"], "count is given twice"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: list[str], why: str) -> None:
    """Naming the key."""
    with pytest.raises(ConfigurationError, match=why):
        convert_arguments(SCHEMA, given)


def test_arguments_are_checked_before_they_are_sent() -> None:
    """As far as the schema can be understood here; the server has the last word."""
    properties = {"text": {"type": "string"}, "count": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["count"]}
    with pytest.raises(ConfigurationError, match=r'^missing required property "count"$'):
        check_arguments(schema, {})
    with pytest.raises(ConfigurationError, match=r"^text: "):
        check_arguments(schema, {"count": 1, "text": 2})
    check_arguments(SCHEMA, {"text": 2})  # it refers to a remote schema, which is not fetched

    assert unknown_keys(SCHEMA, {"cuont": 1, "count": 1}) == ["cuont"]
    assert not unknown_keys({"type": "object"}, {"a": 1})
    assert not unknown_keys({**SCHEMA, "additionalProperties": {"type": "string"}}, {"a": "b"})
