"""The messages that a model is given: 2026-07-28, client/sampling, "Messages"."""

from collections.abc import Sequence
from typing import Any, get_args

from genmcp.content import Audio, Image, result
from genmcp.errors import ContractError
from genmcp.protocol.prompts import PromptMessage
from genmcp.protocol.sampling import (
    SamplingMessage,
    SamplingMessageContentBlock,
    ToolResultContent,
    ToolUseContent,
)

__all__ = ["conversation"]

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
