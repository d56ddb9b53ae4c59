"""A schema is accepted, or rejected with the place and the reason."""

from collections.abc import Callable
from typing import Any

import pytest

from genmcp._schema.limits import SchemaLimits
from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

DRAFT_7 = "http://json-schema.org/draft-07/schema#"

REJECTED: list[tuple[Any, str]] = [
    ([], "input_schema: a schema is a JSON object, not list"),
    ({"default": object()}, "input_schema: the schema cannot be written as JSON"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "at /$schema: the dialect"),
    ({"$schema": 5}, "supported are https://json-schema.org/draft/2020-12/schema, "),
    ({"items": {"$schema": "urn:x"}}, "at /items/$schema: the dialect 'urn:x' is not supported"),
    ({"not": {"$schema": DRAFT_7}}, "at /not/$schema: a part of a schema has the dialect of the"),
    ({"type": "strin"}, 'at /type: expected "array", "boolean"'),
    ({"properties": {"a": {"minLength": -1}}}, "at /properties/a/minLength: expected a number of"),
    ({"required": "a"}, 'at /required: expected an array, got the string "a"'),
    (
        {"properties": {"a": 7}},
        "at /properties/a: expected a boolean or an object, got the number 7",
    ),
    ({"maxLength": "x", "pattern": "a"}, "at /maxLength: expected an integer"),
    ({"$ref": "https://example.com/a.json"}, "at /$ref: 'https://example.com/a.json' is not part"),
    ({"items": {"$ref": "file:///etc/passwd"}}, "at /items/$ref: 'file:///etc/passwd' is not part"),
    ({"$ref": "other.json"}, "nothing is ever fetched"),
    ({"$ref": "#/$defs/a"}, "'#/$defs/a' leads nowhere: no schema is at that place"),
    ({"allOf": [{"$ref": "#/allOf/7"}]}, "'#/allOf/7' leads nowhere"),
    ({"type": "object", "items": {"$ref": "#/type/x"}}, "'#/type/x' leads nowhere"),
    ({"$ref": "#a"}, "'#a' leads nowhere: no such anchor"),
    ({"patternProperties": 5}, "at /patternProperties: expected an object, got the number 5"),
    ({"$id": "http://["}, "at (root): Invalid URI reference 'http://['"),
    ({"$ref": "#"}, "at (root): applies itself to the same value"),
    ({"oneOf": [{"$ref": "#/oneOf/0"}]}, "at /oneOf/0: applies itself to the same value"),
    ({"anyOf": [{}, {"$ref": "", "$id": "b"}]}, "at /anyOf/1: applies itself to the same value"),
    ({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, "applies itself to the same value"),
    ({"pattern": "(?=a)"}, "at /pattern: the pattern '(?=a)' is not one that can be run in linear"),
    ({"patternProperties": {"(a": {}}}, "at /patternProperties/(a: the pattern '(a'"),
    ({"properties": {"a": {"pattern": r"(a)\1"}}}, "look-around and back-references"),
    ({"type": ["string"] * 1_001}, "a list of more than 1000 names"),
    ({"dependencies": {"a": ["b"] * 1_001}}, "a list of more than 1000 names"),
    ({"$id": "u" * 513}, "at /$id: a URI of more than 512 characters"),
    ({"items": {"$anchor": "u" * 513}}, "at /items/$anchor: a URI of more than 512 characters"),
]


@pytest.mark.parametrize(("document", "words"), REJECTED)
def test_invalid_schema_is_rejected_with_its_place(document: Any, words: str) -> None:
    """2026-07-28, basic, "Schema Validation" and "$ref Resolution": at construction."""
    with pytest.raises(ConfigurationError) as caught:
        Schema(document)

    assert words in str(caught.value)


def test_error_of_a_schema_names_the_option() -> None:
    """The message begins with the origin of the schema."""
    with pytest.raises(ConfigurationError, match=r"^output_schema: at /type:"):
        Schema({"type": "x"}, origin="output_schema")


@pytest.mark.parametrize(
    "dialect",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema#",
        "http://json-schema.org/draft-07/schema",
        DRAFT_7,
    ],
)
def test_supported_dialect_is_applied(dialect: str) -> None:
    """2026-07-28, basic, "Schema Dialect": 2020-12, and two earlier by `$schema`."""
    assert Schema({"$schema": dialect, "type": "string"}).check(1)


def test_draft_7_has_its_own_keywords() -> None:
    """`items` may be a list, and keywords beside a `$ref` are ignored."""
    schema = Schema(
        {
            "$schema": DRAFT_7,
            "items": [{"type": "string"}],
            "properties": {"a": {"$ref": "#/definitions/n", "minimum": 5}},
            "definitions": {"n": {"type": "integer"}},
        }
    )

    assert not schema.check(["a", 1])
    assert not schema.check({"a": 1})


@pytest.mark.parametrize(
    "document",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "string"}}},
        {"$ref": "a", "$defs": {"x": {"$id": "a", "type": "string"}}},
        {
            "$id": "https://example.com/s",
            "$ref": "#/$defs/a~1b",
            "$defs": {"a/b": {"type": "string"}},
        },
        {"$id": "https://example.com/s", "$ref": "/s#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "string"}}},
        {"$ref": "#/x-parts/0", "x-parts": [{"$ref": "#/x-parts/1"}, {"type": "string"}]},
        {"$schema": DRAFT_7, "$ref": "#a", "definitions": {"x": {"$id": "#a", "type": "string"}}},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "type": "string",
            "items": {"$recursiveRef": "#"},
        },
    ],
)
def test_reference_within_the_schema_is_resolved(document: dict[str, Any]) -> None:
    """Pointers, anchors and embedded identifiers are local; faults of their targets are found."""
    schema = Schema(document)

    assert not schema.check("s")
    assert list(schema.check(1)) == ["(root): expected a string, got the number 1"]


def test_references_in_data_are_not_references() -> None:
    """The values of `const` and `default`, and a property named `$ref`, are no schemas."""
    Schema(
        {
            "const": {"$ref": "https://example.com"},
            "default": {"$ref": "#/nowhere"},
            "properties": {"$ref": {"type": "string"}},
        }
    )


def test_given_document_is_not_changed() -> None:
    """The listed schema is the given one, with its order."""
    document = {"pattern": "a", "type": "string", "$comment": "kept", "uniqueItems": True}
    schema = Schema(document)

    assert document is schema.document
    assert list(document) == ["pattern", "type", "$comment", "uniqueItems"]


def deep(levels: int) -> dict[str, Any]:
    """Return a schema with so many levels of subschemas below the root."""
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"items": document}
    return document


@pytest.mark.parametrize(
    ("document", "limits", "words"),
    [
        (deep(65), SchemaLimits(), "more than 64 levels of subschemas"),
        ({"allOf": [{}, {}, {}]}, SchemaLimits(subschemas=3), "more than 3 subschemas"),
        ({"enum": [1] * 20}, SchemaLimits(schema_size=150), "50 bytes and 21 items and properties"),
        ({"title": "x" * 200}, SchemaLimits(schema_size=150), "212 bytes and 1 items and properti"),
        ({"enum": [1e300] * 201}, SchemaLimits(), r"more than 200 numbers beyond 1e\+100"),
        (
            {"properties": {"x" * 50: {"properties": dict.fromkeys("abc", True)}}},
            SchemaLimits(schema_size=200),
            "JSON Pointers of its subschemas have more than 200 characters",
        ),
        (
            {"allOf": [{"pattern": "a" * 20}, {"pattern": "b" * 20}]},
            SchemaLimits(patterns=119),
            r"/pattern: more than 119 characters of patterns",
        ),
        (
            {"pattern": "(?i)[a-z]"},
            SchemaLimits(patterns=2_000),
            "more than 2000 characters of patterns",
        ),
        (
            {"pattern": "a{1000}b"},
            SchemaLimits(patterns=50),
            r"too large",
        ),
    ],
)
def test_schema_beyond_its_limits_is_rejected(
    document: dict[str, Any], limits: SchemaLimits, words: str
) -> None:
    """2026-07-28, basic, "Composition-Keyword Resource Use"."""
    with pytest.raises(ConfigurationError, match=words):
        Schema(document, limits=limits)


def test_schema_at_its_limits_is_accepted() -> None:
    """Equal patterns count once."""
    limits = SchemaLimits(subschemas=4, patterns=60, schema_size=200)

    Schema({"allOf": [{"pattern": "a" * 20}, {"pattern": "a" * 20}, deep(0)]}, limits=limits)
    Schema(deep(64))


def chain_of(step: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with 30 definitions, each of which applies the next one."""
    links = {f"n{n}": step({"$ref": f"#/$defs/n{n + 1}"}) for n in range(30)}
    return {"$defs": {**links, "n30": {"type": "string"}}, "$ref": "#/$defs/n0"}


@pytest.mark.parametrize(
    "step",
    [
        lambda link: {"allOf": [link, link]},
        lambda link: {"anyOf": [link, {"not": link}]},
        lambda link: {"properties": {"a": link}, "patternProperties": {"a": link}},
        lambda link: {"anyOf": [{"properties": {"a": link}}, {"properties": {"a": link}}]},
        lambda link: {"items": link, "contains": link},
        lambda link: {"items": link, "unevaluatedItems": link, "allOf": [{"contains": link}]},
        lambda link: {"allOf": [link], "unevaluatedProperties": False},
        lambda link: {"anyOf": [link], "unevaluatedItems": False},
    ],
)
def test_chain_of_references_that_doubles_is_rejected(step: Any) -> None:
    """Thirty definitions that each apply the next one twice would be a billion checks."""
    with pytest.raises(ConfigurationError, match="applies more than 10000 subschemas"):
        Schema(chain_of(step))


def test_loop_of_references_that_doubles_is_rejected() -> None:
    """jsonschema-rs applies only the reference that closes the loop once to each value."""
    document = chain_of(lambda link: {"properties": {"a": link}, "patternProperties": {"a": link}})
    document["$defs"]["n30"] = {"items": {"$ref": "#/$defs/n0"}}

    with pytest.raises(ConfigurationError, match="applies more than 10000 subschemas"):
        Schema(document)


@pytest.mark.parametrize(
    "step",
    [
        lambda link: {"properties": {"a": link, "b": link}},
        lambda link: {"properties": {"a": link}, "additionalProperties": link},
        lambda link: {"prefixItems": [link, link], "items": link},
    ],
)
def test_chain_of_references_to_different_parts_is_accepted(step: Any) -> None:
    """Each part of the value has one of them."""
    value: Any = 1
    for _ in range(30):
        value = {"a": value}

    schema = Schema(chain_of(step))

    assert not schema.check("x")
    assert "properties" not in schema.document["$defs"]["n0"] or schema.check(value)


def test_recursive_schema_is_applied_to_deep_values() -> None:
    """Each subschema that contains itself is applied once to each part."""
    tree = {"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}
    schema = Schema({"type": "object", "anyOf": [tree, {**tree, "minProperties": 1}]})
    value: Any = {}
    for _ in range(60):
        value = {"a": value}

    assert not schema.check(value)


def test_schema_that_nests_too_deeply_is_rejected() -> None:
    """It cannot be encoded as JSON."""
    document: dict[str, Any] = {}
    for _ in range(100_000):
        document = {"items": document}

    with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
        Schema(document)
