"""Params of requests and notifications, and their `_meta` (2026-07-28, basic, "General fields")."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import msgspec

from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.value import Number, Value, decoder_for

__all__ = [
    "CALLER",
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "ERROR_DATA",
    "IDEMPOTENCY_KEY",
    "LOG_LEVEL",
    "PROTOCOL_VERSION",
    "RESERVED",
    "SERVER_INFO",
    "SEVERITY",
    "SUBSCRIPTION_ID",
    "CancelledNotificationParams",
    "InputResponseRequestParams",
    "LoggingLevel",
    "LoggingMessageNotificationParams",
    "NotificationParams",
    "PaginatedRequestParams",
    "ProgressNotificationParams",
    "ProgressToken",
    "RequestId",
    "RequestMeta",
    "RequestParams",
    "all_meta",
]


#: The prefix of the `_meta` keys that are reserved for the specification.
RESERVED: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
#: In the `_meta` of each notification of a `subscriptions/listen` stream, and of its result.
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
#: In the `_meta` of each result.
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
# The keys of genmcp itself, for which the specification has no member: a result with `isError` has
# no `data`, a retried `tools/call` cannot be recognised by its request id, and a client that calls
# for others has one principal.
#: The `data` of an error, in the `_meta` of an `isError` result.
ERROR_DATA: Final = "io.genmcp/error"
#: Requests of one client that carry the same key are one request, sent again.
IDEMPOTENCY_KEY: Final = "io.genmcp/idempotencyKey"
#: For whom a hub makes the request, "" for an anonymous client; a part of idempotency keys.
CALLER: Final = "io.genmcp/caller"

RequestId = str | int
ProgressToken = str | int

LoggingLevel = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]

#: The rank of each level of RFC 5424; a greater number is more severe.
SEVERITY: Final[Mapping[LoggingLevel, int]] = MappingProxyType(
    {level: rank for rank, level in enumerate(get_args(LoggingLevel))}
)


class RequestMeta(
    Value,
    kw_only=True,
    rename={
        "progress_token": "progressToken",
        "protocol_version": PROTOCOL_VERSION,
        "client_info": CLIENT_INFO,
        "client_capabilities": CLIENT_CAPABILITIES,
        "log_level": LOG_LEVEL,
        "idempotency_key": IDEMPOTENCY_KEY,
        "caller": CALLER,
    },
):
    """The members of a request's `_meta` that genmcp interprets.

    Revision 2026-07-28 requires `protocol_version` and `client_capabilities`; older revisions
    have neither, so both are optional here and the dispatcher checks them. `traceparent`,
    `tracestate` and `baggage` are those of W3C Trace Context (2026-07-28, basic, "`_meta`").
    Other members are dropped; `all_meta` reads them from the undecoded params.
    """

    progress_token: ProgressToken | None = None
    protocol_version: str | None = None
    client_info: Implementation | None = None
    client_capabilities: ClientCapabilities | None = None
    log_level: LoggingLevel | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: str | None = None
    idempotency_key: str | None = None
    caller: str | None = None


class _AllMeta(Value):
    meta: Mapping[str, Any] = {}


def all_meta(params: bytes | msgspec.Raw) -> Mapping[str, Any]:
    """Return every member of the `_meta` of *params*, which are undecoded JSON.

    Raises:
        msgspec.ValidationError: `_meta` is not an object.
    """
    decoded: _AllMeta = decoder_for(_AllMeta).decode(params)
    return decoded.meta


# Shared by all requests without `_meta`, which saves an allocation for each.
_NO_META: Final = RequestMeta()


class RequestParams(Value, kw_only=True):
    """The members common to the params of all requests."""

    meta: RequestMeta = _NO_META


class PaginatedRequestParams(RequestParams, kw_only=True):
    """The params of every list request; *cursor* is the `next_cursor` of an earlier page."""

    cursor: str | None = None


class InputResponseRequestParams(RequestParams, kw_only=True):
    """The params of a request whose result may be an InputRequiredResult.

    2026-07-28, basic/patterns, "Multi Round-Trip Requests": the client sends the request again
    with a response under each key, and with the request state unchanged. The shape of a response
    depends on the input request of the same key.
    """

    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None


class NotificationParams(Value, kw_only=True):
    """The members common to the params of all notifications."""

    meta: Mapping[str, Any] | None = None


class ProgressNotificationParams(NotificationParams):
    """The progress of a request: 2026-07-28, basic/patterns, "Progress".

    *progress* increases with every notification, also where *total* is unknown.
    """

    progress_token: ProgressToken
    progress: Number
    total: Number | None = None
    message: str | None = None


class CancelledNotificationParams(NotificationParams):
    """The sender cancelled a request: 2026-07-28, basic/patterns, "Cancellation"."""

    request_id: RequestId
    reason: str | None = None


class LoggingMessageNotificationParams(NotificationParams):
    """A log message: 2026-07-28, server/utilities, "Logging". *data* is any JSON value."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
