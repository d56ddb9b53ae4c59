"""Asking the client's model: 2026-07-28, client/sampling (deprecated there)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict

import msgspec
from typing_extensions import Unpack

from genmcp.content import json_of
from genmcp.errors import ContractError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.prompts import PromptMessage
from genmcp.protocol.sampling import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)
from genmcp.protocol.tools import ToolDefinition
from genmcp.question.answers import read_as
from genmcp.question.conversation import conversation
from genmcp.question.question import Question

__all__ = ["SampleOptions", "SampleQuestion", "sample"]

Said: TypeAlias = SamplingMessage | PromptMessage | tuple[str, Any]

_MAX_TOKENS = 1024


class SampleOptions(TypedDict, total=False):
    """What the model may be asked besides; a mapping in place of a value has the wire's names."""

    system_prompt: str
    model_preferences: ModelPreferences | Mapping[str, Any]
    temperature: float
    stop_sequences: Sequence[str]
    include_context: Literal["none", "thisServer", "allServers"]
    tools: Sequence[ToolDefinition | Mapping[str, Any]]
    tool_choice: ToolChoice | Mapping[str, Any]
    metadata: Mapping[str, Any]


def sample(
    messages: str | Sequence[Said],
    *,
    max_tokens: int = _MAX_TOKENS,
    **options: Unpack[SampleOptions],
) -> Question[CreateMessageResult]:
    """Ask the client's model to carry on a conversation.

        sample("What is the capital of France?", max_tokens=100).then(self.tell)

    messages: a text of the user, or a list of SamplingMessage, `user(...)`, `assistant(...)` and
        (role, content); content is what a hook may return that is text, image or audio, or what
        says that a tool is used, and a list of these. A CreateMessageResult may be among them.
    max_tokens: the most that the model may answer.
    options: see `SampleOptions`. Tools, and a context other than "none", need a client that has
        declared them.

    The outcome is `Done` with a `CreateMessageResult`.

    Raises:
        ContractError: (a TypeError) an option or a message is wrong, or a tool the model used has
            no result (2026-07-28, client/sampling, "Message Content Constraints").
    """
    if unknown := options.keys() - SampleOptions.__annotations__.keys():
        raise ContractError(f"sample takes no {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {**options}
    params = CreateMessageRequestParams(
        messages=conversation(messages), max_tokens=max_tokens, **given
    )
    try:  # through JSON: mappings become values, and what was given is not what is asked
        checked = msgspec.json.decode(json_of(params), type=CreateMessageRequestParams)
    except (ContractError, msgspec.ValidationError) as error:
        raise ContractError(f"sample: {error}") from None
    _check(checked)
    return SampleQuestion(checked)


class SampleQuestion(Question[CreateMessageResult], frozen=True, tag="sample"):
    """A question to the client's model."""

    method: ClassVar[str] = "sampling/createMessage"

    params: CreateMessageRequestParams

    @property
    def request(self) -> CreateMessageRequest:
        """The request the client gets."""
        return CreateMessageRequest(self.params)

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return `sampling`, or those of its options that are needed and not there."""
        params, declared = self.params, capabilities.sampling
        needed: dict[str, Any] = {}
        has_tools = params.tools is not None or params.tool_choice is not None
        if has_tools and (declared is None or declared.tools is None):
            needed["tools"] = {}
        in_context = params.include_context not in (None, "none")
        if in_context and (declared is None or declared.context is None):
            needed["context"] = {}
        return {"sampling": needed} if needed or declared is None else {}

    def read(self, answer: Any) -> CreateMessageResult:
        """Return what the model answered."""
        return read_as(CreateMessageResult, answer)


def _check(params: CreateMessageRequestParams) -> None:
    if params.max_tokens < 1:
        raise ContractError(f"sample: max_tokens must be at least 1, not {params.max_tokens}")
    preferences = params.model_preferences or ModelPreferences()
    for name in ("cost_priority", "speed_priority", "intelligence_priority"):
        priority = getattr(preferences, name)
        if priority is not None and not 0 <= priority <= 1:
            raise ContractError(f"sample: {name} must be from 0 to 1, not {priority}")
