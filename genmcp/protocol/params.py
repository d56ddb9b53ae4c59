"""What the params of all requests, of some, and of all notifications have."""

from collections.abc import Mapping
from typing import Any, Final

from genmcp.protocol.meta import RequestMeta
from genmcp.protocol.value import Value

__all__ = [
    "InputResponseRequestParams",
    "NotificationParams",
    "PaginatedRequestParams",
    "RequestParams",
]

_NO_META: Final = RequestMeta()


class RequestParams(Value, kw_only=True):
    """What the params of every request have, and all that those of some have."""

    meta: RequestMeta = _NO_META


class PaginatedRequestParams(RequestParams, kw_only=True):
    """The params of every list request; *cursor* is a `next_cursor` given before."""

    cursor: str | None = None


class InputResponseRequestParams(RequestParams, kw_only=True):
    """The params of a request whose result may be an InputRequiredResult.

    2026-07-28, basic/patterns, "Multi Round-Trip Requests": the client sends the request again
    with an answer under each key, and the state as it was. What an answer is depends on what
    was asked under its key.
    """

    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None


class NotificationParams(Value, kw_only=True):
    """What the params of every notification have, and all that those of some have."""

    meta: Mapping[str, Any] | None = None
