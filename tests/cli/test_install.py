"""The configuration files of clients, as `genmcp install` changes them."""

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import Command, Mux, Suite
from genmcp.cli.install import (
    APPLICATIONS,
    ClientEnvironment,
    ConfigurationFile,
    configuration_path,
    default_name,
    entry_of,
)
from genmcp.cli.output import OutputError
from genmcp.errors import ConfigurationError

URL = "https://mcp.example.com/mcp"
HOME = {"HOME": "/home/ada"}


Run = Callable[..., tuple[int, str, str]]


def place(platform: str = "linux", **variables: str) -> ClientEnvironment:
    return ClientEnvironment(Path("/project"), platform, {**HOME, **variables})


@pytest.mark.parametrize(
    ("client", "scope", "where", "path"),
    [
        ("claude", None, place(), "/home/ada/.config/Claude/claude_desktop_config.json"),
        ("claude", None, place(XDG_CONFIG_HOME="/x"), "/x/Claude/claude_desktop_config.json"),
        (
            "claude",
            "user",
            place("darwin"),
            "/home/ada/Library/Application Support/Claude/claude_desktop_config.json",
        ),
        ("claude", None, place("win32", APPDATA="/a"), "/a/Claude/claude_desktop_config.json"),
        ("claude-code", None, place(), "/project/.mcp.json"),
        ("cursor", None, place(), "/home/ada/.cursor/mcp.json"),
        ("cursor", None, place("win32", USERPROFILE="/u"), "/u/.cursor/mcp.json"),
        ("cursor", "project", place(), "/project/.cursor/mcp.json"),
        ("vscode", None, place(), "/project/.vscode/mcp.json"),
        ("vscode", "user", place(), "/home/ada/.config/Code/User/mcp.json"),
        ("vscode", "user", place("win32"), "/home/ada/AppData/Roaming/Code/User/mcp.json"),
    ],
)
def test_install_path_depends_on_the_platform(
    client: str, scope: Any, where: ClientEnvironment, path: str
) -> None:
    """The folders are those that the environment names."""
    assert configuration_path(client, scope, where) == Path(path)


def test_install_refuses_a_scope_without_file() -> None:
    """Claude Desktop has no configuration of a project."""
    with pytest.raises(ConfigurationError, match=r"Claude Desktop has no .* only for 'user'"):
        configuration_path("claude", "project", place())


@pytest.mark.parametrize("client", sorted(APPLICATIONS))
def test_install_entry_has_the_form_of_its_client(client: str) -> None:
    """A command has an absolute path; a module is served by this interpreter."""
    typed = {"type": "stdio"} if client in ("claude-code", "vscode") else {}
    here = place(PATH=str(Path(sys.executable).parent))
    command = Command(Path(sys.executable).name, ["x.py"], {"KEY": "v"})

    assert entry_of(command, "", {}, client, here) == {
        **typed,
        "command": sys.executable,
        "args": ["x.py"],
        "env": {"KEY": "v"},
    }
    mux = Mux(Suite(name="parts", version="1"))
    assert entry_of(mux, "parts:suite", {}, client, here) == {
        **typed,
        "command": sys.executable,
        "args": ["-m", "genmcp", "serve", "parts:suite", "--stdio"],
        "env": {"PYTHONPATH": "/project"},
    }
    if client == "claude":
        # The application does not start with such an entry.
        with pytest.raises(ConfigurationError, match="Settings > Connectors"):
            entry_of(URL, URL, {}, client, here)
    else:
        kind = {"type": "http"} if typed else {}
        assert entry_of(URL, URL, {}, client, here) == {**kind, "url": URL}
        assert entry_of(URL, URL, {"X-Team": "a"}, client, here)["headers"] == {"X-Team": "a"}


def test_install_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    """Other servers and settings, their order, the indentation, the mode; with a backup."""
    path = tmp_path / "mcp.json"
    before = (
        '{\n\t"theme": "dark é",\n\t"mcpServers": {\n\t\t"a": {"url": "x"}\n\t},\n\t"n": 1\n}\n'
    )
    path.write_text(before, encoding="utf-8")
    path.chmod(0o640)
    file = ConfigurationFile(path, "mcpServers")

    after = file.with_server("b", {"url": URL})
    difference = file.difference(after)
    assert path.read_text("utf-8") == before
    backup = file.write(after, private=True)

    content = json.loads(path.read_text("utf-8"))
    assert [*content] == ["theme", "mcpServers", "n"]
    assert content["mcpServers"] == {"a": {"url": "x"}, "b": {"url": URL}}
    assert '\n\t"theme": "dark é",\n' in path.read_text("utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert backup is not None
    assert backup.read_text("utf-8") == before
    assert f'+\t\t\t"url": "{URL}"' in difference
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mcp.json", "mcp.json.bak"]


def test_install_creates_a_private_file(tmp_path: Path) -> None:
    """The file of a user may contain keys, and folders that are missing are made."""
    file = ConfigurationFile(tmp_path / "a" / "b.json", "servers")

    assert file.difference(after := file.with_server("b", {"url": URL}))[0] == "--- /dev/null"
    assert file.write(after, private=True) is None
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert ConfigurationFile(file.path, "servers").server("b") == {"url": URL}


def test_install_writes_through_a_symbolic_link(tmp_path: Path) -> None:
    """Settings that are kept elsewhere stay linked."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    file = ConfigurationFile(link, "mcpServers")

    file.write(file.with_server("b", {"url": URL}), private=True)

    assert link.is_symlink()
    assert json.loads(real.read_text())["mcpServers"]["b"] == {"url": URL}


def test_install_backup_has_a_name_that_is_free(tmp_path: Path) -> None:
    """A checkout may contain a link with the name of the backup, such as to a hook of git."""
    path, hook = tmp_path / "mcp.json", tmp_path / "pre-commit"
    path.write_text("{}")
    path.chmod(0o600)
    (tmp_path / "mcp.json.bak").symlink_to(hook)
    (tmp_path / "mcp.json.bak1").write_text("mine")
    file = ConfigurationFile(path, "mcpServers")

    backup = file.write(file.with_server("b", {"url": URL}), private=True)

    assert backup == tmp_path / "mcp.json.bak2"
    assert backup.read_text() == "{}"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert not hook.exists()
    assert (tmp_path / "mcp.json.bak1").read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    [
        '{\n  // the servers of the team\n  "servers": {}\n}',
        '{"servers": {},}',
        '{"a": 1, "a": 2}',
        "\xff",
    ],
)
def test_install_refuses_a_file_it_would_damage(text: str, tmp_path: Path) -> None:
    """Comments, trailing commas and repeated keys would be lost."""
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigurationError, match="is not plain JSON"):
        ConfigurationFile(path, "servers")
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("text", ["[]", '{"servers": []}', "1"])
def test_install_refuses_another_form(text: str, tmp_path: Path) -> None:
    """A list of servers belongs to another client."""
    (tmp_path / "mcp.json").write_text(text)

    with pytest.raises(ConfigurationError, match="has another form"):
        ConfigurationFile(tmp_path / "mcp.json", "servers")


def test_install_does_not_overwrite_a_concurrent_change(tmp_path: Path) -> None:
    """The client may write its file while the user reads the difference."""
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    file = ConfigurationFile(path, "servers")
    after = file.with_server("b", {"url": URL})
    path.write_text('{"servers": {}}')

    with pytest.raises(OutputError, match="was changed meanwhile"):
        file.write(after, private=True)
    assert path.read_text() == '{"servers": {}}'


def test_install_accepts_an_empty_file_and_a_byte_order_mark(tmp_path: Path) -> None:
    """Both are written by editors."""
    path = tmp_path / "mcp.json"
    path.write_bytes(b"")
    assert ConfigurationFile(path, "servers").server("b") is None
    path.write_bytes(b'\xef\xbb\xbf{"servers": {"b": {"url": "x"}}}')
    assert ConfigurationFile(path, "servers").server("b") == {"url": "x"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and a project in it, which is the current folder."""
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def test_install_command_shows_the_change_and_asks(home: Path, run: Run) -> None:
    """Without a terminal it needs --yes; a second run changes nothing."""
    status, said, noise = run("install", URL, "vscode")
    assert status == 2
    assert f'+      "url": "{URL}"' in said
    assert noise == "genmcp install: nothing was written: --yes is needed without a terminal\n"
    path = home / "project" / ".vscode" / "mcp.json"
    assert not path.exists()

    status, said, _ = run("install", URL, "vscode", "--yes", "--header", "X-Team: a")
    assert (status, said.splitlines()[-1]) == (0, "wrote .vscode/mcp.json")
    entry = {"type": "http", "url": URL, "headers": {"X-Team": "a"}}
    assert json.loads(path.read_text()) == {"servers": {"mcp.example.com": entry}}
    assert run("install", URL, "vscode", "--header", "X-Team: a")[:2] == (
        0,
        ".vscode/mcp.json has mcp.example.com already\n",
    )
    assert run("install", URL, "vscode", "--yes")[1].splitlines()[-1] == (
        "wrote .vscode/mcp.json; the file before is mcp.json.bak"
    )


def test_install_command_writes_a_server_that_starts(home: Path, run: Run) -> None:
    """The entry of a module, in Claude Desktop's file, starts the server from any folder."""
    module = "from genmcp import Suite\nsuite = Suite(name='parts', version='1')\n"
    (home / "project" / "installed_parts.py").write_text(module)

    assert run("install", "installed_parts:suite", "claude", "-y")[0] == 0

    path = home / ".config" / "Claude" / "claude_desktop_config.json"
    entry = json.loads(path.read_text())["mcpServers"]["parts"]
    os.chdir("/")
    assert entry["env"] == {"PYTHONPATH": str(home / "project")}
    status, said, _ = run("discover", str(path))
    assert (status, said.splitlines()[0]) == (0, "parts 1")


def test_install_command_reports_a_wrong_use(home: Path, run: Run) -> None:
    """An unknown client, a client that takes no URL, and a file with comments."""
    assert run("install", URL, "emacs")[0] == 2
    status, _, noise = run("install", URL, "claude", "--yes")
    assert (status, "Settings > Connectors" in noise) == (2, True)
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text("// mine\n{}")
    status, _, noise = run("install", URL, "cursor", "--yes")
    assert (status, "is not plain JSON" in noise) == (2, True)
    assert path.read_text() == "// mine\n{}"


@pytest.mark.parametrize("linked", [".vscode/mcp.json", ".vscode"])
@pytest.mark.parametrize("exists", [True, False])
def test_install_refuses_a_link_out_of_the_project(
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

    status, said, noise = run("install", URL, "vscode", "--yes")

    assert (status, said) == (2, "")
    assert f".vscode/mcp.json, a link to {path}, is outside of the project" in noise
    assert mine.exists() is exists
    assert not exists or path.read_text() == '{"mine": 1}'


def test_install_shows_where_a_link_leads(home: Path, run: Run) -> None:
    """Links within a project, and those that a user has made in the own folder, are followed."""
    project, dotfiles = home / "project", home / "dotfiles"
    (project / ".mcp.json").symlink_to("shared.json")
    status, said, _ = run("install", URL, "claude-code", "--yes")
    assert status == 0
    assert f"wrote .mcp.json, a link to {project / 'shared.json'}\n" in said
    assert (project / "shared.json").is_file()

    dotfiles.mkdir()
    (home / ".cursor").symlink_to(dotfiles)
    status, said, _ = run("install", URL, "cursor", "--yes")
    assert status == 0
    shown = f"{home / '.cursor' / 'mcp.json'}, a link to {dotfiles / 'mcp.json'}"
    assert f"+++ {shown}\n" in said
    assert f"wrote {shown}\n" in said
    assert (dotfiles / "mcp.json").is_file()


def test_install_reports_links_that_form_a_loop(home: Path, run: Run) -> None:
    """Without a traceback."""
    (home / "project" / ".mcp.json").symlink_to(".mcp.json")

    status, _, noise = run("install", URL, "claude-code", "--yes")

    assert status == 1
    assert noise.startswith("genmcp: cannot read ")
    assert noise.count("\n") == 1


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_install_command_at_a_terminal(answer: str, status: int, home: Path) -> None:
    """The answer decides."""
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "genmcp", "install", URL, "cursor"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=end,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(terminal)
    os.close(end)

    assert done.returncode == status, done.stderr
    assert "[y/N]" in done.stderr
    assert (home / ".cursor" / "mcp.json").exists() is (answer == "y")


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
