"""What each side can do: 2026-07-28, basic/versioning, "Capabilities".

An empty object declares a capability without its options; None says it is not there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from genmcp.protocol.value import CacheableResult, Value

__all__ = [
    "TASKS",
    "ClientCapabilities",
    "DiscoverResult",
    "ElicitationCapability",
    "Icon",
    "Implementation",
    "PromptsCapability",
    "ResourcesCapability",
    "SamplingCapability",
    "ServerCapabilities",
    "ToolsCapability",
]


#: The key of the tasks extension in the `extensions` of either side.
TASKS: Final = "io.modelcontextprotocol/tasks"


class SamplingCapability(Value):
    """The client samples its model; with the options it takes context and tools."""

    context: Mapping[str, Any] | None = None
    tools: Mapping[str, Any] | None = None


class ElicitationCapability(Value):
    """The client asks its user, in a form or by sending them to a URL."""

    form: Mapping[str, Any] | None = None
    url: Mapping[str, Any] | None = None

    @property
    def takes_forms(self) -> bool:
        """Whether a form may be asked for.

        2026-07-28, client/elicitation, "Capabilities": an empty object means forms only.
        """
        return self.form is not None or self.url is None

    @property
    def takes_urls(self) -> bool:
        """Whether the user may be sent to a URL."""
        return self.url is not None


class ClientCapabilities(Value, kw_only=True):
    """What the client can do for the server."""

    experimental: Mapping[str, Any] | None = None
    roots: Mapping[str, Any] | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: Mapping[str, Any] | None = None


class PromptsCapability(Value):
    """The server has prompts, and may tell when their list changes."""

    list_changed: bool | None = None


class ResourcesCapability(Value):
    """The server has resources, and may tell when one of them or their list changes."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolsCapability(Value):
    """The server has tools, and may tell when their list changes."""

    list_changed: bool | None = None


class ServerCapabilities(Value, kw_only=True):
    """What the server can do for the client."""

    experimental: Mapping[str, Any] | None = None
    logging: Mapping[str, Any] | None = None
    completions: Mapping[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    extensions: Mapping[str, Any] | None = None


class Icon(Value):
    """A picture for display: 2026-07-28, basic, "Icons".

    *src* is an `https:` or `data:` URI; *sizes* are `"48x48"` or `"any"`.
    """

    src: str
    mime_type: str | None = None
    sizes: Sequence[str] | None = None
    theme: Literal["light", "dark"] | None = None


class Implementation(Value):
    """The name and version of a client or server, for display and logs only."""

    name: str
    version: str
    title: str | None = None
    description: str | None = None
    website_url: str | None = None
    icons: Sequence[Icon] | None = None


class DiscoverResult(CacheableResult):
    """The revisions a server speaks, newest first, and what it can do."""

    supported_versions: Sequence[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
