"""An ASGI framework for Model Context Protocol servers."""

from genmcp.channel import Channel
from genmcp.content import Audio, Image, embedded, link, result
from genmcp.errors import (
    ConfigurationError,
    ContractError,
    GenmcpError,
    InvalidParams,
    McpError,
    ToolError,
)
from genmcp.function import tool
from genmcp.mux.limits import Limits
from genmcp.mux.mux import Mux
from genmcp.protocol.implementation import Icon
from genmcp.protocol.tools import CallToolResult, ToolAnnotations
from genmcp.server import Server, Wrapper
from genmcp.suite.suite import About, Suite
from genmcp.tool import Call, Tool
from genmcp.transports.endpoint import Endpoint
from genmcp.wire.http import Security

__version__ = "0.1.0"

__all__ = [
    "About",
    "Audio",
    "Call",
    "CallToolResult",
    "Channel",
    "ConfigurationError",
    "ContractError",
    "Endpoint",
    "GenmcpError",
    "Icon",
    "Image",
    "InvalidParams",
    "Limits",
    "McpError",
    "Mux",
    "Security",
    "Server",
    "Suite",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "Wrapper",
    "embedded",
    "link",
    "result",
    "tool",
]
