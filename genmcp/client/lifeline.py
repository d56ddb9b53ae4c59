"""What ends the processes of a server when this one is killed, and can do nothing any more."""

import subprocess
from contextlib import suppress
from typing import Final

__all__ = ["Lifeline"]

#: Nothing is ever written to its input, which the system closes when the last process that has the
#: other end of it is gone, however that ended.
_SCRIPT: Final = 'read -r _; kill -9 "-$0"'


class Lifeline:
    """Kills the process group *group* when this process is gone, by a shell that waits for that.

    The signal that Linux can send to a child whose parent dies does not reach what the child has
    started: `npx` and `uv run` are not the server. Where there is no shell, nothing is done.
    """

    def __init__(self, group: int) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._shell = subprocess.Popen(
                ("/bin/sh", "-c", _SCRIPT, str(group)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def drop(self) -> None:
        """Do nothing of that: the group is no more, and its number may soon be another's."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            shell.wait()  # it has no time to do anything else
            if shell.stdin is not None:
                shell.stdin.close()
