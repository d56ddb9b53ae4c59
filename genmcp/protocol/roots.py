"""Where the client lets the server work: 2026-07-28, client/roots (deprecated there)."""

from collections.abc import Mapping, Sequence
from typing import Any

from genmcp.protocol.value import Value

__all__ = ["ListRootsRequest", "ListRootsRequestParams", "ListRootsResult", "Root"]


class ListRootsRequestParams(Value):
    """Nothing but `_meta`."""

    meta: Mapping[str, Any] | None = None


class ListRootsRequest(Value, tag_field="method", tag="roots/list"):
    """Asks for the roots."""

    params: ListRootsRequestParams | None = None


class Root(Value):
    """A folder or file; *uri* begins with `file://`."""

    uri: str
    name: str | None = None
    meta: Mapping[str, Any] | None = None


class ListRootsResult(Value):
    """The roots."""

    roots: Sequence[Root]
