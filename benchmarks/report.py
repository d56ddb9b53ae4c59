"""The tables of results, and the comparison of two checkouts."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.cases import Case, Row, Subject, measured_once
from benchmarks.figures import Figure, number
from benchmarks.load import Measured
from benchmarks.processes import FAILURES, PEERS, Python, requirements

__all__ = ["COMPARISON_HEAD", "Part", "compare", "machine", "page"]

REPORTED = ("uvicorn", "uvloop", "httptools", "granian", "hypercorn", "msgspec", "starlette")


@dataclass
class Part:
    """The results of one interpreter, with the versions of the packages used."""

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
        """Return the number of bars, and the results that do not reach them."""
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
        versions = ", ".join(f"{name} {self.versions[name]}" for name in REPORTED)
        peers = [each for subject in self.subjects for each in _peer(subject)]
        lines = [
            f"### Python {self.python.version}",
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
    """Return the page: bars that are not reached first, then all figures."""
    judged = [part.judged() for part in parts]
    bars = sum(count for count, _ in judged)
    below = [what for _, some in judged for what in some]
    setting = (
        f"{datetime.now(UTC).date()}, {machine()}. One core is the server's, one wrk's. CPU is "
        "that of the server's processes per response, or per notification where those are "
        f"counted. Each figure of a load is the best of {rounds} rounds of {seconds:g} s, in which "
        "the subjects alternate. A ratio of CPU or rate of 1 means as fast as the floor on the "
        "same server, more is faster; a p99 of 2 is twice the floor's. Rows without a bar are "
        "for information."
    )
    lines = [
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


def machine() -> str:
    """Return the operating system, the processor and the number of cores."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in info if line.startswith("model name")), "")
    named = [platform.system(), platform.machine(), model, f"{os.cpu_count()} cores"]
    return ", ".join(filter(None, named))


def _word(reached: bool) -> str:
    return "yes" if reached else "**no**"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_ALLOWED = 1.05
"""The largest allowed ratio of the CPU time of a request to that of the other checkout."""

COMPARISON_HEAD = (
    (
        "| load | us CPU before | after | after/before: CPU (min to max) | rate | p99 "
        "| before/floor: CPU | after/floor: CPU | within 5 % |"
    ),
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def compare(
    case: Case, floor: Subject, before: Subject, after: Subject, *, pairs: int, seconds: float
) -> str:
    """Return a row of the table: the medians of *pairs* rounds.

    Each round measures all three subjects. The order of the two checkouts alternates, so that a
    machine that becomes slower or faster favours neither.
    """
    rounds: list[dict[str, Measured]] = []
    for index in range(pairs):
        order = [before, after] if index % 2 else [after, before]
        try:
            rounds.append({s.name: measured_once(case, s, seconds)[0] for s in [floor, *order]})
        except FAILURES as error:
            print(f"{case.name}: {error}".partition("\n")[0], file=sys.stderr, flush=True)
    if not rounds:
        return f"| {case.name} | not measured" + " | -" * 7 + " |"
    cpu = [r[after.name].cpu / r[before.name].cpu for r in rounds]
    cells = [
        case.name,
        f"{median(r[before.name].cpu for r in rounds):.1f}",
        f"{median(r[after.name].cpu for r in rounds):.1f}",
        f"{median(cpu):.3f} ({min(cpu):.2f} to {max(cpu):.2f})",
        f"{median(r[after.name].rate / r[before.name].rate for r in rounds):.3f}",
        f"{median(r[after.name].p99 / r[before.name].p99 for r in rounds):.2f}",
        *(_floor_ratio(rounds, floor.name, name) for name in (before.name, after.name)),
        "yes" if median(cpu) <= _ALLOWED else "**no**",
    ]
    return "| " + " | ".join(cells) + " |"


def _floor_ratio(rounds: Sequence[dict[str, Measured]], floor: str, name: str) -> str:
    return f"{median(r[floor].cpu / r[name].cpu for r in rounds):.2f}"
