"""Prompts, and completion of their arguments and of the variables of resource templates.

2026-07-28, server/prompts, and server/utilities, "Completion".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.capabilities import Icon
from genmcp.protocol.content import ContentBlock, Role
from genmcp.protocol.params import InputResponseRequestParams, RequestParams
from genmcp.protocol.value import PaginatedResult, Result, Value

__all__ = [
    "CompleteRequestParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "GetPromptRequestParams",
    "GetPromptResult",
    "ListPromptsResult",
    "PromptArgument",
    "PromptDefinition",
    "PromptMessage",
    "PromptReference",
    "Reference",
    "ResourceTemplateReference",
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


class PromptReference(Value, tag_field="type", tag="ref/prompt"):
    """The prompt that has the argument to complete."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Value, tag_field="type", tag="ref/resource"):
    """The resource template that has the variable to complete; *uri* is the template."""

    uri: str


Reference = PromptReference | ResourceTemplateReference


class CompletionArgument(Value):
    """The argument to complete, and the part of its value that the user has typed."""

    name: str
    value: str


class CompletionContext(Value):
    """The arguments that are already chosen."""

    arguments: Mapping[str, str] | None = None


class CompleteRequestParams(RequestParams):
    """The argument to complete, of a prompt or a resource template."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Value):
    """Up to 100 suggested values out of *total*, the most likely first."""

    values: Sequence[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """The suggested values of an argument."""

    completion: Completion
