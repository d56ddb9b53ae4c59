"""`genmcp tools`, `call`, `read`, `prompt`, `discover`: against real servers, and their parts."""

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import Accepted, Declined, Dismissed
from genmcp.cli.command import main
from genmcp.cli.conformance import command_of, conformance
from genmcp.cli.remote import target_of
from genmcp.cli.terminal import Bar, Logged, Terminal, typed
from genmcp.cli.values import arguments_of
from genmcp.client.stdio_options import Command
from genmcp.errors import ConfigurationError
from genmcp.mux.mux import Mux
from genmcp.protocol.notifications import LoggingMessageNotificationParams

SHOP = "tests.cli.shop:suite"
STDIO = shlex.join([sys.executable, "-m", "genmcp", "serve", SHOP, "--stdio"])

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command, and give its exit status, output, and what is on standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            main(arguments)
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        said, noise = capfdbinary.readouterr()
        return status, said.decode(), noise.decode()

    return run


@pytest.mark.parametrize("target", [SHOP, STDIO])
def test_remote_commands_use_a_server(target: str, run: Run) -> None:
    """One in this process, and one that is a process of its own."""
    status, tools, _ = run("tools", target)
    added = run("call", target, "add", "a=1", "b=2", "c:=3")

    assert (0, "add a b [c]\n    Adds up.\nfail\n") == (status, tools.partition("draw")[0])
    assert (0, "6\n") == added[:2]
    assert "warning: adding" in added[2]
    assert (0, "Hello Oslo\n") == run("read", target, "greeting://Oslo")[:2]
    assert (0, "\x00\x01") == run("read", target, "greeting://bytes")[:2]
    assert (0, "user: Greet Rome\n") == run("prompt", target, "greet", "city=Rome")[:2]
    status, said, _ = run("discover", target)
    assert (0, ["shop 2", "Buy something."]) == (status, said.splitlines()[::3])
    assert "speaks 2026-07-28" in said


def test_remote_commands_show_json(run: Run) -> None:
    """The whole value, as the protocol has it."""
    drawn = json.loads(run("call", SHOP, "draw", "--json")[1])
    tools = json.loads(run("tools", SHOP, "--json")[1])

    assert "image/png" == drawn["content"][0]["mimeType"]
    assert ["add", "fail", "draw", "data"] == [each["name"] for each in tools]
    assert "image/png" in run("call", SHOP, "draw")[1]
    assert {"a": 1} == json.loads(run("call", SHOP, "data")[1])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["call", SHOP, "fail"], 1, "out of paper"),
        (["call", SHOP, "nothing"], 1, "Unknown tool"),
        (["tools", "http://127.0.0.1:1/mcp"], 1, "cannot reach http://127.0.0.1:1/mcp"),
        (["tools", "no-such-command"], 1, "cannot reach no-such-command"),
        (["tools", ""], 2, "there is no URL"),
        (["tools", "'"], 2, "is no command"),
        (["call", SHOP, "add", "a"], 2, "'a' is not key=value"),
        (["call", SHOP, "add", "a=x"], 2, "a: 'x' is not integer"),
        (["conformance", "shop"], 2, "is not a URL"),
    ],
)
def test_remote_commands_say_what_is_wrong(
    arguments: list[str], status: int, said: str, run: Run
) -> None:
    """With 1 if the server has failed, with 2 if the command makes no sense."""
    found, shown, noise = run(*arguments)

    assert status == found
    assert said in shown + noise


def test_remote_command_can_be_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace."""

    def interrupt(work: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("genmcp.cli.remote.asyncio.run", interrupt)

    assert (130, "", "") == run("tools", SHOP)


def test_remote_targets_are_urls_commands_and_names() -> None:
    """What the client takes."""
    assert "HTTPS://example.com/mcp" == target_of("HTTPS://example.com/mcp")
    assert isinstance(target_of(SHOP), Mux)
    assert Command("npx", ["-y", "a server"]) == target_of("npx -y 'a server'")


# Its parts.


SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"type": ["number", "null"]},
        "color": {"enum": ["red"]},
        "any": True,
    }
}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text=1", "1"),
        ("text=a=b", "a=b"),
        ("count=1", 1),
        ("maybe=null", "null"),
        ("number=null", None),
        ("color=red", "red"),
        ("any=[1]", [1]),
        ("any=word", "word"),
        ("unknown=true", True),
        ("text:=5", 5),
    ],
)
def test_arguments_are_read_as_their_schema_wants(given: str, expected: Any) -> None:
    """Text as it stands, anything else as JSON."""
    ((_, value),) = arguments_of(SCHEMA, [given]).items()

    assert expected == value


def test_arguments_that_are_no_json_are_refused() -> None:
    """Naming the key."""
    with pytest.raises(ConfigurationError, match="text: 'x' is not JSON"):
        arguments_of(SCHEMA, ["text:=x"])


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_bar_shows_how_far_a_call_is() -> None:
    """On a terminal only, and in one line; nothing of a server moves the cursor."""
    screen, pipe = Screen(), io.StringIO()
    bar = Bar(screen)
    bar.clear()
    bar.show(1, 2, "half\x1b[2J")
    bar.show(3, None, None)
    bar.clear()
    Bar(pipe).show(1, 2, None)

    assert "" == pipe.getvalue()
    assert f"\r[{'#' * 15}{' ' * 15}]  50% half[2J\x1b[K\r3 \x1b[K\r\x1b[K" == screen.getvalue()


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "age": {"type": "integer"},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "news": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["name", "age", "news"],
}


def asked(*lines: str) -> tuple[Terminal, Screen]:
    screen, answers = Screen(), iter(lines)
    return Terminal(screen, Bar(screen), lambda: next(answers, "")), screen


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (
            ["\n", "Ann\n", "x\n", "7\n", "\n", "yes\n", "\n"],
            Accepted({"name": "Ann", "age": 7, "color": "red", "news": True}),
        ),
        (["Ann\n", "!\n"], Dismissed()),
        (["Ann\n"], Dismissed()),
    ],
)
async def test_terminal_asks_for_each_field(lines: list[str], answer: Any) -> None:
    """Again where it is wrong or missing; `!` and the end of the input dismiss it all."""
    terminal, screen = asked(*lines)

    assert answer == await terminal.handle_elicitation_create("Who?", FORM, None)
    assert screen.getvalue().startswith("Who?\n  Your name: ")


@pytest.mark.parametrize(
    ("lines", "answer"), [(["y\n"], Accepted({})), (["no\n"], Declined()), ([], Dismissed())]
)
async def test_terminal_asks_whether_to_go_on(lines: list[str], answer: Any) -> None:
    """Where there are no fields, and where the user is sent to a URL."""
    terminal, _ = asked(*lines)
    other, screen = asked(*lines)

    assert answer == await terminal.handle_elicitation_create("Go on?", {}, None)
    assert answer == await other.handle_url_elicitation("Log in", "https://a.example", None)
    assert "https://a.example" in screen.getvalue()


async def test_terminal_does_not_obey_a_server() -> None:
    """Whatever of a form holds what would move the cursor."""
    field = {"type": "string", "title": "\x1b[1m", "enum": ["\x1b[2J"], "default": "\x1b]0;x\x07"}
    terminal, screen = asked("\n", "x\n", "!\n")
    form = {"properties": {"a": field, "\x1b[3m": {"type": "integer"}}}
    await terminal.handle_elicitation_create("\x1b[4m", form, None)

    assert "[1m ([2J) []0;x]: " in screen.getvalue()
    assert "[3m: 'x' is not integer" in screen.getvalue()
    assert screen.getvalue().isascii()
    assert not set("\x1b\x07") & set(screen.getvalue())


def test_terminal_question_can_be_left() -> None:
    """The user need not type anything before the program ends."""
    over, read = threading.Event(), threading.Event()

    def typed() -> str:
        over.wait(5)
        read.set()
        return "y\n"

    async def leave() -> None:
        screen = Screen()
        terminal = Terminal(screen, Bar(screen), typed)
        async with asyncio.timeout(0.05):
            await terminal.handle_elicitation_create("Go on?", {}, None)

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    left = not read.is_set()
    over.set()

    assert left
    assert read.wait(5)


async def test_terminal_line_is_for_the_question_that_is_shown() -> None:
    """Not for the one before, which was given up."""
    typed, waiting = threading.Event(), threading.Event()

    def read() -> str:
        waiting.set()
        typed.wait(5)
        return "y\n"

    screen = Screen()
    terminal = Terminal(screen, Bar(screen), read)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await terminal.handle_elicitation_create("First?", {}, None)
    assert waiting.is_set()
    waiting.clear()
    second = asyncio.ensure_future(terminal.handle_elicitation_create("Second?", {}, None))
    await asyncio.sleep(0)
    typed.set()

    assert Accepted({}) == await asyncio.wait_for(second, 10)
    assert not waiting.is_set()


async def test_terminal_that_is_gone_dismisses() -> None:
    """A terminal that cannot be read is the end of the input."""

    def read() -> str:
        raise OSError

    screen = Screen()
    terminal = Terminal(screen, Bar(screen), read)

    assert Dismissed() == await terminal.handle_elicitation_create("Go on?", {}, None)


def test_typed_is_one_line_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty where it ends."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as given:
        monkeypatch.setattr("sys.stdin", given)
        os.write(writing, "Zoë\n".encode())
        first = typed()
        os.close(writing)

        assert ("Zoë\n", "") == (first, typed())


OLD = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    match said["method"]:
        case "initialize":
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "old\\x1b[1m", "version": "1"}, "instructions": "\\x9b2J"}
        case "tools/list":
            about = {"tools": [{"name": "t\\x1b[2J", "description": " \\n ",
                "inputSchema": {"type": "object"}}]}
        case method:
            about = None
    if "id" in said:
        error = {"code": -32601, "message": "Method not found"}
        what = {"error": error} if about is None else {"result": about}
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], **what}), flush=True)
"""


def test_remote_commands_show_an_older_server_as_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that logs nothing and describes its tool by blanks; a terminal is not its to use."""
    path = tmp_path / "old.py"
    path.write_text(OLD)
    target = shlex.join([sys.executable, str(path)])
    piped = run("tools", target)[:2]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = run("tools", target)[:2]
    about = run("discover", target)[:2]

    assert (0, "t\x1b[2J\n") == piped
    assert (0, "t[2J\n") == shown
    assert (0, ["old[1m 1", "2J"]) == (about[0], about[1].splitlines()[::3])


def test_command_that_nobody_reads_ends_quietly() -> None:
    """As any command whose output is cut off, by `head` for one."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "genmcp", "tools", SHOP],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=30,
        )
    finally:
        os.close(writing)

    assert (141, b"") == (ended.returncode, ended.stderr)


async def test_logged_shows_log_messages() -> None:
    """Behind the bar, which is cleared."""
    screen = Screen()
    logged = Logged(screen, Bar(screen))
    await logged.handle_log(LoggingMessageNotificationParams(level="info", data={"a": 1}), None)

    assert "info: {'a': 1}\n" == screen.getvalue()


def test_conformance_runs_the_suite(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """By npx, whose exit status is that of the command."""
    npx = tmp_path / "npx"
    npx.write_text("#!/bin/sh\necho $@\nexit 3\n")
    npx.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    status, said, _ = run("conformance", "http://localhost/mcp", "--scenario", "ping")

    assert 3 == status
    assert said.rstrip().endswith("conformance server --url http://localhost/mcp --scenario ping")
    command = command_of("npx", "http://x", revision="2026-07-28", scenario=None)
    assert ["--spec-version", "2026-07-28"] == command[-2:]
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match="install"):
        conformance("http://localhost/mcp")
