"""What the servers of a hub have, and which of them has it."""

from collections.abc import Mapping, Sequence

import msgspec

from genmcp.protocol.content import ResourceDefinition
from genmcp.protocol.prompts import PromptArgument, PromptDefinition
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.tools import ToolDefinition
from genmcp.uri_template.template import UriTemplate
from genmcp.wire.param_headers import HeaderRule

__all__ = ["KINDS", "Catalog", "HubPrompt", "HubPromptArgument", "HubResource", "HubTool"]


class HubTool(msgspec.Struct, frozen=True):
    """A tool of a server: *name* is `server/tool`, *original_name* what the server calls it."""

    name: str
    description: str | None
    server_name: str
    original_name: str
    definition: ToolDefinition


class HubResource(msgspec.Struct, frozen=True):
    """A resource of a server; its *name* is its URI where it has none."""

    uri: str
    name: str
    description: str | None
    server_name: str
    definition: ResourceDefinition


class HubPromptArgument(msgspec.Struct, frozen=True):
    """An argument of a prompt."""

    name: str
    description: str | None = None
    required: bool = False


class HubPrompt(msgspec.Struct, frozen=True):
    """A prompt of a server, by the server's own name."""

    name: str
    description: str | None
    server_name: str
    arguments: Sequence[HubPromptArgument]
    definition: PromptDefinition


class Catalog(msgspec.Struct, frozen=True):
    """The lists of one member server, as they were read last. Owned by the member.

    headers: the rules of headers that repeat arguments, by the name of the tool.
    matchers: the templates that can be matched. Both are derived when the lists are read, so that a
        schema or template of one server slows no call of another.
    reads: whether there may be resources that are not listed. tells: whether the server notifies of
    updates of its resources.
    """

    tools: Sequence[ToolDefinition] = ()
    resources: Sequence[ResourceDefinition] = ()
    templates: Sequence[ResourceTemplateDefinition] = ()
    prompts: Sequence[PromptDefinition] = ()
    headers: Mapping[str, tuple[HeaderRule, ...]] = {}
    matchers: Sequence[UriTemplate] = ()
    reads: bool = False
    tells: bool = False

    def agrees(self, other: "Catalog", kind: str) -> bool:
        """Whether the lists of *kind* are the same in both."""
        return all(getattr(self, name) == getattr(other, name) for name in KINDS[kind])

    def has_tool(self, name: str) -> bool:
        """Whether there is a tool of that name, the server's own."""
        return any(each.name == name for each in self.tools)

    def hub_tools(self, server: str) -> list[HubTool]:
        """Return the tools, those of *server*."""
        return [
            HubTool(f"{server}/{each.name}", each.description, server, each.name, each)
            for each in self.tools
        ]

    def hub_resources(self, server: str) -> list[HubResource]:
        """Return the resources, those of *server*."""
        return [
            HubResource(each.uri, each.name or each.uri, each.description, server, each)
            for each in self.resources
        ]

    def hub_prompts(self, server: str) -> list[HubPrompt]:
        """Return the prompts, those of *server*."""
        return [
            HubPrompt(
                each.name, each.description, server, [*map(_argument, each.arguments or ())], each
            )
            for each in self.prompts
        ]


#: The lists of a server, by the capability that says that there are any.
KINDS: Mapping[str, Sequence[str]] = {
    "tools": ("tools",),
    "resources": ("resources", "templates"),
    "prompts": ("prompts",),
}


def _argument(argument: PromptArgument) -> HubPromptArgument:
    return HubPromptArgument(argument.name, argument.description, bool(argument.required))
