"""Class names are unique in the package, module names in a folder; names of tests are short."""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_cover  # they read files, which coverage would slow

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


# Folders, and the names of attributes that may have several types there: terms of the protocol
# (`params`, `method`, `session`), parts of a record as they are and packed in it, and options that
# users know. Any other name means one thing in its folder.
SEVERAL = {
    "core": {
        *("arguments", "id", "method", "params", "questions", "revision", "scopes", "session"),
        *("continuation", "error", "expires", "otherwise", "parts", "ref", "result"),
        *("retries", "task"),
    },
    "_mux": {"id"},
    "_transports": {"calls", "session"},
}
_CONTAINER = re.compile(r"^(?:dict|list|set|tuple|frozenset|Sequence|Mapping|Collection)\[")


def types_of(annotation: ast.expr) -> frozenset[str]:
    """Return the types in an annotation, without None, type variables and parameters."""
    text = re.sub(r"Literal\[.*?\]", "str", ast.unparse(annotation).replace("'", ""))
    parts = {each.strip() for each in text.split("|")} - {"None"}
    whole = {each if _CONTAINER.match(each) else each.partition("[")[0] for each in parts}
    return frozenset(each for each in whole if not re.fullmatch("[A-Z]", each))


def attributes(folder: Path) -> dict[str, dict[frozenset[str], set[str]]]:
    """Return the attributes of classes in a folder, by name, with their types and classes.

    They are those with an annotation, and those that `__init__` sets to a parameter. Private
    classes are left out; a leading underscore of an attribute makes no other name.
    """
    found: dict[str, dict[frozenset[str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for name, annotation in annotated(node):
                    if types := types_of(annotation):
                        found[name.lstrip("_")][types].add(node.name)
    return found


def annotated(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Return the names and annotations of the attributes of a class."""
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            parameters = {each.arg: each.annotation for each in node.args.args}
            parameters |= {each.arg: each.annotation for each in node.args.kwonlyargs}
            for each in ast.walk(node):
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Attribute):
                    yield each.target.attr, each.annotation
                elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Name):
                    given = parameters.get(each.value.id)
                    for target in each.targets:
                        if isinstance(target, ast.Attribute) and given is not None:
                            yield target.attr, given


def name_faults(folder: Path, several: Collection[str]) -> list[str]:
    """Return a fault for each attribute with several types; a part of a union is no other type."""
    faults = []
    for name, kinds in attributes(folder).items():
        widest = max(kinds, key=len)
        if name not in several and any(not each <= widest for each in kinds):
            named = (f"{'|'.join(sorted(each))} of {min(kinds[each])}" for each in kinds)
            faults.append(f"{name}: {', '.join(named)}")
    return faults


@pytest.mark.parametrize("folder", SEVERAL)
def test_attributes_have_one_type_in_their_folder(folder: str) -> None:
    """One word, one meaning: a reader of a folder need not look up which of two is meant."""
    assert name_faults(PACKAGE / folder, SEVERAL[folder]) == []


@pytest.mark.parametrize("folder", SEVERAL)
def test_exceptions_are_needed(folder: str) -> None:
    """A name that has one type again leaves the list."""
    found = {each.partition(":")[0] for each in name_faults(PACKAGE / folder, ())}

    assert set(SEVERAL[folder]) <= found


def test_attribute_of_two_types_is_reported(tmp_path: Path) -> None:
    """Of a field, and of a parameter that `__init__` keeps; optional ones are the same type."""
    (tmp_path / "one.py").write_text("class A:\n    call: int\n    state: str | None\n")
    (tmp_path / "two.py").write_text(
        "class B:\n    def __init__(self, call: str, state: str):\n"
        "        self._call = call\n        self.state = state\n"
    )

    assert name_faults(tmp_path, ()) == ["call: int of A, str of B"]


def test_module_names_are_unique_in_their_folder() -> None:
    """A module `x.py` beside a package `x/` could not be imported."""
    modules = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    folders = {path.parent for path in modules}

    assert [path for path in modules if path in folders] == []


def test_no_module_has_the_name_of_an_export() -> None:
    """`import genmcp.tool` gave the function `tool`, or the module, as the order of imports was."""
    modules = [*PACKAGE.glob("*.py"), *(path.parent for path in PACKAGE.glob("*/__init__.py"))]

    exports = re.findall(r" as (\w+)$", (PACKAGE / "__init__.pyi").read_text("utf-8"), re.MULTILINE)

    assert "tool" in exports
    assert {path.stem for path in modules} & {*exports} == set()


def test_names_of_tests_are_short() -> None:
    """At most 60 characters: the name of a test is a sentence to read in a list of failures."""
    long = re.compile(r"^ *(?:async )?def (test_\w{56,})", re.MULTILINE)
    tests = Path(__file__).parent.rglob("*.py")

    assert [name for path in tests for name in long.findall(path.read_text("utf-8"))] == []
