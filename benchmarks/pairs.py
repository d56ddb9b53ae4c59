"""Comparison of this checkout with another one, measured alternately, to find regressions."""

import sys
from collections.abc import Sequence
from statistics import median

from benchmarks.cases import Case, Subject, measured_once
from benchmarks.processes import FAILURES
from benchmarks.wrk import Measured

__all__ = ["HEAD", "compare"]

ALLOWED = 1.05
"""The largest allowed ratio of the CPU time of a request to that of the other checkout."""

HEAD = (
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
    for number in range(pairs):
        order = [before, after] if number % 2 else [after, before]
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
        *(_beside(rounds, floor.name, name) for name in (before.name, after.name)),
        "yes" if median(cpu) <= ALLOWED else "**no**",
    ]
    return "| " + " | ".join(cells) + " |"


def _beside(rounds: Sequence[dict[str, Measured]], floor: str, name: str) -> str:
    return f"{median(r[floor].cpu / r[name].cpu for r in rounds):.2f}"
