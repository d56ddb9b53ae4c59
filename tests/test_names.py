"""A name that users import means one thing in the whole package."""

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

import genmcp

ROOT = Path(__file__).parent.parent

ERRORS = ["genmcp.errors", "genmcp.client.errors", "genmcp.composite.errors"]


def classes(root: Path) -> dict[str, list[str]]:
    """Return the modules below *root* that define a class of each name, nested ones included."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        where = str(path.relative_to(root))
        if where.startswith("protocol/revisions/"):  # variants of the entities, by revision
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(where)
    return found


def shared(public: Iterable[str], found: Mapping[str, list[str]]) -> list[str]:
    """Return a fault for each of the names *public* that more than one class has."""
    return [f"{name}: {', '.join(found[name])}" for name in public if len(found.get(name, ())) > 1]


def public() -> set[str]:
    """Return the names of `genmcp`, of its errors, and of the imports in the documentation."""
    names = {*genmcp.__all__}
    for module in ERRORS:
        names |= {*importlib.import_module(module).__all__}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for line in page.read_text(encoding="utf-8").splitlines():
            start, _, imported = line.strip().partition(" import ")
            if start.startswith("from genmcp."):
                names |= {name.strip("(), ") for name in imported.split(",")}
    return names


def test_public_class_names_are_unique() -> None:
    """An error message, a traceback or a search result with one of them has one meaning."""
    assert shared(sorted(public()), classes(ROOT / "genmcp")) == []


@pytest.mark.parametrize(
    ("second", "faults"), [("class A: ...", ["A: one.py, two.py"]), ("class B: ...", [])]
)
def test_shared_class_name_is_reported(second: str, faults: list[str], tmp_path: Path) -> None:
    """Both modules are named."""
    (tmp_path / "one.py").write_text("class A: ...\n")
    (tmp_path / "two.py").write_text(f"def f():\n    {second}\n")

    assert shared(["A"], classes(tmp_path)) == faults
