"""A framework for Model Context Protocol servers, which are ASGI applications, and for clients.

Each name is imported at its first use: a client does not load the stores and tasks of servers, and
a server does not load the client.
"""

from importlib import import_module as _import_module

import genmcp.fallback_log as _fallback_log  # noqa: F401 - writes records that no handler does
from genmcp.version import __version__ as __version__

# The names, by the module that has them. Type checkers read `__init__.pyi`, which names the same.
_NAMES = {
    "genmcp.core.access": "Access",
    "genmcp.core.outcome": "Done Failed Outcome",
    "genmcp.core.request": "PromptRequest ResourceRequest ToolRequest",
    "genmcp.core.waiting": "Continue ExternalJob Job gather wait_for",
    "genmcp._mux.limits": "Limits",
    "genmcp._mux.mux": "Mux",
    "genmcp._mux.telemetry": "Telemetry",
    "genmcp._transports.endpoint": "Endpoint",
    "genmcp._transports.health": "Health",
    "genmcp._transports.pipe": "PipeConnection",
    "genmcp._transports.stdio": "serve_stdio",
    "genmcp.wire.http": "Security",
    "genmcp.auth.bearer": "Bearer",
    "genmcp.channel": "Channel",
    "genmcp.client.auth.oauth": "ClientCredentials OAuth",
    "genmcp.client.client": "Client",
    "genmcp.client.errors": (
        "AuthorizationFailed ClientError ConnectError Forbidden OutcomeUnknown "
        "RequestTimeout ServerError Unauthorized"
    ),
    "genmcp.client.handler": "ClientHandler",
    "genmcp.client.options": "ClientOptions Command",
    "genmcp.client.subscriptions": "ChangeStream",
    "genmcp.client.sync": "SyncClient",
    "genmcp.client.tasks": "TaskHandle",
    "genmcp.client.transports.base": "Transport",
    "genmcp.content": "Audio Image assistant embedded_resource resource_link result user",
    "genmcp.decorator": "prompt resource tool",
    "genmcp.dependencies": "Depends",
    "genmcp.errors": (
        "CapabilityMissing ConfigurationError GenmcpError InsufficientScope "
        "InvalidParams McpError PromptError ResourceError ToolError "
        "WaitCancelled WaitError WaitTimedOut WorkRaised WorkerLost"
    ),
    "genmcp.hub.config": "ServerConfig load_servers",
    "genmcp.hub.hub": "Hub",
    "genmcp.log_handler": "ClientLogHandler",
    "genmcp.prompts.prompt": "Prompt",
    "genmcp.prompts.template": "PromptTemplate",
    "genmcp.protocol.capabilities": "Icon",
    "genmcp.protocol.content": "Annotations TextContent",
    "genmcp.protocol.prompts": "Completion",
    "genmcp.protocol.tools": "CallToolResult ToolAnnotations",
    "genmcp.question.elicitation": "elicit elicit_url",
    "genmcp.question.question": "Accepted Cancelled Declined",
    "genmcp.question.sampling": "roots sample",
    "genmcp.registry.registry": "Registry",
    "genmcp.resources.directory": "Directory",
    "genmcp.resources.resource": "Resource",
    "genmcp.server": "Middleware Server",
    "genmcp.stores.memory": "MemoryStore",
    "genmcp.stores.sqlite.store": "SQLiteStore",
    "genmcp.stores.store": "Store",
    "genmcp.suite.providers": "Provider",
    "genmcp.suite.suite": "Suite",
    "genmcp.tasks.cron": "Schedule",
    "genmcp.tasks.jobs": "Run job",
    "genmcp.tasks.options": "JobOptions",
    "genmcp.tasks.queues": "ExternalQueue",
    "genmcp.tools": "Tool",
}
_LATER = {name: place for place, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_LATER]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Import the value of *name* at its first access (PEP 562)."""
    place = _LATER.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(place), name)
    return value


def __dir__() -> list[str]:
    """Return all public names, also those that are imported later, for completion."""
    return sorted({*globals(), *_LATER})
