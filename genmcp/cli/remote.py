"""`genmcp tools`, `call`, `read`, `prompt`, `discover`: what a server has, from a shell."""

import asyncio
import base64
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from genmcp.cli.target import mux_of
from genmcp.cli.terminal import Bar, Logged, Terminal, plain
from genmcp.cli.values import arguments_of, split
from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.client.options import ClientOptions
from genmcp.client.stdio_options import Command
from genmcp.client.targets import Target
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.content import TextContent

__all__ = ["call", "discover", "prompt", "read", "target_of", "tools"]

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_ATTRIBUTE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

Shown = tuple[Any, Callable[[], None]]
"""A value, which `--json` shows, and what shows it to people otherwise."""


def target_of(given: str) -> Target:
    """Return what *given* means: a URL, a `module:attribute` of this process, or a command.

    Raises:
        ConfigurationError: it is none of them.
    """
    if _URL.match(given):
        return given
    if _ATTRIBUTE.fullmatch(given):
        return mux_of(given)
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ConfigurationError(f"{given!r} is no command: {error}") from None
    if not words:
        raise ConfigurationError("there is no URL, module:attribute or command")
    return Command(words[0], words[1:])


def tools(target: str, *, as_json: bool) -> int:
    """Show the tools of a server; return the exit status."""

    async def listed(client: Client, bar: Bar) -> Shown:
        found = await client.tools()

        def show() -> None:
            for each in found:
                arguments = each.input_schema.get("properties", {})
                required = each.input_schema.get("required", ())
                said = [key if key in required else f"[{key}]" for key in arguments]
                _say(" ".join([each.name, *said]))
                for line in (each.description or "").strip().splitlines()[:1]:
                    _say(f"    {line}")

        return found, show

    return _done(target, listed, as_json=as_json)


def call(target: str, name: str, given: Sequence[str], *, as_json: bool) -> int:
    """Call a tool with what is *given*, each `key=value`; return the exit status."""
    failed = False

    async def called(client: Client, bar: Bar) -> Shown:
        nonlocal failed
        schema = next((each.input_schema for each in await client.tools() if each.name == name), {})
        result = await client.call(name, arguments_of(schema, given), progress=bar.show)
        failed = bool(result.is_error)

        def show() -> None:
            for block in result.content:
                _say(_block(block))
            if not result.content and result.structured is not None:
                _say(_json(result.structured))

        return result, show

    return _done(target, called, as_json=as_json) or failed


def read(target: str, uri: str, *, as_json: bool) -> int:
    """Show a resource; what is not text is written as it is. Return the exit status."""

    async def found(client: Client, bar: Bar) -> Shown:
        result = await client.read(uri)

        def show() -> None:
            for each in result.contents:
                if each.text is not None:
                    _say(each.text)
                else:
                    sys.stdout.flush()
                    sys.stdout.buffer.write(base64.b64decode(each.blob or ""))
                    sys.stdout.buffer.flush()

        return result, show

    return _done(target, found, as_json=as_json)


def prompt(target: str, name: str, given: Sequence[str], *, as_json: bool) -> int:
    """Show a prompt with what is *given*, each `key=value`; return the exit status."""

    async def got(client: Client, bar: Bar) -> Shown:
        result = await client.prompt(name, dict(map(split, given)))

        def show() -> None:
            for each in result.messages:
                _say(f"{each.role}: {_block(each.content)}")

        return result, show

    return _done(target, got, as_json=as_json)


def discover(target: str, *, as_json: bool) -> int:
    """Show what a server is; return the exit status."""

    async def found(client: Client, bar: Bar) -> Shown:
        result = await client.discover()
        info, revision = client.server_info, client.revision

        def show() -> None:
            if info is not None:
                _say(f"{info.name} {info.version}")
            _say(f"speaks {revision}, of {', '.join(result.supported_versions)}")
            offered = msgspec.to_builtins(result.capabilities)
            _say(f"offers {', '.join(offered) or 'nothing'}")
            if result.instructions:
                _say(result.instructions)

        return result, show

    return _done(target, found, as_json=as_json)


def _done(target: str, work: Callable[[Client, Bar], Awaitable[Shown]], *, as_json: bool) -> int:
    """Do *work* with a client of *target*, and show what comes of it."""
    meant = target_of(target)

    async def connected() -> Shown:
        bar = Bar(sys.stderr)
        handler = Terminal if sys.stdin.isatty() and sys.stderr.isatty() else Logged
        options = ClientOptions(log_level="info")
        try:
            client = Client(meant, handler=handler(sys.stderr, bar), options=options)
            async with client:
                return await work(client, bar)
        finally:
            bar.clear()

    try:
        value, show = asyncio.run(connected())
    except (ClientError, McpError) as error:
        sys.stderr.write(f"genmcp: {plain(str(error))}\n")
        return 1
    if as_json:
        _say(_json(value))
    else:
        show()
    sys.stdout.flush()  # while somebody can still be told that nobody reads it
    return 0


def _block(block: Any) -> str:
    return block.text if isinstance(block, TextContent) else _json(block)


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def _say(text: str) -> None:
    """Write *text*, of a server, to stdout: to a terminal without what it would obey."""
    if sys.stdout.isatty():
        text = plain(text)
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
