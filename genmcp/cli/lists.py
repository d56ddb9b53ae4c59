"""The commands that list the components of a server: `genmcp tools`, `resources` and so on."""

import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from genmcp.cli.describe import (
    ARGUMENT_HEADINGS,
    argument_rows,
    describe_prompt,
    describe_resource,
    describe_tool,
    tool_lines,
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

Describe = Callable[[Any], Iterable[str]]

_LISTS: Final[Mapping[str, tuple[Callable[[Client], Awaitable[Any]], Describe]]] = {
    "tools": (Client.tools, describe_tool),
    "resources": (Client.resources, describe_resource),
    "resource templates": (Client.templates, describe_resource),
    "prompts": (Client.prompts, describe_prompt),
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
    request, describe = _LISTS[kind]

    async def fetch(client: Client, status: StatusLine) -> Any:
        try:
            items = await request(client)
        except ServerError as error:
            if error.code != MethodNotFound.code:
                raise
            items = []
        if not items:
            status.write(f"genmcp: {options.target} has no {kind}\n")
        return items

    def write(output: OutputWriter, items: Any) -> None:
        for item in items:
            _write_lines(output, describe(item))

    return run_remote(options, fetch, write)


def _write_lines(output: OutputWriter, lines: Iterable[str]) -> None:
    width = shutil.get_terminal_size().columns
    for line in lines:
        output.write_line(wrap(line, width) if output.is_terminal and line.strip() else line)
