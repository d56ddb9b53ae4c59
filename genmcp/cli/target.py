"""The target of a command: a module attribute, or a server and the options to reach it."""

import importlib
import re
import shlex
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp.cli.login import CONNECTION, AuthOptions, auth_of, auth_parameters
from genmcp.cli.parsing import CliCommand, Decorator, argument, option
from genmcp.cli.values import parse_pairs
from genmcp.client.auth.base import Auth
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command, check_headers
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError
from genmcp.hub.config import server_of
from genmcp.server import Server

SERVED: Final = "module:attribute of a Mux, Endpoint, or Server such as a Suite"
"""What `load_mux` takes, for `--help`."""

ATTRIBUTE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""A target in this process."""

_HTTP_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]*)://")
_HOST: Final = re.compile(r"[\w.-]+:\d+(/.*)?")


class ModuleImportError(Exception):
    """A module raised an exception when it was imported.

    The text is the traceback, beginning with the module's own first line.
    """


def load_attribute(name: str) -> Any:
    """Import the module of *name*, `module:attribute`, and return the attribute.

    The current folder is searched first.

    Raises:
        ConfigurationError: the module or the attribute does not exist.
        ModuleImportError: importing the module failed.
    """
    module, _, path = name.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigurationError(f"{name!r} is not module:attribute, such as shop.app:mux")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").replace("/", ".").strip(".")
        raise ConfigurationError(
            f"{name!r} names a file, not a module; did you mean {dotted}:{path}?"
        )
    folder = str(Path.cwd())
    if folder != sys.path[0]:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # If the missing module is not *module* or its package, an import within the target failed.
        # That is a defect of the target, which is shown with a traceback.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _import_error(module, error) from None
        raise ConfigurationError(f"{name}: there is no module {error.name!r} in {folder}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except Exception as error:
        raise _import_error(module, error) from None
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigurationError(f"{name}: there is no {attribute!r} in {module}")
        found = getattr(found, attribute)
    return found


def load_mux(name: str) -> Mux:
    """Return the mux that *name*, `module:attribute`, refers to.

    That is the attribute itself, the mux of an endpoint, or a new mux of a server.

    Raises:
        ConfigurationError: the attribute is of another type.
        ModuleImportError: importing the module failed.
    """
    found = load_attribute(name)
    if isinstance(found, Mux):
        return found
    if isinstance(found, Endpoint):
        return found.mux
    if isinstance(found, Server):
        return Mux(found)
    if isinstance(found, type):
        kind = f"the class {found.__name__}: name an instance, such as"
    else:
        kind = f"a {type(found).__name__}: name"
    hint = "" if not isinstance(found, Starlette) else f"; uvicorn {name} serves this application"
    raise ConfigurationError(
        f"{name} is {kind} a Mux, an Endpoint, or a Server such as a Suite{hint}"
    )


def _import_error(module: str, error: Exception) -> ModuleImportError:
    trace = _own_frames(error.__traceback__)
    lines = traceback.format_exception(type(error), error, trace)
    return ModuleImportError(f"{''.join(lines)}genmcp: {module} cannot be imported\n")


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return *trace* without the leading frames of this module and of the import machinery."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


class ParsedTarget(NamedTuple):
    """A target, with the headers and the authorization that a file with `mcpServers` has for it."""

    target: Target
    headers: Mapping[str, str] = {}
    auth: Auth | None = None


class ResolvedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The server that a command talks to, and the options of the client."""

    target: Target
    options: ClientOptions
    headers: Mapping[str, str] = {}
    timeout: float = 600.0
    auth: Auth | None = None

    def client(
        self, handler: ClientHandler | None = None, options: ClientOptions | None = None
    ) -> Client:
        """Return a client of the server. *options* replace those of this target."""
        return Client(
            self.target,
            headers=self.headers,
            timeout=self.timeout,
            auth=self.auth,
            handler=handler,
            options=options or self.options,
        )


class TargetOptions(AuthOptions, frozen=True, kw_only=True):
    """The target of a command, and how the connection to it is configured."""

    target: str
    env: Sequence[str] = ()
    header: Sequence[str] = ()
    server: str | None = None
    timeout: float | None = None
    revision: str | None = None


target_parameters: Final[Sequence[Decorator]] = (
    argument(
        "target",
        "a URL, a stdio command (in quotes), module:attribute, or a file with mcpServers",
    ),
    option(
        "-e",
        "--env",
        section=CONNECTION,
        multiple=True,
        metavar="KEY=VALUE",
        help="an environment variable for a stdio server, which inherits few; repeatable",
    ),
    option(
        "--header",
        section=CONNECTION,
        multiple=True,
        metavar="'NAME: VALUE'",
        help="a header of every HTTP request; repeatable",
    ),
    option(
        "--server",
        section=CONNECTION,
        metavar="NAME",
        help="which of the mcpServers of the file",
    ),
    *auth_parameters,
    option(
        "--timeout",
        section=CONNECTION,
        type=float,
        metavar="SECONDS",
        help="timeout for connecting (30), without a message (60), and of a request (600)",
    ),
    option(
        "--revision",
        section=CONNECTION,
        metavar="REVISION",
        help="the protocol revision to use, instead of the newest that both support",
    ),
)
"""The parameters of `TargetOptions`, for `options_as`."""


class TargetCommand(CliCommand):
    """A command whose first argument is a target."""

    def extra_hint(self, values: dict[str, Any]) -> str:
        """Return a hint at missing quotes, if the target may be the first word of a command."""
        target = values.get("target") or ":"
        return "" if {*" :/"} & {*target} else quoting_hint(target)


def quoting_hint(target: str) -> str:
    """Return a hint that the command of a stdio server must be quoted."""
    return f" (a command of several words must be quoted: '{target} ...')"


def resolve_target(arguments: TargetOptions) -> ResolvedTarget:
    """Return the target and the options of the client that *arguments* denote.

    Raises:
        ConfigurationError: the target is malformed, or an option does not apply to it.
    """
    target, configured, auth = parse_target(arguments.target, arguments.server)
    headers = {**configured, **dict(map(_parse_header, arguments.header))}
    if arguments.env:
        if not isinstance(target, Command):
            raise ConfigurationError("--env applies only to the command of a stdio server")
        target = replace(target, env={**(target.env or {}), **parse_pairs(arguments.env)})
    if headers and not isinstance(target, str):
        raise ConfigurationError("--header applies only to a URL")
    check_headers(headers)
    options, timeout = ClientOptions(log_level="info", revision=arguments.revision), 600.0
    if (seconds := arguments.timeout) is not None:
        if not 0 < seconds < threading.TIMEOUT_MAX:
            raise ConfigurationError(f"--timeout: {seconds:g} is not a positive number of seconds")
        timeout = seconds
        options = replace(options, idle_timeout=seconds, open_timeout=seconds)
    auth = auth_of(arguments, target, auth)
    if auth is not None and any(name.lower() == "authorization" for name in headers):
        raise ConfigurationError(
            "--login and --token cannot be combined with an Authorization header"
        )
    return ResolvedTarget(
        target=target, options=options, headers=headers, timeout=timeout, auth=auth
    )


def with_stderr(options: ClientOptions, on_line: Callable[[str], None]) -> ClientOptions:
    """Return *options* with *on_line* called for each line of a stdio server's standard error."""
    return replace(options, stderr=on_line)


def parse_target(text: str, server: str | None = None) -> ParsedTarget:
    """Return the target that *text* denotes.

    Args:
        text: a URL, `module:attribute` in this process, a file with `mcpServers`, or the command
            of a stdio server.
        server: which server of the file.

    Raises:
        ConfigurationError: *text* has none of these forms.
    """
    # An existing file is checked first, since its path could also be a command.
    if text.endswith(".json") and Path(text).is_file():
        return _load_configuration(text, server)
    if server is not None:
        raise ConfigurationError(f"--server needs a file with mcpServers, unlike {text!r}")
    if _HTTP_URL.match(text):
        if not _hostname(text):
            raise ConfigurationError(
                f"{text!r} has no host name: a URL looks like https://a.example/mcp"
            )
        return ParsedTarget(text)
    if ATTRIBUTE.fullmatch(text):
        return ParsedTarget(load_mux(text))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not a valid command: {error}") from None
    if not words:
        raise ConfigurationError("a URL, module:attribute or command is required")
    _check_command(text, words)
    return ParsedTarget(Command(words[0], words[1:]))


def _check_command(text: str, words: Sequence[str]) -> None:
    """Reject *text*, split into *words*, if it cannot be a command; suggest a correction."""
    program = words[0]
    if scheme := _SCHEME.match(text):
        raise ConfigurationError(
            f"{scheme[1]} is not supported: a URL begins with http:// or https://"
        )
    if _HOST.fullmatch(text):
        raise ConfigurationError(f"{text!r} is not a URL; did you mean http://{text}?")
    if shutil.which(program) is not None:
        return
    module, py, attribute = program.partition(".py")
    if py and len(words) == 1:
        name = f"{module.replace('/', '.').strip('.')}{attribute or ':NAME'}"
        raise ConfigurationError(
            f"{program!r} is a file: name a server in it with {name!r}, or run it as a stdio "
            f"server with {f'python {module}.py'!r} (in quotes)"
        )
    if program.endswith(".json"):
        raise ConfigurationError(f"there is no file {program!r}")
    raise ConfigurationError(
        f"there is no command {program!r}; a server in a module is module:attribute, such as "
        f"shop.app:suite"
    )


def _load_configuration(path: str, name: str | None) -> ParsedTarget:
    try:
        found = server_of(path, name)
    except ConfigurationError as error:
        hint = "" if name else " (--server NAME)"
        raise ConfigurationError(f"{error}{hint}") from None
    if found.url is not None:
        return ParsedTarget(found.url, found.headers or {}, found.auth)
    return ParsedTarget(Command(str(found.command), found.args, found.env, found.cwd))


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # malformed IPv6 address
        return None


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigurationError(f"--header: {text!r} is not 'Name: value'")
    return name.strip(), value.strip()
