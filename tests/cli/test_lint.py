"""The rules of `genmcp lint`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from genmcp.cli.lint import RULES, check_tools
from genmcp.protocol.tools import ToolDefinition
from tests.support.hostile_schemas import hostile_schema

GOOD: dict[str, Any] = {"type": "object", "properties": {"part": {"type": "string"}}}
NEWEST = "2026-07-28"


def defined(name: str = "look_up", schema: Any = UNSET, **settings: Any) -> ToolDefinition:
    """A tool that violates no rule, but for the settings."""
    return ToolDefinition(name, GOOD if schema is UNSET else schema, **settings)


def field(schema: dict[str, Any]) -> ToolDefinition:
    """A tool with an argument of this schema."""
    return defined(schema={**GOOD, "properties": {"part": schema}})


def violated(*tools: ToolDefinition, revision: str = NEWEST) -> list[tuple[str, str]]:
    return [(each.rule.id, each.detail) for each in check_tools(tools, revision=revision)]


@pytest.mark.parametrize(
    ("tool", "rule", "detail"),
    [
        (defined("a" * 65), "name-length", "65 characters"),
        (defined("parts.look up"), "name-characters", "'. '"),
        (defined(schema={**GOOD, "anyOf": [{}]}), "root-combinator", "anyOf"),
        (defined(schema={"type": "object"}), "no-properties", ""),
        (field({"$ref": "#/$defs/Part"}), "reference", "part: #/$defs/Part"),
        (field({"type": "array"}), "array-items", "part"),
        (
            field({"type": "array", "items": {"anyOf": [{"type": "array"}]}}),
            "array-items",
            "part[]",
        ),
        (field({"type": ["array", "null"], "items": {}}), "union-type", "part: array, null"),
        (field({"enum": ["a", 1, ""]}), "enum-values", "part: 1, ''"),
        (
            defined(schema={**GOOD, "properties": {"uids[]": {}}}),
            "property-name",
            "'uids[]'",
        ),
    ],
)
def test_lint_rule_reports_a_tool(tool: ToolDefinition, rule: str, detail: str) -> None:
    """Each rule alone: the tool violates no other one."""
    assert violated(tool) == [(rule, detail)]


def test_lint_counts_the_tools() -> None:
    """VS Code has a limit for all of them."""
    many = [defined(f"t{n}") for n in range(129)]

    assert violated(*many[:128]) == []
    assert violated(*many) == [("too-many-tools", "129 tools")]


@pytest.mark.parametrize(
    ("output", "revision", "found"),
    [
        ({"type": "integer"}, "2025-11-25", [("output-schema", "")]),
        ({"type": "integer"}, NEWEST, []),
        ({"type": "object"}, "2025-06-18", []),
    ],
)
def test_output_schema_is_an_object_in_older_revisions(
    output: dict[str, Any], revision: str, found: list[tuple[str, str]]
) -> None:
    """Since 2026-07-28 it may have any type."""
    assert violated(defined(output_schema=output), revision=revision) == found


@pytest.mark.parametrize("number", range(200))
def test_lint_of_a_hostile_schema_ends(number: int) -> None:
    """A schema of any form is checked without an error."""
    schema = hostile_schema(5, number)
    if isinstance(schema, dict):
        assert {rule for rule, _ in violated(defined(schema=schema))} <= {*RULES}


def test_lint_command_reports_a_server(run: Callable[..., tuple[int, str, str]]) -> None:
    """The status is 1 if a rule is violated, and each rule can be ignored."""
    shop, unliked = "tests.cli.shop:suite", "tests.cli.unliked:suite"
    assert run("lint", shop) == (0, "", "genmcp: 7 tools, 0 violations\n")

    status, said, noise = run("lint", unliked)
    assert (status, noise) == (1, "genmcp: 1 tools, 1 violations\n")
    lines = said.splitlines()
    assert lines[0].startswith("name-characters: The name of a tool has characters")
    assert lines[1].startswith("    who: Copilot CLI")
    assert lines[2].startswith("    fix: Rename")
    assert lines[3] == "    admin.users '.'"
    (found,) = json.loads(run("lint", unliked, "--json")[1])
    assert (found["id"], found["subject"]) == ("name-characters", "admin.users")
    assert run("lint", unliked, "--ignore", "name-characters")[0] == 0

    status, _, noise = run("lint", shop, "--ignore", "array-item")
    assert (status, "did you mean 'array-items'?" in noise) == (2, True)
    assert "; the rules are name-length, " in run("lint", shop, "--ignore", "x")[2]
    status, _, noise = run("lint", "http://127.0.0.1:9/mcp")
    assert (status, noise.startswith("genmcp: ")) == (1, True)


def test_documentation_lists_the_lint_rules() -> None:
    """Each with its sentence."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "lint.md").read_text("utf-8")

    rows = [f"| `{rule.id}` | {rule.problem} |" for rule in RULES.values()]
    assert "\n".join(rows) in page
