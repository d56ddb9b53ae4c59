"""Prompts: 2026-07-28, server/prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import ContentBlock, Role
from genmcp.protocol.params import InputResponseRequestParams
from genmcp.protocol.value import PaginatedResult, Result, Value

__all__ = [
    "GetPromptRequestParams",
    "GetPromptResult",
    "ListPromptsResult",
    "PromptArgument",
    "PromptDefinition",
    "PromptMessage",
]


class PromptArgument(Value):
    """An argument of a prompt; optional unless *required* is True."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class PromptDefinition(Value):
    """A prompt in a list; the schema's Prompt."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: Sequence[PromptArgument] | None = None
    icons: Sequence[Icon] | None = None
    meta: Mapping[str, Any] | None = None


class PromptMessage(Value):
    """One message of a prompt."""

    role: Role
    content: ContentBlock


class ListPromptsResult(PaginatedResult):
    """One page of the prompts."""

    prompts: Sequence[PromptDefinition]


class GetPromptRequestParams(InputResponseRequestParams):
    """The name of a prompt, and the values of its arguments."""

    name: str
    arguments: Mapping[str, str] | None = None


class GetPromptResult(Result):
    """The messages of a prompt."""

    messages: Sequence[PromptMessage]
    description: str | None = None
