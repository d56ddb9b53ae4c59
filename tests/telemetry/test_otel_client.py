"""OpenTelemetry of a client: its spans, its metrics, and the trace context that it sends on."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from genmcp import Client, ClientOptions, Endpoint, InvalidParams, Mux, ServerError, Suite, tool
from genmcp.telemetry.client import ClientTelemetry, SentRequest
from genmcp.telemetry.otel import OpenTelemetry
from genmcp.telemetry.otel_client import OpenTelemetryClient
from tests.support.serving import serve

REVISIONS = ["2026-07-28", "2025-06-18"]


@tool
async def echo(text: str) -> str:
    """Returns its argument, or fails."""
    match text:
        case "failed":
            raise ValueError("a secret")
        case "params":
            raise InvalidParams("no such part")
        case "baggage":
            return str(baggage.get_baggage("tenant"))
    return text


class Traced:
    """A client and a server of one tracer provider, and their spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.telemetry = OpenTelemetryClient(self.provider, MeterProvider([self.reader]))
        suite = Suite(name="test", version="1", tools=[echo])
        self.mux = Mux(suite, telemetry=OpenTelemetry(self.provider))

    def client(self, target: Any = None, revision: str | None = None) -> Client:
        options = ClientOptions(telemetry=self.telemetry, revision=revision)
        return Client(target or self.mux, options=options)

    def span(self, kind: SpanKind, name: str = "tools/call echo") -> ReadableSpan:
        spans = self.exporter.get_finished_spans()
        (found,) = [span for span in spans if (span.kind, span.name) == (kind, name)]
        return found

    def durations(self, name: str) -> list[tuple[dict[str, Any], int]]:
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "count", 0))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.provider.shutdown()


@pytest.mark.parametrize("revision", REVISIONS)
async def test_call_on_the_server_is_a_child_of_the_client(traced: Traced, revision: str) -> None:
    """And that of the client a child of the current span; baggage is sent along."""
    tracer = trace.get_tracer("host", tracer_provider=traced.provider)
    async with traced.client(revision=revision) as client:
        with tracer.start_as_current_span("agent") as agent:
            token = context.attach(baggage.set_baggage("tenant", "acme"))
            result = await client.call("echo", {"text": "baggage"})
            context.detach(token)

    assert result.content[0].text == "acme"  # type: ignore[union-attr]
    sent, served = traced.span(SpanKind.CLIENT), traced.span(SpanKind.SERVER)
    assert sent.parent == agent.get_span_context()
    assert sent.context and served.parent
    assert served.parent.span_id == sent.context.span_id
    assert served.parent.trace_id == agent.get_span_context().trace_id


async def test_client_measures_its_requests(traced: Traced) -> None:
    """With the address of the server, and the name of the tool."""
    async with serve(Endpoint(traced.mux)) as url, traced.client(f"{url}/mcp") as client:
        await client.call("echo", {"text": "hi"})
        await client.call("echo", {"text": "failed"})
        with pytest.raises(ServerError):
            await client.call("echo", {"text": "params"})

    call = {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "server.address": "127.0.0.1",
        "server.port": int(url.rpartition(":")[2]),
    }
    found = traced.durations("mcp.client.operation.duration")
    calls = [each for each in found if each[0]["mcp.method.name"] == "tools/call"]
    assert calls == [
        (call, 1),
        ({**call, "error.type": "tool_error"}, 1),
        ({**call, "error.type": "-32602", "rpc.response.status_code": "-32602"}, 1),
    ]
    assert traced.durations("mcp.client.session.duration") == []


async def test_client_measures_legacy_sessions(traced: Traced) -> None:
    """From the handshake until the connection is closed."""
    async with traced.client(revision="2025-06-18") as client:
        await client.tools()
        assert traced.durations("mcp.client.session.duration") == []

    assert traced.durations("mcp.client.session.duration") == [
        ({"mcp.protocol.version": "2025-06-18"}, 1)
    ]


async def test_span_of_a_failed_request_has_the_error(traced: Traced) -> None:
    """With the message of the server, and its code."""
    async with traced.client() as client:
        with pytest.raises(ServerError):
            await client.call("echo", {"text": "params"})

    span = traced.span(SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.ERROR
    assert "no such part" in (span.status.description or "")
    assert dict(span.attributes or {})["rpc.response.status_code"] == "-32602"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_trace_context_of_the_caller_takes_precedence(traced: Traced, revision: str) -> None:
    """A proxy, such as a hub, passes on that of its own client."""
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with traced.client(revision=revision) as client:
        await client.request(
            "tools/call",
            {"name": "echo", "arguments": {"text": "hi"}, "_meta": {"traceparent": parent}},
        )

    served = traced.span(SpanKind.SERVER)
    assert served.parent and f"{served.parent.span_id:016x}" == "00f067aa0ba902b7"


async def test_telemetry_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged. The methods get the request as it was sent."""
    seen: list[SentRequest] = []

    class Broken(ClientTelemetry):
        def request_began(self, request: SentRequest) -> None:
            seen.append(request)
            raise KeyError("began")

        def trace_context(self, mark: Any) -> Mapping[str, str]:
            raise KeyError("trace")

    suite = Suite(name="test", version="1", tools=[echo])
    caplog.set_level(logging.ERROR, "genmcp.client")
    async with Client(suite, options=ClientOptions(telemetry=Broken())) as client:
        await client.call("echo", {"text": "hi"})

    assert ("tools/call", "echo") in [(each.method, each.name) for each in seen]
    assert "telemetry:" in caplog.text
