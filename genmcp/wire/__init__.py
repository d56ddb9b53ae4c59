"""Decoding and encoding of JSON-RPC and server-sent events, and checks of HTTP headers. No I/O."""
