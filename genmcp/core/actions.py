"""All that a machine may ask its transport or its mux to do."""

import msgspec

__all__ = ["Abandon", "Action", "Begin", "Chunk", "End", "Record", "Whole"]


class Whole(msgspec.Struct, frozen=True):
    """Send a complete JSON answer; an empty *body* has no media type."""

    status: int
    body: bytes


class Begin(msgspec.Struct, frozen=True):
    """Send the head of an event stream."""


class Chunk(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, which goes on."""

    data: bytes


class End(msgspec.Struct, frozen=True):
    """Send *data* on the event stream, if any, and end the response."""

    data: bytes = b""


class Record(msgspec.Struct, frozen=True):
    """Keep message number *index* of stream *stream* for a client that resumes.

    *last* marks the one that ends the stream.
    """

    stream: str
    index: int
    message: bytes
    last: bool


class Abandon(msgspec.Struct, frozen=True):
    """Stop the work: nobody will read its answer."""


Action = Whole | Begin | Chunk | End | Record | Abandon
