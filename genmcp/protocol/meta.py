"""What goes with every message: `_meta`, 2026-07-28, basic, "General fields"."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.value import Value, decoder_for

__all__ = [
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "ERROR_DATA",
    "IDEMPOTENCY_KEY",
    "LOG_LEVEL",
    "PROTOCOL_VERSION",
    "RESERVED",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "ProgressToken",
    "RequestId",
    "RequestMeta",
    "all_meta",
]

PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
#: In the `_meta` of each notification of a `subscriptions/listen` stream, and of its result.
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
#: In the `_meta` of each result.
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
#: Not of the specification: the `data` of an error, in the `_meta` of an `isError` result.
ERROR_DATA: Final = "io.genmcp/error"
#: Not of the specification: a retried request with the same key is the same request.
IDEMPOTENCY_KEY: Final = "io.genmcp/idempotencyKey"

RequestId = str | int
RESERVED: Final = "io.modelcontextprotocol/"
"""The prefix of the keys of `_meta` that the specification gives a meaning."""

ProgressToken = str | int


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
    },
):
    """The members of a request's `_meta` that have a meaning here.

    2026-07-28 requires `protocol_version` and `client_capabilities`; older revisions have
    neither, so whoever takes the request checks. `traceparent`, `tracestate` and `baggage`
    are those of W3C Trace Context (2026-07-28, basic, "`_meta`"). Members of others are not
    kept: `all_meta` reads them from the params as they came.
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


class _AllMeta(Value):
    meta: Mapping[str, Any] = {}


def all_meta(params: bytes | msgspec.Raw) -> Mapping[str, Any]:
    """Return every member of the `_meta` of *params*, which are JSON as it came.

    Raises:
        msgspec.ValidationError: `_meta` is not an object.
    """
    decoded: _AllMeta = decoder_for(_AllMeta).decode(params)
    return decoded.meta
