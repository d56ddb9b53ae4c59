"""Servers as processes of their own, pinned to a core, and what they cost."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
SERVER_CORE, LOAD_CORE = 0, 1

FAILURES = (RuntimeError, OSError, HTTPException, subprocess.SubprocessError)
"""What a server that does not do what it should ends in: one figure is missing then."""


@dataclass
class Served:
    """A server that listens, its process, and when (`time.perf_counter`) that was started."""

    port: int
    pid: int
    began: float

    def cpu(self) -> float:
        """Return the CPU time the server has used, in seconds."""
        return sum(map(_cpu, _family(self.pid)))

    def memory(self) -> float:
        """Return the resident memory, in MiB."""
        return sum(map(_memory, _family(self.pid)))


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants: granian and hypercorn serve in a child."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the server has ended")


def free_port() -> int:
    """Return a loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pinned(core: int, *command: str) -> list[str]:
    """Return *command* as one that runs on *core* alone."""
    return ["taskset", "-c", str(core), *command]


def surroundings(env: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Return the environment variables of a process that imports genmcp from the checkout *root*.

    It keeps bytecode, as every installed package has it.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(root), **env}


@contextmanager
def served(
    app: str,
    *,
    python: str = sys.executable,
    server: str = "uvicorn",
    env: Mapping[str, str] = {},
    root: Path = ROOT,
) -> Iterator[Served]:
    """Serve *app* of the checkout *root* on one pinned process of *server*.

    *env* is added to the environment.
    """
    port = free_port()
    began = time.perf_counter()
    process = subprocess.Popen(
        pinned(SERVER_CORE, python, "-m", *_COMMANDS[server](app, port)),
        env=surroundings(env, root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=root,
        start_new_session=True,
    )
    try:
        _wait(port, process)
        yield Served(port, process.pid, began)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _uvicorn(app: str, port: int) -> list[str]:
    quiet = ["--log-level", "warning", "--no-access-log"]
    return ["uvicorn", app, "--port", str(port), *quiet]


def _granian(app: str, port: int) -> list[str]:
    quiet = ["--no-log", "--no-ws"]
    return ["granian", "--interface", "asgi", "--loop", "uvloop", "--port", str(port), *quiet, app]


def _hypercorn(app: str, port: int) -> list[str]:
    return ["hypercorn", "--bind", f"127.0.0.1:{port}", "-k", "uvloop", app]


_COMMANDS = {"uvicorn": _uvicorn, "granian": _granian, "hypercorn": _hypercorn}


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
    raise RuntimeError("the server does not listen")
