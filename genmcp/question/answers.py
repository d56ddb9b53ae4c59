"""What the client answers: to a form or a URL what its user did, else a value of the protocol."""

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, Literal, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.schema.of_type import decoder_of, schema_of
from genmcp.schema.schema import Schema

__all__ = ["Accepted", "Cancelled", "Declined", "Elicited", "elicited", "read_as"]

T = TypeVar("T", default=Any)


class Accepted(msgspec.Struct, Generic[T], frozen=True):
    """The user agreed. *content* is what they filled in; None where they were sent to a URL.

    To a URL they have only agreed to go: what they do there the client does not tell
    (2026-07-28, client/elicitation, "URL Mode Elicitation Requests").
    """

    content: T = None  # type: ignore[assignment]  # None is what a URL has


class Declined(msgspec.Struct, frozen=True):
    """The user said no."""


class Cancelled(msgspec.Struct, frozen=True):
    """The user chose neither: closed the dialog, say. The specification's `cancel`."""


Elicited: TypeAlias = Accepted[Any] | Declined | Cancelled


class _ElicitResult(msgspec.Struct):
    """ElicitResult before its content, of which only what is accepted counts, is looked at."""

    action: Literal["accept", "decline", "cancel"]
    content: Any = None


def elicited(answer: Any, content: Callable[[Any], Any]) -> Elicited:
    """Return what the user did, by the ElicitResult *answer*; *content* reads what they filled in.

    Raises:
        ArgumentFaults: it is no ElicitResult, or as *content* does.
    """
    result = read_as(_ElicitResult, answer)
    match result.action:
        case "accept":
            return Accepted(content(result.content))
        case "decline":
            return Declined()
        case _:
            return Cancelled()


K = TypeVar("K")


def read_as(kind: type[K], answer: Any) -> K:
    """Return *answer*, JSON as it was decoded, as a *kind*.

    Raises:
        ArgumentFaults: it is none.
    """
    value: K = _decoder_of(kind)(msgspec.json.encode(answer))  # type: ignore[arg-type]  # it is hashable
    return value


@cache
def _decoder_of(kind: Any) -> Callable[[bytes], Any]:
    return decoder_of(kind, Schema(schema_of(kind), origin=kind.__name__))
