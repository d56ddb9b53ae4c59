"""Class names are unique in the package, module names in a folder; names of tests are short."""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "genmcp"


def classes(root: Path) -> dict[str, list[str]]:
    """Return the modules below *root* that define a class of each name, nested ones included.

    A leading underscore makes no other name. The revisions of the protocol are left out: their
    classes are variants of the entities.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        where = path.relative_to(root).as_posix()
        if where.startswith("protocol/revisions/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(where)
    return found


def shared(found: Mapping[str, list[str]]) -> list[str]:
    """Return a fault for each name that more than one class has."""
    return [f"{name}: {', '.join(where)}" for name, where in found.items() if len(where) > 1]


def test_class_names_are_unique() -> None:
    """A name in an error message, traceback or search result has one meaning."""
    assert shared(classes(PACKAGE)) == []


@pytest.mark.parametrize(
    ("second", "faults"), [("class _A: ...", ["A: one.py, two.py"]), ("class B: ...", [])]
)
def test_shared_class_name_is_reported(second: str, faults: list[str], tmp_path: Path) -> None:
    """Both modules are named; a leading underscore does not hide the class."""
    (tmp_path / "one.py").write_text("class A: ...\n")
    (tmp_path / "two.py").write_text(f"def f():\n    {second}\n")

    assert shared(classes(tmp_path)) == faults


def test_module_names_are_unique_in_their_folder() -> None:
    """A module `x.py` beside a package `x/` could not be imported."""
    modules = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    folders = {path.parent for path in modules}

    assert [path for path in modules if path in folders] == []


def test_no_module_has_the_name_of_an_export() -> None:
    """`import genmcp.tool` gave the function `tool`, or the module, as the order of imports was."""
    modules = [*PACKAGE.glob("*.py"), *(path.parent for path in PACKAGE.glob("*/__init__.py"))]

    exports = re.findall(r" as (\w+)$", (PACKAGE / "__init__.py").read_text("utf-8"), re.MULTILINE)

    assert "tool" in exports
    assert {path.stem for path in modules} & {*exports} == set()


def test_names_of_tests_are_short() -> None:
    """At most 60 characters: the name of a test is a sentence to read in a list of failures."""
    long = re.compile(r"^ *(?:async )?def (test_\w{56,})", re.MULTILINE)
    tests = Path(__file__).parent.rglob("*.py")

    assert [name for path in tests for name in long.findall(path.read_text("utf-8"))] == []
