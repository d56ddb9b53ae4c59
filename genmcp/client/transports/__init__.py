"""The transports of a client: HTTP, the HTTP+SSE transport of 2024-11-05, stdio and in memory.

The transports of a server are in `genmcp/_transports`.
"""
