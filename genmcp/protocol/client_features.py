"""Requests to the client: elicitation, sampling and roots.

2026-07-28, client/elicitation, client/sampling and client/roots (the latter two are deprecated
there), and basic/patterns, "Multi Round-Trip Requests", in which they travel.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from genmcp.protocol.content import AudioContent, ContentBlock, ImageContent, Role, TextContent
from genmcp.protocol.tools import ToolDefinition
from genmcp.protocol.value import Result, Value

__all__ = [
    "CreateMessageRequest",
    "CreateMessageRequestParams",
    "CreateMessageResult",
    "ElicitRequest",
    "ElicitRequestParams",
    "ElicitResult",
    "ElicitedValue",
    "InputRequest",
    "InputRequiredResult",
    "ListRootsRequest",
    "ListRootsRequestParams",
    "ListRootsResult",
    "ModelHint",
    "ModelPreferences",
    "Root",
    "SamplingMessage",
    "SamplingMessageContentBlock",
    "ToolChoice",
    "ToolResultContent",
    "ToolUseContent",
]


class ElicitRequestParams(Value):
    """A form for the user to fill in, or a URL for the user to open.

    The schema's ElicitRequestFormParams, with *requested_schema*, and ElicitRequestURLParams,
    with *url*. The requested schema is an object schema of primitive properties.

    Raises:
        ValueError: the mode does not fit to the other members.
    """

    message: str
    requested_schema: Mapping[str, Any] | None = None
    url: str | None = None
    mode: Literal["form", "url"] | None = None

    def __post_init__(self) -> None:
        # A request without a mode is a form: the member came with 2025-11-25.
        by_url = self.mode == "url"
        if (self.url is None) == by_url or (self.requested_schema is not None) == by_url:
            raise ValueError("a form has a `requestedSchema`; mode `url` has a `url` instead")


class ElicitRequest(Value, tag_field="method", tag="elicitation/create"):
    """A request to the user."""

    params: ElicitRequestParams


# Null is not in the specification. Clients send it for a field that was left empty.
ElicitedValue = str | int | float | bool | list[str] | None


class ElicitResult(Value):
    """The action of the user; *content* is present if a form was accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, ElicitedValue] | None = None


class ToolUseContent(Value, tag_field="type", tag="tool_use"):
    """A tool call that the model requests."""

    id: str
    name: str
    input: Mapping[str, Any]
    meta: Mapping[str, Any] | None = None


class ToolResultContent(Value, tag_field="type", tag="tool_result"):
    """The result of a tool call that the model requested."""

    tool_use_id: str
    content: Sequence[ContentBlock]
    structured_content: Any = msgspec.UNSET
    is_error: bool | None = None
    meta: Mapping[str, Any] | None = None


SamplingMessageContentBlock = (
    TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
)


class SamplingMessage(Value):
    """One message of a conversation with the model."""

    role: Role
    content: SamplingMessageContentBlock | Sequence[SamplingMessageContentBlock]
    meta: Mapping[str, Any] | None = None


class ModelHint(Value):
    """Part of the name of a model."""

    name: str | None = None


class ModelPreferences(Value, kw_only=True):
    """Preferences for the choice of the model; each priority is from 0 to 1."""

    hints: Sequence[ModelHint] | None = None
    cost_priority: int | float | None = None
    speed_priority: int | float | None = None
    intelligence_priority: int | float | None = None


class ToolChoice(Value):
    """Whether the model may, must, or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


class CreateMessageRequestParams(Value, kw_only=True):
    """A conversation for the model to continue, with the options of its answer."""

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
    """A request to the client's model."""

    params: CreateMessageRequestParams


class CreateMessageResult(SamplingMessage, kw_only=True):
    """The message that the model generated, the name of the model, and why it stopped."""

    model: str
    stop_reason: str | None = None


class ListRootsRequestParams(Value):
    """Params without members of their own."""

    meta: Mapping[str, Any] | None = None


class ListRootsRequest(Value, tag_field="method", tag="roots/list"):
    """A request for the roots."""

    params: ListRootsRequestParams | None = None


class Root(Value):
    """A folder or file; *uri* begins with `file://`."""

    uri: str
    name: str | None = None
    meta: Mapping[str, Any] | None = None


class ListRootsResult(Value):
    """The roots of the client."""

    roots: Sequence[Root]


InputRequest = CreateMessageRequest | ListRootsRequest | ElicitRequest


class InputRequiredResult(Result):
    """Input requests in place of a result.

    The client answers each and sends its own request again with the responses.
    """

    result_type: ClassVar[str] = "input_required"

    input_requests: Mapping[str, InputRequest] | None = None
    request_state: str | None = None
