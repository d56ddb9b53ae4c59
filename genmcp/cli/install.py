"""`genmcp install`: the entry of a server for the configuration of a client."""

import asyncio
import difflib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click
import msgspec

from genmcp._mux.mux import Mux
from genmcp.cli.output import CommandError, OutputWriter, private_output
from genmcp.cli.parsing import example, options_as
from genmcp.cli.target import (
    RUNNERS,
    TARGET_HELP,
    RemoteOptions,
    resolve_target,
    source_file,
    target_options,
)
from genmcp.client.options import Command
from genmcp.client.transports.targets import Target
from genmcp.errors import ConfigurationError

Scope = Literal["user", "project"]

_BOM: Final = "\ufeff"
_INDENTED: Final = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_FILE_MODE: Final = 0o600  # of a new file, which may have secrets of a server
_WORDS_OF_RUNNERS: Final = ("run", "tool", "exec")


class ClientApplication(msgspec.Struct, frozen=True, kw_only=True):
    """A client with a configuration file.

    Attributes:
        title: its name in messages.
        files: its files by scope; the first is the default. They are relative to the folder of the
            project, or begin with HOME, or with SETTINGS, where applications keep settings.
        key: the member of the file that has the servers.
        url: the member of an entry that has a URL; None if the client takes commands only.
        typed: whether an entry has a `type`.
    """

    title: str
    files: Mapping[Scope, str]
    key: str = "mcpServers"
    url: str | None = "url"
    typed: bool = False


_GOOSE: Final = "goose"
APPLICATIONS: Final[Mapping[str, ClientApplication]] = {
    "claude": ClientApplication(
        title="Claude Desktop",
        files={"user": "SETTINGS/Claude/claude_desktop_config.json"},
        url=None,
    ),
    "claude-code": ClientApplication(
        title="Claude Code", files={"project": ".mcp.json"}, typed=True
    ),
    "cursor": ClientApplication(
        title="Cursor", files={"user": "HOME/.cursor/mcp.json", "project": ".cursor/mcp.json"}
    ),
    "vscode": ClientApplication(
        title="VS Code",
        files={"project": ".vscode/mcp.json", "user": "SETTINGS/Code/User/mcp.json"},
        key="servers",
        typed=True,
    ),
    "gemini": ClientApplication(
        title="Gemini CLI",
        files={"user": "HOME/.gemini/settings.json", "project": ".gemini/settings.json"},
        url="httpUrl",
    ),
    _GOOSE: ClientApplication(
        title="Goose", files={"user": "HOME/.config/goose/config.yaml"}, key="extensions"
    ),
    "mcp.json": ClientApplication(title="mcp.json", files={"project": "mcp.json"}),
}


@click.command(
    "install",
    epilog=example(
        "install server.py claude",
        "install https://mcp.example.com/mcp vscode --write",
        about=f"CLIENT is one of {', '.join(APPLICATIONS)}. {TARGET_HELP}",
    ),
)
@options_as(RemoteOptions, click.argument("target"), *target_options)
@click.argument("client", type=click.Choice([*APPLICATIONS]), metavar="CLIENT")
@click.option("--name", metavar="NAME", help="the name of the server in the file")
@click.option("--scope", type=click.Choice(["user", "project"]), help="which of the client's files")
@click.option("--write", is_flag=True, help="merge the entry into the client's file")
def install(
    options: RemoteOptions, client: str, name: str | None, scope: Scope | None, write: bool
) -> None:
    """Print the entry of the server TARGET for a CLIENT, or write it into the client's file."""
    with private_output() as output:
        application = APPLICATIONS[client]
        base, path = configuration_path(application, scope)
        resolved = resolve_target(options)
        if resolved.auth is not None:
            raise ConfigurationError("a server with `auth` is not installed: clients log in")
        found = resolved.target
        entry = entry_of(found, options.target, resolved.headers, application)
        name = name or options.server or default_name(found)
        if isinstance(found, Mux):
            asyncio.run(found.aclose())
        if client == _GOOSE:
            if write:
                raise ConfigurationError(f"{path} is YAML, to which the entry is added by hand")
            for line in goose_lines(name, entry):
                output.write_line(line)
        elif write:
            write_entry(base, path, application.key, name, entry, output)
        else:
            output.write_json({application.key: {name: entry}})


def default_name(target: Target) -> str:
    """Return the name under which *target* is installed, unless another one is given."""
    if isinstance(target, str):
        return urlsplit(target).hostname or target
    if isinstance(target, Mux):
        return target.server.info.name
    assert isinstance(target, Command)
    words = [target.command, *(each for each in target.args if not each.startswith("-"))]
    while len(words) > 1 and (Path(words[0]).stem in RUNNERS or words[0] in _WORDS_OF_RUNNERS):
        del words[0]
    return Path(words[0]).name.removesuffix(".py").removesuffix(".js")


def configuration_path(application: ClientApplication, scope: Scope | None) -> tuple[Path, Path]:
    """Return the configuration file of a client, after the folder that contains it.

    Raises:
        ConfigurationError: the client has no file for *scope*. None: its default.
    """
    chosen = next(iter(application.files)) if scope is None else scope
    if chosen not in application.files:
        raise ConfigurationError(
            f"{application.title} has no configuration file for scope {chosen!r}, only for "
            f"{' and '.join(map(repr, application.files))}"
        )
    place, _, rest = application.files[chosen].partition("/")
    match place:
        case "HOME":
            base = Path.home()
        case "SETTINGS":
            base = _settings()
        case _:
            base, rest = Path.cwd(), application.files[chosen]
    return base, base / rest


def _settings() -> Path:
    """Return the folder in which applications keep the settings of a user."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def entry_of(
    target: Target, text: str, headers: Mapping[str, str], application: ClientApplication
) -> dict[str, Any]:
    """Return the entry of a server for the configuration of a client.

    Args:
        target: the parsed target.
        text: the target as given: a file or `module:attribute`, if *target* is a mux.
        headers: the HTTP headers of a URL.
        application: the client.

    Raises:
        ConfigurationError: the client cannot use such a server.
    """
    if isinstance(target, str):
        if application.url is None:
            raise ConfigurationError(
                f"the configuration file of {application.title} can only have commands: add the "
                f"URL at Settings > Connectors, or install the server's command"
            )
        kind = {"type": "http"} if application.typed else {}
        return {**kind, application.url: target, **({"headers": {**headers}} if headers else {})}
    entry: dict[str, Any] = {"type": "stdio"} if application.typed else {}
    if isinstance(target, Mux):
        # The client starts the process in a folder of its own, without this environment.
        source = source_file(text)
        served = text if source is None else ":".join(filter(None, map(str, source)))
        arguments = ["-m", "genmcp", "serve", served, "--stdio"]
        variables = {"env": {"PYTHONPATH": str(Path.cwd())}} if source is None else {}
        return {**entry, "command": sys.executable, "args": arguments, **variables}
    assert isinstance(target, Command)
    # A desktop application has not the PATH of a shell.
    program = shutil.which(target.command) or target.command
    entry |= {"command": str(Path(program).absolute()), "args": [*target.args]}
    if target.env:
        entry["env"] = dict(target.env)
    if target.cwd is not None:
        entry["cwd"] = str(target.cwd)
    return entry


def goose_lines(name: str, entry: Mapping[str, Any]) -> Iterable[str]:
    """Yield the lines of YAML for Goose, whose members have other names; each value is JSON."""
    if "url" in entry:
        values = {"type": "streamable_http", "uri": entry["url"], "headers": entry.get("headers")}
    else:
        values = {"type": "stdio", "cmd": entry["command"], "args": entry["args"]}
        values["envs"] = entry.get("env")
    yield "extensions:"
    yield f"  {json.dumps(name)}:"
    for key, value in {"name": name, "enabled": True, **values, "timeout": 300}.items():
        if value is not None:
            yield f"    {key}: {json.dumps(value)}"


def write_entry(
    base: Path, path: Path, key: str, name: str, entry: Mapping[str, Any], output: OutputWriter
) -> None:
    """Show the change to the configuration file *path*, and write it.

    Args:
        base: the user's folder, or that of the project. Links below it are not followed: a project
            comes from other people, whose links may lead to the user's files.
        path: the file, which need not exist.
        key: the member that has the servers.
        name: the name of the server.
        entry: its entry.
        output: for the path and the difference.

    Raises:
        ConfigurationError: the file is a link or in a linked folder, or not plain JSON, or its
            servers are not an object.
        CommandError: the file cannot be read or written.
    """
    try:
        steps = [path, *path.parents]
        if any(each.is_symlink() for each in steps[: steps.index(base)]):
            raise ConfigurationError(
                f"{path} is a link, or in a folder that is one: nothing was written. Add the entry "
                f"by hand, as it is printed without --write"
            )
        before = path.read_bytes() if path.exists() else None
        after = merged(path, before or b"", key, {name: entry})
        if after == (before or b"").decode().removeprefix(_BOM):
            output.write_line(f"{path} has {name} already")
            return
        old = (before or b"").decode().removeprefix(_BOM).splitlines()
        names = os.devnull if before is None else str(path), str(path)
        for line in difflib.unified_diff(old, after.splitlines(), *names, lineterm=""):
            output.write_line(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, after, _FILE_MODE if before is None else stat.S_IMODE(path.stat().st_mode))
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    output.write_line(f"wrote {path}")


def merged(path: Path, before: bytes, key: str, servers: Mapping[str, Any]) -> str:
    """Return the content of the file *path* with *servers*; everything else is as *before*."""
    try:
        text = before.decode().removeprefix(_BOM)
        content = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not plain JSON ({error}). It is left as it is: comments and the like would "
            f"be lost"
        ) from None
    present = content.get(key, {}) if isinstance(content, dict) else None
    if not isinstance(present, dict):
        raise ConfigurationError(f"{path} has another form than {{{json.dumps(key)}: {{...}}}}")
    if {**present, **servers} == present:
        return text
    content[key] = {**present, **servers}
    found = _INDENTED.search(text)
    return f"{json.dumps(content, indent=found[1] if found else '  ', ensure_ascii=False)}\n"


def _replace(path: Path, text: str, mode: int) -> None:
    """Replace *path* at once, so that a client never reads half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
