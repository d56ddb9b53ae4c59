"""What all results have, those that may be kept, and those that come in pages."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from genmcp.protocol.value import Value

__all__ = ["CacheScope", "CacheableResult", "PaginatedResult", "Result"]


class Result(Value, kw_only=True):
    """What every result has, and all that an empty one has.

    `result_type` is the `resultType` on the wire; it is the encoder that writes it, for the
    revisions that have it.
    """

    result_type: ClassVar[str] = "complete"

    meta: Mapping[str, Any] | None = None


CacheScope = Literal["public", "private"]


class CacheableResult(Result, kw_only=True):
    """A result that may be kept for `ttl_ms` milliseconds: 2026-07-28, "Caching".

    `cache_scope` is `"public"` only if nothing in it depends on who asked.
    """

    ttl_ms: int
    cache_scope: CacheScope


class PaginatedResult(CacheableResult, kw_only=True):
    """One page of a list; without `next_cursor` it is the last."""

    next_cursor: str | None = None
