"""Imports point to lower layers only; the layers up to `core` do no I/O and read no clock."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.test_budget import lines_of_code

pytestmark = pytest.mark.no_cover  # they read files, which coverage would slow

PACKAGE = Path(__file__).parent.parent / "genmcp"

LAYERS = [
    {"errors", "extras", "fallback_log", "faults", "_options", "version"},
    {"protocol"},
    {"wire"},
    {"core"},
    {"binding", "cancellation", "daemon", "dependencies", "log_throttle", "stores", "tasks", "tls"},
    {
        "channel",
        "completion",
        "component_route",
        "component",
        "content",
        "decorator",
        "extensions.extension",
        "handles",
        "hook",
        "log_handler",
        "overflow",
        "prompts",
        "question",
        "resources",
        "_schema",
        "server",
        "signature",
        "text_arguments",
        "tools",
        "uri_template",
    },
    {"extensions", "openapi"},
    {"suite", "_mux"},
    {"_transports", "auth", "telemetry"},
    {"auth.extensions"},
    {"client", "extensions.remote_skills"},
    {"composite"},
    {"hub", "registry", "discovery", "catalogue"},
    {"cli", "console", "__main__"},
    # Modules that no other may import: the facade for users, and those above all layers.
    {"genmcp", "testing"},
]
# Each module of the mux imports those before it: what a client has open, what is sent between
# processes, the waits of a call, its record, and the methods.
MUX = [
    *("threads", "multimap", "limits", "telemetry"),
    *("bus", "changes", "sessions", "session_streams", "replay"),
    *("scopes", "responses", "performing", "services"),
    *("stored_request", "task_results", "task_sink", "tasks"),
    *("questions", "continuations", "keyed"),
    *("builtin_methods", "mux"),
]
PRIVATE = 3.0  # accesses to private attributes of other objects, in 1,000 lines of code
PURE = set().union(*LAYERS[:4])
STRANGERS = {"suite", "_mux"}  # in one layer, but independent of each other
IMPURE_MODULES = {"asyncio", "os", "random", "secrets", "socket", "time"}


def part_of(name: str) -> str:
    """Return the part of `LAYERS` that a module belongs to."""
    first, *rest = name.removeprefix("genmcp.").split(".")
    inner = f"{first}.{rest[0]}" if rest else ""
    return inner if layer(inner) >= 0 else first


class Module:
    """A source file of the package, and its syntax tree."""

    def __init__(self, path: Path, package: Path) -> None:
        parts = path.relative_to(package.parent).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.part = part_of(self.name)
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    def imports(self) -> Iterator[tuple[str, str]]:
        """Return each import in the file: a module, and the name imported from it or ""."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = "." * node.level + (node.module or "")
                yield from ((source, alias.name) for alias in node.names)


def modules(package: Path) -> dict[str, Module]:
    found = (Module(path, package) for path in sorted(package.rglob("*.py")))
    return {module.name: module for module in found}


def layer(part: str) -> int:
    return next((number for number, parts in enumerate(LAYERS) if part in parts), -1)


def faults(package: Path) -> Iterator[str]:
    """Report every violation of the layers in the package."""
    known = modules(package)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for module in known.values():
        if layer(module.part) < 0:
            yield f"{module.name} is in no layer"
        for source, name in module.imports():
            first, *rest = source.split(".")
            if first == "":
                yield f"{module.name} has a relative import"
            elif first == "genmcp" and not rest:
                yield f"{module.name} imports the facade"
            elif first == "genmcp":
                whole = f"{source}.{name}"
                graph[module.name].add(whole if whole in known else source)
                yield from direction_faults(module, part_of(source))
            elif first in IMPURE_MODULES and module.part in PURE:
                yield f"{module.name} is pure and imports {first}"
        if module.part in PURE:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.AsyncFunctionDef):
                    yield f"{module.name} is pure and {node.name} is async"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "a cycle: " + " <- ".join(error.args[1])


def mux_faults(package: Path) -> Iterator[str]:
    """Report every module of the mux that imports a later one, or is in no order."""
    for name, module in modules(package).items():
        folder, _, last = name.rpartition(".")
        if folder != "genmcp._mux":
            continue
        if last not in MUX:
            yield f"{name} is not in the order of the mux"
            continue
        for source, _ in module.imports():
            imported = source.removeprefix("genmcp._mux.")
            if imported in MUX and MUX.index(imported) >= MUX.index(last):
                yield f"{name} imports {imported}, which is not before it"


def private_accesses(tree: ast.AST) -> Iterator[str]:
    """Return the private attributes in *tree* that are not those of `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                yield node.attr


def direction_faults(module: Module, imported: str) -> Iterator[str]:
    here, there = layer(module.part), layer(imported)
    if module.part == imported or -1 in (here, there):  # a module without a layer is reported once
        return
    if there > here or {module.part, imported} == STRANGERS:
        yield f"{module.name} imports {imported}, which is not above it"


def test_layers_hold_in_the_package() -> None:
    """Imports point to lower layers, without cycles, and the core does no I/O."""
    assert list(faults(PACKAGE)) == []


def test_modules_of_the_mux_are_in_their_order() -> None:
    """A reader finds each part of the mux explained by those before it."""
    assert list(mux_faults(PACKAGE)) == []


def test_order_of_the_mux_reports_each_violation(tmp_path: Path) -> None:
    """An import of a later module, and a module without a place."""
    folder = tmp_path / "genmcp" / "_mux"
    folder.mkdir(parents=True)
    folder.joinpath("limits.py").write_text("from genmcp._mux.tasks import Tasks\n")
    folder.joinpath("other.py").write_text("")

    assert sorted(mux_faults(tmp_path / "genmcp")) == [
        "genmcp._mux.limits imports tasks, which is not before it",
        "genmcp._mux.other is not in the order of the mux",
    ]


@pytest.mark.parametrize("folder", ["core", "_mux", "_transports"])
def test_few_private_attributes_of_other_objects(folder: str) -> None:
    """An object that needs them has no interface: httpx has 2.7 in 1,000 lines."""
    sources = [path.read_text(encoding="utf-8") for path in (PACKAGE / folder).rglob("*.py")]
    accesses = [name for each in sources for name in private_accesses(ast.parse(each))]

    assert len(accesses) <= PRIVATE / 1000 * sum(map(lines_of_code, sources)), accesses


@pytest.mark.parametrize(
    ("where", "source", "fault"),
    [
        (
            "wire/sse.py",
            "from genmcp.core.seal import open",
            "imports core, which is not above it",
        ),
        ("tools.py", "def f():\n    from genmcp.suite import Suite", "imports suite, which is not"),
        (
            "_mux/mux.py",
            "if TYPE_CHECKING:\n    import genmcp.suite",
            "imports suite, which is not",
        ),
        ("suite/listing.py", "from genmcp._mux import Mux", "imports _mux, which is not above"),
        ("tools.py", "import genmcp", "imports the facade"),
        ("tools.py", "from genmcp import Tool", "imports the facade"),
        ("tools.py", "from . import errors", "has a relative import"),
        ("tools.py", "from genmcp.testing import connect", "imports testing, which is not above"),
        ("kinds/base.py", "", "is in no layer"),
        (
            "auth/jwt.py",
            "from genmcp.auth.extensions.dpop import Dpop",
            "imports auth.extensions, which is not above",
        ),
        ("core/seal.py", "import os.path", "is pure and imports os"),
        ("core/seal.py", "def f():\n    from time import monotonic", "is pure and imports time"),
        ("core/seal.py", "class A:\n    async def f(self): ...", "is pure and f is async"),
        ("tools.py", "import genmcp.tools", "a cycle: genmcp.tools <- genmcp.tools"),
    ],
)
def test_layers_report_each_violation(where: str, source: str, fault: str, tmp_path: Path) -> None:
    """Each rule reports a violation, wherever in a file the import stands."""
    path = tmp_path / "genmcp" / where
    path.parent.mkdir(parents=True)
    path.write_text(source)

    assert fault in "\n".join(faults(tmp_path / "genmcp"))


def test_layers_report_a_cycle_through_an_import_for_types(tmp_path: Path) -> None:
    """An import for types only counts for a cycle of two modules in a folder."""
    core = tmp_path / "genmcp" / "core"
    core.mkdir(parents=True)
    core.joinpath("seal.py").write_text("from genmcp.core import task")
    core.joinpath("task.py").write_text("if TYPE_CHECKING:\n    from genmcp.core.seal import Seal")

    (fault,) = faults(tmp_path / "genmcp")

    assert "genmcp.core.task" in fault
    assert "genmcp.core.seal" in fault


def test_layers_allow_imports_of_the_own_layer_and_above(tmp_path: Path) -> None:
    """Imports of lower layers are not reported."""
    package = tmp_path / "genmcp"
    package.mkdir()
    package.joinpath("errors.py").write_text("import json")
    package.joinpath("channel.py").write_text("import asyncio\nfrom genmcp.errors import McpError")
    package.joinpath("tools.py").write_text("from genmcp.channel import Channel")
    package.joinpath("__init__.py").write_text("from genmcp.tools import Tool")

    assert list(faults(package)) == []
