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

#: What `CallToolRequestParams.arguments` is when there are none; it is false.
NO_ARGUMENTS = msgspec.Raw()


class ToolAnnotations(Value, kw_only=True):
    """What a tool says of itself, which a client need not believe."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolDefinition(Value):
    """A tool as it is listed; the schema's Tool.

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


class ListToolsResult(PaginatedResult):
    """One page of the tools."""

    tools: Sequence[ToolDefinition]


class CallToolRequestParams(InputResponseRequestParams):
    """Which tool to call, and with what: *arguments* are its JSON, as it came."""

    name: str
    arguments: msgspec.Raw = NO_ARGUMENTS


class CallToolResult(Result):
    """What a tool answers.

    *structured_content* is any JSON value, null among them; UNSET is its absence. *is_error* is
    False where the member is absent (2026-07-28, schema, CallToolResult).
    """

    content: Sequence[ContentBlock]
    structured_content: Any = msgspec.UNSET
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text among the content, its blocks on lines of their own."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))

    @property
    def structured(self) -> Any:
        """The structured content, None if there is none."""
        return None if self.structured_content is msgspec.UNSET else self.structured_content

    @property
    def data(self) -> Any:
        """The structured content, or the text where there is none."""
        return self.text if self.structured_content is msgspec.UNSET else self.structured_content
