"""An ASGI framework for Model Context Protocol servers."""

from genmcp.channel import Channel
from genmcp.completion import starting_with
from genmcp.content import Audio, Image, embedded, link, result
from genmcp.errors import (
    ConfigurationError,
    ContractError,
    GenmcpError,
    InvalidParams,
    McpError,
    ResourceNotFound,
    ToolError,
)
from genmcp.extension import Extension
from genmcp.function import tool
from genmcp.log_handler import ClientLogHandler
from genmcp.mux.limits import Limits
from genmcp.mux.mux import Mux
from genmcp.mux.telemetry import Telemetry
from genmcp.prompt.function import prompt
from genmcp.prompt.messages import assistant, user
from genmcp.prompt.prompt import Prompt
from genmcp.prompt.repo import PromptRepo
from genmcp.prompt.template import PromptTemplate
from genmcp.protocol.completion import Completion
from genmcp.protocol.content import Annotations, ResourceContents, ResourceDefinition
from genmcp.protocol.implementation import Icon
from genmcp.protocol.prompts import PromptArgument, PromptDefinition
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.resource.directory import Directory
from genmcp.resource.repo import ResourceRepo
from genmcp.resource.resource import Resource
from genmcp.server import Server, Wrapper
from genmcp.subscription import Announcer
from genmcp.suite.suite import About, Suite
from genmcp.telemetry.log import LoggingTelemetry
from genmcp.tool import Call, Tool
from genmcp.transports.endpoint import Endpoint
from genmcp.wire.http import Security

__version__ = "0.1.0"

__all__ = [
    "About",
    "Annotations",
    "Announcer",
    "Audio",
    "Call",
    "CallToolResult",
    "Channel",
    "ClientLogHandler",
    "Completion",
    "ConfigurationError",
    "ContractError",
    "Directory",
    "Endpoint",
    "Extension",
    "GenmcpError",
    "Icon",
    "Image",
    "InvalidParams",
    "Limits",
    "LoggingTelemetry",
    "McpError",
    "Mux",
    "Prompt",
    "PromptArgument",
    "PromptDefinition",
    "PromptRepo",
    "PromptTemplate",
    "Resource",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceNotFound",
    "ResourceRepo",
    "Security",
    "Server",
    "Suite",
    "Telemetry",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "Wrapper",
    "assistant",
    "embedded",
    "link",
    "prompt",
    "result",
    "starting_with",
    "tool",
    "user",
]
