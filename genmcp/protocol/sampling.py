"""Questions to the client's model: 2026-07-28, client/sampling (deprecated there)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from genmcp.protocol.content import AudioContent, ContentBlock, ImageContent, Role, TextContent
from genmcp.protocol.tools import ToolDefinition
from genmcp.protocol.value import Value

__all__ = [
    "CreateMessageRequest",
    "CreateMessageRequestParams",
    "CreateMessageResult",
    "ModelHint",
    "ModelPreferences",
    "SamplingMessage",
    "SamplingMessageContentBlock",
    "ToolChoice",
    "ToolResultContent",
    "ToolUseContent",
]


class ToolUseContent(Value, tag_field="type", tag="tool_use"):
    """The model wants a tool called."""

    id: str
    name: str
    input: Mapping[str, Any]
    meta: Mapping[str, Any] | None = None


class ToolResultContent(Value, tag_field="type", tag="tool_result"):
    """What the tool the model wanted called has answered."""

    tool_use_id: str
    content: Sequence[ContentBlock]
    structured_content: Any = msgspec.UNSET
    is_error: bool | None = None
    meta: Mapping[str, Any] | None = None


SamplingMessageContentBlock = (
    TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
)


class SamplingMessage(Value):
    """One message of the conversation the model is to carry on."""

    role: Role
    content: SamplingMessageContentBlock | Sequence[SamplingMessageContentBlock]
    meta: Mapping[str, Any] | None = None


class ModelHint(Value):
    """Part of the name of a model."""

    name: str | None = None


class ModelPreferences(Value, kw_only=True):
    """Which model to take; each priority is from 0 to 1."""

    hints: Sequence[ModelHint] | None = None
    cost_priority: int | float | None = None
    speed_priority: int | float | None = None
    intelligence_priority: int | float | None = None


class ToolChoice(Value):
    """Whether the model may or must use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class CreateMessageRequestParams(Value, kw_only=True):
    """What the model is asked."""

    messages: Sequence[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: int | float | None = None
    stop_sequences: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    tools: Sequence[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None


class CreateMessageRequest(Value, tag_field="method", tag="sampling/createMessage"):
    """Asks the client's model."""

    params: CreateMessageRequestParams


class CreateMessageResult(SamplingMessage, kw_only=True):
    """What the model answered, which model it was, and why it stopped."""

    model: str
    stop_reason: str | None = None
