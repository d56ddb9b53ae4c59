"""The page of results."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.cases import Row, Subject
from benchmarks.environments import PEERS, Python, requirements
from benchmarks.figures import Figure, number

__all__ = ["Part", "page"]

TOLD = ("uvicorn", "uvloop", "httptools", "granian", "hypercorn", "msgspec", "starlette")


@dataclass
class Part:
    """What was measured on one interpreter, and with which versions of the rest."""

    python: Python
    subjects: Sequence[Subject]
    versions: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def line(self, row: Row) -> str:
        """Return a row of the table of loads."""
        cells = [row.case.name]
        for subject in self.subjects:
            found, ratios = row.found.get(subject.name), row.ratios(subject.name)
            cells += ["-"] * 3 if found is None else map(number, (found.cpu, found.rate, found.p99))
            if subject.name != "floor":
                some = None if ratios is None else (ratios.cpu, ratios.rate, ratios.p99)
                cells += ["-"] * 3 if some is None else [f"{ratio:.2f}" for ratio in some]
        bar = row.case.bar(self.python)
        cells += ["-", "-"] if bar is None else [str(bar), _word(not row.faults(bar))]
        return _line(cells)

    def head(self) -> list[str]:
        """Return the two lines above the rows of the table of loads."""
        cells = ["load"]
        for subject in self.subjects:
            cells += [f"{subject.name}: us CPU", "per second", "p99 ms"]
            if subject.name != "floor":
                cells += ["beside the floor: CPU", "rate", "p99"]
        return [_line([*cells, "bar", "reached"]), "|---" + "|--:" * (len(cells) + 1) + "|"]

    def judged(self) -> tuple[int, list[str]]:
        """Return how many bars there are, and what is below them."""
        bars = [(row, row.case.bar(self.python)) for row in self.rows]
        below = [
            f"{row.case.name}: {'; '.join(row.faults(bar))}"
            for row, bar in bars
            if bar is not None and row.faults(bar)
        ]
        below += [
            f"{figure.name}: {number(figure.found)}, not {number(figure.bound)}"
            for figure in self.figures
            if not figure.reached
        ]
        count = sum(bar is not None for _, bar in bars) + len(self.figures)
        return count, [f"Python {self.python.version}: {what}" for what in below]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {self.versions[name]}" for name in TOLD)
        peers = [each for subject in self.subjects for each in _peer(subject)]
        lines = [
            f"## Python {self.python.version}",
            "",
            ", ".join([versions, *peers]) + ".",
            "",
            *self.head(),
            *map(self.line, self.rows),
            "",
            "| figure | beside | genmcp | below | reached |",
            "|---|--:|--:|--:|--:|",
            *map(figure_line, self.figures),
        ]
        return "\n".join(lines)


def figure_line(figure: Figure) -> str:
    """Return a row of the table of figures."""
    cells = [figure.name, figure.beside, number(figure.found), number(figure.bound)]
    return _line([*cells, _word(figure.reached)])


def page(parts: Sequence[Part], *, rounds: int, seconds: float) -> str:
    """Return all of it: what is reached and what is not, and then every figure."""
    judged = [part.judged() for part in parts]
    bars = sum(count for count, _ in judged)
    below = [what for _, some in judged for what in some]
    setting = (
        f"{datetime.now(UTC).date()}, {_machine()}. One core is the server's, one wrk's. CPU is "
        "that of the server's processes for one answer, or for one notification where these are "
        f"counted. Each figure of a load is the best of {rounds} rounds of {seconds:g} s, in which "
        "the subjects take turns. A ratio of CPU or rate of 1 means as fast as the floor on the "
        "same server, more is faster; a p99 of 2 is twice the floor's. Rows without a bar are "
        "there to be seen."
    )
    lines = [
        "# Results",
        "",
        setting,
        "",
        f"**{bars - len(below)} of {bars} bars are reached.**" + (" Not reached:" if below else ""),
        "",
        *(f"- {what}" for what in below),
        *([""] if below else []),
        "\n\n".join(map(str, parts)),
        "",
    ]
    return "\n".join(lines)


def _peer(subject: Subject) -> list[str]:
    return requirements(subject.name) if subject.name in PEERS else []


def _machine() -> str:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in info if line.startswith("model name")), "")
    named = [platform.system(), platform.machine(), model, f"{os.cpu_count()} cores"]
    return ", ".join(filter(None, named))


def _word(reached: bool) -> str:
    return "yes" if reached else "**no**"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
