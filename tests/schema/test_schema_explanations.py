"""Why a value does not fit a schema."""

from typing import Any

import pytest

from genmcp._schema.schema import Schema
from genmcp._schema.words import mismatch

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NONE_OF_2 = "(root): fits none of 2 alternatives"
TREE = {
    "type": "object",
    "anyOf": [
        {"required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"required": ["a"], "properties": {"a": {"$ref": "#"}}, "minProperties": 1},
    ],
}

CASES: list[tuple[dict[str, Any], Any, list[str]]] = [
    (INTEGER, "ten", ['(root): expected an integer, got the string "ten"']),
    (
        {"type": ["string", "null"]},
        True,
        ["(root): expected null or a string, got the boolean true"],
    ),
    (STRING, None, ["(root): expected a string, got null"]),
    (STRING, [1], ["(root): expected a string, got an array of 1 item"]),
    (STRING, {}, ["(root): expected a string, got an object with 0 properties"]),
    ({"enum": ["C", 1]}, "K", ['(root): expected "C" or 1; got the string "K"']),
    ({"const": {"x": 1}}, 1.5, ['(root): expected {"x":1}, got the number 1.5']),
    ({"minimum": 3}, 1, ["(root): expected a number of at least 3, got the number 1"]),
    ({"maximum": 3}, 4, ["(root): expected a number of at most 3, got the number 4"]),
    ({"exclusiveMinimum": 3}, 3, ["(root): expected a number greater than 3, got the number 3"]),
    ({"exclusiveMaximum": 3}, 3, ["(root): expected a number less than 3, got the number 3"]),
    ({"multipleOf": 2}, 3, ["(root): expected a multiple of 2, got the number 3"]),
    ({"minLength": 1}, "", ["(root): expected at least 1 character, got 0"]),
    ({"maxLength": 2}, "abc", ["(root): expected at most 2 characters, got 3"]),
    (
        {"pattern": "^a+$"},
        "b",
        ['(root): expected text that matches the pattern ^a+$, got the string "b"'],
    ),
    (
        {"format": "date"},
        "today",
        ['(root): expected a date, such as 2026-07-28; got the string "today"'],
    ),
    ({"minItems": 1}, [], ["(root): expected at least 1 item, got 0"]),
    ({"maxItems": 1}, [1, 2], ["(root): expected at most 1 item, got 2"]),
    (
        {"uniqueItems": True},
        [{"a": 1, "b": 2}, 3, {"b": 2, "a": 1}],
        ["(root): expected items that all differ, but items 0 and 2 are equal"],
    ),
    (
        {"uniqueItems": True},
        [1, 1.0],
        ["(root): expected items that all differ, but items 0 and 1 are equal"],
    ),
    ({"minProperties": 1}, {}, ["(root): expected at least 1 property, got 0"]),
    ({"maxProperties": 0}, {"a": 1}, ["(root): expected at most 0 properties, got 1"]),
    ({"required": ["city"]}, {}, ['(root): missing required property "city"']),
    (
        {"dependentRequired": {"a": ["b"], "c": ["d"]}},
        {"a": 1},
        ['(root): missing property "b", required because "a" is present'],
    ),
    (
        {"dependentSchemas": {"a": {"required": ["b"]}}},
        {"a": 1},
        ['(root): missing required property "b"'],
    ),
    (
        {"properties": {"a": {"items": INTEGER}, "b": {}}},
        {"a": [1, "x"]},
        ['/a/1: expected an integer, got the string "x"'],
    ),
    ({"items": INTEGER}, [1, None], ["/1: expected an integer, got null"]),
    (
        {"prefixItems": [INTEGER], "items": STRING},
        ["x", 1],
        ['/0: expected an integer, got the string "x"', "/1: expected a string, got the number 1"],
    ),
    ({"prefixItems": [{}], "items": False}, [1, 2], ["(root): expected at most 1 item, got 2"]),
    ({"properties": {"a": False}}, {"a": 1}, ["/a: nothing is allowed here, got the number 1"]),
    (
        {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
        {"a": 1, "x": 1},
        ["/x: unexpected property; allowed are a, b"],
    ),
    (
        {"patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
        {"n_a": "x", "z/~": 1},
        [
            '/n_a: expected an integer, got the string "x"',
            "/z~1~0: unexpected property; allowed are names that match ^n_",
        ],
    ),
    ({"additionalProperties": False}, {"a": 1}, ["/a: unexpected property; none is allowed"]),
    ({"additionalProperties": STRING}, {"a": 1}, ["/a: expected a string, got the number 1"]),
    (
        {"propertyNames": {"maxLength": 2}},
        {"abc": 1},
        ["/abc: not allowed as a property name: expected at most 2 characters, got 3"],
    ),
    ({"contains": STRING}, [1], ["(root): expected at least 1 item, each a string"]),
    (
        {"contains": {"const": 1}, "maxContains": 1},
        [1, 1, 2],
        ["(root): expected at most 1 item, each 1"],
    ),
    (
        {"contains": {"const": 1}, "maxContains": 1, "anyOf": [{}], "maxItems": 1},
        [1, 2],
        ["(root): expected at most 1 item, got 2"],
    ),
    ({"allOf": [{"minimum": 3}]}, 1, ["(root): expected a number of at least 3, got the number 1"]),
    ({"anyOf": [STRING, INTEGER]}, None, ["(root): expected a string or an integer; got null"]),
    (
        {"anyOf": [{"items": STRING}, {"items": INTEGER}]},
        [None, True],
        [
            "/0: expected a string or an integer; got null",
            "/1: expected a string or an integer; got the boolean true",
        ],
    ),
    (
        {"oneOf": [{"const": 1, "title": "one"}, {"const": 2}]},
        3,
        ["(root): expected 1 or 2; got the number 3"],
    ),
    (
        {"anyOf": [{"type": "null"}, {"type": "object", "required": ["z"]}]},
        {},
        ['(root): missing required property "z"'],
    ),
    (
        {
            "oneOf": [
                {"properties": {"kind": {"const": "p"}, "n": INTEGER}, "required": ["n"]},
                {"properties": {"kind": {"const": "q"}, "m": INTEGER}, "required": ["m"]},
            ]
        },
        {"kind": "q"},
        ['(root): missing required property "m"'],
    ),
    (
        {
            "oneOf": [
                {"properties": {"kind": {"const": "p"}}, "required": ["n"]},
                {"properties": {"kind": {"const": "q"}}},
            ]
        },
        {"kind": "r"},
        ['/kind: expected "p" or "q"; got the string "r"'],
    ),
    (
        {"anyOf": [{"required": ["phone", "name"]}, {"required": ["email"]}]},
        {},
        [f'{NONE_OF_2}; nearest is number 2: (root): missing required property "email"'],
    ),
    (
        {"oneOf": [{"minimum": 1}, {"minimum": 2}, {"minimum": 9}]},
        5,
        ["(root): fits alternatives 1 and 2 at once, but must fit exactly one of them"],
    ),
    ({"not": STRING}, "s", ['(root): expected anything but a string, got the string "s"']),
    (
        {"not": {"enum": ["a", "b"]}},
        "a",
        ['(root): expected anything but one of "a", "b", got the string "a"'],
    ),
    (
        {"not": {"required": ["a"]}},
        {"a": 1},
        ['(root): expected anything but an object with "a", got an object with 1 property'],
    ),
    (
        {"not": {"format": "email"}},
        "a@example.com",
        ['(root): expected anything but an e-mail address, got the string "a@example.com"'],
    ),
    (
        {"not": {"minimum": 1}},
        2,
        ['(root): expected anything but what fits {"minimum":1}, got the number 2'],
    ),
    (
        {"if": STRING, "then": {"minLength": 5}, "else": {"minimum": 4}},
        "abc",
        ["(root): expected at least 5 characters, got 3"],
    ),
    (
        {"if": STRING, "then": {"minLength": 5}, "else": {"minimum": 4}},
        3,
        ["(root): expected a number of at least 4, got the number 3"],
    ),
    (
        {"items": {"if": STRING, "then": False}},
        [1, "s"],
        ['/1: nothing is allowed here, got the string "s"'],
    ),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        {"a": 1, "b": 2},
        ["/b: unexpected property"],
    ),
    ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2], ["(root): unexpected items: 2"]),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": STRING}},
        1,
        ["(root): expected a string, got the number 1"],
    ),
    (
        {"$dynamicAnchor": "node", "properties": {"a": {"$dynamicRef": "#node"}}, "type": "object"},
        {"a": 1},
        ["/a: expected an object, got the number 1"],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [STRING],
            "additionalItems": False,
        },
        ["a", 1],
        ["(root): expected at most 1 item, got 2"],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
        },
        {"a": 1, "c": 1},
        [
            '(root): missing property "b", required because "a" is present',
            '(root): missing required property "d"',
        ],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"$ref": "#/definitions/a", "minLength": 9}},
            "definitions": {"a": STRING},
        },
        {"a": 1},
        ["/a: expected a string, got the number 1"],
    ),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"},
        "{",
        ['(root): expected text encoded as base64, got the string "{"'],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "contentMediaType": "application/json",
        },
        "{",
        ['(root): expected text that holds application/json, got the string "{"'],
    ),
]


@pytest.fixture
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations take as long as they need: a slow machine changes none of them."""
    monkeypatch.setattr("genmcp._schema.explain.SECONDS", float("inf"))


@pytest.mark.usefixtures("_unhurried")
@pytest.mark.parametrize(("document", "value", "faults"), CASES)
def test_fault_has_place_expected_and_actual_value(
    document: dict[str, Any], value: Any, faults: list[str]
) -> None:
    """Each keyword has its own words, after a JSON Pointer."""
    assert faults == list(Schema(document).check(value))


def test_value_that_fits_has_no_faults() -> None:
    """The result is empty."""
    schema = Schema({"properties": {"a": INTEGER}, "if": {"required": ["b"]}})

    assert not schema.check({"a": 1})


def test_at_most_twenty_faults_are_listed() -> None:
    """The last line has the number of further faults."""
    faults = Schema({"items": INTEGER}).check(["x"] * 25)

    assert len(faults) == 21
    assert faults[-1] == "... and 5 more"


@pytest.mark.parametrize("more", [{}, {"unevaluatedProperties": False}])
def test_fault_without_a_keyword_is_general(more: dict[str, Any]) -> None:
    """The target of a dynamic reference depends on the path that leads to it."""
    schema = Schema(
        {
            "$id": "https://example.com/strict",
            "$ref": "list",
            "$defs": {
                "list": {
                    "$id": "list",
                    "items": {"$dynamicRef": "#item"},
                    "$defs": {"any": {"$dynamicAnchor": "item"}},
                },
                "strict": {"$dynamicAnchor": "item", "type": "string"},
            },
            **more,
        }
    )

    assert not schema.check(["a"])
    assert list(schema.check([1])) == ["(root): an array of 1 item does not fit the schema"]


def test_fault_of_an_unknown_keyword_names_it() -> None:
    """A new release of jsonschema-rs may apply more keywords."""
    assert mismatch("contains", False, []) == 'an array of 0 items does not satisfy "contains"'


def test_long_values_are_shortened_in_faults() -> None:
    """A fault does not repeat a long value, nor a long list of choices."""
    (long,) = Schema(INTEGER).check("x" * 1000)
    (choice,) = Schema({"enum": list(range(100))}).check("x")
    (big,) = Schema({"const": list(range(100))}).check("x")

    assert len(long) < 120
    assert '29 or 70 more; got the string "x"' in choice
    assert len(big) < 120


def test_unevaluated_items_are_shortened_in_faults() -> None:
    """Items are listed, but a long one is not repeated."""
    schema = Schema({"prefixItems": [{}], "unevaluatedItems": False})

    assert schema.check([1, "x", "y" * 100_000]) == (
        f'(root): unexpected items: "x", "{"y" * 59}…',
    )


def test_similar_name_is_suggested_for_the_first_few() -> None:
    """Names that are all wrong are no misspellings, and a comparison takes long."""
    schema = Schema({"properties": {"colour": {}}, "additionalProperties": False})

    faults = schema.check({f"colour{number}": 1 for number in range(10)})

    assert [number for number, each in enumerate(faults) if "did you mean" in each] == [*range(5)]
    assert all(each.endswith("allowed are colour") for each in faults)


def test_custom_formats_are_checked() -> None:
    """A checker rejects with False or ValueError; a standard format may be replaced."""

    def even(text: str) -> bool:
        return int(text) % 2 == 0

    schema = Schema(
        {"properties": {"a": {"format": "even"}, "b": {"format": "email"}, "c": {"format": "uri"}}},
        formats={"even": even, "uri": lambda text: True},
    )

    assert not schema.check({"a": "2", "c": "::"})
    assert list(schema.check({"a": "x", "b": "x"})) == [
        '/a: expected text in the format "even"; got the string "x"',
        '/b: expected an e-mail address; got the string "x"',
    ]
    assert schema.check({"a": "3"})


def test_formats_can_be_disabled() -> None:
    """With `formats=False` a format is an annotation; an unknown format always is."""
    assert not Schema({"format": "email"}, formats=False).check("x")
    assert not Schema({"format": "unheard-of"}).check("x")


def test_keywords_of_another_dialect_are_ignored() -> None:
    """Their values may have any shape: the meta-schema of the dialect does not check them."""
    schema = Schema(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "dependentRequired": ["a"],
        }
    )

    assert [*schema.check("x")] == ['(root): expected an object, got the string "x"']


def test_empty_alternatives_are_ignored() -> None:
    """The meta-schema does not check the value of an unknown keyword."""
    schema = Schema(
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema#",
            "type": "object",
            "prefixItems": [{"oneOf": []}],
        }
    )

    assert [*schema.check([1])][:1] == ["(root): expected an object, got an array of 1 item"]
