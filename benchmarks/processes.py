"""Interpreters, virtual environments, and server processes that are pinned to a core."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

__all__ = ["PEERS", "Python", "beside", "chosen", "environment", "requirements", "versions"]

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
SERVER_CORE, LOAD_CORE = 0, 1

FAILURES = (RuntimeError, OSError, HTTPException, subprocess.SubprocessError)
"""Exceptions after which one figure is reported as missing, and the run continues."""


@dataclass
class Served:
    """A listening server: port, process id, and start time (`time.perf_counter`)."""

    port: int
    pid: int
    began: float

    def cpu(self) -> float:
        """Return the CPU time the server has used, in seconds."""
        return sum(map(_cpu, family(self.pid)))

    def memory(self) -> float:
        """Return the resident memory, in MiB."""
        return sum(map(memory_of, family(self.pid)))


def family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants: granian and hypercorn serve in a child."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the server has ended")


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def pinned(core: int, *command: str) -> list[str]:
    """Return *command* pinned to *core*."""
    return ["taskset", "-c", str(core), *command]


def surroundings(env: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a process that imports genmcp from the checkout *root*."""
    # Without bytecode, start-up would be slower than that of an installed package.
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
    """Serve *app* of the checkout *root* with one pinned process of *server*; adds *env*."""
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


def _uvicorn_h11(app: str, port: int) -> list[str]:
    return [*_uvicorn(app, port), "--loop", "asyncio", "--http", "h11"]


def _granian(app: str, port: int) -> list[str]:
    quiet = ["--no-log", "--no-ws"]
    return ["granian", "--interface", "asgi", "--loop", "uvloop", "--port", str(port), *quiet, app]


def _hypercorn(app: str, port: int) -> list[str]:
    return ["hypercorn", "--bind", f"127.0.0.1:{port}", "-k", "uvloop", app]


_COMMANDS = {
    "uvicorn": _uvicorn,
    "uvicorn-h11": _uvicorn_h11,
    "granian": _granian,
    "hypercorn": _hypercorn,
}


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


PEERS = ("mcp", "fastmcp")
_WANTED = ("3.13", "3.11")
_HERE = ROOT / "benchmarks"

_VERSIONS = """
import json
from importlib.metadata import distributions
print(json.dumps({found.name.lower(): found.version for found in distributions()}))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter: where it is, and its version, such as "3.13.0"."""

    path: str
    version: str

    @property
    def minor(self) -> tuple[int, int]:
        """The version without its last part, as numbers."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def chosen(paths: Sequence[str]) -> list[Python]:
    """Return the interpreters at *paths*; without any, this one and 3.13 and 3.11 if installed.

    Raises:
        SystemExit: one of *paths* is not a supported interpreter.
    """
    found: dict[object, Python] = {}
    for path in paths:
        python = _inspect(path)
        if python is None:
            raise SystemExit(f"benchmark: {path} is not Python 3.11 or newer")
        found.setdefault(python.version, python)
    for path in () if paths else _candidates():
        if python := _inspect(path):
            found.setdefault(python.minor, python)
    return sorted(found.values(), key=lambda python: python.minor, reverse=True)


def _candidates() -> Iterator[str]:
    yield sys.executable
    for version in _WANTED:
        if on_path := shutil.which(f"python{version}"):
            yield on_path
        for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"):
            yield str(path)


def _inspect(path: str) -> Python | None:
    command = [path, "-c", "import platform; print(platform.python_version())"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if answer.returncode:  # a shim of pyenv for a version that is not selected
        return None
    python = Python(path, answer.stdout.strip())
    return python if python.minor >= (3, 11) else None


def environment(python: Python, subject: str, root: Path = ROOT) -> str:
    """Return the Python of a virtual environment with the requirements of *subject*.

    It is created if it does not exist or was created for other requirements. *root* is the checkout
    whose pyproject.toml lists the dependencies of genmcp.
    """
    label = subject if root == ROOT else f"{subject}-{root.name}"
    folder = _HERE / ".venvs" / f"{label}-{python.version}"
    inside = folder / "bin" / "python"
    stamp = folder / "made-for"
    wanted = [*requirements(subject, root), *_lines(_HERE / "servers.txt")]
    made_for = "\n".join([python.path, *wanted])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_for:
        print(f"installing {folder.name}", file=sys.stderr, flush=True)
        subprocess.run([python.path, "-m", "venv", "--clear", str(folder)], check=True)
        quiet = ["-qq", "--disable-pip-version-check"]
        subprocess.run([str(inside), "-m", "pip", "install", *quiet, *wanted], check=True)
        stamp.write_text(made_for, encoding="utf-8")
    return str(inside)


def beside(inside: str, subject: str) -> str:
    """Return the Python of an environment of *subject* with the interpreter of *inside*."""
    folder = Path(inside).parent.parent
    path = (folder / "made-for").read_text(encoding="utf-8").partition("\n")[0]
    return environment(Python(path, folder.name.rpartition("-")[2]), subject)


def requirements(subject: str, root: Path = ROOT) -> list[str]:
    """Return the requirements of a subject: genmcp's dependencies, or a peer, pinned."""
    if subject in PEERS:
        return _lines(_HERE / "peers" / f"{subject}.txt")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies: list[str] = project["dependencies"]
    return dependencies


def versions(inside: str) -> Mapping[str, str]:
    """Return the version of each distribution in the environment of Python *inside*."""
    answer = subprocess.run([inside, "-c", _VERSIONS], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
