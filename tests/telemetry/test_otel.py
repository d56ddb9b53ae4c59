"""OpenTelemetry spans of requests, as the semantic conventions for MCP want them."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from genmcp import (
    Continue,
    Endpoint,
    InvalidParams,
    JobOptions,
    Mux,
    Resource,
    Run,
    Suite,
    Tool,
    ToolError,
    job,
    prompt,
    tool,
)
from genmcp.telemetry.otel import OpenTelemetry
from tests.support.asgi import TASKS, Client, until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@tool
async def echo(text: str) -> str:
    """Returns its argument, or fails."""
    match text:
        case "tool error":
            raise ToolError("out of stock")
        case "params":
            raise InvalidParams("no such part")
        case "secret":
            raise RuntimeError("a secret")
        case "baggage":
            return str(sorted(baggage.get_all().items()))
        case "span":
            return f"{trace.get_current_span().get_span_context().span_id:016x}"
    return text


@tool
def in_thread() -> str:
    """Returns the current span in the thread of a hook."""
    return f"{trace.get_current_span().get_span_context().span_id:016x}"


seen_by_job: list[str] = []  # the id of the current span in the last run of the job


@job(name="otel.work")
async def work(run: Run) -> None:
    seen_by_job[:] = [f"{trace.get_current_span().get_span_context().span_id:016x}"]


class Works(Tool):
    """Waits for a job, and fails as requested."""

    name = "works"

    def call(self, request: Any, channel: Any) -> Continue:
        return Continue("worked", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return await echo(**channel.request.arguments)


@prompt
async def greet() -> str:
    """Greets."""
    return "Hello."


@pytest.mark.parametrize("module", ["otel", "metrics", "otel_client"])
def test_missing_extra_is_named(module: str) -> None:
    """With the command that installs it."""
    code = f"import sys; sys.modules['opentelemetry'] = None;from genmcp.telemetry import {module}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert 'ConfigurationError: OpenTelemetry needs an extra: pip install "genmcp[otel]"' in (
        found.stderr
    )


class Spans:
    """An endpoint with telemetry, and the spans it has made."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        suite = Suite(
            name="test",
            version="1",
            tools=[echo, in_thread, Works],
            resources=[Resource("docs://a", name="a", content="text")],
            prompts=[greet],
        )
        mux = Mux(suite, telemetry=OpenTelemetry(self.provider), **options)
        self.endpoint = Endpoint(mux)

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def one(self) -> ReadableSpan:
        (span,) = self.all
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def text_of(answer: Any) -> str:
    found: str = answer.json["result"]["content"][0]["text"]
    return found


async def test_otel_span_has_name_and_attributes(spans: Spans) -> None:
    """The name has the method and the tool; the attributes are those of the conventions."""
    client = Client(spans.endpoint)

    await client.send(client.call("echo", {"text": "hi"}, id="seven"))

    span = spans.one
    assert (span.name, span.kind) == ("tools/call echo", SpanKind.SERVER)
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "jsonrpc.request.id": "seven",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
        "network.protocol.name": "http",
    }
    assert span.status.status_code == StatusCode.UNSET
    assert span.parent is None


async def test_otel_names_sessions_prompts_and_resources(spans: Spans) -> None:
    """A URI is an attribute, and no part of the name: there may be any number of them."""
    client = await Client.begin(spans.endpoint, "2025-11-25")

    await client.send(client.request("prompts/get", {"name": "greet"}))
    await client.send(client.request("resources/read", {"uri": "docs://a"}))
    await client.send(client.request("tools/list"))

    named = [(span.name, dict(span.attributes or {})) for span in spans.all]
    assert [name for name, _ in named] == ["prompts/get greet", "resources/read", "tools/list"]
    assert named[0][1]["gen_ai.prompt.name"] == "greet"
    assert named[1][1]["mcp.resource.uri"] == "docs://a"
    sessions = {each["mcp.session.id"] for _, each in named}
    assert len(sessions) == 1
    assert str(sessions.pop()) not in str(client.session)


async def test_otel_parent_from_meta_links_the_host_span(spans: Spans) -> None:
    """SEP-414: the span of the client is the parent, not that of the HTTP request."""
    client = Client(spans.endpoint)
    meta = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "rojo=1"}

    with spans.provider.get_tracer("host").start_as_current_span("POST /mcp") as host:
        await client.send(client.call("echo", {"text": "hi"}, **meta))
        after = trace.get_current_span()

    call, http = spans.all
    assert call.parent is not None
    assert (f"{call.context.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    assert call.context.trace_state.get("rojo") == "1"
    assert [http.context] == [link.context for link in call.links]
    assert after is host


async def test_otel_parent_is_the_host_span_by_default(spans: Spans) -> None:
    """A parent that cannot be read counts as none; a parent is not linked besides."""
    client = Client(spans.endpoint)

    with spans.provider.get_tracer("host").start_as_current_span("POST /mcp"):
        await client.send(client.call("echo", {"text": "hi"}))
        await client.send(client.call("echo", {"text": "hi"}, traceparent="nonsense"))

    first, second, http = spans.all
    for call in (first, second):
        assert call.parent is not None
        assert http.context.span_id == call.parent.span_id
        assert tuple(call.links) == ()


async def test_otel_span_is_current_in_the_hook(spans: Spans) -> None:
    """In the event loop and in the thread of a `def`; and not any more after the call."""
    client = Client(spans.endpoint)

    logged = [
        text_of(await client.send(client.call("echo", {"text": "span"}))),
        text_of(await client.send(client.call("in_thread"))),
    ]

    assert logged == [f"{span.context.span_id:016x}" for span in spans.all]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_otel_gives_the_hook_the_baggage(spans: Spans) -> None:
    """The client's joins the host's, and replaces nothing of it."""
    client = Client(spans.endpoint)
    token = context.attach(baggage.set_baggage("tenant", "mine"))

    try:
        answer = await client.send(
            client.call("echo", {"text": "baggage"}, baggage="tenant=yours,user=ada")
        )
    finally:
        context.detach(token)

    assert text_of(answer) == "[('tenant', 'mine'), ('user', 'ada')]"


@pytest.mark.parametrize(
    ("text", "status", "error", "code"),
    [
        ("tool error", StatusCode.ERROR, "tool_error", None),
        ("secret", StatusCode.ERROR, "tool_error", None),
        ("params", StatusCode.UNSET, None, "-32602"),
    ],
)
async def test_otel_records_failures(
    text: str, status: StatusCode, error: str | None, code: str | None, spans: Spans, caplog: Any
) -> None:
    """An error of the client is recorded, but not as an error of the server."""
    caplog.set_level(logging.CRITICAL)
    client = Client(spans.endpoint)

    await client.send(client.call("echo", {"text": text}))

    attributes = dict(spans.one.attributes or {})
    assert status is spans.one.status.status_code
    assert (error, code) == (
        attributes.get("error.type"),
        attributes.get("rpc.response.status_code"),
    )
    (event,) = spans.one.events
    assert event.name == "exception"


async def test_otel_records_server_errors(spans: Spans, caplog: Any) -> None:
    """An internal error is one; its description is the text that the client got."""
    caplog.set_level(logging.CRITICAL)

    @prompt
    async def broken() -> str:
        """Breaks."""
        raise RuntimeError("a secret")

    suite = Suite(name="test", version="1", prompts=[broken])
    client = Client(Endpoint(Mux(suite, telemetry=OpenTelemetry(spans.provider))))

    answer = await client.send(client.request("prompts/get", {"name": "broken"}))

    span = spans.one
    assert dict(span.attributes or {})["error.type"] == "-32603"
    assert answer.json["error"]["message"] == span.status.description


async def test_otel_records_cancelled_calls(spans: Spans) -> None:
    """Its span ends, and has the reason."""
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()

    suite = Suite(name="test", version="1", tools=[wait])
    client = Client(Endpoint(Mux(suite, telemetry=OpenTelemetry(spans.provider, attributes={}))))

    async with client.open(client.call("wait")) as connection:
        await asyncio.wait_for(begun.wait(), 5)
        connection.disconnect()
        await connection.over()

    attributes = dict(spans.one.attributes or {})
    assert attributes["error.type"] == "cancelled"
    assert "network.transport" not in attributes
    assert tuple(spans.one.events) == ()


async def test_otel_records_rejections(spans: Spans) -> None:
    """By its method if MCP defines it: an arbitrary method must not name a span."""
    client = await Client.begin(spans.endpoint, "2025-11-25")

    await client.send(client.call("nothing", id=1))
    await client.send(body=[b"{"], headers={"mcp-method": "made/up"})

    first, second = spans.all
    assert (first.name, second.name) == ("tools/call", "_OTHER")
    attributes = dict(first.attributes or {})
    assert (
        attributes["jsonrpc.request.id"],
        attributes["rpc.response.status_code"],
    ) == ("1", "-32602")
    assert attributes["mcp.session.id"]
    assert dict(second.attributes or {})["mcp.method.name"] == "_OTHER"


@pytest.mark.parametrize("text", ["hi", "secret"])
async def test_otel_later_steps_are_children_of_the_call(spans: Spans, text: str) -> None:
    """A job and the step after it belong to the trace of the client, in any process."""
    client = Client(spans.endpoint, capabilities=TASKS)

    parent = f"00-{TRACE}-{PARENT}-01"
    await client.send(client.call("works", {"text": text}, traceparent=parent))
    await until(lambda: len(spans.all) == 3, pause=0.005)
    await spans.endpoint.mux.aclose()

    (request,) = [span for span in spans.all if span.kind is SpanKind.SERVER]
    assert request.name == "tools/call works"
    assert request.parent and f"{request.parent.span_id:016x}" == PARENT
    later = {span.name: span for span in spans.all if span.kind is SpanKind.CONSUMER}
    for span in later.values():
        assert span.context and span.parent and request.context
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.parent.span_id == request.context.span_id
    attempt, resumed = later["job otel.work"], later["tools/call works"]
    assert attempt.context and seen_by_job == [f"{attempt.context.span_id:016x}"]
    assert dict(attempt.attributes or {})["genmcp.job.attempt"] == 1
    assert resumed.start_time and resumed.end_time and resumed.start_time < resumed.end_time
    failed = StatusCode.ERROR if text == "secret" else StatusCode.UNSET
    assert failed == resumed.status.status_code
    assert (text == "secret") is bool(resumed.events)


async def test_otel_job_in_another_process_joins_the_trace(tmp_path: Path) -> None:
    """The trace context is in the record of the task. Without a client's, the server's counts."""
    shared = {"store": f"sqlite:///{tmp_path}/tasks.db", "secret": "of at least 16 bytes"}
    server = Spans(jobs=JobOptions(queues=("none",)), **shared)
    worker = Spans(**shared)
    client = Client(server.endpoint, capabilities=TASKS)
    try:
        await client.send(client.call("works", {"text": "hi"}))
        await worker.endpoint.mux.tasks.service.start()
        await until(lambda: any(span.name == "job otel.work" for span in worker.all), pause=0.01)
    finally:
        await server.endpoint.mux.aclose()
        await worker.endpoint.mux.aclose()

    call = next(span for span in server.all if span.kind is SpanKind.SERVER)
    attempt = next(span for span in worker.all if span.name == "job otel.work")
    assert call.context and attempt.context and attempt.parent
    assert attempt.context.trace_id == call.context.trace_id
    assert attempt.parent.span_id == call.context.span_id
