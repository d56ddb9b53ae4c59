"""Run the comparison and write the table: `scripts/benchmark`."""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks.cases import CASES, Row, Subject, run
from benchmarks.processes import ROOT

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PEERS = ROOT / "benchmarks" / "peers"


def main() -> None:
    """Measure what the options choose, print the table, and write it if it is whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    parser.add_argument("--seconds", type=float, default=3, help="how long each load lasts")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    parser.add_argument("--server", default="uvicorn", choices=["uvicorn", "granian", "hypercorn"])
    parser.add_argument("--peers", action="store_true", help="measure mcp and FastMCP too")
    options = parser.parse_args()
    subjects = [
        Subject("floor", "benchmarks.floor:app", sys.executable, options.server),
        Subject("genmcp", "benchmarks.subject:app", sys.executable, options.server),
    ]
    if options.peers:
        subjects += [
            Subject(name, f"benchmarks.peers.{name}_app:app", peer_python(name))
            for name in ("mcp", "fastmcp")
        ]
    cases = [case for case in CASES if options.case in case.name]
    rows = []
    for row in run(cases, subjects, rounds=options.rounds, seconds=options.seconds):
        rows.append(row)
        print(_line(row, subjects), flush=True)
    if len(cases) == len(CASES):
        RESULTS.write_text(report(rows, subjects), encoding="utf-8")
        print(f"written to {RESULTS.relative_to(ROOT)}")


def peer_python(name: str) -> str:
    """Return the Python of a peer's own virtual environment, made if it is not there."""
    folder = ROOT / "benchmarks" / ".venvs" / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [str(PEERS / f"{name}.txt"), "uvicorn", "uvloop", "httptools"]
        subprocess.run([str(python), "-m", "pip", "install", "-qq", "-r", *wanted], check=True)
    return str(python)


def report(rows: Sequence[Row], subjects: Sequence[Subject]) -> str:
    """Return the table as a page."""
    head = ["case"]
    for subject in subjects:
        head += [f"{subject.name}: us CPU", "per second", "p99 ms"]
        if subject.name != "floor":
            head += ["of the floor: CPU", "rate"]
    setting = (
        f"{datetime.now(UTC).date()}, Python {platform.python_version()}, {subjects[0].server}, "
        f"{platform.machine()}, {os.cpu_count()} cores: one for the server, one for wrk. CPU is "
        "that of the server process for one request; a ratio of 1 means as fast as the floor."
    )
    lines = [
        "# Results",
        "",
        setting,
        "",
        "| " + " | ".join(head) + " |",
        "|---" + "|--:" * (len(head) - 1) + "|",
        *(_line(row, subjects) for row in rows),
        "",
    ]
    return "\n".join(lines)


def _line(row: Row, subjects: Sequence[Subject]) -> str:
    floor = row.found["floor"]
    cells = [row.case]
    for subject in subjects:
        found = row.found.get(subject.name)
        if found is None:
            cells += ["-"] * (3 if subject.name == "floor" else 5)
            continue
        cells += [f"{found.cpu:.0f}", f"{found.rate:.0f}", f"{found.p99:.1f}"]
        if subject.name != "floor":
            cells += [f"{floor.cpu / found.cpu:.2f}", f"{found.rate / floor.rate:.2f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
