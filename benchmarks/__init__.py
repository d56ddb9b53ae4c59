"""Benchmarks of genmcp against a minimal ASGI application and other SDKs: `scripts/benchmark`."""
