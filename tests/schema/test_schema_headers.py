"""2026-07-28, Streamable HTTP, "Custom Headers from Tool Parameters"."""

from typing import Any

import pytest

from genmcp._schema.document import Document
from genmcp._schema.limits import DEFAULT_LIMITS
from genmcp.errors import ConfigurationError
from genmcp.wire.param_headers import HeaderRule, header_rules

REGION = {"type": "string", "x-mcp-header": "Region"}


def rules(document: dict[str, Any]) -> tuple[HeaderRule, ...]:
    """Return the rules of a schema."""
    parts = Document(document, "input_schema", DEFAULT_LIMITS)
    return header_rules(parts.schemas, parts.refuse)


def test_annotated_property_has_a_header_rule() -> None:
    """The name of the header is in lower case; the path has the names of the properties."""
    document = {
        "properties": {
            "region": REGION,
            "a/b": {"properties": {"items": {"type": "integer", "x-mcp-header": "N"}}},
            "x-mcp-header": {"type": "boolean"},
        }
    }

    assert set(rules(document)) == {
        HeaderRule(b"mcp-param-region", ("region",), "string"),
        HeaderRule(b"mcp-param-n", ("a/b", "items"), "integer"),
    }


def test_schema_without_annotations_has_no_rules() -> None:
    """Annotations in data are not annotations."""
    assert rules({"const": {"x-mcp-header": "A"}, "items": True}) == ()


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "ä", "a:b", 5, None])
def test_invalid_header_name_is_rejected(name: Any) -> None:
    """Names are RFC 9110 tokens: not empty, no spaces, controls or separators."""
    with pytest.raises(ConfigurationError, match=r"at /properties/a: .* is not a header name"):
        rules({"properties": {"a": {"type": "string", "x-mcp-header": name}}})


def test_header_names_are_compared_without_case() -> None:
    """The names of headers are the same in upper and lower case."""
    with pytest.raises(ConfigurationError, match="duplicate x-mcp-header"):
        rules({"properties": {"a": REGION, "b": {"type": "string", "x-mcp-header": "REGION"}}})


@pytest.mark.parametrize("type_", ["number", "object", "array", "null", ["string"], None])
def test_header_of_another_type_is_rejected(type_: Any) -> None:
    """An integer, a string or a boolean can be repeated in a header, not a number."""
    schema = {"x-mcp-header": "A"} | ({"type": type_} if type_ else {})

    with pytest.raises(ConfigurationError, match="needs the type integer, string or boolean"):
        rules({"properties": {"a": schema}})


@pytest.mark.parametrize(
    "document",
    [
        REGION,
        {"items": REGION},
        {"properties": {"a": {"items": REGION}}},
        {"prefixItems": [REGION]},
        {"anyOf": [{"properties": {"a": REGION}}]},
        {"properties": {"a": {"oneOf": [REGION]}}},
        {"allOf": [{"properties": {"a": REGION}}]},
        {"not": {"properties": {"a": REGION}}},
        {"if": {"properties": {"a": REGION}}},
        {"then": {"properties": {"a": REGION}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": REGION}},
        {"properties": {"a": {"$ref": "#/x-mine"}}, "x-mine": REGION},
        {"additionalProperties": REGION},
        {"patternProperties": {"a": REGION}},
    ],
)
def test_annotation_at_another_place_is_rejected(document: dict[str, Any]) -> None:
    """It is reached from the root through `properties` only."""
    with pytest.raises(ConfigurationError, match="may only be on a property that is reached"):
        rules(document)
