"""Commands list and call tools with malformed or recursive schemas."""

from typing import Any

import pytest

from genmcp.cli.lists import argument_rows, describe_tool
from genmcp.cli.values import check_arguments, choices_of, convert_arguments, types_of
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import ToolDefinition
from tests.support.hostile_schemas import hostile_schema

LOOPS: list[Any] = [
    {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 100}}},
    {"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/a"}}}},
    {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 50}}, "$defs": {"b": {"$ref": "#"}}},
]
ODD: list[Any] = [
    {"properties": 5, "required": 5},
    {"properties": {"a": {"type": 5}, "b": {"type": [{}]}, "c": {"oneOf": [1, "const"]}}},
    {"properties": {"a": {"enum": [1], "enumNames": 5}, "\x1b[2J\n": {}}},
]


@pytest.mark.parametrize("schema", [*LOOPS, *ODD, *(hostile_schema(3, n) for n in range(300))])
def test_hostile_schema_is_shown_and_read(schema: Any) -> None:
    """Recursive references are followed once; malformed members are ignored."""
    if not isinstance(schema, dict):
        return
    for text in describe_tool(ToolDefinition("t", schema)):
        assert text.isprintable()
    for row in argument_rows(ToolDefinition("t", schema)):
        assert all(len(cell) < 500 for cell in row[2:4])
    try:
        arguments = convert_arguments(schema, ["a=1", "b=x"])
        check_arguments(schema, arguments)
    except ConfigurationError:
        pass
    assert isinstance(types_of(schema, schema), dict)
    assert isinstance(choices_of(schema), list)
