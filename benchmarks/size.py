"""Print the size of the package: lines of code by folder beside their budgets, and settings.

    python -m benchmarks.size

Lines are counted without blank lines, comments and docstrings, as `tests/test_budget.py` does.
"""

import importlib
import inspect
from collections import Counter

from tests.test_budget import BUDGETS, PACKAGE, SETTINGS, lines_of_code, row_of


def main() -> None:
    """Print the table of folders and the number of settings."""
    counts = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        counts[row_of(path.relative_to(PACKAGE))] += lines_of_code(path.read_text("utf-8"))
    print("| folder | lines of code | budget |\n|---|--:|--:|")
    for row, budget in BUDGETS.items():
        print(f"| {row or 'modules at the top, console'} | {counts[row]:,} | {budget:,} |")
    print(f"| **all** | {counts.total():,} | {sum(BUDGETS.values()):,} |")
    settings = 0
    for name in SETTINGS:
        module, _, cls = name.rpartition(".")
        found = getattr(importlib.import_module(module), cls)
        settings += len(inspect.signature(found).parameters)
    names = len(importlib.import_module("genmcp").__all__)
    print(f"\n{settings} settings in {len(SETTINGS)} classes; `genmcp` exports {names} names.")


if __name__ == "__main__":
    main()
