"""Implementations of `genmcp.Telemetry`.

`genmcp.telemetry.log` writes log records, `genmcp.telemetry.otel` creates OpenTelemetry spans.
"""
