"""Bytes to values and back: JSON-RPC, server-sent events, and the judging of HTTP heads. Pure."""
