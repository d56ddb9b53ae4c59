"""Completion of arguments while they are typed: 2026-07-28, server/utilities, "Completion"."""

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
    """The prompt whose argument is completed."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Value, tag_field="type", tag="ref/resource"):
    """The resource template whose variable is completed; *uri* is the template."""

    uri: str


Reference = PromptReference | ResourceTemplateReference


class CompletionArgument(Value):
    """The argument that is typed, and its value so far."""

    name: str
    value: str


class CompletionContext(Value):
    """The arguments that are complete already."""

    arguments: Mapping[str, str] | None = None


class CompleteRequestParams(RequestParams):
    """What to complete."""

    ref: Reference
    argument: CompletionArgument
    context: CompletionContext | None = None


class Completion(Value):
    """Up to 100 values, the likeliest first, out of *total*."""

    values: Sequence[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """How the argument may go on."""

    completion: Completion
