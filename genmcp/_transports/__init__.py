"""The transports of a server: they read and write bytes, and perform the actions of `core`.

The transports of a client are in `genmcp/client/transports`.
"""
