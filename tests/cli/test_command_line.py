"""`genmcp` as a module, its help, and its usage errors."""

import runpy
import sys
from collections.abc import Callable

import pytest

from genmcp.cli.command import create_group

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
    [((), "commands:"), (("jobs",), "retry"), (("--version",), "genmcp 0."), (("-h",), "worker")],
)
def test_command_line_prints_help_and_version(typed: tuple[str, ...], said: str, run: Run) -> None:
    """Without arguments the commands are listed; `--version` prints the version."""
    status, shown, noise = run(*typed)

    assert (status, noise) == (0, "")
    assert said in shown


def test_each_command_describes_its_parameters(run: Run) -> None:
    """Each argument and option has a description in `--help`."""
    for name, command in create_group().commands.items():
        status, shown, _ = run(name, "--help")
        assert status == 0
        assert shown.startswith(f"Usage: genmcp {name}")
        for parameter in command.params:
            described = getattr(parameter, "description", "") or getattr(parameter, "help", "")
            assert described, f"{name} {parameter.name}"
            assert described.split()[0] in shown


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (("call",), "genmcp call: error: missing argument 'TARGET'"),
        (("serve", "a:b", "--port", "65536"), "'65536' is not a port: 0 to 65535"),
        (("jobs", "list", "--limit", "0"), "genmcp jobs list: error: invalid value for '--limit'"),
        (("jobs", "list", "--state", "lost"), "'lost' is not one of 'queued', 'working'"),
        (("worker", "a:b", "c:d"), "genmcp worker: error: unrecognized arguments: c:d"),
        (("nothing",), "genmcp: error: there is no command 'nothing'"),
        (("tools", "\x1b[1m:", "-\x1b[2J"), "no such option: -"),
    ],
)
def test_usage_errors_name_the_command(typed: tuple[str, ...], error: str, run: Run) -> None:
    """On standard error, after the usage of the command, with status 2, and sanitized."""
    status, shown, noise = run(*typed)

    assert (status, shown) == (2, "")
    assert noise.startswith("Usage: genmcp")
    assert error in noise
    assert "\x1b" not in noise
