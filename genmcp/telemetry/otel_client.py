"""OpenTelemetry spans and metrics of a client, by the conventions for MCP (extra `otel`)."""

import time
from collections.abc import Mapping
from contextvars import Token
from typing import NamedTuple
from urllib.parse import urlsplit

from genmcp._mux.telemetry import RequestFailure
from genmcp.telemetry.client import ClientTelemetry, SentRequest
from genmcp.telemetry.conventions import HTTP, request_attributes
from genmcp.telemetry.metrics import duration_histogram
from genmcp.telemetry.otel import set_error

# isort: split
# After the modules that name the extra if it is missing.
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, TracerProvider

__all__ = ["OpenTelemetryClient"]


class _Sent(NamedTuple):
    span: Span
    token: Token[Context]
    began: float
    attributes: dict[str, str | int]


class OpenTelemetryClient(ClientTelemetry):
    """Creates a client span for each request, and measures its duration.

        client = Client(url, options=ClientOptions(telemetry=OpenTelemetryClient()))

    The span is a child of the current one. The global propagators write it to the `_meta` of the
    request, as `traceparent`, `tracestate` and `baggage` (SEP-414), so that the server's span
    becomes its child. Baggage is sent to the server: it must contain no secrets.

    Instruments:
        mcp.client.operation.duration: seconds from the start of a request to its response.
        mcp.client.session.duration: seconds for which a connection with a legacy session was open.

    Args:
        tracer_provider: the tracer provider. Default: the global one.
        meter_provider: the meter provider. Default: the global one.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("genmcp", tracer_provider=tracer_provider)
        meter = metrics.get_meter("genmcp", meter_provider=meter_provider)
        self._operations = duration_histogram(
            meter,
            "mcp.client.operation.duration",
            "The duration of the MCP request or notification as observed on the sender from the "
            "time it was sent until the response or ack is received.",
        )
        self._sessions = duration_histogram(
            meter,
            "mcp.client.session.duration",
            "The duration of the MCP session as observed on the MCP client.",
        )

    def request_began(self, request: SentRequest) -> _Sent:
        """Start the span, and make it the current one."""
        attributes: dict[str, str | int] = {
            **_connection_attributes(request.server, request.revision),
            **request_attributes(request.method, request.revision, request.name),
        }
        # The URI is an attribute of the span only: there may be any number of them.
        uri = {} if request.uri is None else {"mcp.resource.uri": request.uri}
        name = f"{request.method} {request.name}" if request.name else request.method
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes={**attributes, **uri})
        token = context.attach(trace.set_span_in_context(span))
        return _Sent(span, token, time.perf_counter(), attributes)

    def trace_context(self, mark: _Sent) -> Mapping[str, str]:
        """Return what the propagators inject for the current context."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier

    def request_ended(
        self, request: SentRequest, failure: RequestFailure | None, mark: _Sent
    ) -> None:
        """End the span, and record the duration."""
        span, token, began, attributes = mark
        seconds = time.perf_counter() - began
        context.detach(token)
        if failure is not None:
            error = _error_attributes(failure)
            attributes |= error
            set_error(span, error, failure.message)
        span.end()
        self._operations.record(seconds, attributes)

    def session_ended(self, server: str, revision: str, seconds: float) -> None:
        """Record the duration."""
        self._sessions.record(seconds, _connection_attributes(server, revision))


def _error_attributes(failure: RequestFailure) -> dict[str, str]:
    if failure.code is not None:
        return {"error.type": str(failure.code), "rpc.response.status_code": str(failure.code)}
    if failure.kind == "error" and failure.raised is not None:
        return {"error.type": type(failure.raised).__name__}
    return {"error.type": failure.kind}


def _connection_attributes(server: str, revision: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"mcp.protocol.version": revision}
    url = urlsplit(server)
    if url.scheme not in ("http", "https"):
        return attributes
    attributes |= HTTP
    if url.hostname:
        attributes["server.address"] = url.hostname
        attributes["server.port"] = url.port or (443 if url.scheme == "https" else 80)
    return attributes
