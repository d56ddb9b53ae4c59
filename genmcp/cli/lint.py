"""`genmcp lint`: reports tools that known clients reject.

Each rule has been seen to reject tools, and names a report of that, which can be read again.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from genmcp.cli.lists import items_of
from genmcp.cli.output import OutputWriter, one_line
from genmcp.cli.parsing import example, suggestion
from genmcp.cli.remote import run_remote
from genmcp.cli.target import TARGET_HELP, RemoteOptions, remote_options
from genmcp.cli.terminal import StatusLine
from genmcp.cli.values import properties_of
from genmcp.client.client import Client
from genmcp.errors import ConfigurationError
from genmcp.protocol.tools import ToolDefinition

_MAX_NAME: Final = 64
_MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf")
_OLDER: Final = "2025-11-25"  # the last revision in which an output schema is an object
# A schema of a foreign server may be deeply nested, or a graph of shared objects.
_MAX_DEPTH: Final = 64
_MAX_NODES: Final = 10_000


class LintRule(msgspec.Struct, frozen=True):
    """A rule for the tools of a server.

    Attributes:
        id: the name of the rule, for `--ignore`.
        problem: a sentence on the fault.
        rejected_by: the clients that reject such a tool, with the report.
        advice: how to mend it.
    """

    id: str
    problem: str
    rejected_by: str
    advice: str


class Violation(msgspec.Struct, frozen=True):
    """A violation of a rule. *subject* is the name of a tool, or "server"."""

    rule: LintRule
    subject: str
    detail: str = ""


_RULES: Final = [
    LintRule(
        "name-length",
        f"The name of a tool has more than {_MAX_NAME} characters.",
        "VS Code (microsoft/vscode#243602), OpenAI models (tadata-org/fastapi_mcp#161)",
        "Shorten the name. Clients put the name of the server in front of it.",
    ),
    LintRule(
        "name-characters",
        "The name of a tool has characters besides letters, digits, '_' and '-'.",
        "Copilot CLI with Claude models: status 400 for every request (github/copilot-cli#1879)",
        "Rename the tool: underscores instead of dots, slashes and spaces.",
    ),
    LintRule(
        "too-many-tools",
        f"The server has more than {_MAX_TOOLS} tools.",
        "VS Code: the limit of all servers together (microsoft/vscode-copilot-release#11653)",
        "Merge tools, or split the server.",
    ),
    LintRule(
        "root-combinator",
        "The input schema has anyOf, oneOf or allOf at its root.",
        "Claude models: Claude Code drops the tool (anthropics/claude-code#95504), others fail "
        "(makenotion/notion-mcp-server#340)",
        "Move the alternatives into a property, or check them in the tool.",
    ),
    LintRule(
        "no-properties",
        "The input schema has no properties.",
        "OpenAI models: status 400 for every request (posit-dev/mcptools#89)",
        'Add "properties": {}.',
    ),
    LintRule(
        "property-name",
        "The name of an argument is longer than 64 characters, or has others than a-z, A-Z, 0-9, "
        "'_', '.' and '-'.",
        "Claude models: Claude Code drops the tool (anthropics/claude-code#92648)",
        "Rename the argument.",
    ),
    LintRule(
        "reference",
        "A schema has $ref.",
        "Gemini CLI and Gemini models (google-gemini/gemini-cli#13326)",
        "Inline the definitions. Recursive types need a tool of their own, or JSON as text.",
    ),
    LintRule(
        "array-items",
        "An array has no items.",
        "VS Code rejects the tool, and the chat fails (microsoft/vscode#325618)",
        "Name the type of the items: list[str] instead of list.",
    ),
    LintRule(
        "union-type",
        "A type is a list with array or object.",
        "Gemini models: status 400 for every request (github/copilot-cli#4623)",
        "Use one type. An optional argument is left out, and need not be null.",
    ),
    LintRule(
        "enum-values",
        "An enum has values that are no text, or are empty.",
        "Gemini models: status 400 for every request (router-for-me/CLIProxyAPI#1076, "
        "sbroenne/mcp-server-excel#607)",
        "Use texts as choices, and leave out the argument instead of an empty one.",
    ),
    LintRule(
        "output-schema",
        f"The output schema has no object at its root, in a revision up to {_OLDER}.",
        "clients of the TypeScript SDK reject the whole list of tools (opentokenz/mcpx#28)",
        "Return an object, or leave out the output schema.",
    ),
]
RULES: Final[Mapping[str, LintRule]] = {rule.id: rule for rule in _RULES}


@click.command("lint", epilog=example("lint server.py", about=TARGET_HELP))
@remote_options
@click.option("--ignore", multiple=True, metavar="RULE", help="a rule to leave out; repeatable")
def lint(options: RemoteOptions, ignore: Sequence[str]) -> int:
    """Report tools of the server TARGET that known clients reject; the status is 1 if there are."""
    for id in ignore:
        if id not in RULES:
            hint = suggestion(id, RULES) or f"; the rules are {', '.join(RULES)}"
            raise ConfigurationError(f"--ignore: there is no rule {id!r}{hint}")

    async def fetch(client: Client, status: StatusLine) -> list[dict[str, str]]:
        tools = await items_of(client.tools())
        checks = check_tools(tools, revision=client.revision)
        found = [each for each in checks if each.rule.id not in ignore]
        status.write(f"genmcp: {len(tools)} tools, {len(found)} violations\n")
        return [
            {"subject": each.subject, "detail": each.detail, **msgspec.structs.asdict(each.rule)}
            for each in found
        ]

    return int(bool(run_remote(options, fetch, write_report)))


def write_report(output: OutputWriter, found: Sequence[Mapping[str, str]]) -> None:
    """Write violations below their rules."""
    for rule in RULES.values():
        violations = [each for each in found if each["id"] == rule.id]
        if violations:
            output.write_line(f"{rule.id}: {rule.problem}")
            output.write_line(f"    who: {rule.rejected_by}")
            output.write_line(f"    fix: {rule.advice}")
        for each in violations:
            output.write_line(f"    {one_line(each['subject'] + '  ' + each['detail'])}")


def check_tools(tools: Collection[ToolDefinition], *, revision: str) -> Iterator[Violation]:
    """Yield the violations of all rules by *tools*, as listed in *revision*."""
    if len(tools) > _MAX_TOOLS:
        yield Violation(RULES["too-many-tools"], "server", f"{len(tools)} tools")
    for tool in tools:
        for id, detail in _faults(tool):
            yield Violation(RULES[id], tool.name, detail)
        # Since 2026-07-28 an output schema may have any type.
        output = tool.output_schema
        if revision <= _OLDER and output is not None and output.get("type") != "object":
            yield Violation(RULES["output-schema"], tool.name)


def _faults(tool: ToolDefinition) -> Iterator[tuple[str, str]]:
    """Yield the rules that *tool* violates, each with a detail."""
    name, schema = tool.name, tool.input_schema
    if len(name) > _MAX_NAME:
        yield "name-length", f"{len(name)} characters"
    if not _NAME.fullmatch(name):
        others = "".join(dict.fromkeys(each for each in name if not _NAME.fullmatch(each)))
        yield "name-characters", repr(others)
    for keyword in _COMBINATORS:
        if keyword in schema:
            yield "root-combinator", keyword
    if not isinstance(schema.get("properties"), Mapping):
        yield "no-properties", ""
    for key in properties_of(schema):
        if not _PROPERTY.fullmatch(key):
            yield "property-name", repr(key)
    faults = (
        (id, f"{path or 'root'}{detail}")
        for path, node in _nodes(schema)
        for id, detail in _node_faults(node)
    )
    yield from dict.fromkeys(faults)


def _node_faults(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rules that one schema violates, each with the text that follows its path."""
    if isinstance(reference := node.get("$ref"), str):
        yield "reference", f": {reference}"
    type_ = node.get("type")
    types = type_ if isinstance(type_, list) else [type_]
    if isinstance(type_, list) and {"array", "object"} & {*map(str, type_)}:
        yield "union-type", f": {', '.join(map(str, type_))}"
    if "array" in types and "items" not in node and "prefixItems" not in node:
        yield "array-items", ""
    values = node.get("enum")
    if isinstance(values, list):
        odd = [each for each in values if not isinstance(each, str) or not each]
        if odd:
            yield "enum-values", f": {', '.join(repr(each) for each in odd[:3])}"


def _nodes(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield *schema* and the schemas within it, each with the path to it."""
    pending: list[tuple[str, Any, int]] = [("", schema, 0)]
    for _ in range(_MAX_NODES):
        if not pending:
            return
        path, node, depth = pending.pop()
        if isinstance(node, Mapping) and depth <= _MAX_DEPTH:
            yield path, node
            inner = [(f"{path}{step}".lstrip("."), each, depth + 1) for step, each in _inner(node)]
            pending += reversed(inner)


def _inner(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in *node*, each with its step of a path."""
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        fields = node.get(keyword)
        prefix = "." if keyword == "properties" else f".{keyword}."
        for key, field in fields.items() if isinstance(fields, Mapping) else ():
            yield f"{prefix}{key}", field
    yield "[]", node.get("items")
    yield "", node.get("additionalProperties")
    yield "", node.get("not")
    for keyword in (*_COMBINATORS, "prefixItems"):
        options = node.get(keyword)
        for option in options if isinstance(options, list) else ():
            yield "", option
