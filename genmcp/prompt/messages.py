"""What a prompt may return, and what becomes of it.

| a prompt returns | messages |
|---|---|
| str, content, `Image`, `Audio`, `(bytes, mime type)` | one, of the user |
| `user(...)`, `assistant(...)`, a PromptMessage | as it is |
| a list of these | one after another |
| `GetPromptResult` | as it is |
"""

from typing import Any

from genmcp.content import CONTENT, result
from genmcp.errors import ContractError
from genmcp.protocol.content import Role
from genmcp.protocol.prompts import GetPromptResult, PromptMessage
from genmcp.protocol.tools import CallToolResult

__all__ = ["assistant", "prompt_result", "user"]


def user(content: Any) -> PromptMessage:
    """Return what the user says: a text, or other content.

    Raises:
        ContractError: it is not content, or more than one.
    """
    return _message(content, "user")


def assistant(content: Any) -> PromptMessage:
    """Return what the model is to have said: a text, or other content.

    Raises:
        ContractError: it is not content, or more than one.
    """
    return _message(content, "assistant")


def prompt_result(value: Any) -> GetPromptResult:
    """Return the result that *value*, returned by a prompt, stands for.

    Raises:
        ContractError: a prompt must not return such a value.
    """
    if isinstance(value, GetPromptResult):
        return value
    is_list = isinstance(value, list | tuple) and not (value and isinstance(value[0], bytes))
    parts = value if is_list else [value]
    return GetPromptResult(
        messages=[part if isinstance(part, PromptMessage) else user(part) for part in parts]
    )


def _message(content: Any, role: Role) -> PromptMessage:
    if not isinstance(content, (str, tuple, *CONTENT)) or isinstance(content, CallToolResult):
        raise ContractError(
            f"{type(content).__name__} is no message: it is a text, content, user(...) or "
            f"assistant(...), or a list of these"
        )
    blocks = result(content).content
    if len(blocks) != 1:
        raise ContractError(f"a message has one content, not {len(blocks)}")
    return PromptMessage(role, blocks[0])
