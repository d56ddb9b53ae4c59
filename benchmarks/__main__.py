"""The command `scripts/benchmark`: run the benchmarks and print the tables."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path

from benchmarks.cases import CASES, Case, Subject, run
from benchmarks.clients import clients, hub, left_behind
from benchmarks.figures import (
    Figure,
    calls,
    cold_process,
    importing,
    listeners,
    sessions,
    slow_reader,
    waiting,
)
from benchmarks.processes import FAILURES, PEERS, Python, chosen, environment, versions
from benchmarks.report import COMPARISON_HEAD, Part, compare, figure_line, page

Measurement = Callable[[Subject, Subject], Sequence[Figure]]
"""Called with the floor and genmcp."""


def main() -> None:
    """Run the selected benchmarks; print each result to stderr, and the page of all to stdout.

    The exit status is 1 if a bar is not reached.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds per load; the best counts")
    parser.add_argument("--seconds", type=float, default=3, help="seconds per load")
    parser.add_argument("--slow-reader", type=int, default=60, help="seconds of the slow reader")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter to measure on; repeatable (this one, and 3.13 and 3.11 where found)",
    )
    parser.add_argument("--case", default="", help="only names that contain this; see --list")
    parser.add_argument("--list", action="store_true", help="print the names, measure nothing")
    parser.add_argument("--peers", action="store_true", help="measure mcp and FastMCP too")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare the loads with those of another checkout, alternately",
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds of --against")
    options = parser.parse_args()
    figures: Mapping[str, Measurement] = {
        "a cold process": cold_process,
        "importing": importing,
        "memory over sessions": sessions,
        "memory over calls": calls,
        "many listeners": listeners,
        "calls that wait": waiting,
        "clients compared": clients,
        "resources kept by a client": left_behind,
        "a hub": hub,
        "a slow reader": partial(slow_reader, seconds=options.slow_reader),
    }
    cases = [case for case in CASES if options.case in case.name]
    others = [name for name in figures if options.case in name]
    if options.list:
        print("\n".join([*(case.name for case in cases), *others]))
        return
    if options.against:
        for python in chosen(options.python):
            _compare(python, cases, options)
        return
    parts = [_part(python, peers=options.peers) for python in chosen(options.python)]
    for part in parts:
        report(f"\nPython {part.python.version}", *part.head())
        for row in run(cases, part.subjects, rounds=options.rounds, seconds=options.seconds):
            part.rows.append(row)
            report(part.line(row))
        for name in others:
            for figure in _figures(name, figures[name], part):
                part.figures.append(figure)
                report(figure_line(figure))
    print(page(parts, rounds=options.rounds, seconds=options.seconds))
    sys.exit(any(below for _, below in (part.judged() for part in parts)))


def report(*lines: str) -> None:
    """Print *lines* to stderr: results that are on the page, too."""
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _compare(python: Python, cases: Sequence[Case], options: argparse.Namespace) -> None:
    """Print the comparison of each load here and in the other checkout."""
    inside, other = environment(python, "genmcp"), options.against.resolve()
    floor = Subject("floor", "benchmarks.floor:app", inside)
    before = Subject(
        "before", "benchmarks.subject:app", environment(python, "genmcp", other), other
    )
    after = Subject("after", "benchmarks.subject:app", inside)
    print(f"\nPython {python.version}", *COMPARISON_HEAD, sep="\n", flush=True)
    for case in cases:
        pairs, seconds = options.pairs, options.seconds
        print(compare(case, floor, before, after, pairs=pairs, seconds=seconds), flush=True)


def _part(python: Python, *, peers: bool) -> Part:
    """Return the subjects to measure on *python*, with their environments installed."""
    inside = environment(python, "genmcp")
    subjects = [
        Subject("floor", "benchmarks.floor:app", inside),
        Subject("genmcp", "benchmarks.subject:app", inside),
    ]
    for name in PEERS if peers else ():
        app = f"benchmarks.peers.{name}_app:app"
        subjects.append(Subject(name, app, environment(python, name)))
    return Part(python, subjects, versions(inside))


def _figures(name: str, measurement: Measurement, part: Part) -> Sequence[Figure]:
    try:
        return measurement(*part.subjects[:2])
    except FAILURES as error:
        return [Figure(name, nan, nan, f"not measured: {error}".partition("\n")[0])]


if __name__ == "__main__":
    main()
