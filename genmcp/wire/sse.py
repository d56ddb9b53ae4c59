"""Server-sent events, written and read: one message an event, for the HTTP transports.

The format is that of the HTML standard, "Server-sent events", with one difference: data is not
decoded to text here. The standard replaces bytes that are not UTF-8, which would alter a message;
without that, the JSON decoder rejects such a message.
"""

import codecs
import re

import msgspec

from genmcp.wire.lines import HEAD, MAX_MESSAGE, OversizedMessage

MEDIA_TYPE = b"text/event-stream"

COMMENT = b":\n\n"
"""A keep-alive comment, which clients ignore (2026-07-28, "Receiving Messages")."""


def event(data: bytes, id: bytes | None = None) -> bytes:
    """Return one `message` event; a client can resume after an *id*.

    Each line of *data* becomes a `data` line: JSON that a tool returns may have several lines.
    """
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    if id is None:
        return b"event: message\ndata: " + data + b"\n\n"
    return b"id: " + id + b"\nevent: message\ndata: " + data + b"\n\n"


def endpoint(url: bytes) -> bytes:
    """Return the event with the URL for messages: 2024-11-05, "HTTP with SSE"."""
    return b"event: endpoint\ndata: " + url + b"\n\n"


def prime(id: bytes) -> bytes:
    """Return an event with an id and no data, from which a disconnected client can resume.

    2025-11-25, transports, "Sending Messages to the Server", point 6.
    """
    return b"id: " + id + b"\ndata: \n\n"


def retry(milliseconds: int) -> bytes:
    """Return the `retry` field, the time until a client should reconnect."""
    return b"retry: %d\n\n" % milliseconds


_MILLISECONDS = re.compile(rb"[0-9]{1,15}")
_LONGEST_NAME = len(b"event: ")


class SseEvent(msgspec.Struct, frozen=True):
    """One event; *id* is the latest id of the stream."""

    data: bytes
    event: str = "message"
    id: str = ""


class EventReader:
    """Splits the chunks of a stream, cut anywhere, into events.

    An incomplete event at the end of the stream is dropped. Of an event with more than
    *max_message* bytes of data only the head is kept; the events after it are read as usual.

    Attributes:
        last_id: the id of the last complete event, for resumption.
        retry: milliseconds to wait before a reconnection, if the server has sent this.
    """

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self.last_id = ""
        self.retry: int | None = None
        self._max_message = max_message
        self._longest = max(max_message, HEAD) + _LONGEST_NAME
        self._id = ""
        self._began = False
        self._after_return = False
        self._line = bytearray()
        self._missing = 0
        self._reset()

    def _reset(self) -> None:
        self._data: bytearray | None = None  # an event may have data that is empty
        self._size = 0
        self._event = ""

    def feed(self, chunk: bytes) -> list[SseEvent | OversizedMessage]:
        """Return the events that *chunk* completes. Lines end in CR LF, LF or CR."""
        done: list[SseEvent | OversizedMessage] = []
        if not chunk:
            return done
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        # A CR at the end of a chunk may be half of a CR LF.
        self._after_return = chunk.endswith(b"\r")
        *ended, rest = (chunk + b"-").splitlines()  # the last line has not ended
        for line in ended:
            missing = 0
            if self._line or not self._began or len(line) > self._longest:
                self._extend(line)
                line, missing = self._whole_line()
            if line:
                self._field(line, missing)
            elif (event := self._dispatch()) is not None:
                done.append(event)
        self._extend(rest[:-1])
        return done

    def _extend(self, text: bytes) -> None:
        """Add *text* to the line that has not ended, of which only the head is kept if too long."""
        self._line += text
        if len(self._line) > (HEAD if self._missing else self._longest):
            self._missing += len(self._line) - HEAD
            del self._line[HEAD:]

    def _whole_line(self) -> tuple[bytes, int]:
        """Return the line that has ended, and how many bytes of it were dropped."""
        line, missing = bytes(self._line), self._missing
        self._line.clear()
        self._missing = 0
        if not self._began:
            self._began = True
            line = line.removeprefix(codecs.BOM_UTF8)  # ignored by the standard
        return line, missing

    def _field(self, line: bytes, missing: int) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._append(value, missing)
        elif missing:
            return  # the value was truncated
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and _MILLISECONDS.fullmatch(value):
            self.retry = int(value)

    def _append(self, value: bytes, missing: int) -> None:
        if self._data is None:
            self._data = bytearray()
        else:
            self._data += b"\n"
            self._size += 1
        self._data += value
        self._size += len(value) + missing
        if self._size > self._max_message:
            del self._data[HEAD:]

    def _dispatch(self) -> SseEvent | OversizedMessage | None:
        self.last_id = self._id
        if self._data is None:
            self._event = ""
            return None
        data, size, name = bytes(self._data), self._size, self._event
        self._reset()
        if size > self._max_message:
            return OversizedMessage(size, data)
        return SseEvent(data, name or "message", self.last_id)
