"""A route with the metrics of a process for Prometheus (extra `prometheus`).

The format is that of OpenTelemetry's own exporter.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from genmcp._transports.endpoint import Endpoint, route_to
from genmcp._transports.request import ClientLeft, HttpRequest, Receive, Scope, Send
from genmcp.core.access import Access
from genmcp.errors import ConfigurationError, NotAllowed
from genmcp.server import Server
from genmcp.telemetry.metrics import OpenTelemetryMetrics

if TYPE_CHECKING:
    from starlette.routing import Route

__all__ = ["Prometheus"]

# The labels with the name of a tool or prompt. A job mostly has the name of its tool.
_NAMES: Final = ("gen_ai_tool_name", "gen_ai_prompt_name")
_JOB_NAME: Final = "genmcp_job_name"
_HIDDEN: Final = "hidden"  # in place of a name that the client cannot see


class Prometheus:
    """Collects the metrics of a process, and responds with them. It is an ASGI application.

        prometheus = Prometheus()
        endpoint = Endpoint(Mux(suite, telemetry=prometheus.telemetry))
        app = Starlette(routes=[endpoint.route("/mcp"), prometheus.route("/metrics")])

    Each process has metrics of its own: Prometheus has to read each of them. The names of tools and
    queues are in the metrics: a route without an endpoint must not be reachable from outside.

    Attributes:
        telemetry: measures the requests and jobs of muxes: `Mux(telemetry=...)`.
        provider: the meter provider, for further metrics of the application.
    """

    def __init__(self) -> None:
        # A registry of its own: that of the library also has metrics of other parts of the process.
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry)
        self.provider = MeterProvider([reader])
        self.telemetry = OpenTelemetryMetrics(self.provider)

    def route(self, path: str, *, endpoint: Endpoint | None = None) -> "Route":
        """Return a Starlette route that responds at *path*.

        Args:
            path: it begins with a slash.
            endpoint: the endpoint whose clients may read the metrics. A request needs a Host, an
                Origin and, with `auth=`, a token that the endpoint accepts. The names of tools and
                prompts that its client cannot see are replaced by "hidden". Default: everyone may
                read everything.

        Raises:
            ConfigurationError: the path does not begin with a slash.
        """
        app = self if endpoint is None else _GuardedMetrics(self._registry, endpoint)
        return route_to(app, path, name="metrics")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            raise ConfigurationError("Prometheus responds to HTTP requests only")
        await _respond(scope, send, await _collect(self._registry))


class _GuardedMetrics:
    """Responds to the clients of *endpoint* with the metrics in *registry*: an ASGI application."""

    def __init__(self, registry: CollectorRegistry, endpoint: Endpoint) -> None:
        self._registry = registry
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        await self._endpoint(scope, receive, send, self._serve)

    async def _serve(self, http: HttpRequest) -> None:
        if http.scope["method"] not in ("GET", "HEAD"):
            raise NotAllowed("The metrics are read with GET", "GET", "HEAD")
        families = await _collect(self._registry)
        is_visible = cache(partial(_is_visible, http.mux.server, http.access))
        for family in families:
            family.samples = _without_names(family.samples, is_visible)
        http.response_begun = True
        with suppress(OSError, ClientLeft):
            await _respond(http.scope, http.send, families)


class _Collected(Collector):
    """Metrics that were collected before, for an encoder."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _collect(registry: CollectorRegistry) -> list[Metric]:
    # In a thread, since gauges of queues wait for this event loop.
    return await asyncio.to_thread(lambda: [*registry.collect()])


async def _respond(scope: Scope, send: Send, families: Iterable[Metric]) -> None:
    accepted = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
    encode, content_type = choose_encoder(accepted)
    body = encode(_Collected(families))
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    shown = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": shown})


def _is_visible(server: Server, access: Access | None, name: str) -> bool:
    """Return whether a client with *access* sees a tool or a prompt called *name*.

    A name that only a provider may know is not: a provider can be asked within a request only.
    """
    for method in ("tools/call", "prompts/get"):
        # A server need not have both kinds. `find` and `visible` are functions of its author.
        with suppress(Exception):
            route = server.find(method, name)
            is_known = route is not None and not (route.pending and route.visible is None)
            if route is not None and is_known and route.is_visible(access):
                return True
    return False


def _without_names(samples: Iterable[Sample], is_visible: Callable[[str], bool]) -> list[Sample]:
    """Return *samples* with "hidden" for names that are not visible, and equal ones added up."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for sample in samples:
        labels = dict(sample.labels)
        if any(name in labels and not is_visible(labels[name]) for name in _NAMES):
            hidden = {*_NAMES, _JOB_NAME} & labels.keys()
            labels |= dict.fromkeys(hidden, _HIDDEN)
        key = sample.name, frozenset(labels.items())
        value = sample.value + (found[key].value if key in found else 0.0)
        found[key] = sample._replace(labels=labels, value=value)
    return [*found.values()]
