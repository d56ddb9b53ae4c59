"""The user at a terminal: questions of the server, and progress."""

import asyncio
import io
import os
import select
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from genmcp import Accepted, Cancelled, Declined
from genmcp.cli.terminal import LogPrinter, StatusLine, TerminalHandler, read_line
from genmcp.protocol.params import LoggingMessageNotificationParams
from tests.cli.users import PATIENCE, at_terminal

pytestmark = pytest.mark.slow

STUBBORN = Path(__file__).with_name("stubborn.py")
SHOP = "tests.cli.shop:suite"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_bar_shows_how_far_a_call_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal only, and in one line of it; nothing of a server moves the cursor."""
    monkeypatch.setenv("COLUMNS", "50")
    screen, pipe = Screen(), io.StringIO()
    bar = StatusLine(screen)
    bar.clear()
    bar.show_progress(1, 2, "half\nway\x1b[2J")
    bar.show_progress(3, None, "on" * 50)
    bar.clear()
    StatusLine(pipe).show_progress(1, 2, None)

    assert pipe.getvalue() == ""
    first, second, cleared, _ = screen.getvalue().split("\x1b[K")
    assert first == f"\r[{'#' * 15}{' ' * 15}]  50% half way[2J"
    assert second[:7] == "\r3 onon"
    assert len(second) == 50
    assert cleared == "\r"


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "age": {"type": "integer", "maximum": 99},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "news": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["name", "age", "news"],
}


def asked(*lines: str) -> tuple[TerminalHandler, Screen]:
    screen, answers = Screen(), iter(lines)
    return TerminalHandler(StatusLine(screen), lambda: next(answers, "")), screen


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (
            ["\n", "Ann\n", "x\n", "100\n", "7\n", "\n", "yes\n", "\n"],
            Accepted({"name": "Ann", "age": 7, "color": "red", "news": True}),
        ),
        (["Ann\n", "!\n"], Declined()),
        (["Ann\n"], Cancelled()),
    ],
)
async def test_terminal_prompts_for_each_field(lines: list[str], answer: Any) -> None:
    """Again where it is wrong or missing; `!` declines, and the end of the input dismisses."""
    terminal, screen = asked(*lines)

    assert answer == await terminal.handle_elicitation_create("Who?", FORM)
    said = screen.getvalue()
    assert said.startswith("| Who?\n(! declines, Ctrl-D cancels)\n  Your name: ")
    assert ("a value is required" in said) is (lines[0] == "\n")
    assert said.endswith("\n") is (answer == Cancelled())


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["y\n"], Accepted({})),
        (["maybe\n", "NO\n"], Declined()),
        (["!\n"], Declined()),
        ([], Cancelled()),
    ],
)
async def test_terminal_asks_for_confirmation(lines: list[str], answer: Any) -> None:
    """For a form without fields, and for a URL."""
    terminal, _ = asked(*lines)
    other, screen = asked(*lines)

    assert answer == await terminal.handle_elicitation_create("Go on?", {})
    assert answer == await other.handle_url_elicitation("Log in", "https://a.example")
    assert "https://a.example" in screen.getvalue()
    assert len(lines) + (not lines) == screen.getvalue().count("[y/n]")


async def test_terminal_does_not_obey_a_server() -> None:
    """Every text of a form may contain escape sequences."""
    field = {"type": "string", "title": "\x1b[1m", "enum": ["\x1b[2J"], "default": "\x1b]0;x\x07"}
    terminal, screen = asked("x\n", "\n", "x\n", "!\n")
    form = {"properties": {"a": field, "\x1b[3m": {"type": "integer"}}}
    await terminal.handle_elicitation_create("\x1b[4m", form)

    assert "[1m ([2J) []0;x]: " in screen.getvalue()
    assert "'x' is not one of [2J" in screen.getvalue()
    assert "[3m: 'x' is not a whole number" in screen.getvalue()
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
        terminal = TerminalHandler(StatusLine(screen), typed)
        async with asyncio.timeout(0.05):
            await terminal.handle_elicitation_create("Go on?", {})

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
    terminal = TerminalHandler(StatusLine(screen), read)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await terminal.handle_elicitation_create("First?", {})
    assert waiting.is_set()
    waiting.clear()
    second = asyncio.ensure_future(terminal.handle_elicitation_create("Second?", {}))
    await asyncio.sleep(0)
    typed.set()

    assert await asyncio.wait_for(second, 10) == Accepted({})
    assert not waiting.is_set()


async def test_terminal_that_is_gone_dismisses() -> None:
    """A terminal that cannot be read is the end of the input."""

    def read() -> str:
        raise OSError

    screen = Screen()
    terminal = TerminalHandler(StatusLine(screen), read)

    assert await terminal.handle_elicitation_create("Go on?", {}) == Cancelled()


def test_typed_is_one_line_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty where it ends."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as given:
        monkeypatch.setattr("sys.stdin", given)
        os.write(writing, "Zoë\n".encode())
        first = read_line()
        os.close(writing)

        assert (first, read_line()) == ("Zoë\n", "")


async def test_logged_shows_log_messages() -> None:
    """In place of the bar."""
    screen = Screen()
    logged = LogPrinter(StatusLine(screen))
    await logged.handle_log(LoggingMessageNotificationParams(level="info", data={"a": 1}))

    assert screen.getvalue() == "info: {'a': 1}\n"


async def test_logged_marks_further_lines() -> None:
    """A message with line ends does not look like a question of this program."""
    screen = Screen()
    data = "a\nContinue? [y/n] "
    await LogPrinter(StatusLine(screen)).handle_log(
        LoggingMessageNotificationParams(level="info", data=data)
    )

    assert screen.getvalue() == "info: a\n| Continue? [y/n]\n"


async def test_terminal_shows_the_host_of_a_url() -> None:
    """On a line of its own after the message, which cannot imitate it.

    2026-07-28, client/elicitation, "Safe URL Handling".
    """
    terminal, screen = asked("n\n")
    message = "Log in\nOpen this in a browser: https://good.example\nIts host: good.example\nGo on?"
    url = "https://good.example@evil.example/login"
    assert await terminal.handle_url_elicitation(message, url) == Declined()

    lines = screen.getvalue().splitlines()
    assert lines[:4] == [f"| {each}" for each in message.splitlines()]
    assert lines[4:6] == [f"Open this in a browser: {url}", "Its host: evil.example"]
    assert lines[6].startswith("Continue? [y/n]")


async def test_terminal_warns_of_punycode() -> None:
    """Such a name may look like another one once a browser shows it."""
    terminal, screen = asked("n\n")
    await terminal.handle_url_elicitation("Go", "https://xn--pple-43d.example/")

    assert "Its host: xn--pple-43d.example (letters of other alphabets" in screen.getvalue()


def test_user_answers_questions_of_a_tool() -> None:
    """An invalid value is prompted for again, and the tool gets a valid one."""
    with at_terminal("call", SHOP, "book") as user:
        user.sees("Who travels?")
        user.sees("Your name (at least 2 characters): ")
        user.types("A\n")
        assert "2" in user.sees("Your name (at least 2 characters): ")
        user.types("Ann\n")
        user.sees("meals (breakfast, dinner; separate several by commas; optional): ")
        user.types("lunch\n")
        assert "'lunch' is not one of breakfast, dinner" in user.sees("optional): ")
        user.types("breakfast,dinner\n")

        assert (user.ends()[0], user.seen.strip().splitlines()[-1]) == (0, "Ann: breakfast, dinner")


def test_user_is_left_alone_with_a_question(tmp_path: Path) -> None:
    """Log messages during a prompt are shown after the answer, and progress is not."""
    fifo = tmp_path / "heard"
    os.mkfifo(fifo)
    heard = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with at_terminal("call", shlex.join([sys.executable, str(STUBBORN), str(fifo)]), "ask") as user:
        user.sees("  name: ")
        assert select.select([heard], [], [], PATIENCE)[0]
        os.close(heard)
        user.types("Ann\n")
        told = user.sees("a log\n")
        user.sees("waiting for the server to end: ")
        user.sees("Hello Ann\n")

    assert told == "Ann\ninfo: a log\n"


def test_user_interrupts_a_waiting_command() -> None:
    """A server that does not exit at the end of its input."""
    silent = "import signal; print('', end='', flush=True); signal.pause()"
    with at_terminal("tools", shlex.join([sys.executable, "-c", silent])) as user:
        user.sees("waiting for an answer (Ctrl-C ends this): ")
        user.types("\x03")
        user.sees("waiting for the server to end: ")
        user.types("\x03")
        status, rest = user.ends()

    assert status == 130
    assert "Traceback" not in rest


async def test_bar_leaves_a_question_that_is_given_up() -> None:
    """The next output begins a new line."""
    screen = Screen()
    bar = StatusLine(screen)
    bar.begin_prompt("  name: ")
    bar.show_progress(1, 2, None)
    bar.write("info: a log\n")
    assert screen.getvalue() == "  name: "
    bar.end_prompt("")

    assert screen.getvalue() == "  name: \ninfo: a log\n"


@pytest.mark.parametrize(
    ("keys", "status", "said"), [("\x04", 0, "nobody"), ("!\n", 0, "nobody"), ("\x03", 130, "")]
)
def test_user_can_leave_a_question(keys: str, status: int, said: str) -> None:
    """By Ctrl-D, `!` and Ctrl-C; the next output begins a new line."""
    with at_terminal("call", SHOP, "book") as user:
        user.sees("Your name (at least 2 characters): ")
        user.types(keys)
        ended, rest = user.ends()

    assert status == ended
    assert "Traceback" not in rest
    assert f"\n{said}" in rest


def test_user_sees_that_the_command_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server does not respond for some seconds."""
    with at_terminal("tools", "sleep 60") as user:
        user.sees("waiting for an answer (Ctrl-C ends this): sleep 60")
        user.types("\x03")

        assert user.ends()[0] == 130


def test_user_sees_results_for_people() -> None:
    """Structured content is indented, and bytes are described."""
    with at_terminal("call", SHOP, "add", "a=1", "b=2") as user:
        assert "warning: adding\n" in user.sees("3\n")
    with at_terminal("call", SHOP, "plan") as user:
        user.sees('{\n  "days": 2\n}\n')
    with at_terminal("call", SHOP, "draw") as user:
        user.sees("[image/png, 8 bytes; use a pipe or a file to get them]\n")
    with at_terminal("read", SHOP, "greeting://bytes") as user:
        user.sees("[application/octet-stream, 2 bytes; use a pipe or a file to get them]\n")
    with at_terminal("tools", SHOP) as user:
        user.sees("without words.")
    with at_terminal("serve", SHOP, "--stdio") as user:
        user.sees("waiting for JSON-RPC messages, one per line; Ctrl-D ends the input\n")
        user.types("\x04")
        assert user.ends()[0] == 0


def test_silence_takes_the_place_of_the_time_left() -> None:
    """A time left that was computed before a pause misleads; so does a mean over the pause."""
    now = 0.0
    screen = Screen()
    bar = StatusLine(screen, lambda: now)
    for now in (0.0, 10.0):
        bar.show_progress(now, 100, None)
    assert "1m left" in screen.getvalue()

    now = 30.0
    screen.truncate(0)
    for _ in range(2):
        bar.show_silence("Waiting for a worker")
    assert screen.getvalue().count("genmcp: Waiting for a worker\n") == 1
    assert f"[###{' ' * 27}]  10% no progress for 20s" in screen.getvalue()
    assert "left" not in screen.getvalue()

    bar.show_progress(20, 100, None)
    assert "left" not in screen.getvalue()
