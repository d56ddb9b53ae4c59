"""Newline-delimited JSON: one message a line, as the stdio transport uses it.

The format is that of 2026-07-28, stdio, and is the same in all earlier revisions.
"""

import re

import msgspec

MAX_MESSAGE = 64 * 1024 * 1024
"""Default limit of the bytes of a message."""

HEAD = 256
"""Bytes that are kept of an oversized message."""

_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\s*[,}]')
_ENDS = bytes.maketrans(b"\r\n", b"  ")


class OversizedMessage(msgspec.Struct, frozen=True):
    """Takes the place of a message that exceeds the limit; *head* is its beginning."""

    size: int
    head: bytes

    @property
    def id(self) -> int | None:
        """The id of the request that it responds to; None if the head does not contain it."""
        found = None if b'"method"' in self.head else _ID.search(self.head)
        return None if found is None else int(found[1])


def frame(message: bytes) -> bytes:
    """Return *message*, which is JSON, as one line.

    stdio, "messages are delimited by newlines, and MUST NOT contain embedded newlines": line ends
    occur only between the tokens of JSON, where a space has the same meaning.
    """
    if b"\n" in message or b"\r" in message:
        message = message.translate(_ENDS)
    return message + b"\n"


class LineReader:
    """Splits the chunks of a stream, cut anywhere, into messages.

    A line ends in LF or CR LF; blank lines are skipped. Of a line longer than *max_message* bytes
    only the head is kept; the lines after it are read as usual.
    """

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self._max_message = max_message
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | OversizedMessage]:
        """Return the messages that *chunk* completes."""
        if not self._pieces and chunk.find(b"\n") + 1 == len(chunk) <= self._max_message:
            return _line(chunk[:-1])  # fast path: the chunk is one message
        *ended, rest = chunk.split(b"\n")
        done: list[bytes | OversizedMessage] = []
        for piece in ended:
            self._take(piece)
            done += self.finish()
        self._take(rest)
        return done

    def finish(self) -> list[bytes | OversizedMessage]:
        """Return the line that the end of the stream completes, if there is one."""
        pieces, size = self._pieces, self._size
        self._pieces, self._size = [], 0
        line = b"".join(pieces)
        if size > self._max_message:
            return [OversizedMessage(size, line)]
        return _line(line)

    def _take(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        self._pieces.append(piece)
        if self._size > self._max_message:
            self._pieces = [b"".join(each[:HEAD] for each in self._pieces)[:HEAD]]


def _line(line: bytes) -> list[bytes | OversizedMessage]:
    line = line.removesuffix(b"\r")
    return [line] if line and not line.isspace() else []
