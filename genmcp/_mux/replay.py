"""The stored events of legacy streams, for clients that have lost their connection.

2025-11-25, transports, "Resumability and Redelivery". The events of a stream are numbered from 1; a
client resumes with the id of the last one that it received. Event 0 states that the stream exists.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from genmcp._mux.limits import Limits, replayed
from genmcp._mux.multimap import Multimap
from genmcp.cancellation import cancel_and_wait
from genmcp.core.exchange import ExchangeAction, StreamRecord
from genmcp.core.request import Request
from genmcp.errors import InvalidRequest, StoreError
from genmcp.protocol.params import RequestId
from genmcp.stores.following import follow
from genmcp.stores.store import LogEvent, Store
from genmcp.wire import sse

logger = logging.getLogger("genmcp")


class OpenCall(msgspec.Struct, frozen=True, array_like=True):
    """A request of a stream that has no response yet. task: the id of the task it waits for."""

    id: RequestId
    method: str
    task: str | None = None


Recover: TypeAlias = Callable[[Sequence[OpenCall]], AsyncGenerator[bytes, None]]
"""Yields the remaining messages of calls whose process is gone, up to the response of each."""


class StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event of a stream: its number, its JSON (may be empty), whether it is the last.

    node: the process that writes the stream, empty if it was ended. calls: the calls that were open
    when the event was stored.
    """

    index: int
    data: bytes
    last: bool
    node: str = ""
    pending_calls: tuple[OpenCall, ...] = ()


_END: Final = StoredEvent(0, b"", last=True)
_NOBODY: Final = "-"  # the name of no process: the one that wrote the stream has handed it on

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(StoredEvent).decode


class StreamWriter(Protocol):
    """A response that sends the messages of a stream to its client."""

    def hand_over(self) -> None:
        """End the connection, because another connection continues the stream.

        Called from any thread.
        """


class Replay(msgspec.Struct, eq=False):
    """The streams of a mux's sessions, in its store. Owned by the mux.

    process_name: returns the name of this process. lives: returns whether a process is alive,
    called after each *look* seconds of silence.
    """

    store: Store
    limits: Limits
    process_name: Callable[[], str]
    _lives: Callable[[str], Awaitable[bool]]
    _look: float
    # By log, the responses that send the stream. A response that resumes the stream ends these. The
    # streams of one session may be on several event loops.
    writers: Multimap[str, StreamWriter] = msgspec.field(default_factory=Multimap)

    async def check(self, session: str, stream: str) -> None:
        """Check that *stream* can be resumed.

        Raises:
            InvalidRequest: it is not a stream of the session, or has expired.
        """
        log = log_of(session, stream)
        # A call may send nothing for longer than its events are retained: its log is then empty.
        if log not in self.writers and not await self.store.read(log, limit=1):
            raise InvalidRequest(
                "Unknown Last-Event-ID: the stream is not of this session, or has expired"
            )

    async def resume(
        self, session: str, stream: str, after: int, writer: StreamWriter, recover: Recover
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of *stream* after number *after*, in the wire format.

        The stored events come first, then each new event, to the end of the stream. *writer*, which
        sends them, replaces the response that sends the stream now (2025-11-25, transports,
        "Multiple Connections": a message is sent on one stream only). If events were dropped in the
        meantime, a comment states how many.

        If the process that writes the stream is dead, *recover* yields the remaining messages.
        """
        log = log_of(session, stream)
        for other in self.writers.of(log):
            other.hand_over()
        self.writers.add(log, writer)
        try:
            calls: dict[RequestId, OpenCall] = {}
            async with aclosing(self._events(log)) as events:
                node = ""
                async for event in events:
                    if event is None:
                        if await self._is_gone(node):
                            break
                        continue
                    node = event.node
                    # An event that was being written when the call became a task names the call
                    # without its task.
                    known = calls
                    calls = {
                        each.id: known.get(each.id, each) if each.task is None else each
                        for each in event.pending_calls
                    }
                    if event.index > after + 1:
                        yield b": %d events have been dropped\n\n" % (event.index - after - 1)
                    if event.index > after:
                        after = event.index
                        if event.data:
                            yield sse.event(event.data, b"%b/%d" % (stream.encode(), after))
                    if event.last:
                        return
            # Recovered messages have no event ids, and are not stored. Two processes that recover
            # one stream therefore cannot write different events, and a process that was only
            # suspended finds its stream unchanged. If the client loses this connection too, it
            # resumes with its last id at any process, which recovers the messages once more.
            logger.warning("the process of a stream that was resumed is gone: %s", [*calls])
            async with aclosing(recover([*calls.values()])) as messages:
                async for message in messages:
                    yield sse.event(message, None)
        finally:
            self.writers.discard(log, writer)

    async def _is_gone(self, node: str) -> bool:
        if node == _NOBODY:
            return True
        try:
            return node != "" and not await self._lives(node)
        except StoreError as error:
            logger.debug("the liveness of a process is unknown: %s", error)
            return False

    async def _events(self, log: str) -> AsyncGenerator[StoredEvent | None, None]:
        """Yield the events of the stream, and None for each interval of silence.

        All events are yielded again, from the oldest one that is retained, if this reader was so
        slow that events at its position were dropped. The stream survives a failure of the store:
        thousands of clients would otherwise connect again at once.
        """
        async with aclosing(follow(self.store, log)) as items:
            coming = asyncio.ensure_future(anext(items))
            try:
                while True:
                    await asyncio.wait({coming}, timeout=self._look)
                    if not coming.done():
                        yield None
                        continue
                    item = coming.result()
                    coming = asyncio.ensure_future(anext(items))
                    if isinstance(item, LogEvent):
                        yield _decode(item.data)
            finally:
                await cancel_and_wait(coming)


class StoredStream(msgspec.Struct, eq=False):
    """The stored copy of one response's stream. Created and used by that response only.

    _followed: by request of the response, the id of the task that it waits for. They are stored
    with each event: if this process dies, another process uses them to send the remaining
    responses. _client: the client that the events count towards.
    """

    _replay: Replay
    _log: str
    _followed: dict[Request, str | None]
    _client: str = ""
    # By request, the index of the event with its response.
    _response_index: dict[Request, int] = {}
    # The index of the last event that was passed to the store.
    _stored: int = -1
    _begun: bool = False  # whether events are stored, and the end of the stream is not

    def add(self, writer: StreamWriter) -> None:
        """Register *writer* as the response that sends the stream."""
        self._replay.writers.add(self._log, writer)

    def discard(self, writer: StreamWriter) -> None:
        """Unregister *writer*."""
        self._replay.writers.discard(self._log, writer)

    async def keep(self, records: Sequence[StreamRecord]) -> None:
        """Store *records*; a failure of the store is logged."""
        self._begun = True
        # Set before the write: each event names the calls that are open once it is stored.
        before, self._stored = self._stored, records[-1].index
        events = [(each.index, each.data, each.last) for each in records]
        try:
            await self._write(*events, optional=True)
        except StoreError as error:
            self._stored = before
            # The client still receives them; only a resumption after a disconnect is lost.
            logger.warning("the events of a stream cannot be stored: %s", error)
            return
        self._begun = not records[-1].last
        for request in [each for each in self._response_index if not self._is_open(each)]:
            self._followed.pop(request, None)
            del self._response_index[request]

    def set_task(self, request: Request, task: str | None) -> None:
        """Record that *request* waits for *task*; the record is stored with the next events."""
        if request in self._followed:
            self._followed[request] = task

    async def follow(self, request: Request, task: str | None) -> None:
        """Record that *request* waits for *task*, so that another process can follow the task."""
        self.set_task(request, task)
        if self._begun:
            try:
                await self._write((0, b"", False))
            except StoreError as error:
                logger.warning("the task that a stream waits for cannot be stored: %s", error)

    def responded(self, request: Request, actions: Sequence[ExchangeAction]) -> None:
        """Record that *request* got its response by *actions*."""
        # It stays open until its response is stored: a slow client may delay that, and if the
        # process is killed in the meantime, another one has to answer the request. Without a record
        # the response is sent with the first event of the stream, or never.
        records = (each.index for each in actions if type(each) is StreamRecord)
        self._response_index[request] = next(records, 0)

    async def end(self) -> None:
        """Store the end of the stream, so that a client that resumes it does not wait for more."""
        if self._begun:
            with suppress(StoreError):
                await self._append(_END)

    async def hand_on(self) -> None:
        """Store that this process answers no more calls, so that another one may at once.

        Otherwise the others wait until the heartbeat of this process has expired.
        """
        if self._begun:
            with suppress(StoreError):
                await self._write((0, b"", False), node=_NOBODY)

    async def _write(
        self, *events: tuple[int, bytes, bool], node: str | None = None, optional: bool = False
    ) -> None:
        node = self._replay.process_name() if node is None else node
        calls = tuple(
            OpenCall(each.id, each.method, task)
            for each, task in self._followed.items()
            if self._is_open(each)
        )
        stored = (StoredEvent(*each, node, calls) for each in events)
        await self._append(*stored, optional=optional)

    async def _append(self, *events: StoredEvent, optional: bool = False) -> None:
        # Optional: a server sends so much that its replays alone would fill the store.
        append = partial(replayed(self._replay.limits), self._log, client=self._client)
        packed = (append(data=_encode(each), optional=optional) for each in events)
        await self._replay.store.apply(*packed)

    def _is_open(self, request: Request) -> bool:
        """Return whether the response to *request* is not among the events given to the store."""
        index = self._response_index.get(request)
        return index is None or index > self._stored


def log_of(session: str, stream: str) -> str:
    """Return the name of the log of a *stream* of a *session*."""
    return f"session:{session}#{stream}"
