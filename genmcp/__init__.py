"""A framework for Model Context Protocol servers, which are ASGI applications, and for clients."""

import typing as _typing
from importlib import import_module as _import_module

import genmcp.telemetry.log as _log  # noqa: F401 - its handler writes records that no other does
from genmcp._core.access import Access as Access
from genmcp._core.groups import gather as gather
from genmcp._core.outcome import Done as Done
from genmcp._core.outcome import Failed as Failed
from genmcp._core.outcome import Outcome as Outcome
from genmcp._core.request import PromptRequest as PromptRequest
from genmcp._core.request import Request as Request
from genmcp._core.request import ResourceRequest as ResourceRequest
from genmcp._core.request import ToolRequest as ToolRequest
from genmcp._core.waiting import Continue as Continue
from genmcp._core.waiting import ExternalJob as ExternalJob
from genmcp._core.waiting import Job as Job
from genmcp._core.waiting import wait_for as wait_for
from genmcp._mux.limits import Limits as Limits
from genmcp._mux.mux import Mux as Mux
from genmcp._mux.telemetry import Telemetry as Telemetry
from genmcp._schema.limits import FOREIGN_LIMITS as FOREIGN_LIMITS
from genmcp._schema.limits import SchemaLimits as SchemaLimits
from genmcp._transports.endpoint import Endpoint as Endpoint
from genmcp._transports.health import Health as Health
from genmcp._wire.http import Security as Security
from genmcp.channel import Channel as Channel
from genmcp.content import Audio as Audio
from genmcp.content import Image as Image
from genmcp.content import assistant as assistant
from genmcp.content import embedded_resource as embedded_resource
from genmcp.content import resource_link as resource_link
from genmcp.content import result as result
from genmcp.content import user as user
from genmcp.decorator import prompt as prompt
from genmcp.decorator import resource as resource
from genmcp.decorator import tool as tool
from genmcp.dependencies import Depends as Depends
from genmcp.errors import CapabilityMissing as CapabilityMissing
from genmcp.errors import ConfigurationError as ConfigurationError
from genmcp.errors import GenmcpError as GenmcpError
from genmcp.errors import InsufficientScope as InsufficientScope
from genmcp.errors import InvalidParams as InvalidParams
from genmcp.errors import McpError as McpError
from genmcp.errors import PromptError as PromptError
from genmcp.errors import ResourceError as ResourceError
from genmcp.errors import ToolError as ToolError
from genmcp.errors import WaitCancelled as WaitCancelled
from genmcp.errors import WaitError as WaitError
from genmcp.errors import WaitTimedOut as WaitTimedOut
from genmcp.errors import WorkerLost as WorkerLost
from genmcp.errors import WorkRaised as WorkRaised
from genmcp.log_handler import ClientLogHandler as ClientLogHandler
from genmcp.prompts.prompt import Prompt as Prompt
from genmcp.prompts.prompt import PromptRepo as PromptRepo
from genmcp.prompts.template import PromptTemplate as PromptTemplate
from genmcp.protocol.capabilities import Icon as Icon
from genmcp.protocol.content import Annotations as Annotations
from genmcp.protocol.content import TextContent as TextContent
from genmcp.protocol.prompts import Completion as Completion
from genmcp.protocol.tools import CallToolResult as CallToolResult
from genmcp.protocol.tools import ToolAnnotations as ToolAnnotations
from genmcp.question.elicitation import elicit as elicit
from genmcp.question.elicitation import elicit_url as elicit_url
from genmcp.question.question import Accepted as Accepted
from genmcp.question.question import Cancelled as Cancelled
from genmcp.question.question import Declined as Declined
from genmcp.question.sampling import roots as roots
from genmcp.question.sampling import sample as sample
from genmcp.resources.directory import Directory as Directory
from genmcp.resources.resource import Resource as Resource
from genmcp.resources.resource import ResourceRepo as ResourceRepo
from genmcp.server import Middleware as Middleware
from genmcp.server import Server as Server
from genmcp.stores.memory import MemoryStore as MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore as SQLiteStore
from genmcp.stores.store import Store as Store
from genmcp.suite.providers import Provider as Provider
from genmcp.suite.suite import Suite as Suite
from genmcp.tasks.cron import Schedule as Schedule
from genmcp.tasks.jobs import Run as Run
from genmcp.tasks.jobs import job as job
from genmcp.tasks.options import JobOptions as JobOptions
from genmcp.tasks.queues import ExternalQueue as ExternalQueue
from genmcp.tools import Tool as Tool
from genmcp.version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from genmcp._core.client.events import SendMessage as SendMessage
    from genmcp._transports.stdio import serve_stdio as serve_stdio
    from genmcp.client.client import Client as Client
    from genmcp.client.errors import AuthorizationFailed as AuthorizationFailed
    from genmcp.client.errors import ClientError as ClientError
    from genmcp.client.errors import ConnectError as ConnectError
    from genmcp.client.errors import Forbidden as Forbidden
    from genmcp.client.errors import OutcomeUnknown as OutcomeUnknown
    from genmcp.client.errors import RequestTimeout as RequestTimeout
    from genmcp.client.errors import ServerError as ServerError
    from genmcp.client.errors import Unauthorized as Unauthorized
    from genmcp.client.handler import ClientHandler as ClientHandler
    from genmcp.client.handler import DefaultHandler as DefaultHandler
    from genmcp.client.handler import Denied as Denied
    from genmcp.client.options import ClientOptions as ClientOptions
    from genmcp.client.options import Command as Command
    from genmcp.client.sync import SyncClient as SyncClient
    from genmcp.client.transports.base import Transport as Transport
    from genmcp.client.transports.base import TransportSink as TransportSink
    from genmcp.composite.errors import AlreadyRegistered as AlreadyRegistered
    from genmcp.composite.errors import CompositeError as CompositeError
    from genmcp.composite.errors import ReconnectError as ReconnectError
    from genmcp.composite.errors import RegistrySessionNotFound as RegistrySessionNotFound
    from genmcp.composite.errors import ServerDisabled as ServerDisabled
    from genmcp.composite.errors import UnknownServer as UnknownServer
    from genmcp.composite.errors import UnknownTool as UnknownTool
    from genmcp.hub.config import HubLimits as HubLimits
    from genmcp.hub.config import Retry as Retry
    from genmcp.hub.config import ServerConfig as ServerConfig
    from genmcp.hub.config import load_servers as load_servers
    from genmcp.hub.hub import Hub as Hub
    from genmcp.registry.endpoint import RegistryEndpoint as RegistryEndpoint
    from genmcp.registry.live import LiveRegistry as LiveRegistry
    from genmcp.registry.live import SessionRegistries as SessionRegistries
    from genmcp.registry.registry import Registry as Registry
else:
    # The modules of names that a server seldom needs: importing it does not wait for them.
    _LATER = {
        "SendMessage": "genmcp._core.client.events",
        "serve_stdio": "genmcp._transports.stdio",
        "Client": "genmcp.client.client",
        "AuthorizationFailed": "genmcp.client.errors",
        "ClientError": "genmcp.client.errors",
        "ConnectError": "genmcp.client.errors",
        "Forbidden": "genmcp.client.errors",
        "OutcomeUnknown": "genmcp.client.errors",
        "RequestTimeout": "genmcp.client.errors",
        "ServerError": "genmcp.client.errors",
        "Unauthorized": "genmcp.client.errors",
        "ClientHandler": "genmcp.client.handler",
        "DefaultHandler": "genmcp.client.handler",
        "Denied": "genmcp.client.handler",
        "ClientOptions": "genmcp.client.options",
        "Command": "genmcp.client.options",
        "SyncClient": "genmcp.client.sync",
        "Transport": "genmcp.client.transports.base",
        "TransportSink": "genmcp.client.transports.base",
        "AlreadyRegistered": "genmcp.composite.errors",
        "CompositeError": "genmcp.composite.errors",
        "ReconnectError": "genmcp.composite.errors",
        "RegistrySessionNotFound": "genmcp.composite.errors",
        "ServerDisabled": "genmcp.composite.errors",
        "UnknownServer": "genmcp.composite.errors",
        "UnknownTool": "genmcp.composite.errors",
        "HubLimits": "genmcp.hub.config",
        "Retry": "genmcp.hub.config",
        "ServerConfig": "genmcp.hub.config",
        "load_servers": "genmcp.hub.config",
        "Hub": "genmcp.hub.hub",
        "RegistryEndpoint": "genmcp.registry.endpoint",
        "LiveRegistry": "genmcp.registry.live",
        "SessionRegistries": "genmcp.registry.live",
        "Registry": "genmcp.registry.registry",
    }

    def __getattr__(name: str) -> _typing.Any:
        """Import the value of *name* at its first access (PEP 562).

        Hidden from type checkers: otherwise every name would exist for them.
        """
        place = _LATER.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_import_module(place), name)
        return value

    def __dir__() -> list[str]:
        """Return all public names, also those that are imported later, for completion."""
        return sorted({*globals(), *_LATER})
