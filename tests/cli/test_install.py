"""The entries of clients, as `genmcp install` prints them and merges them into files."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from genmcp import Command
from genmcp.cli.install import APPLICATIONS, configuration_path, default_name

URL = "https://mcp.example.com/mcp"
PARTS = "from genmcp import Suite\nsuite = Suite(name='parts', version='1')\n"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and a project in it, which is the current folder."""
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.mark.parametrize(
    ("client", "scope", "platform", "path"),
    [
        ("claude", None, "linux", ".config/Claude/claude_desktop_config.json"),
        (
            "claude",
            "user",
            "darwin",
            "Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("claude", None, "win32", "AppData/Roaming/Claude/claude_desktop_config.json"),
        ("claude-code", None, "linux", "project/.mcp.json"),
        ("cursor", None, "linux", ".cursor/mcp.json"),
        ("cursor", "project", "linux", "project/.cursor/mcp.json"),
        ("vscode", None, "linux", "project/.vscode/mcp.json"),
        ("vscode", "user", "linux", ".config/Code/User/mcp.json"),
        ("gemini", None, "linux", ".gemini/settings.json"),
        ("gemini", "project", "linux", "project/.gemini/settings.json"),
        ("goose", None, "linux", ".config/goose/config.yaml"),
        ("mcp.json", None, "linux", "project/mcp.json"),
    ],
)
def test_install_path_depends_on_the_platform(
    client: str,
    scope: Any,
    platform: str,
    path: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file of each client, in the folder of the user or of the project."""
    monkeypatch.setattr(sys, "platform", platform)

    assert configuration_path(APPLICATIONS[client], scope)[1] == home / path


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("claude-code", {"type": "http", "url": URL}),
        ("cursor", {"url": URL}),
        ("vscode", {"type": "http", "url": URL}),
        ("gemini", {"httpUrl": URL}),
        ("mcp.json", {"url": URL}),
    ],
)
def test_install_prints_the_entry_of_a_url(
    client: str, entry: dict[str, Any], home: Path, run: Run
) -> None:
    """In the form of the client, ready to be pasted; nothing is written."""
    key = "servers" if client == "vscode" else "mcpServers"

    status, said, noise = run("install", URL, client, "--header", "X-Team: a")

    assert (status, noise) == (0, "")
    with_header = {**entry, "headers": {"X-Team": "a"}}
    assert json.loads(said) == {key: {"mcp.example.com": with_header}}
    assert [*home.rglob("*")] == [home / "project"]


@pytest.mark.parametrize("client", sorted({*APPLICATIONS} - {"goose"}))
def test_install_prints_the_entry_of_a_command(client: str, home: Path, run: Run) -> None:
    """With an absolute path, since a desktop application has not the PATH of a shell."""
    status, said, _ = run("install", "env -u 'a b'", client, "-e", "KEY=v", "--name", "mine")

    ((name, entry),) = next(iter(json.loads(said).values())).items()
    assert (status, name, entry.pop("type", "stdio")) == (0, "mine", "stdio")
    assert Path(entry.pop("command")).is_absolute()
    assert entry == {"args": ["-u", "a b"], "env": {"KEY": "v"}}


@pytest.mark.parametrize(
    ("target", "members"),
    [
        (URL, {"type": "streamable_http", "uri": URL}),
        ("env x", {"type": "stdio", "args": ["x"]}),
    ],
)
def test_install_prints_yaml_for_goose(
    target: str, members: dict[str, Any], home: Path, run: Run
) -> None:
    """Its file is not merged: it has comments, and other settings."""
    status, said, _ = run("install", target, "goose", "--name", "my: parts")
    entry = yaml.safe_load(said)["extensions"]["my: parts"]

    assert status == 0
    assert {key: entry[key] for key in members} == members
    assert entry["enabled"] is True
    status, _, noise = run("install", target, "goose", "--write")
    assert (status, "config.yaml is YAML" in noise) == (2, True)


@pytest.mark.parametrize(
    ("target", "variables"), [("parts.py", False), ("parts.py:suite", False), ("parts:suite", True)]
)
def test_install_writes_a_server_that_starts(
    target: str, variables: bool, home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or module, in Claude Desktop's file, is started from any folder."""
    (home / "project" / "parts.py").write_text(PARTS)
    monkeypatch.delitem(sys.modules, "parts", raising=False)

    assert run("install", target, "claude", "--write")[0] == 0

    path = home / ".config" / "Claude" / "claude_desktop_config.json"
    entry = json.loads(path.read_text())["mcpServers"]["parts"]
    os.chdir("/")
    assert entry.get("env", {}) == ({"PYTHONPATH": str(home / "project")} if variables else {})
    status, said, noise = run("discover", str(path))
    assert (status, said.partition("\n")[0]) == (0, "parts 1"), noise
    monkeypatch.delitem(sys.modules, "parts")


def test_install_shows_the_change_and_keeps_the_rest(home: Path, run: Run) -> None:
    """Other servers and settings, their order, the indentation and the mode; once."""
    path = home / "project" / ".vscode" / "mcp.json"
    path.parent.mkdir()
    before = (
        '\ufeff{\n\t"theme": "dark é",\n\t"servers": {\n\t\t"a": {"url": "x"}\n\t},\n\t"n": 1\n}\n'
    )
    path.write_text(before, encoding="utf-8")
    path.chmod(0o640)

    status, said, _ = run("install", URL, "vscode", "--write", "--name", "b")

    lines = said.splitlines()
    assert (status, lines[0], lines[-1]) == (0, f"--- {path}", f"wrote {path}")
    assert f'+\t\t\t"url": "{URL}"' in lines
    content = json.loads(path.read_text("utf-8"))
    assert [*content] == ["theme", "servers", "n"]
    assert content["servers"] == {"a": {"url": "x"}, "b": {"type": "http", "url": URL}}
    assert path.read_text("utf-8").startswith('{\n\t"theme": "dark é",\n')
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [*path.parent.iterdir()] == [path]
    assert run("install", URL, "vscode", "--write", "--name", "b") == (
        0,
        f"{path} has b already\n",
        "",
    )


@pytest.mark.parametrize("before", [None, b""])
def test_install_creates_a_private_file(before: bytes | None, home: Path, run: Run) -> None:
    """It may contain keys; folders that are missing are made."""
    path = home / ".cursor" / "mcp.json"
    if before is not None:
        path.parent.mkdir()
        path.write_bytes(before)
        path.chmod(0o600)

    status, said, _ = run("install", URL, "cursor", "--write")

    assert status == 0
    assert said.startswith("--- /dev/null" if before is None else f"--- {path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"mcpServers": {"mcp.example.com": {"url": URL}}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n  // the servers of the team\n  "servers": {}\n}', "is not plain JSON"),
        ('{"servers": {},}', "is not plain JSON"),
        ("\xff", "is not plain JSON"),
        ("[]", "has another form"),
        ('{"servers": []}', "has another form"),
        ("1", "has another form"),
    ],
)
def test_install_refuses_a_file_it_would_damage(text: str, why: str, home: Path, run: Run) -> None:
    """Comments, trailing commas and repeated keys would be lost."""
    path = home / "project" / ".vscode" / "mcp.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))

    status, said, noise = run("install", URL, "vscode", "--write")

    assert (status, said, why in noise) == (2, "", True)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("linked", [".vscode/mcp.json", ".vscode"])
@pytest.mark.parametrize("exists", [True, False])
def test_install_never_writes_through_a_link(
    linked: str, exists: bool, home: Path, run: Run
) -> None:
    """A project may come from a stranger, whose links lead to files of the user."""
    mine = home / "elsewhere"
    path = mine / "mcp.json" if linked == ".vscode" else mine
    if exists:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"mine": 1}')
    link = home / "project" / linked
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(mine)

    status, said, noise = run("install", URL, "vscode", "--write")

    assert (status, said) == (2, "")
    assert ".vscode/mcp.json is a link, or in a folder that is one" in noise
    assert mine.exists() is exists
    assert not exists or path.read_text() == '{"mine": 1}'


def test_install_command_reports_a_wrong_use(home: Path, run: Run) -> None:
    """An unknown client, one that takes no URL, a scope without a file; a folder for a file."""
    assert "'emacs' is not one of 'claude'" in run("install", URL, "emacs")[2]
    status, _, noise = run("install", URL, "claude")
    assert (status, "Settings > Connectors" in noise) == (2, True)
    status, _, noise = run("install", "env x", "claude", "--scope", "project")
    assert (status, "Claude Desktop has no" in noise, "only for 'user'" in noise) == (2, True, True)
    (home / ".cursor" / "mcp.json").mkdir(parents=True)
    status, _, noise = run("install", URL, "cursor", "--write")
    assert (status, noise.startswith("genmcp: cannot write ")) == (1, True)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Command("npx", ["-y", "@modelcontextprotocol/server-files", "/tmp"]), "server-files"),
        (Command("uv", ["run", "parts.py"]), "parts"),
        (Command("python", ["-m", "parts"]), "parts"),
        (Command("/opt/parts-server", []), "parts-server"),
        ("https://mcp.example.com:8000/mcp", "mcp.example.com"),
    ],
)
def test_install_name_is_that_of_the_program(target: Any, name: str) -> None:
    """A runner such as npx is not the name of a server."""
    assert default_name(target) == name
