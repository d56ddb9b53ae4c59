"""The base classes of all entities and results, and the names of their members on the wire."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, dataclass_transform

import msgspec

__all__ = [
    "CacheScope",
    "CacheableResult",
    "PaginatedResult",
    "Result",
    "Value",
    "decoder_for",
    "wire_name",
]


Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of a message. JSON has larger ones, for which arithmetic with floats raises
OverflowError, and which SQLite does not store."""

Number: TypeAlias = Integer | float
"""A number of a message."""


@cache
def wire_name(field: str) -> str:
    """Return the name of *field* on the wire: `_meta`, or its camelCase."""
    if field == "meta":
        return "_meta"
    first, *rest = field.split("_")
    return first + "".join(map(str.capitalize, rest))


# For type checkers, which otherwise treat the subclasses as mutable: msgspec inherits `frozen`.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, omit_defaults=True, rename=wire_name):
    """An object of the protocol: immutable, and equal to objects with equal members.

    A member that the specification requires has no default and is always sent. An optional member
    is None if it is absent, and is then not sent. Unknown members are ignored in decoding.
    """


@cache
def decoder_for(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of *type_*, which is made once and then cached.

    Its `decode` raises `msgspec.DecodeError` for a text that is not JSON, and
    `msgspec.ValidationError` for JSON of another shape.
    """
    return msgspec.json.Decoder(type_)


class Result(Value, kw_only=True):
    """The base class of all results. An instance of this class is an empty result.

    `result_type` is the `resultType` of the JSON object. The encoder writes this member, and only
    for revisions that define it.
    """

    result_type: ClassVar[str] = "complete"

    meta: Mapping[str, Any] | None = None


CacheScope = Literal["public", "private"]


class CacheableResult(Result, kw_only=True):
    """A result that a client may cache for `ttl_ms` milliseconds (2026-07-28, "Caching").

    `cache_scope` is `"public"` only if the result is the same for every client.
    """

    ttl_ms: Integer
    cache_scope: CacheScope


class PaginatedResult(CacheableResult, kw_only=True):
    """One page of a list; the last one has no `next_cursor`."""

    next_cursor: str | None = None
