"""OpenTelemetry spans of requests, by the semantic conventions for MCP (extra `otel`).

The conventions (open-telemetry/semantic-conventions-genai, "Semantic conventions for Model Context
Protocol", in development) say what a server span is called and what is written to it.
"""

from collections.abc import Mapping
from contextvars import Token
from typing import Final

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.mux.telemetry import Rejection, RequestFailure, Resumed, Telemetry
from genmcp.protocol.prompts import GetPromptRequestParams
from genmcp.protocol.resources import ReadResourceRequestParams
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.protocol.value import Result

__all__ = ["OpenTelemetry"]

HTTP: Final = {"network.transport": "tcp", "network.protocol.name": "http"}

#: The caller's own faults are no errors of the server (conventions, `rpc.response.status_code`).
_FAULTS_OF_CLIENTS: Final = frozenset({-32700, -32600, -32601, -32602, -32002})

_METHODS: Final = frozenset(name for each in REVISIONS.values() for name in each.methods)
_UNKNOWN_METHOD: Final = "_OTHER"

Mark = tuple[Span, Token[Context]]


class OpenTelemetry(Telemetry):
    """Makes a server span of each request, which is the current one while its hook runs.

    A call that goes on where nobody requests it has a consumer span for each time that it does.

    provider: makes the spans; default: the global one. attributes: what every span carries
    besides; by default that the transport is HTTP.

    The parent is what `traceparent` and `tracestate` in the request's `_meta` say (SEP-414), and
    the host's current span is then linked; where they say nothing the host's is the parent.
    `baggage` joins the current one. Both are read by the global propagators.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, attributes: Mapping[str, str] = HTTP
    ) -> None:
        self._tracer = trace.get_tracer("genmcp", tracer_provider=provider)
        self._attributes = dict(attributes)

    def request_began(self, request: Request, channel: Channel) -> Mark:
        """Begin the span, and make it the current one."""
        ambient = context.get_current()
        target, attributes = _asked(request)
        parent = _parent(request, ambient)
        span = self._tracer.start_span(
            f"{request.method} {target}" if target else request.method,
            context=parent,
            kind=SpanKind.SERVER,
            attributes={**self._attributes, **attributes},
            links=_links(parent, ambient),
        )
        return span, context.attach(trace.set_span_in_context(span, parent))

    def request_ended(self, request: Request, result: Result, mark: Mark) -> None:
        """End the span."""
        span, token = mark
        context.detach(token)
        span.end()

    def request_failed(self, request: Request, failure: RequestFailure, mark: Mark) -> None:
        """Say in the span how it failed, and end it."""
        span, token = mark
        context.detach(token)
        _set_failure(span, failure)
        span.end()

    def request_resumed(self, resumed: Resumed) -> None:
        """Make a span of the time that it took, with the parent that the request names."""
        target, attributes = _asked(resumed.request)
        began = int(resumed.began * 1e9)
        span = self._tracer.start_span(
            f"{resumed.request.method} {target}" if target else resumed.request.method,
            context=_parent(resumed.request, Context()),  # what runs around it is another's
            kind=SpanKind.CONSUMER,
            attributes={**self._attributes, **attributes},
            start_time=began,
        )
        if resumed.failure is not None:
            _set_failure(span, resumed.failure)
        span.end(began + int(resumed.seconds * 1e9))

    def request_rejected(self, rejection: Rejection) -> None:
        """Make a span of no length, named by the method if that is one of MCP."""
        method = rejection.method if rejection.method in _METHODS else None
        attributes: dict[str, str] = {"mcp.method.name": method or _UNKNOWN_METHOD}
        if rejection.id is not None:
            attributes["jsonrpc.request.id"] = str(rejection.id)
        if rejection.session is not None:
            attributes["mcp.session.id"] = rejection.session
        span = self._tracer.start_span(
            method or _UNKNOWN_METHOD,
            kind=SpanKind.SERVER,
            attributes={**self._attributes, **attributes},
        )
        _set_code(span, rejection.error.code, rejection.error.message)
        span.end()


def _asked(request: Request) -> tuple[str | None, dict[str, str]]:
    """Return what a span is named after besides its method, if anything, and its attributes."""
    attributes = {
        "mcp.method.name": request.method,
        "mcp.protocol.version": request.revision.version,
        "jsonrpc.request.id": str(request.id),
    }
    if request.session is not None:
        attributes["mcp.session.id"] = request.session
    match request.params:
        case CallToolRequestParams(name=name):
            attributes |= {"gen_ai.tool.name": name, "gen_ai.operation.name": "execute_tool"}
            return name, attributes
        case GetPromptRequestParams(name=name):
            attributes["gen_ai.prompt.name"] = name
            return name, attributes
        case ReadResourceRequestParams(uri=uri):
            attributes["mcp.resource.uri"] = uri  # there may be any number: no name for a span
    return None, attributes


def _parent(request: Request, ambient: Context) -> Context:
    meta = request.params.meta
    carrier = {
        name: value
        for name in ("traceparent", "tracestate", "baggage")
        if (value := getattr(meta, name)) is not None
    }
    if not carrier:
        return ambient
    said = propagate.extract(carrier, ambient)
    for name, value in baggage.get_all(ambient).items():  # a client changes none of the host's
        said = baggage.set_baggage(name, value, said)
    return said


def _links(parent: Context, ambient: Context) -> list[Link]:
    of_host = trace.get_current_span(ambient).get_span_context()
    of_parent = trace.get_current_span(parent).get_span_context()
    return [Link(of_host)] if of_host.is_valid and of_host != of_parent else []


def _set_failure(span: Span, failure: RequestFailure) -> None:
    if failure.raised is not None and failure.kind != "cancelled":
        span.record_exception(failure.raised)
    if failure.code is None:
        _set_error(span, failure.kind, failure.message)
    else:
        _set_code(span, failure.code, failure.message)


def _set_code(span: Span, code: int, message: str) -> None:
    span.set_attribute("rpc.response.status_code", str(code))
    if code not in _FAULTS_OF_CLIENTS:
        _set_error(span, str(code), message)


def _set_error(span: Span, type: str, message: str) -> None:
    span.set_attribute("error.type", type)
    span.set_status(Status(StatusCode.ERROR, message))
