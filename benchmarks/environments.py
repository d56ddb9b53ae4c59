"""The interpreters to measure on, and a virtual environment for each subject on each of them."""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT

__all__ = ["PEERS", "Python", "beside", "chosen", "environment", "requirements", "versions"]

PEERS = ("mcp", "fastmcp")
WANTED = ("3.13", "3.11")
HERE = ROOT / "benchmarks"

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
    """Return the interpreters at *paths*; without any, this one and those of WANTED that exist.

    Raises:
        SystemExit: one of *paths* is no interpreter that genmcp runs on.
    """
    found: dict[object, Python] = {}
    for path in paths:
        python = _asked(path)
        if python is None:
            raise SystemExit(f"benchmark: {path} is no Python 3.11 or newer")
        found.setdefault(python.version, python)
    for path in () if paths else _candidates():
        if python := _asked(path):
            found.setdefault(python.minor, python)
    return sorted(found.values(), key=lambda python: python.minor, reverse=True)


def _candidates() -> Iterator[str]:
    yield sys.executable
    for version in WANTED:
        if on_path := shutil.which(f"python{version}"):
            yield on_path
        for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"):
            yield str(path)


def _asked(path: str) -> Python | None:
    command = [path, "-c", "import platform; print(platform.python_version())"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if answer.returncode:  # pyenv's shims are there for versions that are not chosen, too
        return None
    python = Python(path, answer.stdout.strip())
    return python if python.minor >= (3, 11) else None


def environment(python: Python, subject: str, root: Path = ROOT) -> str:
    """Return the Python of a virtual environment with all that *subject* needs.

    It is created if it does not exist or was created for other requirements. *root* is the checkout
    whose pyproject.toml lists the dependencies of genmcp.
    """
    label = subject if root == ROOT else f"{subject}-{root.name}"
    folder = HERE / ".venvs" / f"{label}-{python.version}"
    inside = folder / "bin" / "python"
    stamp = folder / "made-for"
    wanted = [*requirements(subject, root), *_lines(HERE / "servers.txt")]
    made_for = "\n".join([python.path, *wanted])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_for:
        print(f"installing {folder.name}", file=sys.stderr, flush=True)
        subprocess.run([python.path, "-m", "venv", "--clear", str(folder)], check=True)
        quiet = ["-qq", "--disable-pip-version-check"]
        subprocess.run([str(inside), "-m", "pip", "install", *quiet, *wanted], check=True)
        stamp.write_text(made_for, encoding="utf-8")
    return str(inside)


def beside(inside: str, subject: str) -> str:
    """Return the Python of *subject*'s environment on the interpreter of that with *inside*."""
    folder = Path(inside).parent.parent
    path = (folder / "made-for").read_text(encoding="utf-8").partition("\n")[0]
    return environment(Python(path, folder.name.rpartition("-")[2]), subject)


def requirements(subject: str, root: Path = ROOT) -> list[str]:
    """Return the requirements of a subject: genmcp's dependencies, or a peer, pinned."""
    if subject in PEERS:
        return _lines(HERE / "peers" / f"{subject}.txt")
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
