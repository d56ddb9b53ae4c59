"""A route with the metrics of a process for Prometheus (extra `prometheus`).

The format is that of OpenTelemetry's own exporter.
"""

import asyncio
from typing import TYPE_CHECKING

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from genmcp._transports.endpoint import route_to
from genmcp._transports.request import Receive, Scope, Send
from genmcp.errors import ConfigurationError
from genmcp.telemetry.metrics import OpenTelemetryMetrics

if TYPE_CHECKING:
    from starlette.routing import Route

__all__ = ["Prometheus"]


class Prometheus:
    """Collects the metrics of a process, and responds with them. It is an ASGI application.

        prometheus = Prometheus()
        endpoint = Endpoint(Mux(suite, telemetry=prometheus.telemetry))
        app = Starlette(routes=[endpoint.route("/mcp"), prometheus.route("/metrics")])

    Each process has metrics of its own: Prometheus has to read each of them. The names of tools and
    queues are in the metrics; the route must not be reachable from outside.

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

    def route(self, path: str) -> "Route":
        """Return a Starlette route that responds at *path*."""
        return route_to(self, path, name="metrics")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http":
            raise ConfigurationError("Prometheus responds to HTTP requests only")
        accepted = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        encode, content_type = choose_encoder(accepted)
        # In a thread, since gauges of queues wait for this event loop.
        body: bytes = await asyncio.to_thread(encode, self._registry)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})
