"""Bounds of the length of files, classes, functions and parameter lists."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "genmcp"

FILE_LINES = 500
CLASS_LINES = 250
FUNCTION_LINES = 60
FRAGMENT_LINES = 40
PARAMETERS = 8  # positional ones: keyword-only options are documentation, not coupling


def faults(path: Path) -> Iterator[str]:
    """Report the excess sizes of a file. Docstrings count, and so does `self`."""
    text = path.read_text(encoding="utf-8")
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield f"{path}: {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            limit = CLASS_LINES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            limit = FUNCTION_LINES
            if (count := parameters(node.args)) > PARAMETERS:
                yield f"{path}: {node.name} has {count} parameters"
        else:
            continue
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > limit:
            yield f"{path}: {node.name} has {lines} lines"


def parameters(args: ast.arguments) -> int:
    return len(args.posonlyargs) + len(args.args)


def test_sizes_hold_in_the_package() -> None:
    """No file, class, function or list of parameters of genmcp is over its limit."""
    assert [fault for path in sorted(PACKAGE.rglob("*.py")) for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("\n" * 501, "501 lines"),
        ("class Long:\n" + "    x = 1\n" * 250, "Long has 251 lines"),
        ("class A:\n    async def long(self):\n" + "        f()\n" * 60, "long has 61 lines"),
        ("def wide(a, b, /, c, d, e, f, g, h, i): ...", "wide has 9 parameters"),
    ],
)
def test_sizes_name_what_is_over_a_limit(source: str, fault: str, tmp_path: Path) -> None:
    """One more than allowed is a fault."""
    path = tmp_path / "large.py"
    path.write_text(source)

    assert list(faults(path)) == [f"{path}: {fault}"]


@pytest.mark.parametrize(
    "source",
    [
        "\n" * 500,
        "class Long:\n" + "    x = 1\n" * 249,
        "def long():\n" + "    f()\n" * 59,
        "def wide(a, b, /, c, d, e, f, g, h, *i, j, k, **l): ...",
    ],
)
def test_sizes_allow_the_limit_itself(source: str, tmp_path: Path) -> None:
    """A size at the limit is not reported."""
    path = tmp_path / "large.py"
    path.write_text(source)

    assert list(faults(path)) == []


def fragments(package: Path) -> list[str]:
    """Return the modules under 40 lines that a single other module imports."""
    importers: dict[str, set[str]] = {}
    lines: dict[str, int] = {}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        text = path.read_text(encoding="utf-8")
        lines[name] = len(text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for source in [node.module, *(f"{node.module}.{each.name}" for each in node.names)]:
                    importers.setdefault(source, set()).add(name)
    return [
        f"{name}: {count} lines, imported by {', '.join(importers[name])}"
        for name, count in sorted(lines.items())
        if count < FRAGMENT_LINES and len(importers.get(name, ())) == 1
    ]


def test_sizes_have_no_fragments() -> None:
    """A short module with one user belongs into that user's module."""
    assert fragments(PACKAGE) == []


def test_fragment_is_reported(tmp_path: Path) -> None:
    """With the module that imports it."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "price.py").write_text("PRICE = 1\n")
    (package / "cart.py").write_text("from shop.price import PRICE\n")

    assert fragments(package) == ["shop.price: 1 lines, imported by shop.cart"]
