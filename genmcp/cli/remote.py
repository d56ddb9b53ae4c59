"""The commands that talk to a server as a client: `genmcp tools`, `call`, `read` and so on."""

import asyncio
import re
import shlex
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from genmcp._mux.mux import Mux
from genmcp.cli.login import TOKEN_VARIABLE, AuthOptions
from genmcp.cli.output import (
    OutputWriter,
    as_command_options,
    content_of,
    one_line,
    private_output,
    sanitize,
    text_of,
    write_contents,
)
from genmcp.cli.parsing import Decorator, argument, command, option, options_as
from genmcp.cli.started import StartedTask, remember
from genmcp.cli.target import (
    ATTRIBUTE,
    TargetCommand,
    TargetOptions,
    parse_target,
    quoting_hint,
    resolve_target,
    target_parameters,
    with_stderr,
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
    suggestion,
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
from genmcp.client.options import ClientOptions
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
_PROBE_TIMEOUT: Final = 3.0  # seconds


_NO_OPTIONS: Final = AuthOptions()


class RemoteOptions(TargetOptions, frozen=True, kw_only=True):
    """The options of a command that calls a server: its target, and the form of the output."""

    json: bool = False
    output: str | None = None


remote_parameters: Final[Sequence[Decorator]] = (
    *target_parameters,
    option("--json", is_flag=True, help="write the whole result as JSON"),
    option("-o", "--output", metavar="FILE", help="write to FILE instead of standard output"),
)
"""The parameters of `RemoteOptions`, for `options_as`. The first is the target."""

remote_options: Final = options_as(RemoteOptions, *remote_parameters)
"""Adds `RemoteOptions` to a command."""


def _pairs(description: str) -> Decorator:
    return argument("pairs", description, nargs=-1, metavar="[KEY=VALUE]...")


@command("call", "call a tool of a server", TargetCommand)
@remote_options
@argument("name", "the tool")
@_pairs(
    "arguments, converted by the schema of the tool; lists are split at commas; key:=value is JSON"
)
@option(
    "--arguments",
    metavar="JSON",
    help="arguments as a JSON object; @FILE reads a file, - reads standard input",
)
@option(
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
    """Call a tool. The exit status is 1 if the result is an error."""
    failed = False
    url = _detached_url(options) if detach else ""
    json_arguments = _load_arguments(arguments)
    _parse_pairs(options.target, pairs)  # reports a malformed pair before the server is contacted

    async def send(
        client: Client, status: StatusLine, values: Mapping[str, Any]
    ) -> CallToolResult | StartedTask:
        if not detach:
            return await client.call(name, values, progress=status.show_progress)
        handle = await client.call_task(name, values)
        if handle.id is None:
            status.write("genmcp: the call has ended already, without a task\n")
            return await handle.wait()
        return _remember(StartedTask(handle.id, url, name, time.time()), status)

    async def fetch(client: Client, status: StatusLine) -> CallToolResult | StartedTask:
        nonlocal failed
        # The schema of an unlisted tool is unknown. Then the types of the values are guessed, and
        # the server validates them.
        listed = await client.tools()
        found = next((tool for tool in listed if tool.name == name), None)
        schema = found.input_schema if found else {}
        values = {**json_arguments, **convert_arguments(schema, pairs)}
        check_arguments(schema, values)
        for key in unknown_keys(schema, values):
            known = ", ".join(schema["properties"])
            hint = suggestion(key, schema["properties"])
            status.write(f"genmcp: {name} has no argument {key!r}, only {known}{hint}\n")
        failed = True
        try:
            result = await send(client, status, values)
            failed = isinstance(result, CallToolResult) and result.is_error
        finally:
            hint = suggestion(name, (tool.name for tool in listed))
            if failed and found is None and hint:
                status.write(f"genmcp: there is no tool {name!r}{hint}\n")
        return result

    def write(output: OutputWriter, result: CallToolResult | StartedTask) -> None:
        if isinstance(result, StartedTask):
            output.write_line(result.id)
        else:
            write_result(output, result)

    unattended = DeferringHandler if detach else LogPrinter
    return run_remote(options, fetch, write, unattended) or int(failed)


def _detached_url(options: RemoteOptions) -> str:
    """Return the URL of the target.

    Raises:
        ConfigurationError: it has none. Then its process ends with this command, and its tasks too.
    """
    is_module = ATTRIBUTE.fullmatch(options.target)
    target = None if is_module else parse_target(options.target, options.server).target
    if not isinstance(target, str):
        raise ConfigurationError("--detach applies only to a URL")
    return target


def _remember(task: StartedTask, status: StatusLine) -> StartedTask:
    try:
        remember(task)
    except OSError as error:
        status.write(f"genmcp: the id is not kept for `genmcp tasks`: {error}\n")
    return task


@command("read", "read a resource of a server", TargetCommand)
@remote_options
@argument("uri", "the resource")
def read(options: RemoteOptions, uri: str) -> int:
    """Read a resource."""

    def write(output: OutputWriter, result: ReadResourceResult) -> None:
        write_contents(output, [content_of(each) for each in result.contents])

    return run_remote(options, lambda client, _: client.read(uri), write)


@command("prompt", "get a prompt of a server", TargetCommand)
@remote_options
@argument("name", "the prompt")
@_pairs("arguments")
def prompt(options: RemoteOptions, name: str, pairs: Sequence[str]) -> int:
    """Get a prompt."""
    values = _parse_pairs(options.target, pairs)

    def write(output: OutputWriter, result: GetPromptResult) -> None:
        for message in result.messages:
            output.write_line(f"{message.role}: {text_of(content_of(message.content))}")

    async def fetch(client: Client, status: StatusLine) -> GetPromptResult:
        try:
            return await client.prompt(name, values)
        except ServerError:
            names = [each.name for each in await client.prompts()]
            if name not in names and (hint := suggestion(name, names)):
                status.write(f"genmcp: there is no prompt {name!r}{hint}\n")
            raise

    return run_remote(options, fetch, write)


@command("complete", "list the completions of an argument", TargetCommand)
@remote_options
@argument("name", "the prompt, or the resource template")
@argument("variable", "the argument, or the variable of the template", metavar="ARGUMENT")
@argument("value", "the beginning of the value", default="", metavar="[VALUE]")
@_pairs("the other arguments")
def complete(
    options: RemoteOptions, name: str, variable: str, value: str, pairs: Sequence[str]
) -> int:
    """List the completions of an argument of a prompt or resource template."""
    context = parse_pairs(pairs)
    is_template = "{" in name or "://" in name
    reference = ResourceTemplateReference(name) if is_template else PromptReference(name)

    def write(output: OutputWriter, completion: Completion) -> None:
        for each in completion.values:
            output.write_line(each)

    def fetch(client: Client, status: StatusLine) -> Awaitable[Completion]:
        return client.complete(reference, variable, value, context)

    return run_remote(options, fetch, write)


@command("discover", "show the capabilities of a server", TargetCommand)
@remote_options
def discover(options: RemoteOptions) -> int:
    """Show the name, revisions and capabilities of a server."""
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

    return run_remote(options, fetch, write)


def run_remote(
    options: RemoteOptions,
    fetch: Fetch,
    write: Write,
    unattended: type[LogPrinter] = LogPrinter,
) -> int:
    """Write the value that *fetch* gets from the server, and return the exit status.

    With `--json` the value is written as JSON, otherwise by *write*. The handler is *unattended*
    if there is no terminal at which the user can be asked.
    """
    with private_output() as output:
        resolved = resolve_target(options)
        status = StatusLine(sys.stderr)
        client = resolved.client(
            (TerminalHandler if has_user() else unattended)(status),
            with_stderr(resolved.options, lambda text: status.write(f"{text}\n")),
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
                    await client.close()
                if isinstance(resolved.target, Mux):
                    await resolved.target.aclose()

        try:
            value = asyncio.run(connect())
        except (ClientError, McpError) as error:
            text = sanitize(error_text(error, options))
            hint = asyncio.run(_find_endpoint(error, resolved.target))
            sys.stderr.write(f"genmcp: {text}{hint}\n")
            return 1
        path = options.output
        with output if path is None else OutputWriter(path=path) as chosen:
            if options.json:
                chosen.write_json(value)
            else:
                write(chosen, value)
    return 0


async def _find_endpoint(error: Exception, target: Target) -> str:
    """Return the end of *error*: the URL with the path /mcp, if that is an endpoint.

    Only for a URL that the server does not know. No header of the user is sent.
    """
    cause = error.__cause__ if isinstance(error, ServerError) else error
    if not isinstance(target, str) or not isinstance(cause, HttpStatusError):
        return ""
    parts = urlsplit(target)
    if cause.status not in _NO_ENDPOINT or parts.path == _USUAL_PATH:
        return ""
    url = urlunsplit((parts.scheme, parts.netloc, _USUAL_PATH, "", ""))
    limit = _PROBE_TIMEOUT
    options = ClientOptions(idle_timeout=limit, open_timeout=limit)
    try:
        async with Client(url, timeout=limit, options=options):
            pass
    except (Unauthorized, Forbidden):  # a client with credentials gets an answer
        pass
    except (ClientError, McpError):
        return ""
    return f"; did you mean {sanitize(url)}?"


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
    except (msgspec.DecodeError, TypeError):
        return False


def _load_arguments(text: str | None) -> Mapping[str, Any]:
    """Return the object of `--arguments`: JSON, `@` and a file, or `-` for standard input."""
    if text is None:
        return {}
    try:
        if text == "-":
            if sys.stdin is None:
                raise OSError("standard input is closed")
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
        return msgspec.json.decode(text, type=dict[str, Any])
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--arguments: {error}") from None


def _parse_pairs(target: str, pairs: Sequence[str]) -> dict[str, str]:
    """Return the `key=value` *pairs* of the command line.

    Raises:
        ConfigurationError: a pair is malformed. The text hints at missing quotes around a command.
    """
    try:
        return parse_pairs(pairs)
    except ConfigurationError as error:
        hint = "" if " " in target or ":" in target else quoting_hint(target)
        raise ConfigurationError(f"{error}{hint}") from None


def error_text(error: Exception, options: AuthOptions = _NO_OPTIONS) -> str:
    """Return the text of *error*, with advice in terms of the command line."""
    text = str(error).replace("ClientOptions(revision=...)", "--revision")
    if isinstance(error, Unauthorized):
        return text.replace(error.advice or "", _credentials_advice(error.server_name, options))
    if isinstance(error, Forbidden) and error.scopes:
        scopes = " ".join(error.scopes)
        return f"{text} ({_login_command(error.server_name, options)} --scope '{scopes}')"
    if isinstance(error, AuthorizationFailed):
        return as_command_options(text)
    if isinstance(error, ServerError) and error.code == MissingCapability.code:
        # Without a terminal, no elicitation is declared.
        advice = "; run the command at a terminal to answer questions"
        return text + advice * ("elicitation" in text)
    if (
        isinstance(error, ProcessExited) and error.last_line
    ):  # the last line is on standard error already
        return re.sub(rf"; [^;]*: {re.escape(error.last_line)}", "", text)
    return text


def _credentials_advice(server_name: str, options: AuthOptions) -> str:
    """Return what helps after a 401, depending on the credentials that were sent."""
    if "://" not in server_name:
        return "only a server over HTTP gets credentials: serve this one, and call its URL"
    login = f"`{_login_command(server_name, options)}`"
    if options.login:
        return f"no usable login is stored: run {login}"
    if options.token:
        return f"the server refuses the token in {TOKEN_VARIABLE}; its log has the reason"
    return f"give credentials: --header 'Authorization: Bearer TOKEN', or {login} and --login"


def _login_command(server_name: str, options: AuthOptions) -> str:
    storage = f" --tokens {shlex.quote(options.tokens)}" if options.tokens else ""
    return f"genmcp login {server_name}{storage}"
