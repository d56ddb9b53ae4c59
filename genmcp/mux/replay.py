"""What a legacy stream has said, kept for a client that lost its connection.

2025-11-25, transports, "Resumability and Redelivery". A stream's events are numbered from 1; a
client resumes with the id of the last one it saw. Event 0 says that the stream exists.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from threading import Lock
from typing import Protocol, TypeAlias

import msgspec

from genmcp.core.exchange import Record
from genmcp.errors import Gap, InvalidRequest, OverShare, StoreError
from genmcp.protocol.meta import RequestId
from genmcp.stores.accounts import Owner
from genmcp.stores.store import Append, Event, Store
from genmcp.wire import sse

__all__ = ["OpenCall", "Recover", "Replay"]

logger = logging.getLogger("genmcp")


class OpenCall(msgspec.Struct, frozen=True, array_like=True):
    """A request of a stream without a response yet; *task* is the one whose result it waits for."""

    id: RequestId
    method: str
    task: str | None = None


Recover: TypeAlias = Callable[[Sequence[OpenCall]], AsyncGenerator[bytes, None]]
"""Yields the remaining messages of calls whose process is gone, up to the response of each."""


class Replayed(msgspec.Struct, frozen=True, array_like=True):
    """One message of a stream: its number, its JSON (empty for none), whether it is the last.

    node: the process that writes the stream, empty if it was ended. calls: the open calls then.
    """

    index: int
    message: bytes
    last: bool
    node: str = ""
    calls: tuple[OpenCall, ...] = ()


_END = Replayed(0, b"", last=True)


class Writer(Protocol):
    """Whoever sends a stream's messages to its client as they come."""

    def hand_over(self) -> None:
        """End the connection: another one goes on with the stream. Called from any thread."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Replayed)


class Replay:
    """The streams of a mux's sessions, in its store.

    ttl: seconds for which a stream is retained after its last event. keep, keep_bytes: how many
    events, and how many bytes of them, are retained. node: the name of this process. lives: returns
    whether the process of a name is alive; it is checked after each *look* seconds of silence.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: float,
        keep: int,
        node: str,
        lives: Callable[[str], Awaitable[bool]],
        look: float,
        keep_bytes: int | None = None,
    ) -> None:
        self._node = node
        self._lives = lives
        self._look = look
        self._store = store
        self._ttl = ttl
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._writers: dict[str, list[Writer]] = {}
        self._lock = Lock()  # a session's streams may be on several event loops

    async def keep(
        self,
        session: str,
        records: Sequence[Record],
        calls: tuple[OpenCall, ...],
        owner: Owner = (),
    ) -> None:
        """Store *records* of streams of *session* for *owner*; *calls* are those still open."""
        await self._append(
            (
                (
                    _log(session, each.stream),
                    Replayed(each.index, each.message, each.last, self._node, calls),
                )
                for each in records
            ),
            owner,
        )

    async def note(
        self, session: str, stream: str, calls: tuple[OpenCall, ...], owner: Owner = ()
    ) -> None:
        """Store which *calls* of a stream are open, and which tasks they wait for."""
        said = Replayed(0, b"", False, self._node, calls)
        await self._append([(_log(session, stream), said)], owner)

    async def end(self, session: str, stream: str, owner: Owner = ()) -> None:
        """Store that *stream* ends without a response, so that no client waits for one."""
        event = (_log(session, stream), _END)
        try:
            await self._append([event], owner)
        except OverShare:  # of a client without room as well
            await self._append([event])

    async def _append(self, events: Iterable[tuple[str, Replayed]], owner: Owner = ()) -> None:
        await self._store.apply(
            *(
                Append(
                    log,
                    _encoder.encode(event),
                    self._ttl,
                    self._keep,
                    owner,
                    keep_bytes=self._keep_bytes,
                )
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
        self, session: str, stream: str, after: int, writer: Writer, recover: Recover
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of *stream* after number *after*, in the wire format.

        First those that are stored, then those that follow, to the end of the stream. *writer*,
        which sends them, takes over from the current one. If some were dropped in the meantime, a
        comment states how many.

        If the process that writes the stream is gone, *recover* gives the rest. Those messages have
        no event ids: a client that loses this connection too returns with its last id, to any
        process, and that one recovers the rest once more. Nothing is written, so that no two
        processes can disagree, and a process that was only frozen finds its stream unchanged.
        """
        log = _log(session, stream)
        with self._lock:
            others = list(self._writers.get(log, ()))
        for other in others:
            other.hand_over()
        with self.written(session, stream, writer):
            calls: dict[RequestId, OpenCall] = {}
            async with aclosing(self._said(log)) as events:
                node = ""
                async for said in events:
                    if said is None:
                        if await self._gone(node):
                            break
                        continue
                    node = said.node
                    # An event may have been in flight when the task of a call was noted.
                    calls = {each.id: _newer(each, calls.get(each.id)) for each in said.calls}
                    if said.index > after + 1:
                        yield b": %d events are not kept any more\n\n" % (said.index - after - 1)
                    if said.index > after:
                        after = said.index
                        if said.message:
                            yield sse.event(said.message, b"%b/%d" % (stream.encode(), after))
                    if said.last:
                        return
            logger.warning("the process of a stream that was resumed is gone: %s", [*calls])
            async with aclosing(recover([*calls.values()])) as messages:
                async for message in messages:
                    yield sse.event(message, None)

    async def _gone(self, node: str) -> bool:
        try:
            return node != "" and not await self._lives(node)
        except StoreError as error:
            logger.debug("whether a process is alive is not known: %s", error)
            return False

    async def _said(self, log: str) -> AsyncGenerator[Replayed | None, None]:
        """Yield the events of the stream, and None for each interval of silence."""
        while True:
            with suppress(Gap):  # so slow a reader that its place was dropped: on with the rest
                async with (
                    aclosing(self._store.follow(log)) as events,
                    aclosing(_or_silence(events, self._look)) as heard,
                ):
                    async for event in heard:
                        yield None if event is None else _decoder.decode(event.data)


def _newer(call: OpenCall, known: OpenCall | None) -> OpenCall:
    return call if call.task is not None or known is None else known


async def _or_silence(
    events: AsyncIterator[Event], seconds: float
) -> AsyncGenerator[Event | None, None]:
    """Yield *events*, and None whenever there was none for *seconds*."""
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait({coming}, timeout=seconds)
            if coming.done():
                yield coming.result()
                coming = asyncio.ensure_future(anext(events))
            else:
                yield None
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _log(session: str, stream: str) -> str:
    return f"session:{session}#{stream}"
