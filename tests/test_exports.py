"""The public names are these and no others, and each of them is documented."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import get_origin

import genmcp

PUBLIC = [
    "About",
    "Accepted",
    "Annotations",
    "Announcer",
    "AssignGone",
    "Audio",
    "Call",
    "CallToolResult",
    "Cancelled",
    "Channel",
    "Client",
    "ClientError",
    "ClientHandler",
    "ClientLogHandler",
    "ClientOptions",
    "Command",
    "Completion",
    "ConfigurationError",
    "Continue",
    "ContractError",
    "Declined",
    "DefaultHandler",
    "Denied",
    "Directory",
    "Dismissed",
    "Done",
    "Endpoint",
    "Engine",
    "Extension",
    "Failed",
    "Failure",
    "Foreign",
    "GenmcpError",
    "HttpOptions",
    "Hub",
    "HubError",
    "Icon",
    "Image",
    "InvalidParams",
    "Job",
    "JobOptions",
    "Limits",
    "LiveRegistry",
    "LoggingTelemetry",
    "Lost",
    "McpError",
    "MemoryStore",
    "Mux",
    "Outcome",
    "OutcomeUnknown",
    "Prompt",
    "PromptArgument",
    "PromptDefinition",
    "PromptNotFound",
    "PromptRepo",
    "PromptTemplate",
    "Question",
    "Raised",
    "Ref",
    "Registry",
    "RegistryEndpoint",
    "RegistryError",
    "Resource",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceNotFound",
    "ResourceRepo",
    "Retry",
    "Run",
    "SQLiteStore",
    "Security",
    "Server",
    "ServerConfig",
    "ServerSaid",
    "SessionRegistries",
    "Snapshot",
    "StdioOptions",
    "Storage",
    "Store",
    "Suite",
    "SyncClient",
    "Telemetry",
    "TimedOut",
    "Timeout",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "Unable",
    "Unauthorized",
    "Unreachable",
    "Wrapper",
    "assistant",
    "elicit",
    "elicit_url",
    "embedded",
    "job",
    "link",
    "prompt",
    "result",
    "roots",
    "sample",
    "serve_stdio",
    "servers_of",
    "starting_with",
    "tool",
    "user",
]


def undocumented(module: ModuleType) -> Iterator[str]:
    """The public functions, classes and methods a module defines that say nothing.

    A method without words of its own has those of the method it overrides.
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
    """What is written in the thing itself: not in a base class, and not by `dataclass`."""
    if not isinstance(value, type):
        return value.__doc__
    doc: str | None = vars(value).get("__doc__")
    generated = doc and dataclasses.is_dataclass(value) and doc.startswith(f"{value.__name__}(")
    return None if generated else doc


def test_exports_are_exactly_these() -> None:
    """A name joins or leaves the public API only together with this list."""
    assert PUBLIC == sorted(PUBLIC)
    assert PUBLIC == genmcp.__all__


def test_exports_are_documented() -> None:
    """Every public name has a docstring of its own."""
    values = {name: getattr(genmcp, name) for name in genmcp.__all__}
    named = {name: value for name, value in values.items() if get_origin(value) is None}
    assert [name for name, value in named.items() if not docstring(value)] == []


def test_exports_and_everything_else_public_is_documented() -> None:
    """No module of the package defines a public function, class or method without a docstring."""
    names = (found.name for found in pkgutil.walk_packages(genmcp.__path__, "genmcp."))
    package = [importlib.import_module(name) for name in names if not name.endswith("__main__")]

    assert [fault for module in package for fault in undocumented(module)] == []


def test_exports_take_a_docstring_from_an_overridden_method_only() -> None:
    """A method may be silent if what it overrides speaks; a class and a function may not."""

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
    assert [f"{name}.Memory", f"{name}.Memory.size", f"{name}.wipe"] == list(undocumented(module))
