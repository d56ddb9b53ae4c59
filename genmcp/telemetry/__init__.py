"""Ready-made telemetry: `log` writes log records, `otel` makes OpenTelemetry spans.

`genmcp.mux.telemetry` is the interface.
"""
