"""The list of public names, each of which is documented."""

import dataclasses
import functools
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import get_origin

import pytest

import genmcp

LATER = vars(genmcp)["_LATER"]

PUBLIC = [
    "Accepted",
    "Access",
    "AlreadyRegistered",
    "Annotations",
    "Append",
    "ArgumentFaults",
    "AssignUnavailable",
    "Audio",
    "AuthorizationFailed",
    "Backlog",
    "Backoff",
    "BodyTimeout",
    "CallToolRequestParams",
    "CallToolResult",
    "Cancelled",
    "CapabilityMissing",
    "ChangeNotifier",
    "Channel",
    "Client",
    "ClientError",
    "ClientHandler",
    "ClientLogHandler",
    "ClientOptions",
    "Command",
    "Completion",
    "CompositeError",
    "CompositeServer",
    "ConfigurationError",
    "Conflict",
    "ConnectError",
    "Continuation",
    "Continue",
    "ContractError",
    "Declined",
    "DefaultHandler",
    "Delete",
    "Deliveries",
    "Denied",
    "Depends",
    "Directory",
    "Done",
    "Endpoint",
    "ExternalJob",
    "ExternalQueue",
    "ExternalStatus",
    "FOREIGN_LIMITS",
    "Failed",
    "Forbidden",
    "ForeignSeal",
    "FoundEntry",
    "GenmcpError",
    "GetPromptRequestParams",
    "GetPromptResult",
    "HeaderMismatch",
    "Health",
    "HttpOptions",
    "HttpRejected",
    "Hub",
    "HubLimits",
    "Icon",
    "IllegalTransition",
    "Image",
    "Implementation",
    "InsufficientScope",
    "InternalError",
    "InvalidParams",
    "InvalidRequest",
    "InvalidSeal",
    "Job",
    "JobExpired",
    "JobOptions",
    "Limits",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListToolsResult",
    "LiveRegistry",
    "LocalIllegalTransition",
    "LogTruncated",
    "LoggingTelemetry",
    "MalformedParams",
    "McpError",
    "MemoryStore",
    "MethodNotFound",
    "Middleware",
    "MissingCapability",
    "Mux",
    "NotAllowed",
    "Outcome",
    "OutcomeUnknown",
    "OverShare",
    "Overloaded",
    "PaginatedResult",
    "ParseError",
    "Prompt",
    "PromptArgument",
    "PromptDefinition",
    "PromptError",
    "PromptMessage",
    "PromptNotFound",
    "PromptRepo",
    "PromptRequest",
    "PromptTemplate",
    "PromptsCapability",
    "Provider",
    "Question",
    "Put",
    "ReadResourceRequestParams",
    "ReadResourceResult",
    "ReconnectError",
    "Registry",
    "RegistryEndpoint",
    "RegistrySessionNotFound",
    "Request",
    "RequestTimeout",
    "Resource",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceError",
    "ResourceNotFound",
    "ResourceRepo",
    "ResourceRequest",
    "ResourceTemplateDefinition",
    "ResourcesCapability",
    "Result",
    "Retry",
    "Route",
    "Run",
    "SQLiteStore",
    "Schedule",
    "SchemaLimits",
    "SealError",
    "SealExpired",
    "Security",
    "SendMessage",
    "SendStatus",
    "Server",
    "ServerCapabilities",
    "ServerConfig",
    "ServerDisabled",
    "ServerError",
    "SessionNotFound",
    "SessionRegistries",
    "SoftTimeLimit",
    "StdioOptions",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Suite",
    "SyncClient",
    "TaskNotFound",
    "Telemetry",
    "TextContent",
    "TooLarge",
    "Tool",
    "ToolAnnotations",
    "ToolDefinition",
    "ToolError",
    "ToolNotFound",
    "ToolRequest",
    "ToolsCapability",
    "Transport",
    "TransportSink",
    "Unauthorized",
    "UnknownFormat",
    "UnknownServer",
    "UnknownTool",
    "UnsupportedVersion",
    "Usage",
    "WaitCancelled",
    "WaitError",
    "WaitTimedOut",
    "WorkRaised",
    "WorkerLost",
    "assistant",
    "elicit",
    "elicit_url",
    "embedded_resource",
    "gather",
    "job",
    "load_servers",
    "prefix_matches",
    "prompt",
    "resource",
    "resource_link",
    "result",
    "roots",
    "sample",
    "serve_stdio",
    "tool",
    "user",
    "wait_for",
]


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
    assert sorted(genmcp.__all__) == sorted(PUBLIC)


def imported(code: str) -> set[str]:
    """Run *code* in a new process, and return the modules that it has imported."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(done.stdout.decode().split())


def test_rarely_needed_exports_are_imported_on_first_use() -> None:
    """`import genmcp` does not import the client, databases or web frameworks."""
    modules = imported("import genmcp; genmcp.Endpoint(genmcp.Suite(name='a', version='1'))")
    heavy = {"sqlite3", "httpx", "starlette", "uvicorn"}
    assert "genmcp._transports.endpoint" in modules
    assert modules & (heavy | set(LATER.values())) == set()


@pytest.mark.parametrize("name", sorted(LATER))
def test_exports_imported_on_first_use_are_found(name: str) -> None:
    """A name that is imported on first use is its module's, and is kept afterwards."""
    value = getattr(genmcp, name)

    assert value is getattr(importlib.import_module(LATER[name]), name)
    assert value.__module__ == LATER[name]
    assert vars(genmcp)[name] is value


def test_dir_lists_every_public_name() -> None:
    """Completion in a shell uses `dir`, also before the first use of a name."""
    code = "import genmcp; print(*set(genmcp.__all__) - set(dir(genmcp)))"
    command = [sys.executable, "-c", code]

    missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert missing.strip() == ""


def test_exports_raise_attribute_error_for_an_unknown_name() -> None:
    """An unknown name raises AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="'genmcp' has no attribute 'Sever'"):
        genmcp.Sever  # type: ignore[attr-defined]  # noqa: B018


def test_exports_are_documented() -> None:
    """Every public name has a docstring of its own."""
    values = {name: getattr(genmcp, name) for name in genmcp.__all__}
    named = {name: value for name, value in values.items() if get_origin(value) is None}
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
