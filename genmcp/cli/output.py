"""Standard output, for what a command has to say and nothing else."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from genmcp.cli.bare import plain

__all__ = ["CannotWrite", "Output", "private_output"]


class CannotWrite(Exception):
    """What a command has to say cannot be written."""


class Output:
    """Where a command writes: an open *descriptor*, or the file at *path*, once it is entered."""

    def __init__(self, descriptor: int | None = None, path: str | None = None) -> None:
        self._descriptor = descriptor
        self._path = path
        self.is_terminal = descriptor is not None and os.isatty(descriptor)

    def say(self, text: str) -> None:
        """Write *text*, of a server: to a terminal without what it would obey."""
        if self.is_terminal:
            text = plain(text)
        self.write((text if text.endswith("\n") else f"{text}\n").encode(errors="replace"))

    def show(self, value: Any) -> None:
        """Write *value* as JSON."""
        self.say(msgspec.json.format(msgspec.json.encode(value)).decode())

    def write(self, data: bytes) -> None:
        """Write *data* as it is.

        Raises:
            CannotWrite: that is not possible. BrokenPipeError: nobody reads on.
        """
        if self._descriptor is None and self._path is None:
            raise CannotWrite("cannot write the output: standard output is closed")
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                self._descriptor = os.open(Path(str(self._path)), flags, 0o666)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f" to {self._path}" if self._path else ""
            raise CannotWrite(f"cannot write the output{where}: {error.strerror}") from None

    def __enter__(self) -> "Output":
        """Make the file, and close what is written to in the end."""
        if self._path is not None:
            self.write(b"")
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; more than once does no harm."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def private_output() -> Iterator[Output]:
    """Give the real standard output.

    Meanwhile what is printed, here or by a program that a tool of this process runs, goes to
    standard error.
    """
    if sys.stdout is None:  # it is closed
        yield Output()
        return
    sys.stdout.flush()
    real = os.dup(1)
    try:
        os.dup2(2, 1)
        with Output(os.dup(real)) as output, redirect_stdout(sys.stderr):
            yield output
    finally:
        os.dup2(real, 1)
        os.close(real)
