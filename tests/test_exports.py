"""The list of public names, each of which is documented."""

import dataclasses
import functools
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_origin

import pytest

import genmcp

LATER = vars(genmcp)["_LATER"]
ROOT = Path(__file__).parent.parent

PUBLIC = """
Accepted Access Annotations Audio AuthorizationFailed Bearer CallToolResult Cancelled
CapabilityMissing ChangeStream Channel Client ClientCredentials ClientError ClientHandler
ClientLogHandler ClientOptions Command Completion ConfigurationError ConnectError Continue
Declined Depends Directory Done Endpoint ExternalJob ExternalQueue Failed Forbidden GenmcpError
Health Hub Icon Image InsufficientScope InvalidParams Job JobOptions Limits McpError MemoryStore
Middleware Mux OAuth Outcome OutcomeUnknown PipeConnection Prompt PromptError PromptRequest
PromptTemplate Provider Registry RequestTimeout Resource ResourceError ResourceRequest Run
SQLiteStore Schedule Security Server ServerConfig ServerError Store Suite SyncClient TaskHandle
Telemetry TextContent Tool ToolAnnotations ToolError ToolRequest Transport Unauthorized
WaitCancelled WaitError WaitTimedOut WorkRaised WorkerLost assistant elicit elicit_url
embedded_resource gather job load_servers prompt resource resource_link result roots sample
serve_stdio tool user wait_for
"""


def exported() -> dict[str, object]:
    """Return the public names of `genmcp` with their values, without its modules."""
    values = {name: getattr(genmcp, name) for name in dir(genmcp) if not name.startswith("_")}
    return {name: value for name, value in values.items() if not isinstance(value, ModuleType)}


def undocumented(module: ModuleType) -> Iterator[str]:
    """Return the public functions, classes and methods of a module that have no docstring.

    A method without a docstring inherits that of the method it overrides.
    """
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            if not docstring(value):
                yield f"{module.__name__}.{name}"
            for member in undocumented_methods(value):
                yield f"{module.__name__}.{name}.{member}"
        elif isinstance(value, FunctionType) and not docstring(value):
            yield f"{module.__name__}.{name}"


def undocumented_methods(cls: type) -> Iterator[str]:
    kinds = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
    for name, value in vars(cls).items():
        if name.startswith("_") or not isinstance(value, kinds):
            continue
        if not any(vars(base)[name].__doc__ for base in cls.__mro__ if name in vars(base)):
            yield name


def docstring(value: object) -> str | None:
    """Return the docstring of the object itself, neither inherited nor made by `dataclass`."""
    if not isinstance(value, type):
        return value.__doc__
    doc: str | None = vars(value).get("__doc__")
    generated = doc and dataclasses.is_dataclass(value) and doc.startswith(f"{value.__name__}(")
    return None if generated else doc


def test_exports_are_exactly_these() -> None:
    """A change of the public names is also a change of this list."""
    assert sorted(exported()) == PUBLIC.split()


def test_exports_are_on_a_page() -> None:
    """A name that no page explains should not be public."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text("utf-8"))}

    assert PUBLIC.split() == [name for name in PUBLIC.split() if name in words]


def imported(code: str) -> set[str]:
    """Run *code* in a new process, and return the modules that it has imported."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(done.stdout.decode().split())


HEAVY = {"redis", "psycopg", "httpx", "starlette", "uvicorn"}


def test_server_does_not_load_the_client() -> None:
    """Nor drivers of databases or web frameworks."""
    modules = imported("import genmcp; genmcp.Endpoint(genmcp.Suite(name='a', version='1'))")

    assert "genmcp._transports.endpoint" in modules
    assert [name for name in modules if name.startswith("genmcp.extensions")] == []
    assert modules & (HEAVY | {"genmcp.client.client", "genmcp.hub.hub"}) == set()


SERVER = (
    "_mux",
    "_transports",
    "extensions",
    "server",
    "stores",
    "suite",
    "tasks",
    "telemetry",
    "tools",
)


def test_client_does_not_load_the_server() -> None:
    """Nor extensions, nor the HTTP client for proxies."""
    modules = imported("from genmcp import Client; Client('http://localhost/mcp')")

    assert "genmcp.client.client" in modules
    loaded = {".".join(name.split(".")[:2]) for name in modules}
    assert not loaded & {f"genmcp.{name}" for name in SERVER}
    assert not modules & HEAVY


def test_type_checkers_find_the_same_names() -> None:
    """They read the stub, since the names are imported at their first use."""
    stub = (ROOT / "genmcp" / "__init__.pyi").read_text("utf-8")
    pairs = re.findall(r"^from ([\w.]+) import (\w+) as \2$", stub, re.MULTILINE)

    assert {name: place for place, name in pairs} == {**LATER, "__version__": "genmcp.version"}


def test_exports_are_few() -> None:
    """What a user types; everything else has one documented home."""
    assert len(PUBLIC.split()) <= 100


@pytest.mark.parametrize("name", sorted(LATER))
def test_exports_imported_on_first_use_are_found(name: str) -> None:
    """A name that is imported on first use is its module's, and is kept afterwards."""
    value = getattr(genmcp, name)

    assert value is getattr(importlib.import_module(LATER[name]), name)
    assert get_origin(value) is not None or value.__module__ == LATER[name]
    assert vars(genmcp)[name] is value


def test_dir_lists_every_public_name() -> None:
    """Completion in a shell uses `dir`, also before the first use of a name."""
    code = "import genmcp; print(*dir(genmcp))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout

    assert {*PUBLIC.split()} <= {*listed.decode().split()}


def test_exports_raise_attribute_error_for_an_unknown_name() -> None:
    """An unknown name raises AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="'genmcp' has no attribute 'Sever'"):
        genmcp.Sever  # type: ignore[attr-defined]  # noqa: B018


def test_exports_are_documented() -> None:
    """Every public name has a docstring of its own."""
    named = {name: value for name, value in exported().items() if get_origin(value) is None}
    assert [name for name, value in named.items() if not docstring(value)] == []


def test_exports_and_everything_else_public_is_documented() -> None:
    """Every public function, class and method of the package has a docstring."""
    names = (found.name for found in pkgutil.walk_packages(genmcp.__path__, "genmcp."))
    package = [importlib.import_module(name) for name in names if not name.endswith("__main__")]

    assert [fault for module in package for fault in undocumented(module)] == []


def test_exports_inherit_docstrings_of_methods_only() -> None:
    """Methods may inherit a docstring; classes and functions may not."""

    class Store:
        """Keeps values."""

        def take(self) -> None:
            """Takes one."""

    @dataclasses.dataclass
    class Memory(Store):
        ttl: int = 0

        def take(self) -> None:
            pass

        @property
        def size(self) -> int:
            return 0

        def _sweep(self) -> None:
            pass

    def wipe() -> None:
        pass

    module = ModuleType(__name__)
    vars(module).update(Store=Store, Memory=Memory, wipe=wipe, _wipe=wipe)

    name = module.__name__
    assert list(undocumented(module)) == [f"{name}.Memory", f"{name}.Memory.size", f"{name}.wipe"]
