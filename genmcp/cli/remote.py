"""The commands that talk to a server as a client: `genmcp tools`, `call`, `read` and so on."""

import asyncio
import os
import re
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import click
import msgspec

from genmcp._mux.mux import Mux
from genmcp.cli.output import (
    CommandError,
    OutputWriter,
    as_command_options,
    content_of,
    one_line,
    private_output,
    text_of,
    write_contents,
)
from genmcp.cli.parsing import example, suggestion
from genmcp.cli.target import (
    TARGET_HELP,
    TOKEN_VARIABLE,
    RemoteOptions,
    is_local,
    parse_target,
    remote_options,
    resolve_target,
)
from genmcp.cli.terminal import (
    DeferringHandler,
    LogPrinter,
    StatusLine,
    TerminalHandler,
    has_user,
)
from genmcp.cli.values import (
    check_arguments,
    convert_arguments,
    parse_pairs,
    unknown_keys,
)
from genmcp.client.client import Client
from genmcp.client.errors import (
    AuthorizationFailed,
    ClientError,
    Forbidden,
    HttpStatusError,
    ProcessExited,
    ServerError,
    Unauthorized,
)
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError, McpError, MissingCapability
from genmcp.protocol.capabilities import DiscoverResult
from genmcp.protocol.prompts import (
    Completion,
    GetPromptResult,
    PromptReference,
    ResourceTemplateReference,
)
from genmcp.protocol.resources import ReadResourceResult
from genmcp.protocol.tools import CallToolResult

Fetch = Callable[[Client, StatusLine], Awaitable[Any]]
Write = Callable[[OutputWriter, Any], None]
# Seconds after which the status line shows that the command waits for the server.
_OPEN_DELAY: Final = 3.0
_CLOSE_DELAY: Final = 0.5

_NO_ENDPOINT: Final = (404, 405)  # the HTTP statuses of a path without an endpoint
_USUAL_PATH: Final = "/mcp"

_pairs: Final = click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")


@click.command(
    "call",
    epilog=example(
        "call server.py add a=1 b=2",
        "call https://mcp.example.com/mcp search query=brakes --login",
        about="KEY=VALUE is an argument, converted by the schema of the tool: lists are split at "
        f"commas, and KEY:=VALUE is JSON. {TARGET_HELP}",
    ),
)
@remote_options
@click.argument("name")
@_pairs
@click.option(
    "--arguments",
    metavar="JSON",
    help="arguments as a JSON object; - reads standard input",
)
@click.option(
    "--detach",
    is_flag=True,
    help="write the id of the task and end; `genmcp tasks` shows, follows and answers it",
)
def call(
    options: RemoteOptions,
    name: str,
    pairs: Sequence[str],
    arguments: str | None,
    detach: bool,
) -> int:
    """Call the tool NAME of the server TARGET. The status is 1 if its result is an error."""
    if detach:
        _check_has_url(options)
    json_arguments = _load_arguments(arguments)

    async def fetch(client: Client, status: StatusLine) -> CallToolResult | str:
        # The schema of an unlisted tool is unknown. Then the types of the values are guessed, and
        # the server validates them.
        listed = await client.tools()
        found = next((tool for tool in listed if tool.name == name), None)
        if found is None and (hint := suggestion(name, (tool.name for tool in listed))):
            status.write(f"genmcp: no tool {name!r} is listed{hint}\n")
        schema = found.input_schema if found else {}
        values = {**json_arguments, **convert_arguments(schema, pairs)}
        check_arguments(schema, values)
        for key in unknown_keys(schema, values):
            known = ", ".join(schema["properties"])
            hint = suggestion(key, schema["properties"])
            status.write(f"genmcp: {name} has no argument {key!r}, only {known}{hint}\n")
        if not detach:
            return await client.call(name, values, progress=status.show_progress)
        handle = await client.call_task(name, values)
        if handle.id is None:
            status.write("genmcp: the call has ended already, without a task\n")
            return await handle.wait()
        return handle.id

    def write(output: OutputWriter, result: CallToolResult | str) -> None:
        if isinstance(result, str):
            output.write_line(result)
        else:
            write_result(output, result)

    result = run_remote(options, fetch, write, DeferringHandler if detach else LogPrinter)
    return int(isinstance(result, CallToolResult) and result.is_error)


def _check_has_url(options: RemoteOptions) -> None:
    """Check that the target has a URL: another server ends with this command, with its tasks.

    Raises:
        ConfigurationError: it has none.
    """
    text = options.target
    if is_local(text) or not isinstance(parse_target(text, options.server).target, str):
        raise ConfigurationError("--detach applies only to a URL")


@click.command("read", epilog=example("read server.py greeting://Oslo", about=TARGET_HELP))
@remote_options
@click.argument("uri")
def read(options: RemoteOptions, uri: str) -> None:
    """Read the resource URI of the server TARGET."""

    def write(output: OutputWriter, result: ReadResourceResult) -> None:
        write_contents(output, [content_of(each) for each in result.contents])

    run_remote(options, lambda client, _: client.read(uri), write)


@click.command("prompt", epilog=example("prompt server.py greet city=Rome", about=TARGET_HELP))
@remote_options
@click.argument("name")
@_pairs
def prompt(options: RemoteOptions, name: str, pairs: Sequence[str]) -> None:
    """Get the prompt NAME of the server TARGET, with the arguments KEY=VALUE."""
    values = parse_pairs(pairs)

    def write(output: OutputWriter, result: GetPromptResult) -> None:
        for message in result.messages:
            output.write_line(f"{message.role}: {text_of(content_of(message.content))}")

    async def fetch(client: Client, status: StatusLine) -> GetPromptResult:
        try:
            return await client.prompt(name, values)
        except ServerError:
            names = [each.name for each in await client.prompts()]
            if name not in names and (hint := suggestion(name, names)):
                status.write(f"genmcp: no prompt {name!r} is listed{hint}\n")
            raise

    run_remote(options, fetch, write)


@click.command("complete", epilog=example("complete server.py greet city Ro", about=TARGET_HELP))
@remote_options
@click.argument("name")
@click.argument("argument")
@click.argument("value", default="")
@_pairs
def complete(
    options: RemoteOptions, name: str, argument: str, value: str, pairs: Sequence[str]
) -> None:
    """List the completions of VALUE, for an ARGUMENT of the prompt or resource template NAME.

    KEY=VALUE are the other arguments.
    """
    context = parse_pairs(pairs)
    is_template = "{" in name or "://" in name
    reference = ResourceTemplateReference(name) if is_template else PromptReference(name)

    def write(output: OutputWriter, completion: Completion) -> None:
        for each in completion.values:
            output.write_line(each)

    def fetch(client: Client, status: StatusLine) -> Awaitable[Completion]:
        return client.complete(reference, argument, value, context)

    run_remote(options, fetch, write)


@click.command("discover", epilog=example("discover server.py", about=TARGET_HELP))
@remote_options
def discover(options: RemoteOptions) -> None:
    """Show the name, revisions and capabilities of the server TARGET."""
    title, revision = "", ""

    async def fetch(client: Client, status: StatusLine) -> DiscoverResult:
        nonlocal title, revision
        info, revision = client.server_info, client.revision
        title = one_line(f"{info.name} {info.version}") if info is not None else ""
        return await client.discover()

    def write(output: OutputWriter, result: DiscoverResult) -> None:
        if title:
            output.write_line(title)
        others = [each for each in result.supported_versions if each != revision]
        also = f" (also {', '.join(others)})" if others else ""
        output.write_line(f"revision: {revision}{also}")
        capabilities = msgspec.to_builtins(result.capabilities)
        extensions = capabilities.pop("extensions", None) or {}
        output.write_line(f"offers: {', '.join(capabilities) or 'nothing'}")
        if extensions:
            output.write_line(f"extensions: {', '.join(extensions)}")
        if result.instructions:
            instructions = textwrap.indent(result.instructions.strip(), "    ")
            output.write_line(f"instructions:\n{instructions}")

    run_remote(options, fetch, write)


def run_remote(
    options: RemoteOptions,
    fetch: Fetch,
    write: Write,
    unattended: type[LogPrinter] = LogPrinter,
) -> Any:
    """Write the value that *fetch* gets from the server, and return it.

    With `--json` the value is written as JSON, otherwise by *write*. The handler is *unattended*
    if there is no terminal at which the user can be asked.

    Raises:
        CommandError: the server cannot be reached, or responded with an error.
    """
    with private_output() as output:
        resolved = resolve_target(options)
        status = StatusLine(sys.stderr)
        client = resolved.client(
            (TerminalHandler if has_user() else unattended)(status),
            lambda text: status.write(f"{text}\n"),
        )

        async def connect() -> Any:
            opening = asyncio.ensure_future(client.open())
            try:
                notice = f"waiting for an answer (Ctrl-C ends this): {options.target}"
                async with _show_after(status, notice, _OPEN_DELAY):
                    await asyncio.shield(opening)
                return await fetch(client, status)
            finally:
                # After Ctrl-C too: the process of a stdio server must not outlive the command.
                notice = f"waiting for the server to end: {options.target}"
                async with _show_after(status, notice, _CLOSE_DELAY):
                    opening.cancel()
                    await asyncio.wait([opening])
                    await client.aclose()
                if isinstance(resolved.target, Mux):
                    await resolved.target.aclose()

        try:
            value = asyncio.run(connect())
        except (ClientError, McpError) as error:
            hint = _endpoint_hint(error, resolved.target)
            raise CommandError(f"{error_text(error, options)}{hint}") from error
        if options.json:
            output.write_json(value)
        else:
            write(output, value)
    return value


def _endpoint_hint(error: Exception, target: Target) -> str:
    """Return the end of *error*: the URL with the usual path, if the server has no other path."""
    cause = error.__cause__ if isinstance(error, ServerError) else error
    if not isinstance(target, str) or not isinstance(cause, HttpStatusError):
        return ""
    parts = urlsplit(target)
    if cause.status not in _NO_ENDPOINT or parts.path == _USUAL_PATH:
        return ""
    return f"; did you mean {urlunsplit((parts.scheme, parts.netloc, _USUAL_PATH, '', ''))}?"


@asynccontextmanager
async def _show_after(status: StatusLine, text: str, delay: float) -> AsyncIterator[None]:
    """Show *text* in the status line if the block takes more than *delay* seconds."""
    status.clear()
    timer = asyncio.get_running_loop().call_later(delay, status.show, text)
    try:
        yield
    finally:
        timer.cancel()
        status.clear()


def write_result(output: OutputWriter, result: CallToolResult) -> None:
    """Write the contents of *result*."""
    contents = [content_of(each) for each in result.content]
    structured = result.structured
    # Many servers repeat structured content as JSON text. A terminal shows it once, indented.
    if structured is not None and (
        not contents or (output.is_terminal and _is_json_of(structured, contents))
    ):
        output.write_json(structured)
    else:
        write_contents(output, contents)


def _is_json_of(value: Any, contents: list[Any]) -> bool:
    try:
        return len(contents) == 1 and bool(msgspec.json.decode(contents[0]) == value)
    except (msgspec.DecodeError, RecursionError, TypeError):
        return False


def _load_arguments(text: str | None) -> Mapping[str, Any]:
    """Return the object of `--arguments`: JSON, or `-` for standard input."""
    if text is None:
        return {}
    try:
        if text == "-":
            if sys.stdin is None:
                raise OSError("standard input is closed")
            text = sys.stdin.read()
        return msgspec.json.decode(text, type=dict[str, Any])
    except (OSError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"--arguments: {error}") from None


def error_text(error: Exception, options: RemoteOptions) -> str:
    """Return the text of *error*, with advice in terms of the command line."""
    text = str(error).replace("ClientOptions(revision=...)", "--revision")
    if isinstance(error, Unauthorized):
        return text.replace(error.advice or "", _credentials_advice(error.server_name, options))
    # A login does not change a token that was given.
    given = options.token or options.header
    if isinstance(error, Forbidden) and error.scopes and not given:
        scopes = " ".join(error.scopes)
        return f"{text} (genmcp login {error.server_name} --scope '{scopes}')"
    if isinstance(error, AuthorizationFailed):
        return as_command_options(text)
    if isinstance(error, ServerError) and error.code == MissingCapability.code:
        # Without a terminal, no elicitation is declared.
        advice = "; run the command at a terminal to answer questions"
        return text + advice * ("elicitation" in text)
    if isinstance(error, ProcessExited) and error.last_line:  # it is on standard error already
        return re.sub(rf"; [^;]*: {re.escape(error.last_line)}", "", text)
    return text


def _credentials_advice(server_name: str, options: RemoteOptions) -> str:
    """Return what helps after a 401, depending on the credentials that were sent."""
    if "://" not in server_name:
        return "only a server over HTTP gets credentials: serve this one, and call its URL"
    login = f"`genmcp login {server_name}`"
    if options.login:
        return f"no usable login is stored: run {login}"
    if options.token:
        return f"the server refuses the token in {TOKEN_VARIABLE}; its log has the reason"
    if os.environ.get(TOKEN_VARIABLE):
        return f"--token sends the token in {TOKEN_VARIABLE}, which is not sent without it"
    others = f"--header 'Authorization: Bearer TOKEN', or {login} and --login"
    return f"give credentials: --token with {TOKEN_VARIABLE}=TOKEN, {others}"
