"""A framework for Model Context Protocol servers, which are ASGI applications, and for clients."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from genmcp._core.access import Access, InsufficientScope
from genmcp._core.continuation import Continuation
from genmcp._core.groups import gather
from genmcp._core.outcome import Done, Failed, JobExpired, Outcome
from genmcp._core.request import PromptRequest, Request, ResourceRequest, ToolRequest
from genmcp._core.waiting import Continue, ExternalJob, Job, wait_for
from genmcp._mux.limits import Limits
from genmcp._mux.mux import Mux
from genmcp._mux.telemetry import Telemetry
from genmcp._schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp._transports.endpoint import Endpoint
from genmcp._transports.health import Health
from genmcp._wire.http import Security
from genmcp.channel import ChangeNotifier, Channel, SendStatus
from genmcp.component_route import prefix_matches
from genmcp.content import Audio, Image, assistant, embedded_resource, resource_link, result, user
from genmcp.decorator import prompt, resource, tool
from genmcp.dependencies import Depends
from genmcp.errors import (
    ArgumentFaults,
    AssignUnavailable,
    BodyTimeout,
    CapabilityMissing,
    ConfigurationError,
    Conflict,
    ContractError,
    ForeignSeal,
    GenmcpError,
    HeaderMismatch,
    HttpRejected,
    IllegalTransition,
    InternalError,
    InvalidParams,
    InvalidRequest,
    InvalidSeal,
    LocalIllegalTransition,
    LogTruncated,
    MalformedParams,
    McpError,
    MethodNotFound,
    MissingCapability,
    NotAllowed,
    Overloaded,
    OverShare,
    ParseError,
    PromptError,
    PromptNotFound,
    ResourceError,
    ResourceNotFound,
    SealError,
    SealExpired,
    SessionNotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TaskNotFound,
    TooLarge,
    ToolError,
    ToolNotFound,
    UnknownFormat,
    UnsupportedVersion,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkerLost,
    WorkRaised,
)
from genmcp.log_handler import ClientLogHandler
from genmcp.prompts.prompt import Prompt, PromptRepo
from genmcp.prompts.template import PromptTemplate
from genmcp.protocol.capabilities import (
    Icon,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)
from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition, TextContent
from genmcp.protocol.prompts import (
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    PromptArgument,
    PromptDefinition,
    PromptMessage,
)
from genmcp.protocol.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceRequestParams,
    ReadResourceResult,
    ResourceTemplateDefinition,
)
from genmcp.protocol.tools import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    ToolAnnotations,
    ToolDefinition,
)
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.question.elicitation import elicit, elicit_url
from genmcp.question.question import Accepted, Cancelled, Declined, Question
from genmcp.question.sampling import roots, sample
from genmcp.resources.directory import Directory
from genmcp.resources.resource import Resource, ResourceRepo
from genmcp.server import Middleware, Route, Server
from genmcp.stores.accounts import Usage
from genmcp.stores.deliveries import Backlog, Deliveries
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, Delete, FoundEntry, Put, Store
from genmcp.suite.providers import Provider
from genmcp.suite.suite import Suite
from genmcp.tasks.cron import Schedule
from genmcp.tasks.jobs import Run, SoftTimeLimit, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.telemetry.log import LoggingTelemetry
from genmcp.tools import Tool
from genmcp.version import __version__ as __version__

if TYPE_CHECKING:
    from genmcp._core.client.events import SendMessage
    from genmcp._transports.stdio import serve_stdio
    from genmcp.client.client import Client
    from genmcp.client.errors import (
        AuthorizationFailed,
        ClientError,
        ConnectError,
        Forbidden,
        OutcomeUnknown,
        RequestTimeout,
        ServerError,
        Unauthorized,
    )
    from genmcp.client.handler import ClientHandler, DefaultHandler, Denied
    from genmcp.client.options import ClientOptions, Command, HttpOptions, StdioOptions
    from genmcp.client.sync import SyncClient
    from genmcp.client.transports.base import Transport, TransportSink
    from genmcp.composite.errors import (
        AlreadyRegistered,
        CompositeError,
        ReconnectError,
        RegistrySessionNotFound,
        ServerDisabled,
        UnknownServer,
        UnknownTool,
    )
    from genmcp.composite.server import CompositeServer
    from genmcp.hub.config import Backoff, HubLimits, Retry, ServerConfig, load_servers
    from genmcp.hub.hub import Hub
    from genmcp.registry.endpoint import RegistryEndpoint
    from genmcp.registry.live import LiveRegistry, SessionRegistries
    from genmcp.registry.registry import Registry
    from genmcp.stores.sqlite.store import SQLiteStore
else:

    def __getattr__(name: str) -> Any:
        """Import the value of *name* at its first access (PEP 562).

        Hidden from type checkers: otherwise every name would exist for them.
        """
        place = _LATER.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(place), name)
        return value

    def __dir__() -> list[str]:
        """Return all public names, also those that are imported later, for completion."""
        return sorted({*globals(), *_LATER})


__all__ = [
    "FOREIGN_LIMITS",
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
    "Put",
    "Question",
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

_LATER: Final = {
    "Client": "genmcp.client.client",
    "ClientError": "genmcp.client.errors",
    "OutcomeUnknown": "genmcp.client.errors",
    "ServerError": "genmcp.client.errors",
    "RequestTimeout": "genmcp.client.errors",
    "Unauthorized": "genmcp.client.errors",
    "AuthorizationFailed": "genmcp.client.errors",
    "Forbidden": "genmcp.client.errors",
    "ConnectError": "genmcp.client.errors",
    "ClientHandler": "genmcp.client.handler",
    "DefaultHandler": "genmcp.client.handler",
    "Denied": "genmcp.client.handler",
    "HttpOptions": "genmcp.client.options",
    "ClientOptions": "genmcp.client.options",
    "Command": "genmcp.client.options",
    "StdioOptions": "genmcp.client.options",
    "SyncClient": "genmcp.client.sync",
    "Transport": "genmcp.client.transports.base",
    "TransportSink": "genmcp.client.transports.base",
    "SendMessage": "genmcp._core.client.events",
    "AlreadyRegistered": "genmcp.composite.errors",
    "CompositeError": "genmcp.composite.errors",
    "ReconnectError": "genmcp.composite.errors",
    "RegistrySessionNotFound": "genmcp.composite.errors",
    "ServerDisabled": "genmcp.composite.errors",
    "UnknownServer": "genmcp.composite.errors",
    "UnknownTool": "genmcp.composite.errors",
    "CompositeServer": "genmcp.composite.server",
    "Backoff": "genmcp.hub.config",
    "HubLimits": "genmcp.hub.config",
    "Retry": "genmcp.hub.config",
    "ServerConfig": "genmcp.hub.config",
    "load_servers": "genmcp.hub.config",
    "Hub": "genmcp.hub.hub",
    "RegistryEndpoint": "genmcp.registry.endpoint",
    "LiveRegistry": "genmcp.registry.live",
    "SessionRegistries": "genmcp.registry.live",
    "Registry": "genmcp.registry.registry",
    "SQLiteStore": "genmcp.stores.sqlite.store",
    "serve_stdio": "genmcp._transports.stdio",
}
"""Where those names are that a server seldom needs: importing it does not wait for them."""
