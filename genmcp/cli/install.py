"""`genmcp install`: adds a server to the configuration file of a client."""

import asyncio
import difflib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click
import msgspec

from genmcp._mux.mux import Mux
from genmcp.cli.output import OutputError, OutputWriter, one_line, private_output
from genmcp.cli.parsing import argument, command, option
from genmcp.cli.target import TargetCommand, TargetOptions, resolve_target
from genmcp.client.options import Command
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError

Scope = Literal["user", "project"]

_BOM: Final = "\ufeff"
_INDENTED: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_FILE_MODE: Final = 0o600  # of a new file of the user, which may have secrets of a server


# Programs that run the server that their arguments name.
_RUNNERS: Final = ("bunx", "docker", "node", "npx", "python", "python3", "uv", "uvx")
_WORDS_OF_RUNNERS: Final = ("run", "tool", "exec")


class ClientEnvironment(msgspec.Struct, frozen=True):
    """The environment that determines the paths of configuration files.

    Args:
        folder: the folder of the project.
        platform: as in `sys.platform`.
        variables: the environment variables: HOME, and APPDATA or XDG_CONFIG_HOME.
    """

    folder: Path
    platform: str
    variables: Mapping[str, str]

    @classmethod
    def here(cls) -> "ClientEnvironment":
        """Return that of this process."""
        return cls(Path.cwd(), sys.platform, dict(os.environ))

    @property
    def home(self) -> Path:
        """The user's folder."""
        home = self.variables.get("USERPROFILE") if self.platform == "win32" else None
        home = home or self.variables.get("HOME")
        return Path(home) if home else Path.home()

    @property
    def settings(self) -> Path:
        """The folder in which applications keep the settings of a user."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            given = self.variables.get("APPDATA")
            return Path(given) if given else self.home / "AppData" / "Roaming"
        given = self.variables.get("XDG_CONFIG_HOME")
        return Path(given) if given else self.home / ".config"


class ClientApplication(msgspec.Struct, frozen=True, kw_only=True):
    """A client with a configuration file.

    Attributes:
        title: its name in messages.
        key: the member of the file that has the servers.
        scopes: the scopes that it has a file for; the first is the default.
        typed: whether an entry has a `type`.
        url_advice: how to add a URL, if the file cannot have one.
    """

    title: str
    key: str = "mcpServers"
    scopes: Sequence[Scope]
    typed: bool = False
    url_advice: str = ""


APPLICATIONS: Final[Mapping[str, ClientApplication]] = {
    "claude": ClientApplication(
        title="Claude Desktop",
        scopes=["user"],
        url_advice="add the URL at Settings > Connectors, or install the server's command",
    ),
    "claude-code": ClientApplication(title="Claude Code", scopes=["project"], typed=True),
    "cursor": ClientApplication(title="Cursor", scopes=["user", "project"]),
    "vscode": ClientApplication(
        title="VS Code", key="servers", scopes=["project", "user"], typed=True
    ),
}


@command("install", "add a server to the configuration file of a client", TargetCommand)
@argument("target", "a URL, a stdio command (in quotes), module:attribute, or a file")
@argument("client", ", ".join(APPLICATIONS), type=click.Choice([*APPLICATIONS]), metavar="CLIENT")
@option("--name", metavar="NAME", help="the name of the server in the file")
@option("--scope", type=click.Choice(["user", "project"]), help="which of the client's files")
@option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="a variable; repeatable")
@option("--header", multiple=True, metavar="'NAME: VALUE'", help="an HTTP header; repeatable")
@option("--server", metavar="NAME", help="which of the mcpServers of the file TARGET")
@option("-y", "--yes", is_flag=True, help="write without a question")
def install(
    target: str,
    client: str,
    name: str | None,
    scope: Scope | None,
    env: Sequence[str],
    header: Sequence[str],
    server: str | None,
    yes: bool,
) -> int:
    """Show the change to the configuration file of a client, and write it."""
    options = TargetOptions(target=target, env=env, header=header, server=server)
    with private_output() as output:
        place = ClientEnvironment.here()
        path = configuration_path(client, scope, place)
        resolved = resolve_target(options)
        if resolved.auth is not None:
            raise ConfigurationError("a server with `auth` is not installed: clients log in")
        found = resolved.target
        entry = entry_of(found, target, resolved.headers, client, place)
        name = name or server or default_name(found)
        if isinstance(found, Mux):
            asyncio.run(found.aclose())
        private = (scope or APPLICATIONS[client].scopes[0]) == "user"
        file = ConfigurationFile(
            path, APPLICATIONS[client].key, folder=None if private else place.folder
        )
        return _install(file, name, entry, output, yes=yes, private=private)


def _install(
    file: "ConfigurationFile",
    name: str,
    entry: Mapping[str, Any],
    output: OutputWriter,
    *,
    yes: bool,
    private: bool,
) -> int:
    """Show the change to *file*, ask, and write it; return the exit status."""
    if file.server(name) == entry:
        output.write_line(f"{file.shown} has {name} already")
        return 0
    after = file.with_server(name, entry)
    for line in file.difference(after):
        output.write_line(line)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigurationError("nothing was written: --yes is needed without a terminal")
        sys.stderr.write(f"Write {file.shown}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            output.write_line("nothing was written")
            return 1
    backup = file.write(after, private=private)
    kept = f"; the file before is {backup.name}" if backup else ""
    output.write_line(f"wrote {file.shown}{kept}")
    return 0


def default_name(target: Target) -> str:
    """Return the name under which *target* is installed, unless another one is given."""
    if isinstance(target, str):
        return urlsplit(target).hostname or target
    if isinstance(target, Mux):
        return target.server.info.name
    assert isinstance(target, Command)
    words = [target.command, *(each for each in target.args if not each.startswith("-"))]
    while len(words) > 1 and (Path(words[0]).stem in _RUNNERS or words[0] in _WORDS_OF_RUNNERS):
        del words[0]
    return Path(words[0]).name.removesuffix(".py").removesuffix(".js")


def configuration_path(client: str, scope: Scope | None, place: ClientEnvironment) -> Path:
    """Return the configuration file of *client*; *scope* None is the client's default.

    Raises:
        ConfigurationError: the client has no file for this scope.
    """
    application = APPLICATIONS[client]
    scope = scope or application.scopes[0]
    match client, scope:
        case "claude", "user":
            return place.settings / "Claude" / "claude_desktop_config.json"
        case "claude-code", "project":
            return place.folder / ".mcp.json"
        case "cursor", "user":
            return place.home / ".cursor" / "mcp.json"
        case "cursor", "project":
            return place.folder / ".cursor" / "mcp.json"
        case "vscode", "project":
            return place.folder / ".vscode" / "mcp.json"
        case "vscode", "user":
            return place.settings / "Code" / "User" / "mcp.json"
    raise ConfigurationError(
        f"{application.title} has no configuration file for scope {scope!r}, only for "
        f"{' and '.join(map(repr, application.scopes))}"
    )


def entry_of(
    target: Target, text: str, headers: Mapping[str, str], client: str, place: ClientEnvironment
) -> dict[str, Any]:
    """Return the entry of a server for the configuration of *client*.

    Args:
        target: the parsed target.
        text: the target as given: `module:attribute`, if *target* is a mux.
        headers: the HTTP headers of a URL.
        client: a key of `APPLICATIONS`.
        place: the folder in which the module is found.

    Raises:
        ConfigurationError: the client cannot use such a server.
    """
    application = APPLICATIONS[client]
    if isinstance(target, str):
        if application.url_advice:
            raise ConfigurationError(
                f"the configuration file of {application.title} can only have commands: "
                f"{application.url_advice}"
            )
        kind = {"type": "http"} if application.typed else {}
        return {**kind, "url": target, **({"headers": dict(headers)} if headers else {})}
    kind = {"type": "stdio"} if application.typed else {}
    if isinstance(target, Mux):
        # The client starts the process in a folder of its own, without this environment.
        arguments = ["-m", "genmcp", "serve", text, "--stdio"]
        variables = {"PYTHONPATH": str(place.folder)}
        return {**kind, "command": sys.executable, "args": arguments, "env": variables}
    assert isinstance(target, Command)
    # A desktop application has not the PATH of a shell.
    program = shutil.which(target.command, path=place.variables.get("PATH")) or target.command
    entry: dict[str, Any] = {
        **kind,
        "command": str(Path(program).absolute()),
        "args": [*target.args],
    }
    if target.env:
        entry["env"] = dict(target.env)
    if target.cwd is not None:
        entry["cwd"] = str(target.cwd)
    return entry


class ConfigurationFile:
    """A configuration file, and the change to it.

    Args:
        path: the file; symbolic links are followed. It need not exist.
        key: the member that has the servers.
        folder: the folder in which the file must really be. A project comes from other people,
            whose links must not lead to the user's files. Default: any; the links in a user's own
            folder are the user's.

    Raises:
        ConfigurationError: the file is outside of *folder* or not plain JSON, or its servers are
            not an object.
        OutputError: the file cannot be read.
    """

    def __init__(self, path: Path, key: str, *, folder: Path | None = None) -> None:
        self.path = path
        try:
            self._target = path.resolve()
        except (OSError, RuntimeError):  # before Python 3.13: RuntimeError
            raise OutputError(f"cannot read {path}: its symbolic links form a loop") from None
        if folder is not None and not self._target.is_relative_to(folder.resolve()):
            raise ConfigurationError(
                f"{self.shown}, is outside of the project {folder}: nothing was written. Replace "
                f"the link by a file or folder of its own"
            )
        self._key = key
        self.before = self._read()
        self._content = self._parsed(self.before or b"")

    @property
    def shown(self) -> str:
        """The path for messages, relative to the current folder; with the file that it leads to."""
        here = Path.cwd()
        path = self.path.relative_to(here) if self.path.is_relative_to(here) else self.path
        if self._target == self.path.absolute():
            return str(path)
        return one_line(f"{path}, a link to {self._target}")

    def with_server(self, name: str, entry: Mapping[str, Any]) -> bytes:
        """Return the content of the file with the server; everything else is as before."""
        servers = {**self._content.get(self._key, {}), name: entry}
        text = (self.before or b"").decode().removeprefix(_BOM)
        found = _INDENTED.search(text)
        indent = found[1] if found else "  "
        changed = {**self._content, self._key: servers}
        return f"{json.dumps(changed, indent=indent, ensure_ascii=False)}\n".encode()

    def server(self, name: str) -> Any:
        """Return the present entry *name*, None without one."""
        return self._content.get(self._key, {}).get(name)

    def difference(self, after: bytes) -> list[str]:
        """Return the lines of the difference between the file and *after*."""
        before = (self.before or b"").decode().removeprefix(_BOM)
        old = os.devnull if self.before is None else self.shown
        return [
            *difflib.unified_diff(
                before.splitlines(), after.decode().splitlines(), old, self.shown, lineterm=""
            )
        ]

    def write(self, after: bytes, *, private: bool) -> Path | None:
        """Replace the file by *after* at once, and return the path of the backup, if there is one.

        Args:
            after: the new content.
            private: whether a new file can be read by its owner only.

        Raises:
            OutputError: it cannot be written, or was changed since it was read.
        """
        try:
            if self._read() != self.before:
                raise OutputError(f"{self.shown} was changed meanwhile: run the command again")
            self._target.parent.mkdir(parents=True, exist_ok=True)
            backup = None
            if self.before is not None:
                backup = self._back_up(self.before)
            self._replace(after, private)
        except OSError as error:
            raise OutputError(f"cannot write {self.shown}: {error.strerror}") from None
        return backup

    def _back_up(self, before: bytes) -> Path:
        """Write *before* to a new file beside the target, with a name that is free.

        A project can contain a file of this name that is a link to any file of the user: an
        existing name is never opened.
        """
        mode = stat.S_IMODE(self._target.stat().st_mode)
        opener = partial(os.open, mode=mode)
        number = 0
        while True:
            path = self._target.with_name(f"{self._target.name}.bak{number or ''}")
            # "x" is O_CREAT and O_EXCL, which neither replaces a file nor follows a link.
            with suppress(FileExistsError), open(path, "xb", opener=opener) as file:
                file.write(before)
                return path
            number += 1

    def _replace(self, after: bytes, private: bool) -> None:
        descriptor, temporary = tempfile.mkstemp(
            dir=self._target.parent, prefix=f".{self._target.name}."
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(after)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(self._mode(private))
            Path(temporary).replace(self._target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _mode(self, private: bool) -> int:
        if self.before is not None:
            return stat.S_IMODE(self._target.stat().st_mode)
        return _FILE_MODE if private else 0o644

    def _read(self) -> bytes | None:
        try:
            return self._target.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(f"cannot read {self.shown}: {error.strerror}") from None

    def _parsed(self, data: bytes) -> dict[str, Any]:
        try:
            text = data.decode().removeprefix(_BOM)
            content = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
        except ValueError as error:
            raise ConfigurationError(
                f"{self.shown} is not plain JSON ({error}). It is left as it is: comments and "
                f"the like would be lost"
            ) from None
        servers = content.get(self._key, {}) if isinstance(content, dict) else None
        if not isinstance(content, dict) or not isinstance(servers, dict):
            raise ConfigurationError(
                f"{self.shown} has another form than {{{json.dumps(self._key)}: {{...}}}}"
            )
        return content


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return *pairs* as a dict.

    Raises:
        ValueError: a key occurs twice, so that one of its values would be lost.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} occurs twice")
        found[key] = value
    return found
