"""Targets of commands, and the options to reach them."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest

from genmcp._mux.mux import Mux
from genmcp.cli.target import RemoteOptions, parse_target, remote_options, resolve_target
from genmcp.client.options import Command
from genmcp.errors import ConfigurationError

pytestmark = pytest.mark.slow

SHOP = "tests.cli.shop:suite"
Run = Callable[..., tuple[int, str, str]]


def test_targets_are_urls_commands_and_names() -> None:
    """Every kind of target that the client supports."""
    assert parse_target("HTTPS://example.com/mcp")[0] == "HTTPS://example.com/mcp"
    assert isinstance(parse_target(SHOP)[0], Mux)
    assert parse_target("env -u 'a server'")[0] == Command("env", ["-u", "a server"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", "a URL, module:attribute or command is required"),
        ("'", "is not a valid command"),
        ("no-such-command", "there is no command 'no-such-command'; a server in this process is"),
        ("localhost:8311", "did you mean http://localhost:8311?"),
        ("127.0.0.1:8311/mcp", "did you mean http://127.0.0.1:8311/mcp?"),
        ("http://", "'http://' has no host name: a URL looks like"),
        ("http://[a/mcp", "'http://[a/mcp' has no host name"),
        ("ftp://a.example/mcp", "ftp is not supported: a URL begins with http"),
        ("dir/shop.py", "there is no file 'dir/shop.py'"),
        ("shop.py:suite", "there is no file 'shop.py'"),
        ("npx", "'npx' alone is no server (a command of several words must be quoted: 'npx ...')"),
        ("servers.json", "there is no file 'servers.json'"),
        ("tests.cli.shop:Greetings", "is the class Greetings: name an instance"),
    ],
)
def test_invalid_targets_are_reported_with_hints(given: str, why: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigurationError) as refused:
        parse_target(given)
    assert why in str(refused.value)


def test_target_of_the_current_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a module of the same name in another folder, wherever Python looks for both."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        text = f"from genmcp import *\nsuite = Suite(name='{folder}', version='1')"
        (tmp_path / folder / "twofold_shop.py").write_text(text)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    monkeypatch.setattr(sys, "path", [there, here, *sys.path])
    monkeypatch.chdir(here)
    found = parse_target("twofold_shop:suite")[0]

    assert isinstance(found, Mux)
    assert found.server.info.name == "here"


SEVERAL = """
from genmcp import Endpoint, Mux, Suite
first, second = Suite(name="first", version="1"), Suite(name="second", version="1")
"""


@pytest.mark.parametrize(
    ("code", "attribute", "name"),
    [
        ("app = Endpoint(first)", "", "first"),
        ("mux = Mux(second); app = Endpoint(mux)", "", "second"),
        ("mux = again = Mux(second)", "", "second"),
        ("", ":second", "second"),
    ],
)
def test_target_is_the_server_of_a_file(
    code: str, attribute: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outermost one; a module of a package may import its neighbours."""
    folder = tmp_path / f"pack_{name}{len(code)}"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "near.py").write_text(SEVERAL)
    (folder / "my_server.py").write_text(f"from .near import *\n{code}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = parse_target(f"./{folder.name}/my_server.py{attribute}").target

    assert isinstance(found, Mux)
    assert found.server.info.name == name


def test_file_without_one_server_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the names of those that it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "server_pair.py").write_text(SEVERAL)
    (tmp_path / "server_none.py").write_text("")
    (tmp_path / "calendar.py").write_text(SEVERAL)

    with pytest.raises(ConfigurationError, match=r"name one of them, server_pair.py:first or "):
        parse_target("server_pair.py")
    with pytest.raises(ConfigurationError, match=r"server_none.py has no Mux, Endpoint, or Server"):
        parse_target("server_none.py")
    with pytest.raises(ConfigurationError, match=r"another module is named 'calendar': rename"):
        parse_target("calendar.py:first")


def test_target_is_a_server_of_a_desktop_client(tmp_path: Path) -> None:
    """By its name in the file, or the only one there is."""
    path = tmp_path / "servers.json"
    shop = {"command": "shop", "args": ["--stdio"], "env": {"A": "1"}}
    path.write_text(json.dumps({"mcpServers": {"shop": shop}}))
    assert parse_target(str(path))[0] == Command("shop", ("--stdio",), {"A": "1"})

    there = {"url": "http://a.example/mcp", "headers": {"x-a": "b"}}
    path.write_text(json.dumps({"mcpServers": {"shop": shop, "there": there}}))
    assert parse_target(str(path), "there")[:2] == ("http://a.example/mcp", {"x-a": "b"})
    with pytest.raises(ConfigurationError, match=r"it has shop, there \(--server NAME\)"):
        parse_target(str(path))
    with pytest.raises(ConfigurationError, match="'here' does not exist; it has shop, there"):
        parse_target(str(path), "here")
    with pytest.raises(ConfigurationError, match="--server needs a file"):
        parse_target(SHOP, "shop")


ODD = {
    "io.github.a/b": {"command": "shop"},
    "none": {"type": "odd"},
    "both": {"command": "shop", "url": "http://a.example/mcp"},
    "text": "shop",
    "number": {"command": 1},
    "off": {"command": "shop", "disabled": True},
}


@pytest.mark.parametrize(
    ("servers", "name", "why"),
    [
        (ODD, "none", "server 'none': give either a command or a url"),
        (ODD, "both", "server 'both': give either a command or a url"),
        (ODD, "text", "server 'text': Expected `object`, got `str`"),
        (ODD, "number", "server 'number': Expected `str | null`, got `int`"),
        (ODD, "off", "server 'off' is disabled; it has io.github.a/b, none, both, text, number"),
        ({"off": ODD["off"]}, None, "it has no enabled server"),
        ({}, None, "it has no enabled server"),
        (1, None, "Expected `object`, got `int`"),
    ],
)
def test_target_is_validated_alone_in_its_file(
    servers: object, name: str | None, why: str, tmp_path: Path
) -> None:
    """Errors in the other servers of the file, and their names, have no effect."""
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8-sig")

    with pytest.raises(ConfigurationError) as refused:
        parse_target(str(path), name)
    assert why in str(refused.value)
    if servers is ODD:
        assert parse_target(str(path), "io.github.a/b")[0] == Command("shop")


def way(*arguments: str) -> object:
    @click.command()
    @remote_options
    def way(options: RemoteOptions) -> object:
        return resolve_target(options)

    with way.make_context("way", [*arguments]) as context:
        return way.callback and context.invoke(way.callback, **context.params)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([SHOP, "-e", "A=1"], "--env applies only to the command of a stdio server"),
        (["env", "-e", "A"], "'A' is not key=value"),
        ([SHOP, "--header", "a: b"], "--header applies only to a URL"),
        (["http://a.example", "--header", "a"], "--header: 'a' is not 'Name: value'"),
        (
            ["http://a.example", "--header", "a b: c"],
            "'a b' has a name or value",
        ),
        (["http://a.example", "--revision", "1999-01-01"], "'1999-01-01' is not one of"),
        (["http://a.example", "--timeout", "0"], "--timeout: 0 is not a positive number"),
        (["http://a.example", "--timeout", "nan"], "--timeout: nan is not a positive number"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], why: str) -> None:
    """Naming the option."""
    with pytest.raises(ConfigurationError, match=why):
        way(*arguments)


SERVER = """
import os
from genmcp import *
@tool
async def key() -> str:
    return os.environ.get("KEY", "none")
suite = Suite(name="keys", version="1", tools=[key])
"""


def test_process_gets_environment_variables(run: Run, tmp_path: Path) -> None:
    """A small environment, the variables of `-e`, and the requested revision."""
    (tmp_path / "keys.py").write_text(SERVER)
    command = shlex.join([sys.executable, "-m", "genmcp", "serve", "keys:suite", "--stdio"])
    path = f"PYTHONPATH={tmp_path}"

    assert run("call", command, "key", "-e", path)[1] == "none\n"
    assert run("call", command, "key", "-e", path, "-e", "KEY=7=8")[1] == "7=8\n"
    spoken = run("discover", command, "-e", path, "--revision", "2025-06-18")[1]
    assert "revision: 2025-06-18" in spoken


def test_timeout_is_how_long_a_server_is_waited_for(run: Run) -> None:
    """Also one that never responds."""
    status, _, noise = run("tools", "sleep 60", "--timeout", "0.05")

    assert status == 1
    assert "took longer than 0.05 s at sleep ***" in noise


def test_headers_are_sent(run: Run, free_port: int) -> None:
    """A missing authorization is reported with the option that sets it."""
    seen: list[str | None] = []

    class Locked(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["authorization"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", free_port), Locked) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{free_port}/mcp"
        status, _, noise = run("tools", url, "--header", "Authorization: Bearer x")
        server.shutdown()

    assert status == 1
    assert seen[0] == "Bearer x"
    assert "give credentials: --token with GENMCP_TOKEN=TOKEN" in noise


@pytest.mark.parametrize("path", ["", "/", "/tools"])
def test_url_without_its_path_is_completed(path: str, run: Run, free_port: int) -> None:
    """The error has the URL with the usual path."""
    with serving(free_port):
        url = f"http://127.0.0.1:{free_port}{path}"
        status, shown, noise = run("tools", url)

        assert (status, shown) == (1, "")
        assert f"; did you mean http://127.0.0.1:{free_port}/mcp?\n" in noise


@contextmanager
def serving(port: int, *options: str) -> Iterator[None]:
    """Serve the shop at *port* by a process."""
    command = [sys.executable, "-m", "genmcp", "serve", SHOP, "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("running on" in line for line in process.stderr)
            yield
        finally:
            process.terminate()
            process.communicate()
