"""Limits on values, checked before or while a schema is applied."""

import random
from typing import Any

import msgspec
import pytest

from genmcp._schema.cost import cost_of
from genmcp._schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp._schema.metered import longest_text
from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

INTEGER = {"type": "integer"}
# Hostile text makes the engine keep a set of states for each character of it.
AMBIGUOUS = "[ab]*a[ab]{100}c"


def nested(levels: int) -> Any:
    """Return an array in an array, and so on."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def hostile_text(length: int) -> str:
    return "".join(random.Random(length).choices("ab", k=length))


@pytest.mark.parametrize("with_text", [False, True])
@pytest.mark.parametrize(
    ("document", "fitting", "excessive", "words"),
    [
        ({}, nested(64), nested(65), "expected at most 64 levels of nesting"),
        (
            {"contains": {"allOf": [{"multipleOf": 0.5}] * 240}},
            [1] * 120,
            [1] * 130,
            "expected at most 121 items and properties in all",
        ),
        (
            {},
            ["a" * 4_194_304],
            ["a" * 4_194_305],
            "text of at most 4194304 characters, got 4194305",
        ),
        ({}, [10**99] * 1_000, [10**101], "expected integers of at most 100 digits"),
        (
            {"uniqueItems": True},
            [2**60 + number for number in range(199)]
            + [2**60 + 1_000 * n for n in range(1, 9_000)],
            [2**60 + number for number in range(300)],
            "expected at most 200 integers that are equal as floats",
        ),
    ],
)
def test_excessive_value_has_one_fault(
    document: dict[str, Any], fitting: Any, excessive: Any, words: str, with_text: bool
) -> None:
    """Depth, count, length and digits are bounded, with the JSON text of the value or without."""
    schema = Schema(document)

    def check(value: Any) -> list[str]:
        return list(schema.check(value, msgspec.json.encode(value) if with_text else None))

    assert not check(fitting)
    (fault,) = check(excessive)
    assert words in fault


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"text": "," * 100}, True),
        ({"text": "[{" * 100}, True),
        (["1" * 200] * 50, True),
        ({"a": list(range(100_000))}, True),
        ({"a": [1] * 60_000, "b": [1] * 60_000, "c": {"d": [1] * 60_000}}, True),
        ({"a": [1] * 60_000, "b": [1] * 60_000, "c": {"d": [1] * 80_001}}, False),
        ([{"a": 1}] * 100_000, True),
        ([{"a": 1}] * 100_001, False),
        ("[," * 300_000, True),
        ([[[]] * 50] * 3_000, True),
        ((1, (2, 3)), True),
    ],
)
def test_size_of_a_value_is_counted_exactly(value: Any, fits: bool) -> None:
    """Brackets, commas and digits of its texts do not count."""
    faults = Schema({}).check(value, msgspec.json.encode(value))

    assert fits is not bool(faults)


def test_blanks_of_the_json_text_do_not_count() -> None:
    """A long JSON text may contain a small value."""
    assert not Schema({}).check(1, b" " * 300_000 + b"1")


@pytest.mark.parametrize(
    ("document", "most"),
    [
        ({"items": INTEGER}, 200_000),
        ({"items": {"anyOf": [INTEGER, {"type": "null"}]}}, 200_000),
        ({"items": {"anyOf": [INTEGER] * 98}}, 12_000),
        ({"items": {"multipleOf": 0.01}}, 28_571),
        ({"items": {"allOf": [{"const": 1}] * 500}}, 479),
        ({"items": {"enum": [1, 2, "a"]}}, 50_000),
        ({"items": {"enum": [[1], {}, "a"]}}, 120_000),
        ({"properties": {"a": {"$ref": "#"}, "b": {"multipleOf": 0.5}}}, 28_571),
        ({"items": {"$ref": "#"}}, 171_428),
        ({"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}}, 9_523),
    ],
)
def test_expensive_schema_takes_fewer_values(document: dict[str, Any], most: int) -> None:
    """The number follows from the subschemas that are applied to a value at each level."""
    schema = Schema(document)

    assert schema.check([1] * (most + 1)) == (
        f"(root): expected at most {most} items and properties in all, got more",
    )
    assert "items and properties" not in "".join(schema.check([1] * most))


@pytest.mark.parametrize(
    ("document", "cost"),
    [
        ({"properties": {f"p{n}": INTEGER for n in range(1_000)}}, 2),
        ({"patternProperties": {f"p{n}": INTEGER for n in range(1_000)}}, 1_001),
        ({"prefixItems": [INTEGER] * 500, "items": INTEGER, "contains": INTEGER}, 3),
        ({"dependentRequired": {"a": ["b"], "b": ["a"]}}, 3),
        ({"anyOf": [{"required": ["a"]}, True]}, 3),
        ({"anyOf": [INTEGER, INTEGER], "unevaluatedItems": False}, 10),
    ],
)
def test_cost_counts_the_subschemas_of_one_value(document: dict[str, Any], cost: int) -> None:
    """A property has one of the subschemas in `properties`, and all of `patternProperties`."""
    assert cost == cost_of(Schema(document).parts, SchemaLimits())


def alternatives(count: int, *, required: bool) -> dict[str, Any]:
    """Return the schema of a tree of so many kinds of nodes, which differ in a constant."""
    children = {"items": {"anyOf": [{"$ref": f"#/$defs/n{each}"} for each in range(count)]}}
    nodes = {
        f"n{each}": {
            "type": "object",
            "properties": {"children": children, "kind": {"const": f"n{each}"}},
            "required": ["kind"] if required else [],
        }
        for each in range(count)
    }
    return {"$defs": nodes, **children}


def test_alternatives_with_a_constant_count_as_one() -> None:
    """jsonschema-rs applies only the one that the property selects."""
    schema = Schema(alternatives(20, required=True), limits=FOREIGN_LIMITS)

    tree = [{"kind": "n3", "children": [{"kind": "n7"}] * 100}] * 40
    assert not schema.check(tree)
    assert schema.check([{"kind": "n3", "children": [{"kind": "n20"}]}])


def test_optional_constant_counts_in_trusted_schemas_only() -> None:
    """A value without the property is checked by all alternatives, at each level."""
    schema = alternatives(20, required=False)

    assert not Schema(schema).check([{"children": [{"kind": "n7"}] * 100}] * 40)
    with pytest.raises(ConfigurationError, match="a required property with a constant"):
        Schema(schema, limits=FOREIGN_LIMITS)


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (r"^[A-Z]{2}\d{6}$", float("inf")),
        (r"^.{1,4000}$", float("inf")),
        (r"^[\p{L} ]{1,100}$", float("inf")),
        (r"^[^/]*$", float("inf")),
        (r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", 2**16),
        (r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", 2**14),
        (r"^[a-z]{1,64}@[a-z]{1,255}\.[a-z]{2,24}$", 2**11),
        (r"[ab]*a[ab]{1000}c", 2**9),
        (r"a.{1,1000}c", None),
        (r"(.{0,50}a.{0,50}){20}c", None),
        (r"(?=a)", None),
        ("(", None),
    ],
)
def test_size_of_a_pattern_bounds_the_length_of_a_text(pattern: str, length: float | None) -> None:
    """Most patterns run as an automaton: those that are small, or repeat one class."""
    assert length == longest_text(pattern, 16 * SchemaLimits().patterns)


def test_pattern_of_another_server_is_smaller() -> None:
    """Large patterns take long to compile."""
    assert longest_text(r"[ab]*a[ab]{1000}c", 16 * SchemaLimits().patterns) is not None
    assert longest_text(r"[ab]*a[ab]{1000}c", 16 * FOREIGN_LIMITS.patterns) is None


@pytest.mark.parametrize(
    "document", [{"items": {"pattern": "a.{1,1000}c"}}, {"patternProperties": {"a.{1,1000}c": {}}}]
)
def test_pattern_that_is_too_large_is_rejected(document: dict[str, Any]) -> None:
    """The message names the alternative."""
    with pytest.raises(ConfigurationError, match=r"'a\.\{1,1000\}c' .* too large: .* maxLength"):
        Schema(document)


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ({"pattern": AMBIGUOUS}, "a" * 20_000),
        ({"not": {"pattern": AMBIGUOUS}}, "a" * 20_000),
        ({"items": {"not": {"pattern": AMBIGUOUS}}}, ["b", "a" * 20_000]),
        ({"propertyNames": {"not": {"pattern": AMBIGUOUS}}}, {"a" * 20_000: 1}),
    ],
)
def test_text_too_long_for_its_pattern_is_rejected(document: dict[str, Any], value: Any) -> None:
    """Also where a part that does not fit would make the whole value fit."""
    assert Schema(document).check(value) == (
        f"(root): expected text of at most 16384 characters for the pattern {AMBIGUOUS}, got 20000",
    )


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ({"items": {"not": {"pattern": AMBIGUOUS}}}, [hostile_text(n) for n in range(900, 999)]),
        (
            {"items": {"properties": {"a": {"contains": {"pattern": AMBIGUOUS}}}}},
            [{"a": [hostile_text(n) for n in range(900, 999)]}],
        ),
    ],
)
def test_texts_for_a_pattern_are_matched_until_timeout(
    document: dict[str, Any], value: Any
) -> None:
    """The patterns of a value have 10 ms in all; the next value has them again."""
    schema = Schema(document)

    assert schema.check(value) == (
        "(root): takes too long to check; send fewer or shorter texts, or fewer items",
    )
    assert not schema.check([])


def test_many_texts_that_match_fast_are_accepted() -> None:
    """A large pattern takes long on hostile text only."""
    uuid = {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
    schema = Schema({"items": uuid})

    assert not schema.check(["123e4567-e89b-12d3-a456-426614174000"] * 20_000)
    assert schema.check(["123e4567-e89b-12d3-a456-426614174000"] * 9 + ["x"])[0].startswith("/9: ")


def test_small_and_large_patterns_are_used_together() -> None:
    """Each is matched, and one after a text that took too long."""
    schema = Schema({"properties": {"a": {"pattern": AMBIGUOUS}, "b": {"pattern": "^b"}}})

    assert schema.check({"a": "a" * 20_000})
    assert not schema.check({"a": "a" * 101 + "c", "b": "b"})
    assert [fault[:3] for fault in schema.check({"a": "c", "b": "a"})] == ["/a:", "/b:"]


@pytest.mark.parametrize("patterns", [1, 2])
def test_names_for_large_patterns_are_short_in_all(patterns: int) -> None:
    """The patterns of names are applied without a callback, so each name costs its length."""
    named = {f"{AMBIGUOUS}{number}": False for number in range(patterns)}
    schema = Schema({"items": {"patternProperties": named}})
    most = 16_384 // patterns

    assert not schema.check([{"a" * (most - 2): 1, "bb": 1}])
    assert schema.check([{"a" * most: 1, "b": "x" * 20_000}]) == (
        f"(root): expected property names of at most {most} characters in all, got more",
    )


def test_items_that_must_differ_are_bounded() -> None:
    """Each of them may take as long as a hundred subschemas, and those alike are compared."""
    schema = Schema({"properties": {"a": {"uniqueItems": True}, "b": {"uniqueItems": False}}})
    several = Schema({"allOf": [{"uniqueItems": True, "title": f"{n}"} for n in range(10)]})

    assert not schema.check({"a": [*range(10_000)], "b": [1] * 1_000})
    assert schema.check({"a": [*range(20_000)]}) == (
        "(root): expected at most 11764 items and properties in all, got more",
    )
    assert schema.check({"a": [1, 2, 1]}) == (
        "/a: expected items that all differ, but items 0 and 2 are equal",
    )
    assert several.check([[2**70 + number] for number in range(100)]) == (
        "(root): expected at most 33 integers that are equal as floats",
    )


def test_numbers_of_an_enum_are_compared_until_timeout() -> None:
    """jsonschema-rs compares a large float with each of them."""
    schema = Schema({"items": {"enum": [*range(1_000), "x"]}})

    assert not schema.check([5, 999, "x"] * 5_000)
    assert not schema.check([5.0])
    assert [fault.partition(":")[0] for fault in schema.check([5, 1_000, 5.5, True])] == [
        "/1",
        "/2",
        "/3",
    ]
    assert "expected 0, 1, 2" in schema.check([10**99])[0]
    assert schema.check({"a": 1}) == ()
    assert Schema({"items": {"not": {"enum": [*range(1_000)]}}}).check([1e300, 10**90] * 100) == (
        "(root): takes too long to check; send fewer or shorter texts, or fewer items",
    )


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(x+x+)+y", r"^(\w+\s?)*$"])
def test_pattern_takes_linear_time(pattern: str) -> None:
    """Patterns that never end with backtracking end at once, and so does the explanation."""
    schema = Schema({"pattern": pattern})

    assert "expected text that matches" in schema.check("a" * 10_000 + "!")[0]
