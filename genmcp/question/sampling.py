"""Questions for a completion by the client's model (sampling), and for the client's roots.

2026-07-28 defines both in client/sampling and client/roots, and deprecates them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, get_args

import msgspec
from typing_extensions import Unpack

from genmcp._schema.words import describe_value
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

MessageLike: TypeAlias = SamplingMessage | PromptMessage | tuple[str, Any]

_MAX_TOKENS = 1024


class SampleOptions(TypedDict, total=False):
    """Options of `sample`. Structs may be given as mappings, with the names of the protocol."""

    system_prompt: str
    model_preferences: ModelPreferences | Mapping[str, Any]
    temperature: float
    stop_sequences: Sequence[str]
    include_context: Literal["none", "thisServer", "allServers"]
    tools: Sequence[ToolDefinition | Mapping[str, Any]]
    tool_choice: ToolChoice | Mapping[str, Any]
    metadata: Mapping[str, Any]


def sample(
    messages: str | Sequence[MessageLike],
    *,
    max_tokens: int = _MAX_TOKENS,
    **options: Unpack[SampleOptions],
) -> Question[CreateMessageResult]:
    """Ask the client's model to continue a conversation.

        sample("What is the capital of France?", max_tokens=100).then(self.tell)

    The outcome is `Done` with a `CreateMessageResult`.

    Args:
        messages: a text of the user, or a list of SamplingMessage, `user(...)`, `assistant(...)`,
            CreateMessageResult and (role, content). The content is a text, an image or audio, of
            the types that a hook may return; a tool use or a tool result; or a list of these.
        max_tokens: the limit of tokens for the answer; default 1024.
        options: see `SampleOptions`. The client must declare the capability for tools, and for a
            context other than "none".

    Raises:
        ContractError: (a TypeError) an option or a message is invalid, or a tool use has no result
            (2026-07-28, client/sampling, "Message Content Constraints").
    """
    if unknown := options.keys() - SampleOptions.__annotations__.keys():
        raise ContractError(f"sample: unknown options: {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {**options}
    params = CreateMessageRequestParams(
        messages=_sampling_messages(messages), max_tokens=max_tokens, **given
    )
    # Encode to JSON and decode: this converts mappings to structs, and copies mutable values.
    try:
        checked = msgspec.json.decode(json_of(params), type=CreateMessageRequestParams)
    except (ContractError, msgspec.ValidationError) as error:
        raise ContractError(f"sample: {error}") from None
    _check(checked)
    return SampleQuestion(checked)


class SampleQuestion(Question[CreateMessageResult], frozen=True, tag="sample"):
    """A question for the client's model."""

    method: ClassVar[str] = "sampling/createMessage"

    params: CreateMessageRequestParams

    @property
    def request(self) -> CreateMessageRequest:
        """The request the client gets."""
        return CreateMessageRequest(self.params)

    def missing_capabilities(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return `sampling`, or the required options of it, if the client does not declare them."""
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
        """Return the answer of the model."""
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


def _sampling_messages(messages: Any) -> list[SamplingMessage]:
    """Convert *messages*, the argument of `sample`, to SamplingMessages.

    Raises:
        ContractError: an item is not a message, or tool uses and tool results do not match.
    """
    if isinstance(messages, str):
        messages = [("user", messages)]
    if not isinstance(messages, list | tuple) or not messages:
        raise ContractError(
            f"sample: messages must be a str or a list of messages, not {messages!r}"
        )
    converted = [_message(index, each) for index, each in enumerate(messages)]
    _check_tools(converted)
    return converted


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
                f"sample: message {index} is not a message: use a SamplingMessage, user(...), "
                f"assistant(...) or a pair of role and content, not {given!r}"
            )
    # A tuple that begins with bytes is one image or audio block, not a list of blocks.
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
        f"sample: message {index}: {type(content).__name__} cannot be content of a message"
    )


def _check_tools(messages: Sequence[SamplingMessage]) -> None:
    """Check that the message after tool uses has their results, and nothing else.

    The specification requires this with MUST (2026-07-28, client/sampling, "Tool Use and Result
    Balance" and "Tool Result Messages").
    """
    used: set[str] = set()
    for index, message in enumerate(messages):
        content = message.content
        blocks = content if isinstance(content, Sequence) else [content]
        results = [each.tool_use_id for each in blocks if isinstance(each, ToolResultContent)]
        if set(results) != used:
            raise ContractError(
                f"sample: message {index} must have the results of the tool uses before it, "
                f"{sorted(used)}, and has the results of {sorted(results)}"
            )
        if results and (len(results) < len(blocks) or message.role != "user"):
            raise ContractError(
                f"sample: message {index} has tool results: it must have the role user, and no "
                f"other content"
            )
        # The ids of the tool uses to which the next message must have results.
        used = {each.id for each in blocks if isinstance(each, ToolUseContent)}
    if used:
        raise ContractError(
            f"sample: the tool uses of the last message have no results: {sorted(used)}"
        )


def roots() -> Question[list[Root]]:
    """Ask for the folders and files in which the server may work.

    The outcome is `Done` with a list of `Root`; each has a `file://` URI. Roots are guidance, not
    access control: the tool must check the paths that it uses.
    """
    return RootsQuestion()


class RootsQuestion(Question[list[Root]], frozen=True, tag="roots"):
    """A question for the client's roots."""

    method: ClassVar[str] = "roots/list"

    @property
    def request(self) -> ListRootsRequest:
        """The request that the client gets. It has empty params, which some clients require."""
        return ListRootsRequest(ListRootsRequestParams())

    def missing_capabilities(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the capability `roots` if the client does not declare it."""
        return {"roots": {}} if capabilities.roots is None else {}

    def read(self, answer: Any) -> list[Root]:
        """Return the roots of *answer*."""
        found: Sequence[Root] = read_as(ListRootsResult, answer).roots
        faults = [
            Fault(("roots", index, "uri"), Mismatch("a URI with file://", describe_value(root.uri)))
            for index, root in enumerate(found)
            if not root.uri.startswith("file://")
        ]
        if faults:
            raise ArgumentFaults(faults)
        return list(found)
