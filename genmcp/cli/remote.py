"""`genmcp tools`, `call`, `read` and so on: what a server has and does, from a shell."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from genmcp.cli import listing
from genmcp.cli.bare import line, plain
from genmcp.cli.contents import piece_of, write, written
from genmcp.cli.output import Output, private_output
from genmcp.cli.reach import heard, way_of
from genmcp.cli.terminal import Bar, Logged, Terminal
from genmcp.cli.values import arguments_of, check, pairs, strangers
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ProcessExited, ServerError, Unauthorized
from genmcp.errors import ConfigurationError, McpError, MethodNotFound
from genmcp.mux.mux import Mux
from genmcp.protocol.completion import PromptReference, ResourceTemplateReference
from genmcp.protocol.tools import CallToolResult

__all__ = [
    "call",
    "complete",
    "discover",
    "prompt",
    "prompts",
    "read",
    "resources",
    "templates",
    "tools",
]

Shown = tuple[Any, Callable[[Output], None]]
"""A value, which `--json` shows, and what shows it to people otherwise."""

Work = Callable[[Client, Bar], Awaitable[Shown]]

_SILENCE: Final = 3.0
_LINGERING: Final = 0.5
"""After how many seconds a user is told that a server is waited for, to answer and to end."""
_ANSWER: Final = "waiting for an answer (Ctrl-C ends this)"
_END: Final = "waiting for the server to end"


def tools(given: argparse.Namespace) -> int:
    """Show the tools of a server; return the exit status."""
    return _listed(given, "tools", Client.tools, listing.of_tool)


def resources(given: argparse.Namespace) -> int:
    """Show the resources of a server; return the exit status."""
    return _listed(given, "resources", Client.resources, listing.of_resource)


def templates(given: argparse.Namespace) -> int:
    """Show the resource templates of a server; return the exit status."""
    return _listed(given, "resource templates", Client.templates, listing.of_resource)


def prompts(given: argparse.Namespace) -> int:
    """Show the prompts of a server; return the exit status."""
    return _listed(given, "prompts", Client.prompts, listing.of_prompt)


def call(given: argparse.Namespace) -> int:
    """Call a tool with what is given, each `key=value`; return the exit status."""
    failed = False
    whole = _whole(given.arguments)
    _look_at(given)

    async def called(client: Client, bar: Bar) -> Shown:
        nonlocal failed
        found = next((each for each in await client.tools() if each.name == given.name), None)
        schema = found.input_schema if found else {}
        arguments = {**whole, **arguments_of(schema, given.given)}
        check(schema, arguments)
        for each in strangers(schema, arguments):
            known = ", ".join(schema["properties"])
            bar.tell(f"genmcp: {given.name} has no argument {each!r}, only {known}\n")
        result = await client.call(given.name, arguments, progress=bar.show)
        failed = result.is_error
        return result, lambda output: _show_result(output, result)

    return _done(given, called) or failed


def read(given: argparse.Namespace) -> int:
    """Show a resource; return the exit status."""

    async def found(client: Client, bar: Bar) -> Shown:
        result = await client.read(given.uri)
        return result, lambda output: write(output, [*map(piece_of, result.contents)])

    return _done(given, found)


def prompt(given: argparse.Namespace) -> int:
    """Show a prompt with what is given, each `key=value`; return the exit status."""
    _look_at(given)

    async def got(client: Client, bar: Bar) -> Shown:
        result = await client.prompt(given.name, pairs(given.given))

        def show(output: Output) -> None:
            for each in result.messages:
                output.say(f"{each.role}: {written(piece_of(each.content))}")

        return result, show

    return _done(given, got)


def complete(given: argparse.Namespace) -> int:
    """Show how an argument of a prompt, or of a resource template, may go on."""
    context = pairs(given.given)

    async def completed(client: Client, bar: Bar) -> Shown:
        name, kind = given.name, ResourceTemplateReference
        reference = kind(name) if "{" in name or "://" in name else PromptReference(name)
        found = await client.complete(reference, given.argument, given.value, context)

        def show(output: Output) -> None:
            for each in found.values:
                output.say(each)

        return found, show

    return _done(given, completed)


def discover(given: argparse.Namespace) -> int:
    """Show what a server is; return the exit status."""

    async def found(client: Client, bar: Bar) -> Shown:
        result = await client.discover()
        info, revision = client.server_info, client.revision

        def show(output: Output) -> None:
            if info is not None:
                output.say(line(f"{info.name} {info.version}"))
            others = [each for each in result.supported_versions if each != revision]
            also = f" (also {', '.join(others)})" if others else ""
            output.say(f"revision: {revision}{also}")
            offered = msgspec.to_builtins(result.capabilities)
            extensions = offered.pop("extensions", None) or {}
            output.say(f"offers: {', '.join(offered) or 'nothing'}")
            if extensions:
                output.say(f"extensions: {', '.join(extensions)}")
            if result.instructions:
                output.say(f"instructions:\n{_indented(result.instructions)}")

        return result, show

    return _done(given, found)


def _listed(
    given: argparse.Namespace,
    what: str,
    asked: Callable[[Client], Awaitable[Any]],
    lines: Callable[[Any], Iterable[str]],
) -> int:
    """Show a list: each of it by *lines*, which a terminal gets wrapped."""

    async def listed(client: Client, bar: Bar) -> Shown:
        try:
            found = await asked(client)
        except ServerError as error:
            if error.code != MethodNotFound.code:
                raise
            found = []
        if not found:
            bar.tell(f"genmcp: {given.target} has no {what}\n")

        def show(output: Output) -> None:
            width = shutil.get_terminal_size().columns
            for each in found:
                for text in lines(each):
                    output.say(listing.wrapped(text, width) if output.is_terminal else text)

        return found, show

    return _done(given, listed)


def _done(given: argparse.Namespace, work: Work) -> int:
    """Do *work* with a client of what is *given*, and show what comes of it."""
    with private_output() as output:
        way = way_of(given)
        bar = Bar(sys.stderr)
        asks = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        client = Client(
            way.target,
            handler=Terminal(bar) if asks else Logged(bar),
            options=heard(way.options, lambda text: bar.tell(f"{text}\n")),
        )

        async def connected() -> Shown:
            opening = asyncio.ensure_future(client.open())
            try:
                async with _told(bar, _ANSWER, given.target, _SILENCE):
                    await asyncio.shield(opening)
                return await work(client, bar)
            finally:
                async with _told(bar, _END, given.target, _LINGERING):
                    opening.cancel()
                    await asyncio.wait([opening])
                    await client.close()
                if isinstance(way.target, Mux):
                    await way.target.aclose()

        try:
            value, show = asyncio.run(connected())
        except (ClientError, McpError) as error:
            sys.stderr.write(f"genmcp: {plain(_said(error))}\n")
            return 1
        with output if given.output is None else Output(path=given.output) as chosen:
            if given.json:
                chosen.show(value)
            else:
                show(chosen)
    return 0


@asynccontextmanager
async def _told(bar: Bar, what: str, target: str, patience: float) -> AsyncIterator[None]:
    """Tell the user what is waited for, if that takes more than *patience* seconds."""
    bar.clear()
    loop = asyncio.get_running_loop()
    waiting = loop.call_later(patience, bar.say, f"{what}: {target}")
    try:
        yield
    finally:
        waiting.cancel()
        bar.clear()


def _show_result(output: Output, result: CallToolResult) -> None:
    pieces = [*map(piece_of, result.content)]
    structured = result.structured
    if structured is not None and (not pieces or (output.is_terminal and _is(pieces, structured))):
        output.show(structured)
    else:
        write(output, pieces)


def _is(pieces: list[Any], structured: Any) -> bool:
    """Whether *pieces* are the text of what is structured."""
    try:
        return len(pieces) == 1 and bool(msgspec.json.decode(pieces[0]) == structured)
    except (msgspec.DecodeError, TypeError):
        return False


def _whole(given: str | None) -> Mapping[str, Any]:
    """Return the arguments of `--arguments`: an object as JSON, `@` and a file, or `-`."""
    if given is None:
        return {}
    try:
        if given == "-":
            if sys.stdin is None:
                raise OSError("standard input is closed")
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text("utf-8")
        return msgspec.json.decode(given, type=dict[str, Any])
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--arguments: {error}") from None


def _look_at(given: argparse.Namespace) -> None:
    """Refuse what is not key=value before any server is asked."""
    try:
        pairs(given.given)
    except ConfigurationError as error:
        hint = "" if " " in given.target or ":" in given.target else quoted(given.target)
        raise ConfigurationError(f"{error}{hint}") from None


def quoted(target: str) -> str:
    """Return a hint for somebody who may have forgotten quotes."""
    return f" (a command of several words is put in quotes: '{target} ...')"


def _said(error: Exception) -> str:
    """Return what *error* says, in words of the command line."""
    text = str(error).replace("ClientOptions(revision=...)", "--revision")
    if isinstance(error, Unauthorized):
        advice = "give credentials: --header 'Authorization: Bearer TOKEN'"
        return text.replace(error.advice or "", advice)
    if isinstance(error, ProcessExited):  # what it said is on standard error already
        return text.replace(f"; the last it said: {error.last_line}", "")
    return text


def _indented(text: str) -> str:
    return "\n".join(f"    {each}".rstrip() for each in text.strip().splitlines())
