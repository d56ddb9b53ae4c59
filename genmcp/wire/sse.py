"""Server-sent events: one message an event, as the streamable HTTP transport uses them.

The format is the HTML standard's, "Server-sent events".
"""

import codecs
import re
from collections.abc import Iterator

import msgspec

__all__ = ["COMMENT", "MEDIA_TYPE", "Decoder", "Event", "endpoint", "event", "prime", "retry"]

MEDIA_TYPE = b"text/event-stream"

_MILLISECONDS = re.compile(r"[0-9]{1,15}")

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


class Event(msgspec.Struct, frozen=True):
    """One dispatched event; `id` is the last id seen so far, `retry` only if this event set it."""

    data: str
    event: str = "message"
    id: str = ""
    retry: int | None = None


class Decoder:
    """Turns chunks, cut anywhere, into events.

    `last_id` is what a client resumes with: the id of the last event that was whole.
    """

    def __init__(self, *, max_size: int = 64 * 1024 * 1024) -> None:
        self.last_id = ""
        self._max_size = max_size
        self._id = ""
        self._began = False
        self._after_return = False
        self._rest = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that *chunk* completes.

        Raises:
            ValueError: an event grew past *max_size* bytes.
        """
        done = []
        for line in self._lines(chunk):
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                done.append(event)
        return done

    def _lines(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that *chunk* completes; they end in CR LF, LF or CR."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        for piece in chunk.splitlines(keepends=True):
            line = piece.rstrip(b"\r\n")
            self._rest += line
            if len(self._rest) + self._size > self._max_size:
                raise ValueError(f"an event is larger than {self._max_size} bytes")
            self._after_return = piece.endswith(b"\r")
            if len(line) < len(piece):
                yield self._line()

    def _line(self) -> str:
        line = bytes(self._rest)
        self._rest.clear()
        if not self._began:
            # The standard, "Interpreting an event stream": a leading byte order mark is ignored.
            self._began = True
            line = line.removeprefix(codecs.BOM_UTF8)
        return line.decode("utf-8", "replace")

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(line)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and _MILLISECONDS.fullmatch(value):
            self._retry = int(value)

    def _dispatch(self) -> Event | None:
        data, name, wait = self._data, self._event or "message", self._retry
        self._reset()
        self.last_id = self._id
        if not data and wait is None:
            return None
        return Event("\n".join(data), name, self.last_id, wait)
