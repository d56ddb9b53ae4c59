"""A user at a pseudo-terminal, who answers the prompts of a command."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


class User:
    """Reads the output of a process on its terminal, and types."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int) -> None:
        self.process = process
        self.seen = ""
        self._terminal = terminal

    def sees(self, text: str) -> str:
        """Wait until *text* is on the screen, and return the output up to it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                try:
                    data = os.read(self._terminal, 65536)
                except OSError:  # the process has closed it
                    data = b""
                assert data, f"it ended; {text!r} is not in {self.seen!r}"
                self.seen += re.sub(r"\r\n", "\n", data.decode())
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def ends(self) -> tuple[int, str]:
        """Wait for the exit, and return the status and the rest of the output."""
        while select.select([self._terminal], [], [], PATIENCE)[0]:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data.decode().replace("\r\n", "\n")
        return self.process.wait(PATIENCE), self.seen


@contextmanager
def at_terminal(
    *arguments: str,
    piped: bool = False,
    cwd: Path = ROOT,
    program: Sequence[str] = ("-m", "genmcp"),
    **variables: str,
) -> Iterator[User]:
    """Give the user of `genmcp` with *arguments*, by default without colours.

    *piped*: its output goes elsewhere; *program*: what Python runs.
    """
    ours, its = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60", "NO_COLOR": "1"}
    environment.update({"TERM": "xterm-256color", **variables})
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdin=its,
        stdout=subprocess.DEVNULL if piped else its,
        stderr=its,
        cwd=cwd,
        env=environment,
        start_new_session=True,
        preexec_fn=_controlled,
    )
    os.close(its)
    try:
        yield User(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _controlled() -> None:
    """Make the terminal the controlling one, so that Ctrl-C interrupts the process."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
