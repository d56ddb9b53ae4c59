"""The rules of `genmcp lint`: properties of tools that known hosts reject, or models misuse.

Each rule names an issue or document in which its rejection is described. Rules that nothing rejects
are hints.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from genmcp.cli.values import properties_of
from genmcp.protocol.tools import ToolDefinition

Severity = Literal["error", "hint"]

_MAX_NAME: Final = 64
_MAX_COMBINED_NAME: Final = 60
_MAX_TOOLS: Final = 128
_MANY_TOOLS: Final = 40
_MAX_DESCRIPTION: Final = 2048
_MAX_TOKENS: Final = 2000
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf")
# A schema of a foreign server may be deeply nested, or a graph of shared objects.
_MAX_DEPTH: Final = 64
_MAX_NODES: Final = 10_000


class LintRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for the tools of a server.

    Attributes:
        id: the name of the rule, for `--ignore`.
        severity: `error` if a host rejects the tool, else `hint`.
        problem: a sentence on the fault.
        rejected_by: the hosts that reject or ignore such a tool, or the reason of a hint, with the
            source.
        advice: how to mend it.
    """

    id: str
    severity: Severity
    problem: str
    rejected_by: str
    advice: str


class Violation(msgspec.Struct, frozen=True):
    """A violation of a rule. *subject* is the name of a tool, or "server"."""

    rule: LintRule
    subject: str
    detail: str = ""


class ListedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a server, as two generations of clients get them.

    Attributes:
        tools: the tools in the newest revision that the server has.
        older: the tools in 2025-11-25 or an earlier revision; None if the server has none of them.
        server_name: the name of the server; "" if it is unknown.
    """

    tools: Sequence[ToolDefinition]
    older: Sequence[ToolDefinition] | None = None
    server_name: str = ""


def _error(id: str, problem: str, rejected_by: str, advice: str) -> LintRule:
    return LintRule(
        id=id, severity="error", problem=problem, rejected_by=rejected_by, advice=advice
    )


def _hint(id: str, problem: str, reason: str, advice: str) -> LintRule:
    return LintRule(id=id, severity="hint", problem=problem, rejected_by=reason, advice=advice)


NAME_LENGTH: Final = _error(
    "name-length",
    f"The name of a tool has more than {_MAX_NAME} characters.",
    "VS Code (microsoft/vscode#243602), OpenAI models (tadata-org/fastapi_mcp#161)",
    "Shorten the name. Hosts put the name of the server in front of it.",
)
NAME_CHARACTERS: Final = _error(
    "name-characters",
    "The name of a tool has characters besides letters, digits, '_' and '-'.",
    "Copilot CLI with Claude models: status 400 for every request (github/copilot-cli#1879)",
    "Rename the tool: underscores instead of dots, slashes and spaces.",
)
NAME_DUPLICATE: Final = _error(
    "name-duplicate",
    "Several tools have one name.",
    "revision 2025-11-25, Tool Names: names should be unique within a server",
    "Rename all but one.",
)
NAME_COMBINED: Final = _hint(
    "name-combined",
    f"The names of server and tool have {_MAX_COMBINED_NAME} characters or more together.",
    "Cursor leaves out such tools (ComposioHQ/composio#2788)",
    "Shorten the name of the tool, or configure the server under a shorter name.",
)
TOOL_DESCRIPTION: Final = _hint(
    "tool-description",
    "A tool has no description.",
    "a model has only the name to decide when to call it",
    "Give the function or class a docstring.",
)
ARGUMENT_DESCRIPTION: Final = _hint(
    "argument-description",
    "Arguments have no description.",
    "a model has only their names and types",
    'Annotate them: Annotated[int, "How many to order."].',
)
LONG_DESCRIPTION: Final = _hint(
    "long-description",
    f"A description has more than {_MAX_DESCRIPTION} characters.",
    "Claude Code cuts off the rest (anthropics/claude-code#41593)",
    "Begin with the rules of use, and move details to the descriptions of arguments.",
)
LARGE_DEFINITION: Final = _hint(
    "large-definition",
    f"The definition of a tool has more than {_MAX_TOKENS:,} tokens, estimated.",
    "hosts send it to the model with every request",
    "Shorten descriptions, and split tools with many arguments.",
)
TOO_MANY_TOOLS: Final = _error(
    "too-many-tools",
    f"The server has more than {_MAX_TOOLS} tools.",
    "VS Code: the limit of all servers together (microsoft/vscode-copilot-release#11653)",
    "Merge tools, or split the server.",
)
MANY_TOOLS: Final = _hint(
    "many-tools",
    f"The server has more than {_MANY_TOOLS} tools.",
    f"Cursor has sent the first {_MANY_TOOLS} only (anyproto/anytype-mcp#5)",
    "Merge tools, or split the server.",
)
ROOT_TYPE: Final = _error(
    "root-type",
    'The input schema has no "type": "object" at its root.',
    "every revision of the protocol demands it",
    "Describe the arguments as the properties of an object.",
)
ROOT_COMBINATOR: Final = _error(
    "root-combinator",
    "The input schema has anyOf, oneOf or allOf at its root.",
    "Claude models: Claude Code drops the tool (anthropics/claude-code#95504), others fail "
    "(makenotion/notion-mcp-server#340)",
    "Move the alternatives into a property, or check them in the tool.",
)
NO_PROPERTIES: Final = _error(
    "no-properties",
    "The input schema has no properties.",
    "OpenAI models: status 400 for every request (posit-dev/mcptools#89)",
    'Add "properties": {}.',
)
REFERENCE: Final = _error(
    "reference",
    "A schema has $ref.",
    "Gemini CLI and Gemini models (google-gemini/gemini-cli#13326)",
    "Inline the definitions. Recursive types need a tool of their own, or JSON as text.",
)
ARRAY_ITEMS: Final = _error(
    "array-items",
    "An array has no items.",
    "VS Code rejects the tool, and the chat fails (microsoft/vscode#325618)",
    "Name the type of the items: list[str] instead of list.",
)
UNION_TYPE: Final = _error(
    "union-type",
    "A type is a list with array or object.",
    "Gemini models: status 400 for every request (github/copilot-cli#4623)",
    "Use one type. An optional argument is left out, and need not be null.",
)
ENUM_VALUES: Final = _error(
    "enum-values",
    "An enum has values that are no text, or are empty.",
    "Gemini models: status 400 for every request (router-for-me/CLIProxyAPI#1076, "
    "sbroenne/mcp-server-excel#607)",
    "Use texts as choices, and leave out the argument instead of an empty one.",
)
PROPERTY_NAME: Final = _error(
    "property-name",
    "The name of an argument is longer than 64 characters, or has others than a-z, A-Z, 0-9, "
    "'_', '.' and '-'.",
    "Claude models: Claude Code drops the tool (anthropics/claude-code#92648)",
    "Rename the argument.",
)
ADDITIONAL_PROPERTIES: Final = _hint(
    "additional-properties",
    "The input schema does not forbid other arguments.",
    "some hosts demand it for OpenAI models (github/github-mcp-server#376), and misspelled "
    "arguments are ignored",
    'Add "additionalProperties": false.',
)
OUTPUT_SCHEMA: Final = _error(
    "output-schema",
    "The output schema has no object at its root, for clients up to 2025-11-25.",
    "clients of the TypeScript SDK reject the whole list of tools (opentokenz/mcpx#28)",
    "Return an object, or leave out the output schema.",
)
DUPLICATE_TITLE: Final = _hint(
    "duplicate-title",
    "Several tools have one title.",
    "a user who is asked to approve a call cannot tell them apart",
    "Change the titles.",
)
ANNOTATIONS: Final = _hint(
    "annotations",
    "A tool does not state whether it only reads or may destroy.",
    "clients then assume that it destroys (2025-03-26, ToolAnnotations)",
    "annotations=ToolAnnotations(read_only_hint=True), or destructive_hint=False.",
)

RULES: Final[Sequence[LintRule]] = [
    value for value in [*globals().values()] if isinstance(value, LintRule)
]


def check_tools(listed: ListedTools) -> Iterator[Violation]:
    """Yield the violations of all rules."""
    tools = listed.tools
    if len(tools) > _MAX_TOOLS:
        yield Violation(TOO_MANY_TOOLS, "server", f"{len(tools)} tools")
    elif len(tools) > _MANY_TOOLS:
        yield Violation(MANY_TOOLS, "server", f"{len(tools)} tools")
    yield from _duplicates(NAME_DUPLICATE, [(tool.name, tool.name) for tool in tools])
    titles = [(title, tool.name) for tool in tools if (title := _title_of(tool))]
    yield from _duplicates(DUPLICATE_TITLE, titles)
    for tool in tools:
        yield from _name_violations(tool, listed.server_name)
        yield from _description_violations(tool)
        yield from _schema_violations(tool)
    for tool in tools if listed.older is None else listed.older:
        # Since 2026-07-28 an output schema may have any type.
        schema = tool.output_schema
        if listed.older is not None and schema is not None and schema.get("type") != "object":
            yield Violation(OUTPUT_SCHEMA, tool.name)


def tokens_of(tool: ToolDefinition) -> int:
    """Return the estimated number of tokens of a definition: a quarter of its characters.

    A schema that is nested too deeply to be encoded counts as 0.
    """
    sent = tool.name, tool.description, tool.input_schema
    try:
        return len(json.dumps(sent, ensure_ascii=False, default=str)) // 4
    except RecursionError:
        return 0


def _title_of(tool: ToolDefinition) -> str | None:
    return tool.title or (tool.annotations.title if tool.annotations else None)


def _duplicates(rule: LintRule, named: Sequence[tuple[str, str]]) -> Iterator[Violation]:
    """Yield a violation for each name of *named* that several tools have."""
    counts = Counter(name for name, _ in named)
    for name, count in counts.items():
        if count > 1:
            subjects = dict.fromkeys(tool for each, tool in named if each == name)
            yield Violation(rule, ", ".join(subjects), repr(name))


def _name_violations(tool: ToolDefinition, server_name: str) -> Iterator[Violation]:
    name = tool.name
    if len(name) > _MAX_NAME:
        yield Violation(NAME_LENGTH, name, f"{len(name)} characters")
    elif server_name and len(server_name) + len(name) >= _MAX_COMBINED_NAME:
        detail = f"{len(server_name) + len(name)} characters, with {server_name!r}"
        yield Violation(NAME_COMBINED, name, detail)
    if not _NAME.fullmatch(name):
        others = "".join(dict.fromkeys(each for each in name if not _NAME.fullmatch(each)))
        yield Violation(NAME_CHARACTERS, name or "''", repr(others) if others else "")


def _description_violations(tool: ToolDefinition) -> Iterator[Violation]:
    text = (tool.description or "").strip()
    if not text:
        yield Violation(TOOL_DESCRIPTION, tool.name)
    if len(text) > _MAX_DESCRIPTION:
        yield Violation(LONG_DESCRIPTION, tool.name, f"{len(text):,} characters")
    if (tokens := tokens_of(tool)) > _MAX_TOKENS:
        yield Violation(LARGE_DEFINITION, tool.name, f"about {tokens:,} tokens")
    bare = [
        key
        for key, field in properties_of(tool.input_schema).items()
        if not (isinstance(field, Mapping) and str(field.get("description", "")).strip())
    ]
    if bare:
        yield Violation(ARGUMENT_DESCRIPTION, tool.name, ", ".join(bare))
    hints = tool.annotations
    if hints is None or (hints.read_only_hint is None and hints.destructive_hint is None):
        yield Violation(ANNOTATIONS, tool.name)


def _schema_violations(tool: ToolDefinition) -> Iterator[Violation]:
    schema = tool.input_schema
    if schema.get("type") != "object":
        yield Violation(ROOT_TYPE, tool.name)
    for keyword in _COMBINATORS:
        if keyword in schema:
            yield Violation(ROOT_COMBINATOR, tool.name, keyword)
    if not isinstance(schema.get("properties"), Mapping):
        yield Violation(NO_PROPERTIES, tool.name)
    if schema.get("additionalProperties") is not False:
        yield Violation(ADDITIONAL_PROPERTIES, tool.name)
    for key in properties_of(schema):
        if not _PROPERTY.fullmatch(key):
            yield Violation(PROPERTY_NAME, tool.name, repr(key))
    found: dict[tuple[str, str], Violation] = {}
    for path, node in _nodes(schema):
        for rule, detail in _node_faults(node):
            at = f"{path or 'root'}{detail}"
            found.setdefault((rule.id, at), Violation(rule, tool.name, at))
    yield from found.values()


def _node_faults(node: Mapping[str, Any]) -> Iterator[tuple[LintRule, str]]:
    """Yield the rules that one schema violates, each with the text that follows its path."""
    if isinstance(reference := node.get("$ref"), str):
        yield REFERENCE, f": {reference}"
    type_ = node.get("type")
    types = type_ if isinstance(type_, list) else [type_]
    if isinstance(type_, list) and {"array", "object"} & {*map(str, type_)}:
        yield UNION_TYPE, f": {', '.join(map(str, type_))}"
    if "array" in types and "items" not in node and "prefixItems" not in node:
        yield ARRAY_ITEMS, ""
    values = node.get("enum")
    if isinstance(values, list):
        odd = [each for each in values if not isinstance(each, str) or not each]
        if odd:
            yield ENUM_VALUES, f": {', '.join(repr(each) for each in odd[:3])}"


def _nodes(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield *schema* and the schemas within it, each with the path to it."""
    pending: list[tuple[str, Any, int]] = [("", schema, 0)]
    for _ in range(_MAX_NODES):
        if not pending:
            return
        path, node, depth = pending.pop()
        if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
            continue
        yield path, node
        inner: list[tuple[str, Any, int]] = []
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            fields = node.get(keyword)
            if isinstance(fields, Mapping):
                prefix = "" if keyword == "properties" else f"{keyword}."
                inner += [
                    (f"{path}.{prefix}{key}".lstrip("."), field, depth + 1)
                    for key, field in fields.items()
                ]
        for keyword in ("items", "additionalProperties", "not"):
            inner.append(
                (f"{path}[]" if keyword == "items" else path, node.get(keyword), depth + 1)
            )
        for keyword in (*_COMBINATORS, "prefixItems"):
            options = node.get(keyword)
            inner += [
                (path, option, depth + 1)
                for option in (options if isinstance(options, list) else ())
            ]
        pending += reversed(inner)
