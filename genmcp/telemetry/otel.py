"""OpenTelemetry spans of requests, by the semantic conventions for MCP (extra `otel`)."""

from collections.abc import Mapping
from contextvars import Token

from genmcp._mux.telemetry import JobAttempt, Rejection, RequestFailure, Resumed, Telemetry
from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.extras import missing_extra
from genmcp.protocol.prompts import GetPromptRequestParams
from genmcp.protocol.resources import ReadResourceRequestParams
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.protocol.value import Result
from genmcp.telemetry.conventions import (
    HTTP,
    failure_attributes,
    job_attributes,
    job_error_type,
    method_name,
    request_attributes,
)

try:
    from opentelemetry import baggage, context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise missing_extra("OpenTelemetry", "otel", error) from error

__all__ = ["OpenTelemetry"]

Mark = tuple[Span, Context, Token[Context]]


class OpenTelemetry(Telemetry):
    """Creates a server span for each request, current while its hook runs.

    A call that has become a task, or waited for a job, has a consumer span for each later step and
    for each attempt at a job, in whichever process they run. Their parent is the span of the call.

    The parent of a span is read from `traceparent` and `tracestate` in the `_meta` of the request
    (SEP-414). Then the current span of the host application is linked. Without `traceparent`, the
    host's span is the parent. `baggage` in `_meta` is added to the baggage of the host. The global
    propagators read all three values.

    Args:
        provider: the tracer provider. Default: the global one.
        attributes: further attributes of every span. Default: those of the HTTP transport.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, attributes: Mapping[str, str] = HTTP
    ) -> None:
        self._tracer = trace.get_tracer("genmcp", tracer_provider=provider)
        self._attributes = dict(attributes)

    def request_began(self, request: Request, channel: Channel) -> Mark:
        """Start the span, and make it the current one."""
        ambient = context.get_current()
        parent = _parent(request, ambient)
        name, attributes = self._describe(request)
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, attributes, links=_links(parent, ambient)
        )
        return _attached(span, parent)

    def request_ended(self, request: Request, result: Result, mark: Mark) -> None:
        """End the span."""
        _end(mark)

    def request_failed(self, request: Request, failure: RequestFailure, mark: Mark) -> None:
        """Record the failure in the span, and end it."""
        _set_failure(mark[0], failure)
        _end(mark)

    def trace_context(self, mark: Mark) -> Mapping[str, str]:
        """Return what the propagators inject for the span and the baggage of the request."""
        carrier: dict[str, str] = {}
        # Not from the current context: a call may be promoted by a timer.
        propagate.inject(carrier, mark[1])
        return carrier

    def resume_began(self, request: Request, trace: Mapping[str, str] | None) -> Mark:
        """Start the span of the step, and make it the current one."""
        # A call that was stored without a trace context: by an earlier release, for example.
        parent = propagate.extract(trace, Context()) if trace else _parent(request, Context())
        name, attributes = self._describe(request)
        return self._consume(name, parent, attributes)

    def request_resumed(self, resumed: Resumed) -> None:
        """End the span of the step."""
        if resumed.failure is not None:
            _set_failure(resumed.mark[0], resumed.failure)
        _end(resumed.mark)

    def resume_repeated(self, mark: Mark) -> None:
        """End the span of the step."""
        _end(mark)

    def job_began(self, job: JobAttempt) -> Mark:
        """Start the span of the attempt, and make it the current one."""
        own: dict[str, str | int] = {"genmcp.job.id": job.id, "genmcp.job.attempt": job.number}
        parent = propagate.extract(job.trace or {}, Context())
        return self._consume(f"job {job.name}", parent, {**own, **job_attributes(job)})

    def job_ended(self, job: JobAttempt, error: BaseException | None, mark: Mark) -> None:
        """End the span of the attempt."""
        if error is not None:
            set_error(mark[0], {"error.type": job_error_type(error)}, str(error))
        _end(mark)

    def _consume(self, name: str, parent: Context, attributes: Mapping[str, str | int]) -> Mark:
        # The current span of this process belongs to other work, so it is not a parent.
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes)
        return _attached(span, parent)

    def request_rejected(self, rejection: Rejection) -> None:
        """Create a span without duration. Its name is the method, or `_OTHER` if MCP lacks it."""
        method, error = method_name(rejection.method), rejection.error
        attributes = {**self._attributes, "mcp.method.name": method}
        if rejection.id is not None:
            attributes["jsonrpc.request.id"] = str(rejection.id)
        if rejection.session is not None:
            attributes["mcp.session.id"] = rejection.session
        span = self._tracer.start_span(method, None, SpanKind.SERVER, attributes)
        _set_failure(span, RequestFailure(kind="error", code=error.code, message=error.message))
        span.end()

    def _describe(self, request: Request) -> tuple[str, Mapping[str, str]]:
        """Return the name and the attributes of the span of *request*."""
        params, name = request.params, None
        if isinstance(params, CallToolRequestParams | GetPromptRequestParams):
            name = params.name
        attributes = {
            **self._attributes,
            **request_attributes(method_name(request.method), request.revision.version, name),
            "jsonrpc.request.id": str(request.id),
        }
        if request.session is not None:
            attributes["mcp.session.id"] = request.session
        if isinstance(params, ReadResourceRequestParams):
            # Not in the name of the span: there may be any number of URIs.
            attributes["mcp.resource.uri"] = params.uri
        method = method_name(request.method)
        return f"{method} {name}" if name else method, attributes


def _attached(span: Span, parent: Context) -> Mark:
    own = trace.set_span_in_context(span, parent)
    return span, own, context.attach(own)


def _end(mark: Mark) -> None:
    span, _, token = mark
    context.detach(token)
    span.end()


def _parent(request: Request, ambient: Context) -> Context:
    meta = request.params.meta
    carrier = {
        name: value
        for name in ("traceparent", "tracestate", "baggage")
        if (value := getattr(meta, name)) is not None
    }
    if not carrier:
        return ambient
    extracted = propagate.extract(carrier, ambient)
    # The host's own entries win, so that a client cannot change them.
    for name, value in baggage.get_all(ambient).items():
        extracted = baggage.set_baggage(name, value, extracted)
    return extracted


def _links(parent: Context, ambient: Context) -> list[Link]:
    host_span = trace.get_current_span(ambient).get_span_context()
    parent_span = trace.get_current_span(parent).get_span_context()
    is_other = host_span.is_valid and host_span != parent_span
    return [Link(host_span)] if is_other else []


def _set_failure(span: Span, failure: RequestFailure) -> None:
    if failure.raised is not None and failure.kind != "cancelled":
        span.record_exception(failure.raised)
    set_error(span, failure_attributes(failure), failure.message)


def set_error(span: Span, attributes: Mapping[str, str], message: str) -> None:
    """Set the *attributes* of a failure, and the status of *span* unless a client is at fault."""
    span.set_attributes(attributes)
    if "error.type" in attributes:
        span.set_status(Status(StatusCode.ERROR, message))
