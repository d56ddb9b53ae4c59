"""The capabilities of each side: 2026-07-28, basic/versioning, "Capabilities".

A member that is an empty object declares the capability without options; a member that is None
does not declare it. Implementation and icons, and the result of `server/discover`, are here too.
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
    """The client offers its model for sampling; the options are context and tools."""

    context: Mapping[str, Any] | None = None
    tools: Mapping[str, Any] | None = None


class ElicitationCapability(Value):
    """The client can ask its user, with a form or by opening a URL."""

    form: Mapping[str, Any] | None = None
    url: Mapping[str, Any] | None = None

    @property
    def takes_forms(self) -> bool:
        """Whether the client shows forms.

        2026-07-28, client/elicitation, "Capabilities": an empty object means forms only.
        """
        return self.form is not None or self.url is None

    @property
    def takes_urls(self) -> bool:
        """Whether the client opens URLs."""
        return self.url is not None


class ClientCapabilities(Value, kw_only=True):
    """The capabilities of a client."""

    experimental: Mapping[str, Any] | None = None
    roots: Mapping[str, Any] | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: Mapping[str, Any] | None = None


class PromptsCapability(Value):
    """The server has prompts, and may announce changes of their list."""

    list_changed: bool | None = None


class ResourcesCapability(Value):
    """The server has resources, and may announce changes of one of them or of their list."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolsCapability(Value):
    """The server has tools, and may announce changes of their list."""

    list_changed: bool | None = None


class ServerCapabilities(Value, kw_only=True):
    """The capabilities of a server."""

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
    """The result of `server/discover`: supported revisions, newest first, and capabilities."""

    supported_versions: Sequence[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
