"""What a legacy stream has said, kept for a client that lost its connection.

2025-11-25, transports, "Resumability and Redelivery". A stream's events are numbered from 1; a
client resumes with the id of the last one it saw. Event 0 says that the stream exists.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from threading import Lock
from typing import Protocol

import msgspec

from genmcp.core.actions import Record
from genmcp.errors import Gap, InvalidRequest
from genmcp.stores.store import Append, Store
from genmcp.wire import sse

__all__ = ["Replay"]


class Replayed(msgspec.Struct, frozen=True, array_like=True):
    """One message of a stream: its number, its JSON (empty for none), whether it is the last."""

    index: int
    message: bytes
    last: bool


_END = Replayed(0, b"", last=True)


class Writer(Protocol):
    """Whoever sends a stream's messages to its client as they come."""

    def hand_over(self) -> None:
        """End the connection: another one goes on with the stream. Called from any thread."""


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
        self._writers: dict[str, list[Writer]] = {}
        self._lock = Lock()  # a session's streams may be on several event loops

    async def keep(self, session: str, records: Sequence[Record]) -> None:
        """Keep *records* of streams of *session*."""
        await self._append(
            (_log(session, record.stream), Replayed(record.index, record.message, record.last))
            for record in records
        )

    async def end(self, session: str, stream: str) -> None:
        """Say that *stream* ends without an answer, so that nobody waits for one."""
        await self._append([(_log(session, stream), _END)])

    async def _append(self, events: Iterable[tuple[str, Replayed]]) -> None:
        await self._store.apply(
            *(
                Append(log, _encoder.encode(event), ttl=self._ttl, keep=self._keep)
                for log, event in events
            )
        )

    @contextmanager
    def written(self, session: str, stream: str, writer: Writer) -> Iterator[None]:
        """Know who writes *stream*, so that whoever resumes it takes over from its connection.

        2025-11-25, transports, "Multiple Connections": a message goes out on one stream only.
        """
        self.add(session, stream, writer)
        try:
            yield
        finally:
            self.discard(session, stream, writer)

    def add(self, session: str, stream: str, writer: Writer) -> None:
        """Know that *writer* writes *stream*, until it is discarded."""
        with self._lock:
            self._writers.setdefault(_log(session, stream), []).append(writer)

    def discard(self, session: str, stream: str, writer: Writer) -> None:
        """Forget that *writer* writes *stream*."""
        log = _log(session, stream)
        with self._lock:
            self._writers[log].remove(writer)
            if not self._writers[log]:
                del self._writers[log]

    async def check(self, session: str, stream: str) -> None:
        """Check that *stream* can be resumed.

        Raises:
            InvalidRequest: the session has no such stream, or it is not kept any more.
        """
        log = _log(session, stream)
        # A call may be silent for longer than what it said is kept.
        if log not in self._writers and not await self._store.read(log, limit=1):
            raise InvalidRequest(
                "Unknown Last-Event-ID: the stream is not of this session, or is not kept any more"
            )

    async def resume(
        self, session: str, stream: str, after: int, writer: Writer
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of *stream* behind number *after*, as they are on the wire.

        First those it has said, then those it says, to its end. *writer*, who sends them, takes
        over from whoever did so far. Where some were dropped meanwhile, a comment tells how many.
        """
        log = _log(session, stream)
        with self._lock:
            others = list(self._writers.get(log, ()))
        for other in others:
            other.hand_over()
        with self.written(session, stream, writer):
            async with aclosing(self._said(log)) as events:
                async for said in events:
                    if said.index > after + 1:
                        yield b": %d events are not kept any more\n\n" % (said.index - after - 1)
                    if said.index > after:
                        after = said.index
                        if said.message:
                            yield sse.event(said.message, b"%b/%d" % (stream.encode(), after))
                    if said.last:
                        return

    async def _said(self, log: str) -> AsyncGenerator[Replayed, None]:
        while True:
            with suppress(Gap):  # so slow a reader that its place was dropped: on with the rest
                async with aclosing(self._store.follow(log)) as events:
                    async for event in events:
                        yield _decoder.decode(event.data)


def _log(session: str, stream: str) -> str:
    return f"session:{session}:{stream}"
