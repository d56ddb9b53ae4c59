"""The commands that list the components of a server: `genmcp tools`, `resources` and so on."""

import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from genmcp.cli.describe import (
    ARGUMENT_HEADINGS,
    Row,
    argument_rows,
    describe_prompt,
    describe_resource,
    describe_tool,
    prompt_row,
    resource_row,
    tool_lines,
    tool_row,
)
from genmcp.cli.output import OutputError, OutputWriter, wrap
from genmcp.cli.parsing import argument, command
from genmcp.cli.remote import RemoteOptions, remote_options, run_remote
from genmcp.cli.target import TargetCommand, quoting_hint
from genmcp.cli.terminal import StatusLine
from genmcp.cli.values import suggestion
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.errors import ConfigurationError, MethodNotFound
from genmcp.protocol.tools import ToolDefinition


class ComponentList(NamedTuple):
    """How the components of a kind are listed.

    describe: yields the lines of a component, for a pipe.
    row: returns the cells of a component below the headings, for a terminal.
    """

    request: Callable[[Client], Awaitable[Any]]
    describe: Callable[[Any], Iterable[str]]
    row: Callable[[Any], Row]
    headings: tuple[str, ...]


_RESOURCE_HEADINGS: Final = ("URI", "NAME", "TYPE", "DESCRIPTION")
_LISTS: Final = {
    "tools": ComponentList(
        Client.tools, describe_tool, tool_row, ("TOOL", "ARGUMENTS", "DESCRIPTION")
    ),
    "resources": ComponentList(
        Client.resources, describe_resource, resource_row, _RESOURCE_HEADINGS
    ),
    "resource templates": ComponentList(
        Client.templates, describe_resource, resource_row, _RESOURCE_HEADINGS
    ),
    "prompts": ComponentList(
        Client.prompts, describe_prompt, prompt_row, ("PROMPT", "ARGUMENTS", "DESCRIPTION")
    ),
}
# The endings of a program, which is no name of a tool: the target lacks its quotes.
_PROGRAMS: Final = (".py", ".js", ".ts", ".mjs", ".sh")


def list_command(kind: str) -> click.Command:
    """Return the command that lists the components of a *kind*."""

    @command(kind.removeprefix("resource "), f"list the {kind} of a server", TargetCommand)
    @remote_options
    def listing(options: RemoteOptions) -> int:
        return list_components(kind, options)

    return listing


@command("tools", "list the tools of a server, or show one of them", TargetCommand)
@remote_options
@argument("name", "the tool to show, with the defaults and bounds of its arguments", required=False)
def tools(options: RemoteOptions, name: str | None) -> int:
    """List the tools of a server, or show the tool *name*."""
    if name is None:
        return list_components("tools", options)
    if not {*" :/"} & {*options.target} and (Path(name).is_file() or name.endswith(_PROGRAMS)):
        raise ConfigurationError(f"unrecognized arguments: {name}{quoting_hint(options.target)}")

    async def fetch(client: Client, status: StatusLine) -> ToolDefinition:
        found = await client.tools()
        for tool in found:
            if tool.name == name:
                return tool
        hint = suggestion(name, (tool.name for tool in found))
        raise OutputError(f"{options.target} has no tool {name!r}{hint}")

    def write(output: OutputWriter, tool: ToolDefinition) -> None:
        _write_lines(output, tool_lines(tool))
        if rows := argument_rows(tool):
            output.write_line("")
            output.write_table(ARGUMENT_HEADINGS, rows)

    return run_remote(options, fetch, write)


def list_components(kind: str, options: RemoteOptions) -> int:
    """List the components of a *kind*, and return the exit status.

    Lines are wrapped at a terminal only. Programs that read a pipe get whole lines.
    """
    listed = _LISTS[kind]

    async def fetch(client: Client, status: StatusLine) -> Any:
        try:
            items = await listed.request(client)
        except ServerError as error:
            if error.code != MethodNotFound.code:
                raise
            items = []
        if not items:
            status.write(f"genmcp: {options.target} has no {kind}\n")
        return items

    def write(output: OutputWriter, items: Any) -> None:
        if output.rendering is not None:
            output.write_table(listed.headings, [*map(listed.row, items)])
            return
        for item in items:
            _write_lines(output, listed.describe(item))

    return run_remote(options, fetch, write)


def _write_lines(output: OutputWriter, lines: Iterable[str]) -> None:
    width = shutil.get_terminal_size().columns
    for line in lines:
        output.write_line(wrap(line, width) if output.is_terminal and line.strip() else line)
