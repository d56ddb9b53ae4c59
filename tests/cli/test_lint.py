"""The rules of `genmcp lint`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from genmcp import Suite, ToolAnnotations, tool
from genmcp.cli.lint import check_ignored, find_violations, read_tools, report_lines
from genmcp.cli.lint_rules import RULES, ListedTools, Violation
from genmcp.cli.target import ResolvedTarget
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import ToolDefinition
from tests.support.hostile_schemas import hostile_schema

GOOD: dict[str, Any] = {
    "type": "object",
    "properties": {"part": {"type": "string", "description": "The part."}},
    "additionalProperties": False,
}
READS = ToolAnnotations(read_only_hint=True)


def defined(name: str = "look_up", schema: Any = UNSET, **settings: Any) -> ToolDefinition:
    """A tool that violates no rule, but for the settings."""
    return ToolDefinition(
        name,
        GOOD if schema is UNSET else schema,
        **{"description": "Looks up a part.", "annotations": READS, **settings},
    )


def field(schema: dict[str, Any]) -> ToolDefinition:
    """A tool with an argument of this schema."""
    return defined(schema={**GOOD, "properties": {"part": {"description": "Some.", **schema}}})


def violated(*tools: ToolDefinition, **listed: Any) -> list[tuple[str, str]]:
    found = find_violations(ListedTools(tools=tools, **listed))
    return [(each.rule.id, each.detail) for each in found]


def root(**members: Any) -> ToolDefinition:
    return defined(schema={**GOOD, **members})


CASES: list[tuple[ToolDefinition, str, str]] = [
    (defined("a" * 65), "name-length", "65 characters"),
    (defined("parts.look up"), "name-characters", "'. '"),
    (defined(description=" "), "tool-description", ""),
    (root(properties={"a": {"type": "string"}, "b": True}), "argument-description", "a, b"),
    (defined(description="x" * 2049), "long-description", "2,049 characters"),
    (defined(annotations=None), "annotations", ""),
    (root(type=["object", "null"]), "root-type", ""),
    (root(anyOf=[{"required": ["part"]}]), "root-combinator", "anyOf"),
    (
        defined(schema={"type": "object", "additionalProperties": False}),
        "no-properties",
        "",
    ),
    (field({"$ref": "#/$defs/Part"}), "reference", "part: #/$defs/Part"),
    (field({"type": "array"}), "array-items", "part"),
    (
        field({"type": "array", "items": {"anyOf": [{"type": "array"}]}}),
        "array-items",
        "part[]",
    ),
    (
        field({"type": ["array", "null"], "items": {}}),
        "union-type",
        "part: array, null",
    ),
    (field({"enum": ["a", 1, ""]}), "enum-values", "part: 1, ''"),
    (
        root(properties={"uids[]": {"description": "The users."}}),
        "property-name",
        "'uids[]'",
    ),
    (root(additionalProperties=True), "additional-properties", ""),
]


@pytest.mark.parametrize(("tool", "rule", "detail"), CASES)
def test_lint_rule_reports_a_tool(tool: ToolDefinition, rule: str, detail: str) -> None:
    """Each rule alone: the tool violates no other one."""
    found = violated(tool)

    assert (rule, detail) in found
    expected = {rule, "union-type"} if rule == "root-type" else {rule}
    assert {id for id, _ in found} == expected


def test_lint_reports_what_several_tools_share() -> None:
    """Names, titles, and the number of tools."""
    first, second = defined("a", title="Look up"), defined("b", title="Look up")

    assert violated(first, second) == [("duplicate-title", "'Look up'")]
    assert violated(first, first) == [("name-duplicate", "'a'"), ("duplicate-title", "'Look up'")]
    assert violated(defined("a" * 40), server_name="b" * 20) == [
        ("name-combined", f"60 characters, with '{'b' * 20}'")
    ]
    many = [defined(f"t{n}") for n in range(129)]
    assert violated(*many[:40]) == []
    assert violated(*many[:41]) == [("many-tools", "41 tools")]
    assert violated(*many) == [("too-many-tools", "129 tools")]


def test_lint_checks_output_schemas_of_older_revisions() -> None:
    """Since 2026-07-28 an output schema may have any type."""
    numbers = defined(output_schema={"type": "integer"})

    assert violated(numbers) == []
    assert violated(numbers, older=[numbers]) == [("output-schema", "")]
    assert violated(numbers, older=[defined(output_schema={"type": "object"})]) == []


def test_lint_reports_a_large_definition() -> None:
    """The size is estimated from the text that a model gets."""
    enum = [f"part number {number}" for number in range(600)]

    ((rule, detail),) = violated(field({"enum": enum}))
    assert rule == "large-definition"
    assert detail.startswith("about ")


def test_lint_rules_are_complete() -> None:
    """Each is an error with a host that rejects, or a hint; the ids are unique."""
    assert len({rule.id for rule in RULES}) == len(RULES) >= 20
    for rule in RULES:
        assert rule.problem.endswith(".")
        assert rule.advice.endswith(".")
        assert rule.rejected_by
    tested = {rule for _, rule, _ in CASES}
    shared = {"duplicate-title", "name-duplicate", "name-combined", "many-tools", "too-many-tools"}
    assert tested | shared | {"output-schema", "large-definition"} == {rule.id for rule in RULES}


def test_lint_of_ignored_rules() -> None:
    """An unknown rule is an error that names a similar one."""
    listed = ListedTools(tools=[defined("a.b", annotations=None)])

    assert [each.rule.id for each in find_violations(listed, ["annotations"])] == [
        "name-characters"
    ]
    check_ignored(["annotations"])
    with pytest.raises(ConfigurationError, match=r"no rule 'annotation'; did you mean annotations"):
        check_ignored(["annotation"])
    with pytest.raises(ConfigurationError, match=r"the rules are name-length, "):
        check_ignored(["x"])


def test_lint_report_is_aligned() -> None:
    """Grouped by rule, errors first; text of the server cannot forge a line or an escape."""
    listed = ListedTools(tools=[defined("a.b"), defined("c\n\x1b[2Jd", annotations=None)])

    lines = [*report_lines(listed, find_violations(listed))]

    assert lines[0].startswith("error  name-characters  The name of a tool has characters")
    assert lines[1].startswith("       who              Copilot CLI")
    assert lines[3] == "       a.b              '.'"
    assert lines[4].startswith("       c [2Jd           ")
    assert lines[6].startswith("hint   annotations      ")
    assert lines[-1] == "2 errors, 1 hint; 2 tools, about 77 tokens"
    assert all(line.isprintable() for line in lines)


async def test_lint_reads_the_tools_of_both_generations() -> None:
    """The result of a number is an object for clients up to 2025-11-25, so that it is no error."""

    @tool(annotations=READS)
    def count() -> int:
        """Count the parts."""
        return 3

    resolved = ResolvedTarget(
        target=Suite(name="parts", version="1", tools=[count]), options=ClientOptions()
    )
    listed = await read_tools(resolved)

    assert listed.server_name == "parts"
    assert listed.tools[0].output_schema == {"type": "integer"}
    assert find_violations(listed) == []
    older = ResolvedTarget(target=resolved.target, options=ClientOptions(revision="2025-06-18"))
    assert (await read_tools(older)).older == (await read_tools(older)).tools


@pytest.mark.parametrize("number", range(200))
def test_lint_of_a_hostile_schema_ends(number: int) -> None:
    """A schema of any form is checked without an error."""
    schema = hostile_schema(5, number)
    if isinstance(schema, dict):
        found: list[Violation] = find_violations(ListedTools(tools=[defined(schema=schema)]))
        for line in report_lines(ListedTools(tools=[defined(schema=schema)]), found):
            assert line.isprintable()


def test_lint_command_reports_a_server(run: Callable[..., tuple[int, str, str]]) -> None:
    """The status is 1 for errors only, and each rule can be ignored."""
    shop = "tests.cli.shop:suite"
    status, said, _ = run("lint", shop)

    assert status == 0
    assert said.startswith("hint   tool-description")
    assert "\n       fail" in said
    assert said.endswith(" tokens\n")
    found = json.loads(run("lint", shop, "--json")[1])
    assert {each["severity"] for each in found} == {"hint"}
    ignored = [word for each in found for word in ("--ignore", each["rule"])]
    assert run("lint", shop, *ignored)[1].startswith("0 errors, 0 hints; 7 tools")
    assert run("lint", "tests.cli.unliked:suite")[0] == 1
    status, _, noise = run("lint", shop, "--ignore", "annotation")
    assert (status, "did you mean annotations?" in noise) == (2, True)
    status, _, noise = run("lint", "http://127.0.0.1:9/mcp")
    assert (status, noise.startswith("genmcp: ")) == (1, True)


def test_documentation_lists_the_lint_rules() -> None:
    """Each with its severity and its sentence."""
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text("utf-8")

    rows = [f"| `{rule.id}` | {rule.severity} | {rule.problem} |" for rule in RULES]
    assert "\n".join(rows) in page
