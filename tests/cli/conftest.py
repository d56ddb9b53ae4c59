"""Fixtures of the tests of commands."""

from collections.abc import Callable

import pytest

from genmcp.cli.command import main


@pytest.fixture
def run(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Callable[..., tuple[int, str, str]]:
    """Run a command, and return its exit status, output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            main(arguments)
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        said, noise = capfdbinary.readouterr()
        return status, said.decode(errors="replace"), noise.decode()

    return run
