"""How a client starts the process of a server, and ends it."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from genmcp.client.masking import MASK, masked_command, masked_values, shown
from genmcp.errors import ConfigurationError

__all__ = ["Command", "StdioOptions"]

_INHERITED: Final = (
    (
        "APPDATA",
        "COMSPEC",
        "HOMEDRIVE",
        "HOMEPATH",
        "LOCALAPPDATA",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMFILES",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERNAME",
        "USERPROFILE",
    )
    if sys.platform == "win32"
    else (
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "USER",
    )
)
"""What programs need to run at all; keys and tokens of this process are none of a server's
business."""


class Command(msgspec.Struct, frozen=True):
    """The command that starts a server which speaks over its standard streams.

    env: what is added to the few variables every server gets (`PATH`, `HOME`, the language and the
    like); nothing else of this process's environment is passed on. cwd: where it runs, None here.

    Raises:
        ConfigurationError: this cannot be a command.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the values, naming the wrong one."""
        if not self.command:
            raise ConfigurationError("command must not be empty")
        if isinstance(self.args, str):
            raise ConfigurationError("args takes a list of strings, not a string")

    def __str__(self) -> str:
        """Return the command with its arguments masked, for errors and logs."""
        return masked_command(self.command, self.args)

    def __repr__(self) -> str:
        """Return the command with its arguments and the values of its variables masked."""
        args = (MASK,) * len(self.args)
        values = {"command": self.command, "args": args, "env": masked_values(self.env)}
        return shown("Command", {**values, "cwd": self.cwd})

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the process."""
        inherited = {
            name: value
            for name in _INHERITED
            # What begins like this is a function of a shell, which another one would run.
            if (value := os.environ.get(name)) is not None and not value.startswith("()")
        }
        return {**inherited, **(self.env or {})}


class StdioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the process of a server; times in seconds.

    stderr: who gets what it writes there: a function, line by line; `"pass"`: this process's
        stderr; None: the logger `genmcp.server`, at INFO. The last line is kept in any case.
    exit_timeout: how long it has to end by itself once its input is closed.
    term_timeout: how long it has after SIGTERM; then it is killed.
    stall: how long it may not read, before a notification or an answer to it fails.

    Raises:
        ConfigurationError: an option has a value that means nothing.
    """

    stderr: Callable[[str], None] | Literal["pass"] | None = None
    exit_timeout: float = 2.0
    term_timeout: float = 2.0
    stall: float = 30.0

    def __post_init__(self) -> None:
        """Check the values, naming the wrong one."""
        for name in ("exit_timeout", "term_timeout", "stall"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must not be negative: {getattr(self, name)!r}")
        if self.stderr not in (None, "pass") and not callable(self.stderr):
            raise ConfigurationError(f"stderr takes a function, 'pass' or None: {self.stderr!r}")
