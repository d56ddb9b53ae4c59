"""Output at a terminal, and the description of one tool."""

import io
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genmcp.cli.output import OutputWriter
from genmcp.cli.terminal import StatusLine
from tests.cli.users import at_terminal

SHOP = "tests.cli.shop:suite"
Run = Callable[..., tuple[int, str, str]]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_gets_the_lines_of_a_pipe(run: Run) -> None:
    """Without colours, whatever the variables of the environment are."""
    with at_terminal("prompts", SHOP, NO_COLOR="", FORCE_COLOR="1") as user:
        status, shown = user.ends()

    assert (status, shown.splitlines()[:2]) == (0, ["greet city", "travel city [by]"])
    assert run("prompts", SHOP)[1].startswith("greet city\ntravel city [by]\n")


def test_one_tool_is_shown_with_its_defaults_and_bounds(run: Run, tmp_path: Path) -> None:
    """And with the whole of its description."""
    (tmp_path / "bounded.py").write_text(BOUNDED)
    serve = shlex.join([sys.executable, "-m", "genmcp", "serve", "bounded:suite", "--stdio"])
    target = f"env PYTHONPATH={tmp_path} {serve}"
    listed = run("tools", target)[:2]
    status, shown, _ = run("tools", target, "order")

    assert listed == (0, "order part=string [count=integer]\n    Orders.\n    count: How many.\n")
    assert status == 0
    assert shown.splitlines() == [
        "order part=string [count=integer]",
        "    Orders.",
        "",
        "    Then waits.",
        "",
        "ARGUMENT  TYPE     DEFAULT   BOUNDS                DESCRIPTION",
        "part      string   required  at most 9 characters  -",
        "count     integer  1         1 to 100              How many.",
    ]


BOUNDED = """
from typing import Annotated
from msgspec import Meta
from genmcp import Suite, tool

@tool
def order(
    part: Annotated[str, Meta(max_length=9)],
    count: Annotated[int, Meta(ge=1, le=100, description="How many.")] = 1,
) -> str:
    '''Orders.

    Then waits.
    '''
    return part

suite = Suite(name="bounded", version="1", tools=[order])
"""


def test_unknown_tool_is_reported_with_a_similar_one(run: Run) -> None:
    """A tool that is not listed cannot be shown."""
    status, shown, noise = run("tools", SHOP, "plam")

    assert (status, shown) == (1, "")
    assert noise == f"genmcp: {SHOP} has no tool 'plam'; did you mean 'plan'?\n"


def test_table_of_hostile_cells_moves_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of a server is neither an escape sequence nor markup."""
    monkeypatch.setattr("genmcp.cli.output.os.isatty", lambda _: True)
    with (tmp_path / "shown").open("wb", buffering=0) as file:
        output = OutputWriter(file.fileno())
        output.write_table(["A"], [["\x1b[2J[bold]x[/bold] :smile:\r"]])
        output.write_json({"a": "\x9b2J"})

    shown = (tmp_path / "shown").read_text()
    assert "[2J[bold]x[/bold] :smile:\n" in shown
    assert not set("\x1b\x9b\r") & {*shown}


def test_progress_has_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the first progress, which need not be the beginning; a new call begins anew."""
    monkeypatch.setenv("COLUMNS", "80")
    screen, times = Screen(), iter([0.0, 0.0, 0.1, 2.0, 4.0, 5.0, 6.0])
    bar = StatusLine(screen, lambda: next(times))
    for progress, total in ((10, 100), (10.5, 100), (20, 100), (5000, None), (1, 4), (4, 4)):
        bar.show_progress(progress, total, "on")

    shown = [each.partition("] ")[2] or each for each in screen.getvalue().split("\x1b[K")]
    assert shown[:6] == [
        " 10% on",
        " 10% on",
        " 20% 16s left on",
        "\r5000 on",
        " 25% on",
        "100% on",
    ]


def test_deep_text_beside_structured_content_is_shown(tmp_path: Path) -> None:
    """A terminal shows text that repeats the structured content once; this cannot be compared."""
    (tmp_path / "deep.py").write_text(
        "from genmcp import CallToolResult, Suite, TextContent, tool\n"
        "@tool\n"
        "def deep() -> CallToolResult:\n"
        "    return CallToolResult([TextContent('[' * 5_000)], structured_content={})\n"
        "suite = Suite('deep', tools=deep)\n"
    )
    with at_terminal("call", f"{tmp_path}/deep.py", "deep") as user:
        status, shown = user.ends()

    assert (status, set(shown.strip())) == (0, {"["})
