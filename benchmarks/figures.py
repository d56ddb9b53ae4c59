"""What one process weighs: figures with a bound instead of a load."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.cases import MESSAGE, Subject
from benchmarks.client import begin, check, connected
from benchmarks.load import modern
from benchmarks.processes import SERVER_CORE, Served, pinned, served, surroundings
from benchmarks.wrk import repeat

__all__ = ["Figure", "calls", "cold_process", "importing", "number", "sessions"]

ECHO = modern("tools/call", name="echo", arguments=MESSAGE)
SETTLED = 0.5  # seconds after which a server that was asked nothing more is idle

_IMPORT = """
import time
import starlette, msgspec
began = time.perf_counter()
import genmcp
print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Figure:
    """A figure, the most it may be, and what it is to be seen beside."""

    name: str
    found: float
    bound: float
    beside: str = ""

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return self.found < self.bound


def number(value: float) -> str:
    """Return *value* with no more digits than it is good for."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def cold_process(floor: Subject, genmcp: Subject, *, times: int = 5) -> Sequence[Figure]:
    """Start processes, ask each one question, and look at the time and at the memory."""
    began: dict[str, list[float]] = {"floor": [], "genmcp": []}
    weighed: dict[str, list[float]] = {"floor": [], "genmcp": []}
    for _ in range(times):
        for subject in (floor, genmcp):
            with served(subject.app, python=subject.python) as server:
                check(server, ECHO)
                began[subject.name].append(time.perf_counter() - server.began)
                time.sleep(SETTLED)
                weighed[subject.name].append(server.memory())
    first = {name: min(all_) for name, all_ in began.items()}
    idle = {name: median(all_) for name, all_ in weighed.items()}
    return [
        Figure(
            "first answer of a cold process, s",
            first["genmcp"],
            0.35,
            f"floor: {number(first['floor'])}",
        ),
        Figure(
            "memory, idle after one call, MiB",
            idle["genmcp"],
            1.6 * idle["floor"],
            f"floor: {number(idle['floor'])}",
        ),
    ]


def sessions(_: Subject, genmcp: Subject, *, count: int = 10_000) -> Sequence[Figure]:
    """Begin legacy sessions, and see what the process grows by."""
    with served(genmcp.app, python=genmcp.python) as server, connected(server) as connection:
        for _number in range(100):  # what is imported and cached with the first of them
            begin(connection)
        before = _idle(server)
        begun = {begin(connection) for _number in range(count)} - {None}
        growth = _idle(server) - before
    if len(begun) != count:
        raise RuntimeError(f"only {len(begun)} sessions were begun")
    return [
        Figure(f"growth over {count:,} initialized idle legacy sessions, KiB", growth * 1024, 1024)
    ]


def calls(
    _: Subject, genmcp: Subject, *, first: int = 10_000, last: int = 100_000
) -> Sequence[Figure]:
    """Call echo, and see what the process grows by from the *first* calls to the *last*."""
    with served(genmcp.app, python=genmcp.python) as server:
        repeat(server, ECHO, first)
        before = _idle(server)
        repeat(server, ECHO, last - first)
        growth = _idle(server) - before
    return [
        Figure(
            f"growth from {first:,} to {last:,} calls, KiB",
            growth * 1024,
            2048,
            f"after {first:,}: {number(before)} MiB",
        )
    ]


def importing(_: Subject, genmcp: Subject, *, times: int = 7) -> Sequence[Figure]:
    """Import genmcp where starlette and msgspec are imported already, in fresh processes."""
    command = pinned(SERVER_CORE, genmcp.python, "-c", _IMPORT)
    took = [
        float(subprocess.run(command, capture_output=True, check=True, env=surroundings({})).stdout)
        for _number in range(times)
    ]
    return [Figure("importing genmcp above starlette and msgspec, ms", min(took) * 1000, 150)]


def _idle(server: Served) -> float:
    """Return the memory of *server* once it has nothing more to do, in MiB."""
    time.sleep(SETTLED)
    return server.memory()
