"""Server-sent events: one message an event, as the streamable HTTP transport uses them.

The format is the HTML standard's, "Server-sent events". A payload is compact JSON and so holds
no line break: one `data` line carries it.
"""

from collections.abc import Iterator

import msgspec

__all__ = ["COMMENT", "MEDIA_TYPE", "Decoder", "Event", "event", "prime", "retry"]

MEDIA_TYPE = b"text/event-stream"

COMMENT = b":\n\n"
"""Keeps a silent stream open: clients ignore it (2026-07-28, "Receiving Messages")."""


def event(data: bytes, id: bytes | None = None) -> bytes:
    """Return one `message` event; *id* lets a client resume behind it."""
    if id is None:
        return b"event: message\ndata: " + data + b"\n\n"
    return b"id: " + id + b"\nevent: message\ndata: " + data + b"\n\n"


def prime(id: bytes) -> bytes:
    """Return an event with an id and no data: a client that is cut off can resume from it.

    2025-11-25, transports, "Sending Messages to the Server", point 6.
    """
    return b"id: " + id + b"\ndata: \n\n"


def retry(milliseconds: int) -> bytes:
    """Return the field that says when to reconnect, on its own."""
    return b"retry: %d\n\n" % milliseconds


class Event(msgspec.Struct, frozen=True):
    """One dispatched event; `id` is the last id seen so far, `retry` only if this event set it."""

    data: str
    event: str = "message"
    id: str = ""
    retry: int | None = None


class Decoder:
    """Turns chunks, cut anywhere, into events.

    Raises:
        ValueError: an event grew past *max_size* bytes.
    """

    def __init__(self, *, max_size: int = 64 * 1024 * 1024) -> None:
        self.last_id = ""
        self._max_size = max_size
        self._buffer = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that *chunk* completes."""
        self._buffer += chunk
        for line in self._lines():
            if line:
                self._field(line)
            elif (done := self._dispatch()) is not None:
                yield done
        if len(self._buffer) + self._size > self._max_size:
            raise ValueError(f"an event is larger than {self._max_size} bytes")

    def _lines(self) -> Iterator[str]:
        start = 0
        buffer = self._buffer
        while True:
            feed, carriage = buffer.find(b"\n", start), buffer.find(b"\r", start)
            if feed < 0 and carriage < 0:
                break
            end = min(at for at in (feed, carriage) if at >= 0)
            if end == carriage and end + 1 == len(buffer):
                break  # a line feed that belongs to this carriage return may still come
            yield buffer[start:end].decode("utf-8", "replace")
            start = end + (2 if buffer[end : end + 2] == b"\r\n" else 1)
        del buffer[:start]

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self._retry = int(value)

    def _dispatch(self) -> Event | None:
        data, name, wait = self._data, self._event or "message", self._retry
        self._reset()
        if not data and wait is None:
            return None
        return Event("\n".join(data), name, self.last_id, wait)
