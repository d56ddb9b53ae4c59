"""The target of a command: a module attribute, or a server and the options to reach it."""

import importlib
import os
import re
import shlex
import shutil
import ssl
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp.cli.output import CommandError
from genmcp.cli.parsing import Decorator, options_as
from genmcp.cli.values import parse_pairs
from genmcp.client.auth.base import Auth, Authorization, Authorizer
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command, check_headers
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError
from genmcp.hub.config import server_of
from genmcp.server import Server

TOKEN_VARIABLE: Final = "GENMCP_TOKEN"

SERVED_HELP: Final = (
    "TARGET is a Mux, an Endpoint, or a Server such as a Suite: module:attribute, "
    "server.py:attribute, or server.py, if there is only one in the file."
)
"""What `load_mux` takes, for the help of a command."""

TARGET_HELP: Final = (
    "TARGET is a URL, the command of a stdio server (in quotes), server.py or module:attribute "
    "for a server in this process, or a JSON file with mcpServers."
)
"""What `parse_target` takes, for the help of a command."""

RUNNERS: Final = ("bunx", "docker", "node", "npx", "python", "python3", "uv", "uvx")
"""Programs that run the server that their arguments name."""

_ATTRIBUTE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_FILE: Final = re.compile(r"(.+\.py)(?::([A-Za-z_][\w.]*))?")
_HTTP_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]*)://")
_HOST: Final = re.compile(r"[\w.-]+:\d+(/.*)?")


def is_local(text: str) -> bool:
    """Return whether the target *text* is a file or `module:attribute`, in this process."""
    return source_file(text) is not None or _ATTRIBUTE.fullmatch(text) is not None


def source_file(text: str) -> tuple[Path, str] | None:
    """Return the file and the attribute of the target *text*, such as "server.py:app".

    The attribute is empty if the text has none. None unless the file exists.
    """
    found = _FILE.fullmatch(text)
    if found is None or not Path(found[1]).is_file():
        return None
    return Path(found[1]).absolute(), found[2] or ""


def load_attribute(name: str) -> Any:
    """Return the attribute that *name* refers to, and import its module.

    Args:
        name: `module:attribute`, whose module is searched in the current folder first;
            `server.py:attribute`; or `server.py`, for the only server in it.

    Raises:
        ConfigurationError: the module or the attribute does not exist.
        CommandError: importing the module failed; the traceback is on standard error.
    """
    folder, file = Path.cwd(), None
    if (source := source_file(name)) is not None:
        file, path = source
        module, folder = file.stem, file.parent
        while (folder / "__init__.py").exists():  # its modules may have relative imports
            module, folder = f"{folder.name}.{module}", folder.parent
    else:
        module, _, path = name.partition(":")
        if name.endswith(".py") or module.endswith(".py"):
            raise ConfigurationError(f"there is no file {module!r}")
        if not module or not path or module.startswith("."):
            raise ConfigurationError(
                f"{name!r} is neither a file nor module:attribute, such as shop.app:mux"
            )
    found = _import_module(module, folder, name)
    if file is not None and not file.samefile(getattr(found, "__file__", None) or folder):
        raise ConfigurationError(f"{name}: another module is named {module!r}: rename the file")
    if not path:
        return _served_in(found, name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigurationError(f"{name}: there is no {attribute!r} in {module}")
        found = getattr(found, attribute)
    return found


def _import_module(module: str, folder: Path, name: str) -> Any:
    if str(folder) != sys.path[0]:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # If the missing module is not *module* or its package, an import within the target failed.
        # That is a defect of the target, which is shown with a traceback.
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            text = f"{name}: there is no module {error.name!r} in {folder}"
            raise ConfigurationError(text) from None
        raise _import_error(module, error) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error
    except Exception as error:
        raise _import_error(module, error) from None


def _import_error(module: str, error: Exception) -> CommandError:
    """Write the traceback of *error*, beginning with the module's own first line."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    return CommandError(f"{module} cannot be imported")


def _served_in(module: Any, name: str) -> Any:
    """Return the only server in *module*: the endpoint, else the mux, else the server itself."""
    for kind in (Endpoint, Mux, Server):
        found = {key: value for key, value in vars(module).items() if isinstance(value, kind)}
        if len({id(value) for value in found.values()}) > 1:
            raise ConfigurationError(
                f"{name} has several servers: name one of them, {name}:{f' or {name}:'.join(found)}"
            )
        if found:
            return found.popitem()[1]
    raise ConfigurationError(f"{name} has no Mux, Endpoint, or Server such as a Suite")


def load_mux(name: str) -> Mux:
    """Return the mux that *name* refers to, as in `load_attribute`.

    That is the attribute itself, the mux of an endpoint, or a new mux of a server.

    Raises:
        ConfigurationError: the attribute is of another type.
        CommandError: importing the module failed.
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

    def client(self, handler: ClientHandler, on_stderr: Callable[[str], None]) -> Client:
        """Return a client; *on_stderr* gets each line of a stdio server's standard error."""
        return Client(
            self.target,
            headers=self.headers,
            timeout=self.timeout,
            auth=self.auth,
            handler=handler,
            options=replace(self.options, stderr=on_stderr),
        )


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command that calls a server: how to reach it, and the form of the output."""

    target: str
    env: Sequence[str] = ()
    header: Sequence[str] = ()
    server: str | None = None
    login: bool = False
    token: bool = False
    timeout: float | None = None
    revision: str | None = None
    json: bool = False


target_options: Final[Sequence[Decorator]] = (
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="KEY=VALUE",
        help="a variable for a stdio server, which inherits few; repeatable",
    ),
    click.option(
        "--header", multiple=True, metavar="'NAME: VALUE'", help="an HTTP header; repeatable"
    ),
    click.option("--server", metavar="NAME", help="which of the mcpServers of the file"),
)
"""The options that belong to a target, also where no client is made."""

call_options: Final[Sequence[Decorator]] = (
    *target_options,
    click.option("--login", is_flag=True, help="use the tokens of `genmcp login`, or log in"),
    click.option("--token", is_flag=True, help=f"send the access token in ${TOKEN_VARIABLE}"),
    click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="for connecting (30), without a message (60), and of a request (600)",
    ),
    click.option("--revision", help="the protocol revision, instead of the newest of both"),
    click.option("--json", is_flag=True, help="write the whole result as JSON"),
)
"""The options of `RemoteOptions`."""

remote_options: Final = options_as(RemoteOptions, click.argument("target"), *call_options)
"""Adds `RemoteOptions` to a command."""


def quoting_hint(target: str) -> str:
    """Return a hint that the command of a stdio server must be quoted."""
    return f" (a command of several words must be quoted: '{target} ...')"


def resolve_target(arguments: RemoteOptions) -> ResolvedTarget:
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
    auth = _auth_of(arguments, target, auth)
    if auth is not None and any(name.lower() == "authorization" for name in headers):
        raise ConfigurationError(
            "--login and --token cannot be combined with an Authorization header"
        )
    return ResolvedTarget(
        target=target, options=options, headers=headers, timeout=timeout, auth=auth
    )


def _auth_of(arguments: RemoteOptions, url: object, configured: Auth | None) -> Auth | None:
    """Return the authorization by *arguments*, by default *configured*.

    Raises:
        ConfigurationError: they exclude each other, or the target has no URL.
    """
    if not arguments.login and not arguments.token:
        return _attended(configured)
    if not isinstance(url, str):
        option = "--login" if arguments.login else "--token"
        raise ConfigurationError(f"{option} applies only to a URL")
    if arguments.login and arguments.token:
        raise ConfigurationError("--login cannot be combined with --token")
    if arguments.token:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise ConfigurationError(f"--token: the variable {TOKEN_VARIABLE} is not set")
        return token
    from genmcp.cli.login import stored_login  # most commands need no login

    return _attended(stored_login(url))


def _attended(auth: Auth | None) -> Auth | None:
    """Return *auth*, which begins a login at a terminal only."""
    is_interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if is_interactive or not isinstance(auth, Authorizer):
        return auth
    return UnattendedLogin(auth)


class UnattendedLogin:
    """Authorization by stored tokens without a terminal, such as in a script.

    The tokens are renewed as usual. In place of a login, a request fails with `Unauthorized` or
    `Forbidden`.

    Args:
        settings: those of the login, such as `OAuth`.
    """

    def __init__(self, settings: Authorizer) -> None:
        self._settings = settings
        self.extension = getattr(settings, "extension", None)

    def authorization(self, url: str, tls: ssl.SSLContext | None = None) -> Authorization:
        """Return the authorization of a new connection to the server at *url*."""
        from genmcp.client.auth.flows import FlowAuthorization  # most commands need no login

        authorization = self._settings.authorization(url, tls)
        if isinstance(authorization, FlowAuthorization):
            authorization.asks = False
        return authorization


def parse_target(text: str, server: str | None = None) -> ParsedTarget:
    """Return the target that *text* denotes.

    Args:
        text: a URL, `server.py` or `module:attribute` in this process, a file with `mcpServers`,
            or the command of a stdio server.
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
    if is_local(text):
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
    if words == [program] and Path(program).name in RUNNERS:
        raise ConfigurationError(f"{program!r} alone is no server{quoting_hint(program)}")
    if shutil.which(program) is not None:
        return
    if program.endswith((".json", ".py")):
        raise ConfigurationError(f"there is no file {program!r}")
    raise ConfigurationError(
        f"there is no command {program!r}; a server in this process is server.py, or "
        f"module:attribute such as shop.app:suite"
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
