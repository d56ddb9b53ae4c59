"""`genmcp` as a module."""

import runpy
import sys

import pytest

from genmcp.cli.command import main


def test_command_line_is_a_module_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m genmcp` is `genmcp`: it lists the commands, with status 0."""
    monkeypatch.setattr(sys, "argv", ["genmcp", "--help"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("genmcp", run_name="__main__", alter_sys=True)

    assert not ended.value.code
    said = capsys.readouterr().out
    assert all(command in said for command in ("serve", "worker", "call"))


@pytest.mark.parametrize(("typed", "said"), [((), "commands:"), (("--version",), "genmcp 0.")])
def test_command_line_prints_help_and_version(
    typed: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without arguments the commands are listed; `--version` prints the version."""
    with pytest.raises(SystemExit) as ended:
        main(typed)

    assert not ended.value.code
    assert said in capsys.readouterr().out
