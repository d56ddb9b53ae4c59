"""Revision 2025-03-26, where it differs from 2025-06-18: names are titles, results are text."""

from typing import Final

from msgspec import UNSET, structs

from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.client_features import Root
from genmcp.protocol.content import (
    Annotations,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceDefinition,
    ResourceLink,
    TextContent,
)
from genmcp.protocol.methods import table
from genmcp.protocol.prompts import (
    CompleteRequestParams,
    PromptArgument,
    PromptDefinition,
    PromptReference,
)
from genmcp.protocol.resources import ResourceTemplateDefinition
from genmcp.protocol.revisions import v2025_06_18
from genmcp.protocol.revisions.revision import Conversion, without
from genmcp.protocol.tools import CallToolResult, ToolAnnotations, ToolDefinition


def _link_as_text(link: ResourceLink) -> TextContent:
    return TextContent(f"{link.name}: {link.uri}", link.annotations)


def _drop_structured(result: CallToolResult) -> CallToolResult:
    if result.structured_content is UNSET:
        return result
    return structs.replace(result, structured_content=UNSET)


def _without_title(tool: ToolDefinition) -> ToolDefinition:
    """Move the title of *tool* to its annotations; drop members that this revision lacks."""
    annotations = tool.annotations
    if tool.title is not None:
        annotations = annotations or ToolAnnotations()
        annotations = structs.replace(annotations, title=annotations.title or tool.title)
    return structs.replace(tool, title=None, annotations=annotations, output_schema=None, meta=None)


_DOWN: Final[dict[type, Conversion]] = {
    Implementation: without("title"),
    ToolDefinition: _without_title,
    CallToolResult: _drop_structured,
    ResourceDefinition: without("title", "meta"),
    ResourceTemplateDefinition: without("title", "meta"),
    ResourceLink: _link_as_text,
    ResourceContents: without("meta"),
    EmbeddedResource: without("meta"),
    TextContent: without("meta"),
    ImageContent: without("meta"),
    AudioContent: without("meta"),
    Annotations: without("last_modified"),
    PromptDefinition: without("title", "meta"),
    PromptArgument: without("title"),
    PromptReference: without("title"),
    CompleteRequestParams: without("context"),
    ClientCapabilities: without("elicitation"),
    Root: without("meta"),
}

_NEWER: Final = v2025_06_18.REVISION

REVISION: Final = _NEWER.older(
    "2025-03-26",
    batches=True,
    methods=table(
        method for method in _NEWER.methods.values() if method.name != "elicitation/create"
    ),
    down=_DOWN,
    up={},
)
