"""Server-sent events: one message an event, as the streamable HTTP transport uses them.

The format is the HTML standard's, "Server-sent events".
"""

__all__ = ["COMMENT", "MEDIA_TYPE", "endpoint", "event", "prime", "retry"]

MEDIA_TYPE = b"text/event-stream"

COMMENT = b":\n\n"
"""Keeps a silent stream open: clients ignore it (2026-07-28, "Receiving Messages")."""


def event(data: bytes, id: bytes | None = None) -> bytes:
    """Return one `message` event; *id* lets a client resume behind it.

    Each line of *data* has a `data` line of its own. JSON that is made here has one line; what
    a tool gives as JSON may have more.
    """
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    if id is None:
        return b"event: message\ndata: " + data + b"\n\n"
    return b"id: " + id + b"\nevent: message\ndata: " + data + b"\n\n"


def endpoint(url: bytes) -> bytes:
    """Return the event that says where to send messages: 2024-11-05, "HTTP with SSE"."""
    return b"event: endpoint\ndata: " + url + b"\n\n"


def prime(id: bytes) -> bytes:
    """Return an event with an id and no data: a client that is cut off can resume from it.

    2025-11-25, transports, "Sending Messages to the Server", point 6.
    """
    return b"id: " + id + b"\ndata: \n\n"


def retry(milliseconds: int) -> bytes:
    """Return the field that says when to reconnect, on its own."""
    return b"retry: %d\n\n" % milliseconds
