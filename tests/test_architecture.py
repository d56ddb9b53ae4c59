"""docs/architecture.md names the modules of the package, and its diagrams match the tables."""

import importlib
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

# `genmcp/core/call.py`: `CallState.advance`, `CallPhase`; or `Mux` (`genmcp/_mux/mux.py`).
PATH = re.compile(r"`((?:genmcp|tests|scripts)/[\w/.]*)`")
NAMES_AFTER = re.compile(r"`(genmcp/[\w/]+)\.py`: ((?:`\w[\w.]*`(?:, )?)+)")
NAMES_BEFORE = re.compile(r"((?:`\w[\w.]*`(?:, )?)+) \(`(genmcp/[\w/]+)\.py`")
NAME = re.compile(r"`(\w[\w.]*)`")


def test_architecture_paths_exist() -> None:
    """A module that was moved or merged must be changed on the page, too."""
    assert [path for path in PATH.findall(PAGE) if not (ROOT / path).exists()] == []


def test_architecture_names_are_in_their_modules() -> None:
    """Each class or function is defined in the module that the page names for it."""
    placed = [
        *NAMES_AFTER.findall(PAGE),
        *((path, names) for names, path in NAMES_BEFORE.findall(PAGE)),
    ]
    assert placed

    for path, names in placed:
        module = importlib.import_module(path.replace("/", "."))
        for name in NAME.findall(names):
            assert reduce(getattr, name.split("."), module)


def test_architecture_diagrams_match_the_tables() -> None:
    """The page draws the transitions of the code: running `scripts/diagram` changes nothing."""
    command = [sys.executable, "scripts/diagram", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr


def test_architecture_outdated_diagram_is_reported(tmp_path: Path) -> None:
    """A transition missing on the page is an error whose message names the command to run."""
    copy = tmp_path / "scripts" / "diagram"
    copy.parent.mkdir()
    copy.write_text((ROOT / "scripts" / "diagram").read_text("utf-8"), encoding="utf-8")
    (tmp_path / "genmcp").symlink_to(ROOT / "genmcp")
    (tmp_path / "docs").mkdir()
    outdated = PAGE.replace("WAITING --> STREAMING", "WAITING --> DONE", 1)
    assert outdated != PAGE
    (tmp_path / "docs" / "architecture.md").write_text(outdated, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, str(copy), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "run .venv/bin/python scripts/diagram" in done.stderr
