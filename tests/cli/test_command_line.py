"""`genmcp` as a module, its help, and its usage errors."""

import re
import runpy
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from genmcp.cli.command import commands
from genmcp.cli.parsing import Group
from tests.cli.users import at_terminal

Run = Callable[..., tuple[int, str, str]]


def test_command_line_is_a_module_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m genmcp` is `genmcp`: it lists the commands, with status 0."""
    monkeypatch.setattr(sys, "argv", ["genmcp", "--help"])
    runpy.run_module("genmcp", run_name="__main__", alter_sys=True)

    said = capsys.readouterr().out
    assert all(command in said for command in ("serve", "worker", "call"))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "Call a server:"),
        (("jobs",), "retry"),
        (("--version",), "genmcp 0."),
        (("-h",), "worker"),
    ],
)
def test_command_line_prints_help_and_version(typed: tuple[str, ...], said: str, run: Run) -> None:
    """Without arguments the commands are listed; `--version` prints the version."""
    status, shown, noise = run(*typed)

    assert (status, noise) == (0, "")
    assert said in shown


def leaves(group: Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands, with the words that name them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name), command


@pytest.mark.parametrize(("words", "command"), [*leaves(commands)])
def test_each_command_describes_its_parameters(
    words: tuple[str, ...], command: click.Command, run: Run
) -> None:
    """Each argument is in the text of `--help`, each option has one; and there is an example."""
    status, shown, _ = run(*words, "--help")

    assert status == 0
    usage, _, text = shown.partition("\n")
    assert usage.startswith(f"Usage: genmcp {' '.join(words)}")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
        else:
            name = re.findall(r"\w+", parameter.make_metavar(click.Context(command)))[0]
            assert name.rstrip("S") in text.upper(), parameter.name
    assert f"  genmcp {' '.join(words)}" in shown


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (("call",), "genmcp: Missing argument 'TARGET'"),
        (("serve", "a:b", "--port", "65536"), "65536 is not in the range 0<=x<=65535"),
        (("jobs", "list", "--limit", "0"), "genmcp: Invalid value for '--limit'"),
        (("jobs", "list", "--state", "lost"), "'lost' is not one of 'queued', 'working'"),
        (("worker", "a:b", "c:d"), "genmcp: Got unexpected extra argument (c:d)"),
        (("nothing",), "genmcp: there is no command 'nothing'"),
        (("tools", "\x1b[1m:", "-\x1b[2J"), "No such option"),
    ],
)
def test_usage_errors_name_the_command(typed: tuple[str, ...], error: str, run: Run) -> None:
    """On standard error, after the usage of the command, with status 2, and sanitized."""
    status, shown, noise = run(*typed)

    assert (status, shown) == (2, "")
    assert noise.startswith("Usage: genmcp")
    assert error in noise
    assert "\x1b" not in noise


AWAY = "http://127.0.0.1:9/mcp"
REMOTE = [
    ("call", AWAY, "add"),
    ("tools", AWAY),
    ("tools", AWAY, "add"),
    ("read", AWAY, "a://b"),
    ("resources", AWAY),
    ("templates", AWAY),
    ("prompt", AWAY, "greet"),
    ("prompts", AWAY),
    ("complete", AWAY, "greet", "city"),
    ("discover", AWAY),
    ("skills", AWAY),
    ("skills", AWAY, "refunds"),
    ("lint", AWAY),
    *(("tasks", each, AWAY, "an-id") for each in ("show", "follow", "cancel")),
    ("tasks", "answer", AWAY, "an-id", "--accept"),
    ("login", AWAY),
    ("auth", AWAY),
]


@pytest.mark.parametrize("words", REMOTE, ids=" ".join)
def test_server_that_is_away_is_one_line(words: tuple[str, ...], run: Run) -> None:
    """With status 1, and nothing on standard output."""
    status, shown, noise = run(*words)

    assert (status, shown) == (1, "")
    assert noise.startswith(f"genmcp: cannot reach {AWAY}: ")
    assert noise.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "no_such.py"),
        ("worker", "no_such:suite"),
        ("jobs", "list", "--store", "sqlite:////no/such/jobs.db"),
        ("store", "check", "--store", "ftp://a.example"),
        ("install", "no_such.py", "claude"),
        ("new", "-.-"),
        ("logout", "server.py"),
    ],
    ids=" ".join,
)
def test_wrong_argument_is_one_line(words: tuple[str, ...], run: Run) -> None:
    """With status 2, after the usage if the form of the command line is wrong."""
    status, shown, noise = run(*words)

    assert (status, shown) == (2, "")
    assert noise.splitlines()[-1].startswith("genmcp: ")
    assert noise.count("\n") <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status"), [(("tools", AWAY), 1), (("login", AWAY), 1), (("serve", "no_such.py"), 2)]
)
def test_terminal_gets_the_same_error(words: tuple[str, ...], status: int) -> None:
    """A line, and the status of a pipe."""
    with at_terminal(*words) as user:
        ended, shown = user.ends()

    assert ended == status
    assert re.fullmatch(r"genmcp: .*\n", shown)
