"""The recorded results of benchmarks, which pages quote."""

import re
from pathlib import Path

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"


def row_beside_peers(load: str) -> list[str]:
    """Return the cells after the name of *load*, in a run with peers on the newest Python.

    Three for the floor, then six for each of genmcp, the official SDK and FastMCP: CPU in us, calls
    per second, p99 in ms, and the three beside the floor.
    """
    found = re.findall(rf"^\| {re.escape(load)} \| (.*) \|$", _RESULTS.read_text("utf-8"), re.M)
    return next(cells for row in found if len(cells := re.split(r" *\| *", row)) > 20)
