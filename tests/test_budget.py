"""The size of the package: lines of code by folder, settings, and the length of functions.

Each folder has a budget, and each class of options a number of settings. They are lowered when
work has made a folder or class smaller, and only a decision in design/decisions.md raises one.
There is no limit on files and classes: one that tells a whole story is easier to read than its
pieces.
"""

import ast
import importlib
import inspect
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_cover  # they read files, which coverage would slow

PACKAGE = Path(__file__).parent.parent / "genmcp"

FUNCTION_LINES = 60
PARAMETERS = 8  # only positional parameters: keyword-only options document themselves

# Folders, and their lines of code. A module counts for the first row that its path begins with; the
# leading underscore of a folder is left out.
BUDGETS = {
    "auth/ client/auth/ core/auth/": 3_849,
    "client/ core/client/": 5_620,
    "tasks/": 3_919,
    "stores/": 3_246,
    "mux/": 3_231,
    "transports/": 3_291,
    "cli/": 3_349,
    "extensions/": 980,
    "testing/": 400,
    "hub/ composite/ registry/ discovery": 2_808,
    "schema/": 1_687,
    "protocol/ wire/ core/": 4_469,
    "prompts/ resources/ question/ suite/ telemetry/": 2_668,
    "catalogue": 216,
    "handles binding": 327,
    "openapi": 616,
    "overflow": 336,
    "": 3_136,  # the modules at the top, and the console
}
# Classes of options, and the most parameters of their constructors.
SETTINGS = {
    "genmcp.ClientLogHandler": 1,
    "genmcp.Client": 8,  # the target, `options=`, and a parameter for unknown names
    "genmcp.ClientOptions": 12,
    "genmcp.Endpoint": 10,
    "genmcp.Hub": 5,
    "genmcp.JobOptions": 12,
    "genmcp.Limits": 20,
    "genmcp.MemoryStore": 3,
    "genmcp.Mux": 10,
    "genmcp.Registry": 3,
    "genmcp.hub.Retry": 4,
    "genmcp.SQLiteStore": 4,
    "genmcp.Security": 2,
    "genmcp.ServerConfig": 11,
    "genmcp.Suite": 15,
    "genmcp.Bearer": 8,
    "genmcp.auth.extensions.dpop.Dpop": 3,
    "genmcp.auth.Introspection": 7,
    "genmcp.auth.Jwt": 5,
    "genmcp.ClientCredentials": 7,
    "genmcp.client.auth.identities.Enterprise": 11,
    "genmcp.client.auth.FileTokens": 2,
    "genmcp.OAuth": 10,
    "genmcp.client.auth.identities.Workload": 5,
    "genmcp.stores.postgres.PostgresStore": 4,
    "genmcp.stores.redis.RedisStore": 4,
}
_BLANK = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(text: str) -> int:
    """Count the lines of *text* that are neither blank nor part of a comment or docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if token.type not in _BLANK
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            code -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(code)


def row_of(path: Path) -> str:
    """Return the row of `BUDGETS` for a module at *path*, relative to the package."""
    place = "/".join(part.removeprefix("_") for part in path.parts)
    return next(row for row in BUDGETS if place.startswith((*row.split(),) or ("",)))


def test_folders_are_within_their_budgets() -> None:
    """A folder over its budget needs less code, or a decision to raise the budget."""
    counts = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        counts[row_of(path.relative_to(PACKAGE))] += lines_of_code(path.read_text("utf-8"))

    over = [
        f"{row or 'the top'}: {counts[row]} lines of code, {budget} allowed"
        for row, budget in BUDGETS.items()
        if counts[row] > budget
    ]
    assert over == []


def test_docstrings_and_comments_are_free() -> None:
    """They do not count as code: otherwise they would be cut to save lines."""
    text = 'def f():\n    """Return\n    one."""\n    # Why.\n\n    return (\n        1\n    )\n'

    assert lines_of_code(text) == 4


@pytest.mark.parametrize(("name", "most"), SETTINGS.items())
def test_settings_are_few(name: str, most: int) -> None:
    """A bound is a constant with a comment, unless users have a reason to change it."""
    module, _, cls = name.rpartition(".")
    settings = inspect.signature(getattr(importlib.import_module(module), cls)).parameters

    assert len(settings) <= most, f"{name} has {len(settings)} settings: {', '.join(settings)}"


def faults(path: Path) -> Iterator[str]:
    """Report the functions of a file that are too long or have too many parameters."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES:
                yield f"{path}: {node.name} has {lines} lines"
            if (count := len(node.args.posonlyargs) + len(node.args.args)) > PARAMETERS:
                yield f"{path}: {node.name} has {count} parameters"


def test_functions_are_short() -> None:
    """No function of the package is over the limits. Docstrings and `self` count."""
    assert [fault for path in sorted(PACKAGE.rglob("*.py")) for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("async def long(self):\n" + "    f()\n" * 60, ["long has 61 lines"]),
        ("def long():\n" + "    f()\n" * 59, []),
        ("def wide(a, b, /, c, d, e, f, g, h, i): ...", ["wide has 9 parameters"]),
        ("def wide(a, b, /, c, d, e, f, g, h, *i, j, k, **l): ...", []),
    ],
)
def test_function_over_a_limit_is_named(source: str, fault: list[str], tmp_path: Path) -> None:
    """One line or parameter over the limit is reported; a function at the limit is not."""
    path = tmp_path / "module.py"
    path.write_text(source)

    assert list(faults(path)) == [f"{path}: {each}" for each in fault]
