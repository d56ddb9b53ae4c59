"""The commands that list the components of a server: `genmcp tools`, `resources` and so on."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from genmcp.cli.output import CommandError, OutputWriter, one_line
from genmcp.cli.parsing import example, suggestion
from genmcp.cli.remote import run_remote
from genmcp.cli.target import TARGET_HELP, RemoteOptions, remote_options
from genmcp.cli.terminal import StatusLine
from genmcp.cli.values import bounds_of, choices_of, properties_of, subschemas, types_of
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.errors import MethodNotFound
from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.prompts import PromptDefinition
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.tools import ToolDefinition

Row = tuple[str, ...]

ARGUMENT_HEADINGS: Final = ("ARGUMENT", "TYPE", "DEFAULT", "BOUNDS", "DESCRIPTION")

_INDENT: Final = "    "
# The number of nested lists in the text of a type. A schema of lists may be recursive.
_MAX_LIST_DEPTH: Final = 4
_MAX_DEFAULT: Final = 60  # characters
_MAX_BOUND: Final = 60  # characters


def describe_tool(tool: ToolDefinition) -> Iterator[str]:
    """Yield the lines that describe *tool*: how it is called, its purpose, its arguments."""
    schema = tool.input_schema
    yield " ".join([tool.name, *argument_texts(tool.input_schema)])
    yield from _first_paragraph(tool.description)
    for key, field in properties_of(schema).items():
        if text := _text_of_argument(field, schema):
            yield f"{_INDENT}{key}: {text}"


def describe_prompt(prompt: PromptDefinition) -> Iterator[str]:
    """Yield the lines that describe *prompt*."""
    yield " ".join([prompt.name, *_prompt_arguments(prompt)])
    yield from _first_paragraph(prompt.description)
    for each in prompt.arguments or ():
        if each.description:
            yield f"{_INDENT}{each.name}: {one_line(each.description)}"


def describe_resource(resource: ResourceDefinition | ResourceTemplateDefinition) -> Iterator[str]:
    """Yield the lines that describe *resource*, or a template of resources."""
    uri = resource.uri if isinstance(resource, ResourceDefinition) else resource.uri_template
    details = [resource.title or resource.name, *filter(None, [resource.mime_type])]
    yield f"{uri}  {one_line(', '.join(details))}"
    yield from _first_paragraph(resource.description)


def tool_lines(tool: ToolDefinition) -> Iterator[str]:
    """Yield the lines that describe *tool* alone: how it is called, and its whole description."""
    yield " ".join([tool.name, *argument_texts(tool.input_schema)])
    for line in (tool.description or "").strip().splitlines():
        yield f"{_INDENT}{line.rstrip()}".rstrip()


def argument_rows(tool: ToolDefinition) -> list[Row]:
    """Return the arguments of *tool* as rows below `ARGUMENT_HEADINGS`."""
    schema = tool.input_schema
    required = _required(schema)
    rows: list[Row] = []
    for key, field in properties_of(schema).items():
        details = list(subschemas(field, schema))
        default = "required" if key in required else ""
        for each in details:
            if "default" in each:
                default = one_line(msgspec.json.encode(each["default"]).decode())[:_MAX_DEFAULT]
                break
        bounds = dict.fromkeys(text for each in details for text in bounds_of(each))
        text = ", ".join(one_line(each)[:_MAX_BOUND] for each in bounds)
        row = key, _type_text(field, schema), default, text, _text_of_argument(field, schema)
        rows.append(row)
    return rows


def _summary(description: str | None) -> str:
    """Return the first paragraph of *description*, in one line."""
    return one_line((description or "").strip().partition("\n\n")[0])


def _first_paragraph(description: str | None) -> Iterator[str]:
    if first := _summary(description):
        yield f"{_INDENT}{first}"


def _required(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _text_of_argument(field: Any, root: Mapping[str, Any]) -> str:
    """Return the description of an argument."""
    for subschema in subschemas(field, root):
        if description := subschema.get("description"):
            return one_line(str(description))
    return ""


def argument_texts(schema: Mapping[str, Any]) -> list[str]:
    """Return the properties of *schema* in the form in which they are given, as arguments."""
    required, texts = _required(schema), []
    for key, field in properties_of(schema).items():
        text = one_line(f"{key}={_type_text(field, schema)}")
        texts.append(text if key in required else f"[{text}]")
    return texts


def _prompt_arguments(prompt: PromptDefinition) -> list[str]:
    return [each.name if each.required else f"[{each.name}]" for each in prompt.arguments or ()]


def _type_text(field: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type of *field* as shown to a user: its choices, or the names of its types."""
    for subschema in subschemas(field, root):
        if choices := choices_of(subschema):
            return "|".join(one_line(str(value)) for value, _ in choices)
    types = types_of(field, root)
    types.pop("null", None)  # the same as leaving out the argument
    if "array" in types and len(types) == 1 and depth < _MAX_LIST_DEPTH:
        return f"{_type_text(types['array'].get('items'), root, depth + 1)},..."
    return "|".join(map(one_line, types)) or "any"


T = TypeVar("T")
Describe = Callable[[Any], Iterable[str]]

_LISTS: Final[Mapping[str, tuple[Callable[[Client], Awaitable[Any]], Describe]]] = {
    "tools": (Client.tools, describe_tool),
    "resources": (Client.resources, describe_resource),
    "resource templates": (Client.templates, describe_resource),
    "prompts": (Client.prompts, describe_prompt),
}


@click.command("tools", epilog=example("tools server.py", "tools server.py add", about=TARGET_HELP))
@remote_options
@click.argument("name", required=False)
def tools(options: RemoteOptions, name: str | None) -> None:
    """List the tools of the server TARGET, or show the tool NAME with its defaults and bounds."""
    if name is None:
        list_components("tools", options)
        return

    async def fetch(client: Client, status: StatusLine) -> ToolDefinition:
        found = await client.tools()
        for tool in found:
            if tool.name == name:
                return tool
        hint = suggestion(name, (tool.name for tool in found))
        raise CommandError(f"{options.target} has no tool {name!r}{hint}")

    def write(output: OutputWriter, tool: ToolDefinition) -> None:
        for line in tool_lines(tool):
            output.write_line(line)
        if rows := argument_rows(tool):
            output.write_line("")
            output.write_table(ARGUMENT_HEADINGS, rows)

    run_remote(options, fetch, write)


@click.command("resources", epilog=example("resources server.py", about=TARGET_HELP))
@remote_options
def resources(options: RemoteOptions) -> None:
    """List the resources of the server TARGET."""
    list_components("resources", options)


@click.command("templates", epilog=example("templates server.py", about=TARGET_HELP))
@remote_options
def templates(options: RemoteOptions) -> None:
    """List the resource templates of the server TARGET."""
    list_components("resource templates", options)


@click.command("prompts", epilog=example("prompts server.py", about=TARGET_HELP))
@remote_options
def prompts(options: RemoteOptions) -> None:
    """List the prompts of the server TARGET."""
    list_components("prompts", options)


def list_components(kind: str, options: RemoteOptions) -> None:
    """List the components of a *kind*."""
    request, describe = _LISTS[kind]

    async def fetch(client: Client, status: StatusLine) -> Any:
        items = await items_of(request(client))
        if not items:
            status.write(f"genmcp: {options.target} has no {kind}\n")
        return items

    def write(output: OutputWriter, items: Any) -> None:
        for item in items:
            for line in describe(item):
                output.write_line(line)

    run_remote(options, fetch, write)


async def items_of(request: Awaitable[Sequence[T]]) -> Sequence[T]:
    """Return the list that *request* gets; an empty one if the server lacks the method."""
    try:
        return await request
    except ServerError as error:
        if error.code != MethodNotFound.code:
            raise
        return []
