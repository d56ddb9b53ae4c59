"""Tools: 2026-07-28, server/tools."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import ContentBlock, TextContent
from genmcp.protocol.params import InputResponseRequestParams
from genmcp.protocol.value import PaginatedResult, Result, Value

__all__ = [
    "NO_ARGUMENTS",
    "CallToolRequestParams",
    "CallToolResult",
    "ListToolsResult",
    "ToolAnnotations",
    "ToolDefinition",
]


#: The value of `CallToolRequestParams.arguments` for a call without arguments; it is falsy.
NO_ARGUMENTS = msgspec.Raw()
_NULL = msgspec.Raw(b"null")


class ToolAnnotations(Value, kw_only=True):
    """Hints about the behaviour of a tool. Clients must not trust those of an unknown server."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolDefinition(Value):
    """A tool in a list; the schema's Tool.

    The input schema is of type object; *output_schema* may be any JSON Schema.
    """

    name: str
    input_schema: Mapping[str, Any]
    title: str | None = None
    description: str | None = None
    output_schema: Mapping[str, Any] | None = None
    icons: Sequence[Icon] | None = None
    annotations: ToolAnnotations | None = None
    meta: Mapping[str, Any] | None = None


def is_for_models(tool: ToolDefinition) -> bool:
    """Whether a model may call *tool*, and not only the page of an app (SEP-1865, Visibility)."""
    ui = (tool.meta or {}).get("ui")
    visibility = ui.get("visibility") if isinstance(ui, Mapping) else None
    return visibility is None or (isinstance(visibility, list | tuple) and "model" in visibility)


class ListToolsResult(PaginatedResult):
    """One page of the tools."""

    tools: Sequence[ToolDefinition]


class CallToolRequestParams(InputResponseRequestParams):
    """The name of a tool, and its arguments as undecoded JSON."""

    name: str
    arguments: msgspec.Raw = NO_ARGUMENTS

    @property
    def given(self) -> msgspec.Raw:
        """The arguments; null counts as absent, since many clients write it."""
        return NO_ARGUMENTS if self.arguments == _NULL else self.arguments


class CallToolResult(Result):
    """The result of a tool call.

    *structured_content* is any JSON value, null included, or UNSET if it is absent. *is_error* is
    False if the member is absent (2026-07-28, schema, CallToolResult).
    """

    content: Sequence[ContentBlock]
    structured_content: Any = msgspec.UNSET
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text blocks of the content, joined by line ends."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    @property
    def structured(self) -> Any:
        """The structured content; None if it is absent."""
        return None if self.structured_content is msgspec.UNSET else self.structured_content

    @property
    def data(self) -> Any:
        """The structured content; if it is absent, the text."""
        return self.text if self.structured_content is msgspec.UNSET else self.structured_content
