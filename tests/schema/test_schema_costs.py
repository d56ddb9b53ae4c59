"""Checks and explanations that are expensive are bounded in advance."""

import math
import random
from collections.abc import Callable
from itertools import chain, count, repeat
from typing import Any

import msgspec
import pytest

from genmcp._schema.bounds import Matching, max_length
from genmcp._schema.explain import Explainer
from genmcp._schema.limits import SchemaLimits, excess
from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

INTEGER = {"type": "integer"}
N = {"n": INTEGER}
ONE_OF_MANY = {f"k{n}": "x" if n == 70_000 else n for n in range(100_000)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            {"properties": {"k1": True}, "additionalProperties": INTEGER},
            '/k70000: expected an integer, got the string "x"',
        ),
        (
            {"properties": {"a": {"additionalProperties": {"$ref": "#/$defs/n"}}}, "$defs": N},
            '/a/k70000: expected an integer, got the string "x"',
        ),
        (
            {"patternProperties": {"^a": False, "^k": INTEGER}},
            "(root): an object with 100000 properties does not fit the schema",
        ),
        (
            {"propertyNames": {"not": {"const": "k70000"}}},
            "(root): an object with 100000 properties does not fit the schema",
        ),
    ],
)
def test_fault_in_large_value_is_narrowed(document: dict[str, Any], words: str) -> None:
    """If a walk takes too long, the value is narrowed by `properties`, `items` and the like."""
    value = {"a": ONE_OF_MANY} if words.startswith("/a") else ONE_OF_MANY

    assert Schema(document, limits=SchemaLimits(explanation_time=0.05)).check(value) == (words,)


def explained(schema: Schema, value: Any) -> list[str]:
    """The faults of *value* where the search may take as long as it wants."""
    explainer = Explainer(schema.parts, schema._compile, SchemaLimits(explanation_time=math.inf))
    return [] if not schema.check(value) else [*explainer.explain(value)]


def test_an_explanation_ends_when_its_time_has_run_out() -> None:
    """The answer names the place that is known by then."""
    schema = Schema({"properties": {"a": {"items": INTEGER}, "b": {"uniqueItems": True}}})
    value = {"a": ["x", "y"], "b": [1, 2, 1]}
    spent: Callable[[], float] = map(float, count()).__next__

    faults = Explainer(schema.parts, schema._compile, SchemaLimits(), clock=spent).explain(value)

    assert faults == ("/a: an array of 2 items does not fit the schema",)


def test_one_pause_does_not_end_an_explanation() -> None:
    """The thread may have been busy with something else, once."""
    schema = Schema({"properties": {"a": INTEGER}})
    clock = chain([0.0], repeat(60.0))

    faults = Explainer(schema.parts, schema._compile, SchemaLimits(), clock=clock.__next__).explain(
        {"a": "x"}
    )

    assert faults == ('/a: expected an integer, got the string "x"',)


@pytest.mark.parametrize("seconds", range(1, 16))
def test_an_explanation_that_ends_early_says_nothing_wrong(seconds: int) -> None:
    """At any time limit, the faults found are part of those of a longer search, or general."""
    schema = Schema(
        {
            "oneOf": [{"minProperties": 1}, {"maxProperties": 5}, {"required": ["z"]}],
            "not": {"required": ["a"]},
            "patternProperties": {"^a": {"items": {"uniqueItems": True}}},
            "properties": {"b": {"contains": INTEGER, "maxContains": 1}},
        }
    )
    value = {"a": [[1, 2, 1]], "b": [1, 1]}
    clock = chain([0.0] * seconds, map(float, count(1)))

    whole = explained(schema, value)
    early = Explainer(schema.parts, schema._compile, SchemaLimits(), clock=clock.__next__).explain(
        value
    )

    assert len(whole) == 4
    assert all(each in whole or "does not fit" in each or "are equal" in each for each in early)


def test_missing_property_is_reported_without_copying_the_value() -> None:
    """Thousands of missing ones end the search, as any other faults do."""
    names = [f"r{n}" for n in range(5_000)]
    schema = Schema({"required": names, "dependentRequired": {"k0": names, "k1": names}})

    assert schema.check(ONE_OF_MANY)[-1] == "... and 80 or more others"


def test_a_long_text_is_not_read_for_its_format_or_pattern() -> None:
    """A format that is slow to judge has the bound that patterns have."""
    schema = Schema({"format": "idn-hostname"}, limits=SchemaLimits(matched=10))

    assert schema.check("é" * 11) == ("(root): expected at most 10 characters, got 11",)
    assert not Schema(
        {"format": "idn-hostname"}, formats=False, limits=SchemaLimits(matched=10)
    ).check("é" * 11)
    assert not Schema({"format": "uri"}, limits=SchemaLimits(matched=10)).check("a:" + "a" * 20)


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ({"items": INTEGER}, 200_000),
        ({"items": {"anyOf": [INTEGER, {"type": "null"}]}}, 133_333),
        ({"items": {"multipleOf": 0.01}}, 10_810),
        ({"items": {"multipleOf": 5}}, 50_000),
        ({"properties": {"a": {"multipleOf": 0.01}}}, 200_000),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"format": "email"}}}, 66_666),
        ({"items": {"allOf": [{"const": 1}] * 500}}, 2_000),
        ({"properties": {"a": {"$ref": "#"}, "b": {"multipleOf": 0.5}}}, 10_810),
        ({"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}, "format": "email"}, 66_666),
    ],
)
def test_number_of_values_is_bounded_by_the_cost_of_each(
    document: dict[str, Any], most: int
) -> None:
    """A keyword applied once has no such bound; one applied to every value has."""
    schema = Schema(document)

    assert excess([1] * most, None, schema._limits) is None
    assert f"at most {most} items" in str(excess([1] * (most + 1), None, schema._limits))


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (r"^[A-Z]{2}\d{6}$", float("inf")),
        (r"^.{1,4000}$", float("inf")),
        (r"^[\p{L} ]{1,100}$", float("inf")),
        (r"(?=a)", float("inf")),
        (r"[ab]*a[ab]{14}c", 2**16),
        (r"^[a-z]{1,64}@[a-z]{1,255}\.[a-z]{2,24}$", 2**11),
        (r"a.{1,1000}c", 0),
        (r"(.{0,50}a.{0,50}){20}c", 0),
    ],
)
def test_how_long_a_text_may_be_follows_from_its_pattern(pattern: str, length: float) -> None:
    """The larger a pattern when it is written out, the shorter the text, unless it is one class."""
    assert length == max_length(pattern)


@pytest.mark.parametrize(
    "document", [{"items": {"pattern": "a.{1,1000}c"}}, {"patternProperties": {"a.{1,1000}c": {}}}]
)
def test_a_pattern_that_is_too_large_is_refused(document: dict[str, Any]) -> None:
    """The message names the alternative."""
    with pytest.raises(ConfigurationError, match=r"'a\.\{1,1000\}c' is too large: .* maxLength"):
        Schema(document)


def test_a_text_for_a_large_pattern_is_bounded() -> None:
    """One text, and one that a `not` asks about."""
    pattern = {"pattern": r"[ab]*a[ab]{300}c"}

    assert Schema(pattern).check("a" * 5_000) == (
        "(root): expected at most 4096 characters, got 5000",
    )
    assert Schema({"not": pattern}).check("a" * 5_000) == (
        "(root): expected text of at most 4096 characters, got 5000",
    )


def slow_texts() -> dict[str, Any]:
    """Texts on which `[ab]*a[ab]{14}c` cannot run as an automaton."""
    letters = random.Random(1)
    return {"texts": ["".join(letters.choices("ab", k=1_000)) for _ in range(200)]}


def test_many_texts_for_one_pattern_are_matched_until_timeout() -> None:
    """The search ends with its time, and the fault states it."""
    value = slow_texts()
    asked = 0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return asked * 0.004

    words = Matching([r"[ab]*a[ab]{14}c"], 65_536, clock).excess(value, b" " * 70_000)

    assert "takes too long to match" in str(words)
    assert asked == 6


def test_many_texts_that_are_matched_fast_are_taken() -> None:
    """They are tried only where their length leaves the question open, or is not known."""
    value = slow_texts()

    def no_clock() -> float:
        raise AssertionError("nothing is to be tried")

    matching = Matching([r"[ab]*a[ab]{14}c"], 65_536, no_clock)
    assert matching.excess(value, b" " * 60_000) is None
    assert Matching(["^a+$"], 65_536, no_clock).excess(value, None) is None
    assert Matching([r"[ab]*a[ab]{14}c"], 65_536, lambda: 0.0).excess(value, None) is None


def test_schema_tries_patterns_that_apply_to_many_texts() -> None:
    """A pattern for one property alone is bounded by the length of that."""
    pattern = {"pattern": r"[ab]*a[ab]{14}c"}
    many = Schema({"properties": {"texts": {"items": pattern}}})
    one = Schema({"properties": {"id": pattern}})
    named = Schema({"patternProperties": {r"[ab]*a[ab]{14}c": INTEGER}})

    assert [each._matching._room for each in (many, one, named)] == [2**16, float("inf"), 2**16]
    many._matching = Matching([r"[ab]*a[ab]{14}c"], 65_536, map(float, count()).__next__)
    value = slow_texts()
    assert many.check(value, msgspec.json.encode(value)) == (
        "(root): takes too long to match against the patterns of the schema; send less",
    )


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"a": list(range(100_000))}, True),
        ({"a": [1] * 60_000, "b": [1] * 60_000, "c": {"d": [1] * 60_000}}, True),
        ({"a": [1] * 60_000, "b": [1] * 60_000, "c": {"d": [1] * 80_001}}, False),
        ([{"a": 1}] * 100_000, True),
        ([{"a": 1}] * 100_001, False),
        (["[{,"] * 60_000, True),
        ({"a": "[" * 300_000}, True),
        ("[," * 300_000, True),
        ([[[]] * 50] * 3_000, True),
    ],
)
def test_a_long_value_is_counted_right(value: Any, fits: bool) -> None:
    """Its JSON text only shows where to look; brackets and commas in texts are not items."""
    faults = Schema({}).check(value, msgspec.json.encode(value))

    assert fits is not bool(faults)


def test_a_long_text_that_is_hardly_a_value_is_taken() -> None:
    """Blanks count for nothing."""
    assert not Schema({}).check(1, b" " * 300_000 + b"1")
