"""What a legacy stream has said, kept for a client that lost its connection.

2025-11-25, transports, "Resumability and Redelivery". A stream's events are numbered from 1; a
client resumes with the id of the last one it saw. Event 0 says that the stream exists.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

import msgspec

from genmcp.core.actions import Record
from genmcp.errors import InvalidRequest
from genmcp.stores.store import Append, Store
from genmcp.wire import sse

__all__ = ["Replay"]


class Replayed(msgspec.Struct, frozen=True, array_like=True):
    """One message of a stream: its number, its JSON (empty for none), whether it is the last."""

    index: int
    message: bytes
    last: bool


class Writer(Protocol):
    """Whoever sends a stream's messages to its client as they come."""

    def release(self, retry: int) -> None:
        """End the connection, not the stream."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Replayed)


class Replay:
    """The streams of a mux's sessions, in its store.

    ttl: how many seconds a stream is kept after its last event. keep: how many events of it.
    """

    def __init__(self, store: Store, *, ttl: float, keep: int) -> None:
        self._store = store
        self._ttl = ttl
        self._keep = keep
        self._writers: dict[str, Writer] = {}

    async def keep(self, session: str, records: Sequence[Record]) -> None:
        """Keep *records* of streams of *session*."""
        await self._store.apply(
            *(
                Append(
                    _log(session, record.stream),
                    _encoder.encode(Replayed(record.index, record.message, record.last)),
                    ttl=self._ttl,
                    keep=self._keep,
                )
                for record in records
            )
        )

    @contextmanager
    def written(self, stream: str | None, writer: Writer) -> Iterator[None]:
        """Know who writes *stream*, so that whoever resumes it takes over from its connection.

        2025-11-25, transports, "Multiple Connections": a message goes out on one stream only.
        """
        if stream is not None:
            self._writers[stream] = writer
        try:
            yield
        finally:
            self._writers.pop(stream or "", None)

    async def check(self, session: str, stream: str) -> None:
        """Check that *stream* can be resumed.

        Raises:
            InvalidRequest: the session has no such stream, or it is not kept any more.
        """
        if not await self._store.read(_log(session, stream), limit=1):
            raise InvalidRequest(
                "Unknown Last-Event-ID: the stream is not of this session, or is not kept any more"
            )

    async def resume(self, session: str, stream: str, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events of *stream* behind number *after*, as they are on the wire.

        First those it has said, then those it says, to its end. Where the oldest were dropped
        meanwhile, a comment tells how many.
        """
        writer = self._writers.get(stream)
        if writer is not None:
            writer.release(0)
        async with aclosing(self._store.follow(_log(session, stream))) as events:
            async for event in events:
                said = _decoder.decode(event.data)
                if said.index <= after:
                    continue
                if said.index > after + 1:
                    yield b": %d events are not kept any more\n\n" % (said.index - after - 1)
                after = said.index
                if said.message:
                    yield sse.event(said.message, b"%b/%d" % (stream.encode(), said.index))
                if said.last:
                    return


def _log(session: str, stream: str) -> str:
    return f"session:{session}:{stream}"
