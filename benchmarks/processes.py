"""Servers as processes of their own, pinned to a core, and what they cost."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
SERVER_CORE, LOAD_CORE = 0, 1


@dataclass
class Served:
    """A server that listens, and its process."""

    port: int
    pid: int
    started_in: float

    def cpu(self) -> float:
        """Return the CPU time the process has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Return the resident memory, in MiB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the server has ended")


def free_port() -> int:
    """Return a loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(
    app: str, *, python: str = sys.executable, server: str = "uvicorn", env: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Serve *app* on one pinned process of *server*, with *env* added to the environment."""
    port = free_port()
    began = time.perf_counter()
    process = subprocess.Popen(
        ["taskset", "-c", str(SERVER_CORE), python, "-m", *_COMMANDS[server](app, port)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        _wait(port, process)
        yield Served(port, process.pid, time.perf_counter() - began)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _uvicorn(app: str, port: int) -> list[str]:
    quiet = ["--log-level", "warning", "--no-access-log"]
    return ["uvicorn", app, "--port", str(port), *quiet]


def _granian(app: str, port: int) -> list[str]:
    return ["granian", "--interface", "asgi", "--port", str(port), "--no-log", app]


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
