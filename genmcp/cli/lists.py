"""The commands that list the components of a server: `genmcp tools`, `resources` and so on."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from genmcp.cli.describe import (
    ARGUMENT_HEADINGS,
    argument_rows,
    describe_prompt,
    describe_resource,
    describe_tool,
    tool_lines,
)
from genmcp.cli.output import CommandError, OutputWriter
from genmcp.cli.parsing import example
from genmcp.cli.remote import run_remote
from genmcp.cli.target import TARGET_HELP, RemoteOptions, remote_options
from genmcp.cli.terminal import StatusLine
from genmcp.cli.values import suggestion
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.errors import MethodNotFound
from genmcp.protocol.tools import ToolDefinition

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
