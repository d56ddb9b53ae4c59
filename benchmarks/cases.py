"""The loads of the benchmark, and the bars that genmcp has to reach with them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.load import Load, Measured, begin, check, connected, legacy, measure, modern
from benchmarks.processes import FAILURES, ROOT, Python, Served, served

__all__ = ["CASES", "Bar", "Case", "Row", "Subject", "measured_once", "run"]

MESSAGE = {"message": "hello"}
NUMBERS = {"numbers": list(range(100_000))}
NOTES = 200


@dataclass(frozen=True)
class Subject:
    """An application to measure: its name, import path, Python and the checkout it is in."""

    name: str
    app: str
    python: str
    root: Path = ROOT


@dataclass(frozen=True)
class Bar:
    """The bar of a load, in ratios to the floor; None: no bar.

    rate, cpu: minimum; 1 is as fast as the floor. p99: maximum; 2 is twice that of the floor.
    """

    rate: float | None = None
    cpu: float | None = None
    p99: float | None = None

    def __str__(self) -> str:
        least = [("CPU", self.cpu), ("rate", self.rate)]
        parts = [f"{name} {value:.2f}" for name, value in least if value is not None]
        return ", ".join(parts + ([] if self.p99 is None else [f"p99 {self.p99:.1f}"]))


def _no_bar(python: Python) -> Bar | None:
    return None


def _small(python: Python) -> Bar:
    """Return a lower bar for a Python without eager tasks, where the task of a hook costs 6 us."""
    least = 0.80 if python.minor >= (3, 13) else 0.70
    return Bar(rate=least, cpu=least, p99=2.0)


@dataclass(frozen=True)
class Case:
    """One row of the table.

    tools: the number of echo tools; None: one, and the tools of the other loads.
    notifications: the number in each response; they are counted instead of responses.
    """

    name: str
    load: Callable[[Served], Load]
    bar: Callable[[Python], Bar | None] = _no_bar
    tools: int | None = None
    notifications: int = 0
    server: str = "uvicorn"


@dataclass
class Row:
    """A case and its measurements by the name of the subject."""

    case: Case
    found: dict[str, Measured] = field(default_factory=dict)

    def ratios(self, name: str) -> Measured | None:
        """Return the ratios of a subject to the floor, None if one of them was not measured."""
        floor, found = self.found.get("floor"), self.found.get(name)
        if floor is None or found is None:
            return None
        return Measured(found.rate / floor.rate, floor.cpu / found.cpu, found.p99 / floor.p99)

    def faults(self, bar: Bar) -> list[str]:
        """Return the parts of *bar* that genmcp did not reach."""
        ratios = self.ratios("genmcp")
        if ratios is None:
            return ["not measured"]
        faults = [
            f"{name} {ratio:.3f} of the floor, not {least:.2f}"
            for name, ratio, least in (
                ("CPU", ratios.cpu, bar.cpu),
                ("rate", ratios.rate, bar.rate),
            )
            if least is not None and ratio < least
        ]
        if bar.p99 is not None and ratios.p99 > bar.p99:
            faults.append(f"p99 {ratios.p99:.2f} times the floor's, not {bar.p99:.1f}")
        return faults


def _echo(connections: int) -> Callable[[Served], Load]:
    return lambda _: modern("tools/call", connections, name="echo", arguments=MESSAGE)


def _session(server: Served) -> str:
    with connected(server) as connection:
        return begin(connection) or "x" * 200  # neither the floor nor the peers have sessions


def _legacy_echo(server: Served) -> Load:
    return legacy(_session(server), "tools/call", name="echo", arguments=MESSAGE)


def _sleep(seconds: float, connections: int) -> Callable[[Served], Load]:
    arguments = {"seconds": seconds}
    return lambda _: modern("tools/call", connections, name="sleep", arguments=arguments)


def _legacy_sleep(seconds: float, connections: int) -> Callable[[Served], Load]:
    arguments = {"seconds": seconds}

    def load(server: Served) -> Load:
        session = _session(server)
        request = legacy(session, "tools/call", connections, name="sleep", arguments=arguments)
        return replace(request, ids=True)

    return load


def _list(_: Served) -> Load:
    return modern("tools/list")


def _progress(_: Served) -> Load:
    return modern("tools/call", 4, token="t", name="progress", arguments={"times": NOTES})


CASES: Sequence[Case] = (
    Case("echo, 1 at once", _echo(1)),
    Case("echo, 16 at once", _echo(16), _small),
    Case("echo, 64 at once", _echo(64), _small),
    Case("echo, 1000 tools registered, 16 at once", _echo(16), _small, tools=1000),
    Case("echo, 1000 tools registered, 64 at once", _echo(64), _small, tools=1000),
    Case("echo, 16 at once, under granian", _echo(16), server="granian"),
    Case("echo, 16 at once, under hypercorn", _echo(16), server="hypercorn"),
    Case("echo in a legacy session, 16 at once", _legacy_echo, lambda _: Bar(0.60, 0.60)),
    Case("tools/list of 1", _list, tools=1),
    Case("tools/list of 100", _list, tools=100),
    Case("tools/list of 1000", _list, lambda _: Bar(0.70, 0.70), tools=1000),
    Case(
        "100,000 numbers in an argument, 4 at once",
        lambda _: modern("tools/call", 4, name="count", arguments=NUMBERS),
        lambda _: Bar(1 / 1.4, 1 / 1.4),
    ),
    Case("a tool that yields once, 16 at once", _sleep(0, 16)),
    Case("a tool that sleeps 5 ms, 64 at once", _sleep(0.005, 64)),
    Case("a tool that sleeps 100 ms, 500 at once", _sleep(0.1, 500)),
    Case("a tool that yields once, in a legacy session, 16 at once", _legacy_sleep(0, 16)),
    Case("a tool that sleeps 5 ms, in a legacy session, 64 at once", _legacy_sleep(0.005, 64)),
    Case("a tool that sleeps 100 ms, in a legacy session, 500 at once", _legacy_sleep(0.1, 500)),
    Case(
        f"progress notifications, {NOTES} a call, 4 calls at once",
        _progress,
        lambda _: Bar(rate=0.50),
        notifications=NOTES,
    ),
)


def run(
    cases: Sequence[Case], subjects: Sequence[Subject], *, rounds: int, seconds: float
) -> Iterator[Row]:
    """Yield a row for each case: the best of *rounds* for each subject, measured alternately."""
    for case in cases:
        row = Row(case)
        for _ in range(rounds):
            sizes = {}
            for subject in subjects:
                try:
                    found, sizes[subject.name] = measured_once(case, subject, seconds)
                except FAILURES as error:
                    _say(case, f"{subject.name}: {error}".partition("\n")[0])
                    continue
                row.found[subject.name] = _better(row.found.get(subject.name), found)
            if len({sizes[name] for name in ("floor", "genmcp") if name in sizes}) > 1:
                _say(case, f"the responses of the floor have other sizes: {sizes}")
        yield row


def measured_once(case: Case, subject: Subject, seconds: float) -> tuple[Measured, int]:
    """Put the load of *case* on *subject*; return the figures and the size of one response."""
    env = {} if case.tools is None else {"TOOLS": str(case.tools)}
    python, root = subject.python, subject.root
    with served(subject.app, python=python, server=case.server, env=env, root=root) as server:
        load = case.load(server)
        size = len(check(server, load, case.notifications))
        found = measure(server, load, seconds=seconds, size=size)
    each = case.notifications or 1
    return Measured(found.rate * each, found.cpu / each, found.p99), size


def _better(old: Measured | None, new: Measured) -> Measured:
    """Noise only ever makes things slower: the best of each figure is the least disturbed."""
    if old is None:
        return new
    return Measured(max(old.rate, new.rate), min(old.cpu, new.cpu), min(old.p99, new.p99))


def _say(case: Case, what: str) -> None:
    print(f"{case.name}: {what}", file=sys.stderr, flush=True)
