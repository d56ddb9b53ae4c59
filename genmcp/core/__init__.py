"""The rules of the protocol as machines without I/O: told what happened, they say what to do."""
