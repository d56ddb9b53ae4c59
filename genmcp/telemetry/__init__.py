"""Implementations of `genmcp.Telemetry`, and the telemetry of clients.

`genmcp.telemetry.log` writes log records; `genmcp.telemetry.otel` creates OpenTelemetry spans, and
`genmcp.telemetry.metrics` OpenTelemetry metrics. `genmcp.telemetry.otel_client` does both for a
client, by the interface in `genmcp.telemetry.client`. `genmcp.telemetry.prometheus` serves metrics.
"""
