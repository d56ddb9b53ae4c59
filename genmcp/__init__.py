"""An ASGI framework for Model Context Protocol servers."""

from genmcp.channel import Channel
from genmcp.completion import starting_with
from genmcp.content import Audio, Image, embedded, link, result
from genmcp.continuation import Continue
from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.task import Job, Ref
from genmcp.errors import (
    AssignGone,
    Cancelled,
    ConfigurationError,
    ContractError,
    Failure,
    GenmcpError,
    InvalidParams,
    Lost,
    McpError,
    Raised,
    ResourceNotFound,
    TimedOut,
    ToolError,
    Unable,
)
from genmcp.extension import Extension
from genmcp.function import tool
from genmcp.jobs.engine import Engine
from genmcp.jobs.foreign import Foreign, Snapshot
from genmcp.jobs.job import job
from genmcp.jobs.options import JobOptions
from genmcp.jobs.run import Run
from genmcp.log_handler import ClientLogHandler
from genmcp.mux.limits import Limits
from genmcp.mux.mux import Mux
from genmcp.mux.storage import Storage
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
from genmcp.question.answers import Accepted, Declined, Dismissed
from genmcp.question.elicitation import elicit, elicit_url
from genmcp.question.question import Question
from genmcp.question.roots import roots
from genmcp.question.sampling import sample
from genmcp.resource.directory import Directory
from genmcp.resource.repo import ResourceRepo
from genmcp.resource.resource import Resource
from genmcp.server import Server, Wrapper
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from genmcp.subscription import Announcer
from genmcp.suite.suite import About, Suite
from genmcp.telemetry.log import LoggingTelemetry
from genmcp.tool import Call, Tool
from genmcp.transports.endpoint import Endpoint
from genmcp.wire.http import Security

__version__ = "0.1.0"

__all__ = [
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
    "ClientLogHandler",
    "Completion",
    "ConfigurationError",
    "Continue",
    "ContractError",
    "Declined",
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
    "Icon",
    "Image",
    "InvalidParams",
    "Job",
    "JobOptions",
    "Limits",
    "LoggingTelemetry",
    "Lost",
    "McpError",
    "MemoryStore",
    "Mux",
    "Outcome",
    "Prompt",
    "PromptArgument",
    "PromptDefinition",
    "PromptRepo",
    "PromptTemplate",
    "Question",
    "Raised",
    "Ref",
    "Resource",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceNotFound",
    "ResourceRepo",
    "Run",
    "SQLiteStore",
    "Security",
    "Server",
    "Snapshot",
    "Storage",
    "Store",
    "Suite",
    "Telemetry",
    "TimedOut",
    "Tool",
    "ToolAnnotations",
    "ToolError",
    "Unable",
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
    "starting_with",
    "tool",
    "user",
]
