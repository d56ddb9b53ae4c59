"""Completion of arguments: 2026-07-28, server/utilities, "Completion"."""

from collections.abc import Mapping, Sequence

from genmcp.protocol.params import RequestParams
from genmcp.protocol.value import Result, Value

__all__ = [
    "CompleteRequestParams",
    "CompleteResult",
    "Completion",
    "CompletionArgument",
    "CompletionContext",
    "PromptReference",
    "Reference",
    "ResourceTemplateReference",
]


class PromptReference(Value, tag_field="type", tag="ref/prompt"):
    """The prompt of the argument."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Value, tag_field="type", tag="ref/resource"):
    """The resource template of the variable; *uri* is the template."""

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
