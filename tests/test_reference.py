"""The pages of the reference are complete: names, settings, errors, variables, and the figures."""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import genmcp
from genmcp.errors import GenmcpError
from tests.chaos.test_chaos import CALLS, KILLS
from tests.support.results import row_beside_peers
from tests.test_budget import SETTINGS

pytestmark = pytest.mark.no_cover  # they read files, which coverage would slow

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES = {path.name: path.read_text("utf-8") for path in REFERENCE.glob("*.md")}
DIRECTIVE = re.compile(r"^::: (genmcp[\w.]*)$", re.MULTILINE)
# Options that are for tests, or that are not options.
NO_SETTINGS = {"unknown"}
# Set by `genmcp serve` for its own workers.
INTERNAL_VARIABLES = {"GENMCP_SERVE"}


def value_of(path: str) -> object:
    """Return the module at *path*, or the value of that name in a module."""
    home, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(home), name)
    except (AttributeError, ImportError):
        return importlib.import_module(path)


def own(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the public values that are defined in *module*."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
            yield name, value


def exports(module: ModuleType) -> set[str]:
    """Return the names that a package imports for its users, by the forms that say so."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text("utf-8"))
    again = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    return again | {*vars(module).get("_LATER", ()), *vars(module).get("__all__", ())}


def public_names() -> dict[str, object]:
    """Return the values that users may import, by their paths: exported, or shown on a page."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = {f"genmcp.{name}" for name in dir(genmcp) if not name.startswith("_")}
    for name in {*re.findall(r"`(genmcp\.\w+)`", contributing)}:
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            paths |= {f"{name}.{each}" for each in exports(module)}
    for page in (ROOT / "docs").rglob("*.md"):
        imports = re.findall(
            r"^\s*from (genmcp\.\S+) import ([\w, ]+)$", page.read_text("utf-8"), re.MULTILINE
        )
        paths |= {
            f"{name}.{each.strip()}" for name, listed in imports for each in listed.split(",")
        }
    found = {path: value_of(path) for path in paths}
    return {path: value for path, value in found.items() if not inspect.ismodule(value)}


def test_public_names_are_on_a_page() -> None:
    """Also those that only one public module exports, and the structs of the protocol."""
    shown: list[object] = []
    for path in {each for text in PAGES.values() for each in DIRECTIVE.findall(text)}:
        value = value_of(path)
        shown += [each for _, each in own(value)] if inspect.ismodule(value) else [value]
    public = public_names()
    public |= {
        f"genmcp.protocol.{name}": value
        for name, value in vars(importlib.import_module("genmcp.protocol")).items()
        if inspect.isclass(value) and value.__module__.startswith("genmcp.protocol")
    }

    assert [path for path, value in public.items() if not any(value is s for s in shown)] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_described(name: str) -> None:
    """Each has an entry under `Args:`; the page of settings links to its class."""
    cls = value_of(name)
    assert inspect.isclass(cls)
    arguments = inspect.getdoc(cls) or ""
    missing = [
        each
        for each in {*inspect.signature(cls).parameters} - NO_SETTINGS
        if not re.search(rf"^    {each}: ", arguments, re.MULTILINE)
    ]

    assert missing == []
    assert f"[`{cls.__name__}`]" in PAGES["settings.md"]


def test_errors_have_a_cause_and_a_cure() -> None:
    """Every error of the package that a user may catch is on the page, and says what to do."""
    for name in ("genmcp.errors", "genmcp.client.errors", "genmcp.composite.errors"):
        assert f"::: {name}\n" in PAGES["errors.md"]
        for _, value in own(importlib.import_module(name)):
            if inspect.isclass(value) and value is not GenmcpError:
                assert re.search(r"^Cure: \w", inspect.getdoc(value) or "", re.MULTILINE), value


def test_environment_variables_are_on_their_page() -> None:
    """All that the code reads by name."""
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "genmcp").rglob("*.py"))
    read = {*re.findall(r'"(GENMCP_\w+)"', code)} - INTERNAL_VARIABLES
    read |= {*re.findall(r'environ(?:\.get\(|\[)"(\w+)"', code)}

    assert [name for name in sorted(read) if f"`{name}`" not in PAGES["environment.md"]] == []


def test_figures_of_the_home_page_are_the_recorded_ones() -> None:
    """Those of RESULTS.md, of the test of kills, and of the official suite."""
    home = " ".join((ROOT / "docs" / "index.md").read_text("utf-8").split())
    cells = row_beside_peers("echo, 16 at once")
    ours, sdk, fastmcp = (float(cells[at].replace(",", "")) for at in (4, 10, 16))
    passed = json.loads((ROOT / "scripts" / "conformance.json").read_text("utf-8"))["passed"]

    assert f"**{round(ours, -2):,.0f} calls a second**" in home
    others = f"serves {round(sdk, -2):,.0f} on the same machine, FastMCP {round(fastmcp, -1):.0f}"
    assert others in home
    assert f"**{CALLS} of {CALLS} calls end right**" in home
    assert f"while {KILLS} servers and workers are killed" in home
    assert f"**{sum(passed.values()):,} checks, none fails**" in home
    assert f"{passed['server']} of the server and {passed['client']} of the client" in home
