"""Which server a command is about, and how it is reached: what all such commands take."""

import argparse
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from genmcp.cli.target import ATTRIBUTE, mux_of
from genmcp.cli.values import pairs
from genmcp.client.options import ClientOptions, Command, HttpOptions, StdioOptions
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError
from genmcp.hub.config import server_of

__all__ = ["URL", "Way", "add_options", "heard", "target_of", "way_of"]

URL: Final = re.compile(r"https?://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]*)://")
_HOST: Final = re.compile(r"[\w.-]+:\d+(/.*)?")
_TARGET: Final = (
    "a URL, the command of a server over stdio (in quotes), module:attribute, or a file with "
    "mcpServers"
)


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and how a client of it behaves."""

    target: Target
    options: ClientOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let *parser* take a target, and what belongs to it."""
    parser.add_argument("target", help=_TARGET)
    group = parser.add_argument_group("how the server is reached")
    group.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a variable for the process of a server over stdio, which gets few others; repeatable",
    )
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header of every HTTP request; repeatable",
    )
    group.add_argument("--server", metavar="NAME", help="which of the mcpServers of the file")
    group.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait: to connect (30), for a word (60), and in all (600)",
    )
    group.add_argument("--revision", help="the revision to speak, instead of the newest of both")


def way_of(given: argparse.Namespace) -> Way:
    """Return the way that the options of `add_options` say.

    Raises:
        ConfigurationError: there is none.
    """
    target, headers = target_of(given.target, given.server)
    headers = {**headers, **dict(map(_header, given.header))}
    if given.env:
        if not isinstance(target, Command):
            raise ConfigurationError("--env is for the command of a server over stdio")
        target = replace(target, env={**(target.env or {}), **pairs(given.env)})
    if headers and not isinstance(target, str):
        raise ConfigurationError("--header is for a server over HTTP: the target is no URL")
    options = ClientOptions(
        log_level="info", revision=given.revision, http=HttpOptions(headers=headers)
    )
    if (seconds := given.timeout) is not None:
        if not 0 < seconds < threading.TIMEOUT_MAX:
            raise ConfigurationError(f"--timeout: {seconds:g} is no number of seconds above 0")
        options = replace(options, timeout=seconds, idle_timeout=seconds, open_timeout=seconds)
    return Way(target=target, options=options)


def heard(options: ClientOptions, tell: Callable[[str], None]) -> ClientOptions:
    """Return *options* with which *tell* is given what a server over stdio writes to stderr."""
    return replace(options, stdio=StdioOptions(stderr=tell))


def target_of(given: str, server: str | None = None) -> tuple[Target, dict[str, str]]:
    """Return what *given* means, and headers for it.

    A URL, a `module:attribute` of this process, *server* of a file of `mcpServers`, or a command.

    Raises:
        ConfigurationError: it is none of them.
    """
    if given.endswith(".json") and Path(given).is_file():
        return _of_file(given, server)
    if server is not None:
        raise ConfigurationError(f"--server is for a file with mcpServers, unlike {given!r}")
    if URL.match(given):
        if not _hostname(given):
            raise ConfigurationError(
                f"{given!r} names no host: a URL is like https://a.example/mcp"
            )
        return given, {}
    if ATTRIBUTE.fullmatch(given):
        return mux_of(given), {}
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ConfigurationError(f"{given!r} is no command: {error}") from None
    if not words:
        raise ConfigurationError("there is no URL, module:attribute or command")
    _hint(given, words)
    return Command(words[0], words[1:]), {}


def _hint(given: str, words: Sequence[str]) -> None:
    """Refuse what cannot be a command, saying what may be meant."""
    word = words[0]
    if scheme := _SCHEME.match(given):
        raise ConfigurationError(
            f"{scheme[1]} is not spoken: a URL begins with http:// or https://"
        )
    if _HOST.fullmatch(given):
        raise ConfigurationError(f"{given!r} is not a URL; is http://{given} meant?")
    if shutil.which(word) is not None:
        return
    module, py, attribute = word.partition(".py")
    if py and len(words) == 1:
        name = f"{module.replace('/', '.').strip('.')}{attribute or ':NAME'}"
        raise ConfigurationError(
            f"{word!r} is a file: a server in it is {name!r}, and if it is a program that speaks "
            f"over stdio, {f'python {module}.py'!r} (in quotes) starts it"
        )
    if word.endswith(".json"):
        raise ConfigurationError(f"there is no file {word!r}")
    raise ConfigurationError(
        f"there is no command {word!r}; a server of a module is module:attribute, such as "
        f"shop.app:suite"
    )


def _of_file(path: str, name: str | None) -> tuple[Target, dict[str, str]]:
    try:
        found = server_of(path, name)
    except ConfigurationError as error:
        hint = "" if name else " (--server NAME)"
        raise ConfigurationError(f"{error}{hint}") from None
    if found.url is not None:
        return found.url, dict(found.headers or {})
    return Command(str(found.command), found.args, found.env, found.cwd), {}


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # brackets that hold no address
        return None


def _header(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise ConfigurationError(f"--header: {given!r} is not 'Name: value'")
    return name.strip(), value.strip()
