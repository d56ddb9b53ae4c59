"""An explanation ends when its time is used up, with the faults that were found."""

import re
from collections.abc import Callable
from itertools import chain, count
from typing import Any

import pytest

from genmcp._schema.schema import Schema

INTEGER = {"type": "integer"}
ONE_OF_MANY = {f"k{n}": "x" if n == 70_000 else n for n in range(100_000)}
TREE = {
    "type": "object",
    "anyOf": [
        {"required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"required": ["a"], "properties": {"a": {"$ref": "#"}}, "minProperties": 1},
    ],
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], float]], None]:
    """Return a function that replaces the clock of explanations, from their first step on."""

    def replace(now: Callable[[], float]) -> None:
        monkeypatch.setattr("genmcp._schema.explain.thread_time", now)
        monkeypatch.setattr("genmcp._schema.explain._SURE_STEPS", 0)

    return replace


@pytest.mark.parametrize(
    ("document", "value", "words"),
    [
        (
            {"items": INTEGER},
            [*ONE_OF_MANY.values()],
            '/70000: expected an integer, got the string "x"',
        ),
        (
            {"prefixItems": [INTEGER], "items": {"$ref": "#/$defs/n"}, "$defs": {"n": INTEGER}},
            [*ONE_OF_MANY.values()],
            '/70000: expected an integer, got the string "x"',
        ),
        (
            {"properties": {"k1": True}, "additionalProperties": INTEGER},
            ONE_OF_MANY,
            '/k70000: expected an integer, got the string "x"',
        ),
        (
            {"properties": {"a": {"anyOf": [{"additionalProperties": INTEGER}]}}},
            {"a": ONE_OF_MANY},
            '/a/k70000: expected an integer, got the string "x"',
        ),
    ],
)
def test_fault_in_a_large_value_is_found(
    document: dict[str, Any], value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many items or properties with the same schema are checked at once."""
    # More than is needed, also on a slow machine, and less than for one item after the other.
    monkeypatch.setattr("genmcp._schema.explain.SECONDS", 0.1)

    assert Schema(document).check(value) == (words,)


def test_explanation_without_time_is_general(clock: Any) -> None:
    """It has the value, not the fault."""
    clock(count().__next__)
    schema = Schema({"properties": {"a": {"items": INTEGER}, "b": {"uniqueItems": True}}})

    assert schema.check({"a": ["x", "y"], "b": [1, 2, 1]}) == (
        "(root): an object with 2 properties does not fit the schema",
    )


def test_short_explanation_is_specific_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection of garbage may have used up the time, in a process with many objects."""
    monkeypatch.setattr("genmcp._schema.explain.thread_time", count().__next__)
    schema = Schema({"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]})

    assert schema.check({"a": "x"}) == (
        '(root): missing required property "b"',
        '/a: expected an integer, got the string "x"',
    )


@pytest.mark.parametrize("steps", range(1, 16))
def test_explanation_that_ends_early_is_correct(steps: int, clock: Any) -> None:
    """At any time limit, the faults are some of those of a longer search, or general."""
    schema = Schema(
        {
            "oneOf": [{"minProperties": 1}, {"maxProperties": 5}, {"required": ["z"]}],
            "not": {"required": ["a"]},
            "patternProperties": {"^a": {"items": {"uniqueItems": True}}},
            "properties": {"b": {"contains": INTEGER, "maxContains": 1}},
        }
    )
    value = {"a": [[1, 2, 1]], "b": [1, 1]}

    clock(lambda: 0.0)
    whole = schema.check(value)
    clock(chain([0.0] * steps, count(1)).__next__)
    early = schema.check(value)

    assert len(whole) == 4
    assert all(each in whole or "does not fit" in each for each in early)


def test_recursive_alternatives_keep_an_explanation_short() -> None:
    """A search that would double at every level of a value ends, with a general sentence."""
    value: Any = "s"
    for _ in range(40):
        value = {"a": value}

    assert list(Schema(TREE).check(value)) == [
        "(root): an object with 1 property does not fit the schema"
    ]


def test_fault_below_recursive_alternatives_is_found() -> None:
    """Recursion alone does not make faults general."""
    assert "expected an object" in Schema(TREE).check({"a": "s"})[0]


def test_explanation_ends_after_enough_faults() -> None:
    """After a hundred faults, the last line states that there may be more."""
    schema = Schema(
        {"items": INTEGER, "additionalProperties": INTEGER, "propertyNames": {"const": 1}}
    )
    named = Schema({"patternProperties": {"^k": INTEGER}})

    assert schema.check(["x"] * 10_000)[-1] == "... and 80 or more others"
    assert "or more others" in schema.check({f"k{n}": "x" for n in range(5_000)})[-1]
    assert "or more others" in named.check({f"k{n}": "x" for n in range(5_000)})[-1]


def test_many_missing_properties_end_an_explanation() -> None:
    """Thousands of missing ones end the search, as any other faults do."""
    names = [f"r{n}" for n in range(5_000)]
    schema = Schema({"required": names, "dependentRequired": {"k0": names, "k1": names}})

    assert schema.check(ONE_OF_MANY)[-1] == "... and 80 or more others"


@pytest.mark.parametrize(
    "document",
    [
        {"properties": {"a": {}}, "additionalProperties": False},
        {"required": [f"r{number}" for number in range(1_000)]},
    ],
)
def test_explanation_ends_amid_the_faults_of_a_keyword(
    document: dict[str, Any], clock: Any
) -> None:
    """Also a single keyword with many faults looks at the time."""
    schema = Schema(document)
    value = {f"k{number}": number for number in range(1_000)}

    clock(chain([0.0] * 30, count(1)).__next__)

    assert re.fullmatch(r"\.\.\. and \d or more others", schema.check(value)[-1])


def test_unevaluated_properties_of_a_large_value_are_not_named() -> None:
    """To name them, jsonschema-rs copies the whole value."""
    schema = Schema({"properties": {"a": {}}, "unevaluatedProperties": False})

    assert schema.check({"a": [1] * 4_000, "b": 1}) == ("/b: unexpected property",)
    assert schema.check({"a": [1] * 6_000, "b": 1}) == (
        "(root): an object with 2 properties does not fit the schema",
    )


def test_explanation_ends_with_the_time_of_patterns() -> None:
    """The walk matches no more than the check itself."""
    large = "[ab]*a[ab]{100}c"
    schema = Schema({"properties": {"a": {"pattern": large}, "b": {"not": {"pattern": large}}}})
    value = {"a": "b", "b": "a" * 20_000}

    assert schema.check(value) == (
        '/a: expected text that matches the pattern [ab]*a[ab]{100}c, got the string "b"',
    )
