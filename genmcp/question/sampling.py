"""Asking the client's model: 2026-07-28, client/sampling (deprecated there)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, get_args

import msgspec
from typing_extensions import Unpack

from genmcp.content import Audio, Image, json_of, result
from genmcp.errors import ArgumentFaults, ContractError
from genmcp.faults import Fault, Mismatch
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ListRootsRequest,
    ListRootsRequestParams,
    ListRootsResult,
    ModelPreferences,
    Root,
    SamplingMessage,
    SamplingMessageContentBlock,
    ToolChoice,
    ToolResultContent,
    ToolUseContent,
)
from genmcp.protocol.prompts import PromptMessage
from genmcp.protocol.tools import ToolDefinition
from genmcp.question.question import Question, read_as
from genmcp.schema.words import describe_value

__all__ = ["RootsQuestion", "SampleOptions", "SampleQuestion", "conversation", "roots", "sample"]

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


_BLOCKS = get_args(SamplingMessageContentBlock)


def conversation(messages: Any) -> list[SamplingMessage]:
    """Return the conversation that *messages*, as `sample` takes them, stand for.

    Raises:
        ContractError: one is no message, or tools used and their results do not belong together.
    """
    if isinstance(messages, str):
        messages = [("user", messages)]
    if not isinstance(messages, list | tuple) or not messages:
        raise ContractError(f"sample: messages are a text or a list of messages, not {messages!r}")
    said = [_message(index, each) for index, each in enumerate(messages)]
    _check_tools(said)
    return said


def _message(index: int, given: Any) -> SamplingMessage:
    role: Any
    content: Any
    match given:
        case SamplingMessage() | PromptMessage():
            role, content = given.role, given.content
        case ("user" | "assistant" as role, content):
            pass
        case _:
            raise ContractError(
                f"sample: message {index} is no message: give a SamplingMessage, user(...), "
                f"assistant(...) or a pair of its role and its content, not {given!r}"
            )
    # A tuple that begins with bytes is one picture or sound.
    is_list = isinstance(content, list | tuple) and not (content and isinstance(content[0], bytes))
    blocks = [_block(index, each) for each in (content if is_list else [content])]
    if not blocks:
        raise ContractError(f"sample: message {index} has no content")
    meta = given.meta if isinstance(given, SamplingMessage) else None
    return SamplingMessage(role, blocks if is_list else blocks[0], meta)


def _block(index: int, content: Any) -> Any:
    match content:
        case str() | Image() | Audio() | (bytes(), str()):
            return result(content).content[0]
        case _ if isinstance(content, _BLOCKS):
            return content
    raise ContractError(
        f"sample: message {index}: {type(content).__name__} is no content of a message"
    )


def _check_tools(messages: Sequence[SamplingMessage]) -> None:
    """Check that the tools used in one message have their results, and nothing else, in the next.

    2026-07-28, client/sampling, "Tool Use and Result Balance" and "Tool Result Messages": MUST.
    """
    used: set[str] = set()
    for index, message in enumerate(messages):
        content = message.content
        blocks = content if isinstance(content, Sequence) else [content]
        results = [each.tool_use_id for each in blocks if isinstance(each, ToolResultContent)]
        if set(results) != used:
            raise ContractError(
                f"sample: message {index} must have the results of the tools used before it, "
                f"{sorted(used)}, and has those of {sorted(results)}"
            )
        if results and (len(results) < len(blocks) or message.role != "user"):
            raise ContractError(
                f"sample: message {index} has results of tools: it must be the user's, and have "
                f"nothing else"
            )
        used = {each.id for each in blocks if isinstance(each, ToolUseContent)}
    if used:
        raise ContractError(f"sample: the tools used last have no results: {sorted(used)}")


def roots() -> Question[list[Root]]:
    """Ask in which folders and files the client lets the server work.

    The outcome is `Done` with a list of `Root`; each has a `file://` URI. They are guidance and no
    access control: what a path leads to is for the tool to check.
    """
    return RootsQuestion()


class RootsQuestion(Question[list[Root]], frozen=True, tag="roots"):
    """A question for the roots."""

    method: ClassVar[str] = "roots/list"

    @property
    def request(self) -> ListRootsRequest:
        """The request the client gets; with params, which some clients want to see."""
        return ListRootsRequest(ListRootsRequestParams())

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return `roots`, if the client has none."""
        return {"roots": {}} if capabilities.roots is None else {}

    def read(self, answer: Any) -> list[Root]:
        """Return the roots."""
        found: Sequence[Root] = read_as(ListRootsResult, answer).roots
        faults = [
            Fault(("roots", index, "uri"), Mismatch("a URI with file://", describe_value(root.uri)))
            for index, root in enumerate(found)
            if not root.uri.startswith("file://")
        ]
        if faults:
            raise ArgumentFaults(faults)
        return list(found)
