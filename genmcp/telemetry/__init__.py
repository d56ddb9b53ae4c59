"""Implementations of `genmcp.Telemetry`, and the telemetry of clients.

`genmcp.telemetry.log` writes log records; `genmcp.telemetry.otel` creates OpenTelemetry spans, and
`genmcp.telemetry.metrics` OpenTelemetry metrics. `genmcp.telemetry.otel_client` does both for a
client, by the interface in `genmcp.telemetry.client`.
"""

from genmcp._mux.telemetry import EndedSession as EndedSession
from genmcp._mux.telemetry import JobAttempt as JobAttempt
from genmcp._mux.telemetry import Rejection as Rejection
from genmcp._mux.telemetry import RequestFailure as RequestFailure
from genmcp._mux.telemetry import Resumed as Resumed
from genmcp.telemetry.log import LoggingTelemetry as LoggingTelemetry
