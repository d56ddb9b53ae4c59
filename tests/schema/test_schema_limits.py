"""Bounds on values, judged before a schema is applied."""

from typing import Any

import msgspec
import pytest

from genmcp._schema.limits import SchemaLimits
from genmcp._schema.schema import Schema


def nested(levels: int) -> Any:
    """An array in an array, so many levels deep."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("with_text", [False, True])
@pytest.mark.parametrize(
    ("limits", "fitting", "excessive", "words"),
    [
        (SchemaLimits(depth=3), nested(3), nested(4), "expected at most 3 levels of nesting"),
        (SchemaLimits(depth=40), nested(40), nested(41), "expected at most 40 levels of nesting"),
        (
            SchemaLimits(values=4),
            {"a": [1, 2], "b": 3},
            {"a": [1, 2, 3], "b": 3},
            "expected at most 4 items and properties in all",
        ),
        (SchemaLimits(text=3), ["abc"], ["abcd"], "text of at most 3 characters, got 4"),
        (SchemaLimits(text=3), {"abc": 1}, {"abcd": 1}, "text of at most 3 characters, got 4"),
    ],
)
def test_a_value_past_a_limit_has_one_fault(
    limits: SchemaLimits, fitting: Any, excessive: Any, words: str, with_text: bool
) -> None:
    """Depth, count and length are bounded, with the JSON text at hand or without."""
    schema = Schema({}, limits=limits)

    def check(value: Any) -> list[str]:
        return list(schema.check(value, msgspec.json.encode(value) if with_text else None))

    assert not check(fitting)
    (fault,) = check(excessive)
    assert words in fault


def test_commas_in_text_are_not_items() -> None:
    """The text only bounds the count; the value decides."""
    value = {"text": "," * 100}

    assert not Schema({}, limits=SchemaLimits(values=5)).check(value, msgspec.json.encode(value))


def test_many_items_within_the_limit_are_taken_by_their_text() -> None:
    """Where the text shows that nothing is past a limit, the value is not walked."""
    value = list(range(100))

    assert not Schema({}, limits=SchemaLimits(values=150)).check(value, msgspec.json.encode(value))


def test_text_for_a_pattern_is_bounded() -> None:
    """A pattern is not run over text longer than `matched`; other text may be longer."""
    schema = Schema(
        {"properties": {"a": {"pattern": "^a"}, "b": {"pattern": "b", "maxLength": 1}, "c": {}}},
        limits=SchemaLimits(matched=4),
    )

    assert not schema.check({"a": "aaaa", "c": "ccccc"})
    assert list(schema.check({"a": "aaaaa", "b": "bb"})) == [
        "/a: expected at most 4 characters, got 5",
        "/b: expected at most 1 character, got 2",
    ]


def test_an_array_of_unique_items_is_bounded() -> None:
    """`uniqueItems` is not applied to more items than `compared`; other arrays may be longer."""
    schema = Schema(
        {"properties": {"a": {"uniqueItems": True}, "b": {"uniqueItems": False}}},
        limits=SchemaLimits(compared=2),
    )

    assert not schema.check({"a": [1, 2], "b": [1, 2, 3]})
    assert list(schema.check({"a": [1, 2, 3]})) == ["/a: expected at most 2 items, got 3"]


@pytest.mark.parametrize(
    ("document", "value", "words"),
    [
        ({"not": {"pattern": "x"}}, "aaaaax", "text of at most 4 characters"),
        ({"patternProperties": {"x": False}}, {"aaaaax": 1}, "text of at most 4 characters"),
        ({"not": {"uniqueItems": True}}, [1, 2, 3], "at most 2 items and properties"),
    ],
)
def test_a_bound_never_lets_a_forbidden_value_through(
    document: dict[str, Any], value: Any, words: str
) -> None:
    """Where a part that does not fit may make the whole fit, the whole value is bounded."""
    schema = Schema(document, limits=SchemaLimits(matched=4, compared=2))
    (fault,) = schema.check(value)

    assert words in fault


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(x+x+)+y", r"^(\w+\s?)*$"])
def test_a_pattern_takes_linear_time(pattern: str) -> None:
    """Patterns that never end with backtracking end at once, and so does the explanation."""
    schema = Schema({"pattern": pattern})

    assert "expected text that matches" in schema.check("a" * 30_000 + "!")[0]
