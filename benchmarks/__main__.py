"""Run the comparison and write the table: `scripts/benchmark`."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path

from benchmarks.cases import CASES, Case, Subject, run
from benchmarks.clients import clients, hub, left_behind
from benchmarks.environments import PEERS, Python, chosen, environment, versions
from benchmarks.figures import Figure, calls, cold_process, importing, sessions
from benchmarks.listeners import listeners
from benchmarks.pairs import HEAD, compare
from benchmarks.processes import FAILURES, ROOT
from benchmarks.report import Part, figure_line, page
from benchmarks.slow_reader import slow_reader
from benchmarks.waiting import waiting

RESULTS = ROOT / "benchmarks" / "RESULTS.md"

Weigh = Callable[[Subject, Subject], Sequence[Figure]]
"""Takes the floor and genmcp."""


def main() -> None:
    """Measure what the options choose, print it as it comes, and write it if it is whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    parser.add_argument("--seconds", type=float, default=3, help="how long each load lasts")
    parser.add_argument("--slow-reader", type=int, default=60, help="how long one reads slowly, s")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter to measure on; repeatable (this one, and 3.13 and 3.11 where found)",
    )
    parser.add_argument("--case", default="", help="only what has this in its name; see --list")
    parser.add_argument("--list", action="store_true", help="print the names, measure nothing")
    parser.add_argument("--peers", action="store_true", help="measure mcp and FastMCP too")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare the loads with those of another checkout, in turn, and write nothing",
    )
    parser.add_argument("--pairs", type=int, default=5, help="rounds of --against")
    options = parser.parse_args()
    figures: Mapping[str, Weigh] = {
        "a cold process": cold_process,
        "importing": importing,
        "memory over sessions": sessions,
        "memory over calls": calls,
        "many listeners": listeners,
        "calls that wait": waiting,
        "clients beside others": clients,
        "what a client leaves behind": left_behind,
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
        print(f"\nPython {part.python.version}", *part.head(), sep="\n", flush=True)
        for row in run(cases, part.subjects, rounds=options.rounds, seconds=options.seconds):
            part.rows.append(row)
            print(part.line(row), flush=True)
        for name in others:
            for figure in _figures(name, figures[name], part):
                part.figures.append(figure)
                print(figure_line(figure), flush=True)
    if not options.case:
        text = page(parts, rounds=options.rounds, seconds=options.seconds)
        RESULTS.write_text(text, encoding="utf-8")
        print(f"written to {RESULTS.relative_to(ROOT)}")


def _compare(python: Python, cases: Sequence[Case], options: argparse.Namespace) -> None:
    """Print the comparison of each load here and in the other checkout."""
    inside, other = environment(python, "genmcp"), options.against.resolve()
    floor = Subject("floor", "benchmarks.floor:app", inside)
    before = Subject(
        "before", "benchmarks.subject:app", environment(python, "genmcp", other), other
    )
    after = Subject("after", "benchmarks.subject:app", inside)
    print(f"\nPython {python.version}", *HEAD, sep="\n", flush=True)
    for case in cases:
        pairs, seconds = options.pairs, options.seconds
        print(compare(case, floor, before, after, pairs=pairs, seconds=seconds), flush=True)


def _part(python: Python, *, peers: bool) -> Part:
    """Return what is to be measured on *python*, with all that it needs installed."""
    inside = environment(python, "genmcp")
    subjects = [
        Subject("floor", "benchmarks.floor:app", inside),
        Subject("genmcp", "benchmarks.subject:app", inside),
    ]
    for name in PEERS if peers else ():
        app = f"benchmarks.peers.{name}_app:app"
        subjects.append(Subject(name, app, environment(python, name)))
    return Part(python, subjects, versions(inside))


def _figures(name: str, weigh: Weigh, part: Part) -> Sequence[Figure]:
    try:
        return weigh(*part.subjects[:2])
    except FAILURES as error:
        return [Figure(name, nan, nan, f"not measured: {error}".partition("\n")[0])]


if __name__ == "__main__":
    main()
