"""The rules of the protocol as machines without I/O: they get events and return actions."""
