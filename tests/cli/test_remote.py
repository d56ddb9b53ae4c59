"""`genmcp tools`, `call`, `read`, `prompt`, `discover`: against real servers, and their parts."""

import io
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import Accepted, Declined, Dismissed
from genmcp.cli.command import main
from genmcp.cli.conformance import command_of, conformance
from genmcp.cli.remote import target_of
from genmcp.cli.terminal import Bar, Logged, Terminal
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
