"""The bytes of a response, written as fast as its client reads.

ASGI has no event for "the client has read": a server takes bytes until its own buffer is full, and
the next `send` waits. So a large body is sent in pieces, and the last `send` returns when all of it
has left the server. Most responses fit into the buffer; nothing below is made for them. One that
waits becomes an `UnreadResponse`, with the deadline of `Limits.write_timeout`, an
entry in the account of its client (`_mux/limits.py`), and a place in the shutdown.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from enum import IntEnum
from math import ceil
from typing import Any, Final

import msgspec

from genmcp._transports.request import (
    PIECE,
    UNCOUNTED,
    ClientLeft,
    Headers,
    HttpRequest,
    Send,
    UnreadResponse,
    transport_of,
)
from genmcp._transports.timers import TICK, TimerTable, drive
from genmcp.cancellation import cancel_and_wait
from genmcp.core.exchange import ExchangeAction, FullResponse, StreamChunk, StreamEnd, StreamHead
from genmcp.wire.sse import MEDIA_TYPE

START: Final = "http.response.start"
BODY: Final = "http.response.body"

_JSON = (b"content-type", b"application/json")
# 2026-07-28, Streamable HTTP, "Receiving Messages": a proxy should not hold events back.
_STREAM_HEADERS: Headers = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def reply(
    http: HttpRequest, status: int, body: bytes = b"", headers: Headers = ()
) -> Coroutine[Any, Any, None]:
    """Send a complete response; a *body* is JSON, and *headers* are added to those of *http*.

    Raises:
        ClientLeft: as for `write`.
    """
    head = [(b"content-length", b"%d" % len(body)), *http.headers, *headers]
    if body:
        head.append(_JSON)
    start = {"type": START, "status": status, "headers": head}
    if len(body) > PIECE:
        return write(http, start, body)
    return _run(http, _send_whole(http.send, start, {"type": BODY, "body": body}), [body])


def perform(http: HttpRequest, actions: Sequence[ExchangeAction]) -> Coroutine[Any, Any, None]:
    """Send what the *actions* of an exchange ask for; chunks that are ready are joined.

    Raises:
        ClientLeft: as for `write`.
    """
    first = actions[0]
    if type(first) is FullResponse:  # always the only action
        return reply(http, first.status, first.body)
    start: dict[str, Any] | None = None
    ready: list[bytes] = []
    ended = False
    for action in actions:
        match action:
            case StreamHead():
                stream = [*_STREAM_HEADERS, *http.headers]
                start = {"type": START, "status": 200, "headers": stream}
            case StreamChunk(data=data):
                ready.append(data)
            case StreamEnd(data=data):
                ready.append(data)
                ended = True
    return write(http, start, b"".join(ready) if ready else None, more_body=not ended)


def write(
    http: HttpRequest,
    start: dict[str, Any] | None,
    body: bytes | None,
    *,
    more_body: bool = False,
) -> Coroutine[Any, Any, None]:
    """Send the message *start*, if given, and *body*, if given, as fast as the client reads.

    Raises:
        ClientLeft: the connection is closed, or the client has read nothing for
            `Limits.write_timeout` seconds.
    """
    pending = [] if body is None else _pieces(body)
    if len(pending) > 1 and (transport := transport_of(http)) is not None:
        transport.set_write_buffer_limits(0)  # or else the end of it would wait there, uncounted
    return _run(http, _send(http, start, pending, more_body), pending)


async def _run(http: HttpRequest, sending: Coroutine[Any, Any, None], pending: list[bytes]) -> None:
    """Run *sending*; count the bytes in *pending*, and limit its time, only if it has to wait."""
    http.response_begun = True
    try:
        waited = sending.send(None)
    except StopIteration:
        return
    except OSError:  # raised by ASGI servers after a disconnect (ASGI specification 2.4)
        raise ClientLeft from None
    if http.unread is None:
        http.unread = UnreadResponse(http, http.client_key)
    await http.unread.wait(drive(sending, waited), pending)


async def _send_whole(send: Send, start: dict[str, Any], body: dict[str, Any]) -> None:
    await send(start)
    await send(body)


def _pieces(body: bytes) -> list[bytes]:
    """Return *body* in pieces, the last one first."""
    if len(body) <= PIECE:
        return [body]
    return [body[at : at + PIECE] for at in range(0, len(body), PIECE)][::-1]


async def _send(
    http: HttpRequest, start: dict[str, Any] | None, pending: list[bytes], more_body: bool
) -> None:
    send = http.send
    if start is not None:
        await send(start)
    if len(pending) == 1:
        await send({"type": BODY, "body": pending[0], "more_body": more_body})
        return
    last = True
    while pending:
        piece = {"type": BODY, "body": pending.pop(), "more_body": True}
        last = not pending
        await send(piece)
        del piece
        # Nothing is held by this one, which waits until the server has room for the next piece.
        await send({"type": BODY, "body": b"", "more_body": more_body or not last})
        if http.unread is not None:
            http.unread.read()
    if not last:  # dropped, and the connection is closed
        raise ClientLeft


class ResponseState(IntEnum):
    """How far an open response has come. It may skip a state, and never goes back."""

    NEW = 0
    """Messages collect: the call may end before it has to be open, with all of them at once."""
    OPEN = 1
    """The client is watched, and messages are sent as they come."""
    CLOSING = 2
    """The last messages collect for `flush`. No hook waits for room any more."""
    ENDED = 3
    """Unregistered: the client is not watched, and a disconnect has no effect."""


class OpenConnection(msgspec.Struct, eq=False):
    """A response that stays open: that of a POST with open calls, or a stream.

    It sends its actions as fast as its client reads, in an asyncio.Task that exists only while
    actions wait. Once opened, it waits for the client to disconnect, is registered for the
    shutdown, and sends a comment after each silence of `Endpoint(heartbeat=)` seconds. `close` ends
    these three.

    spoke: the time at which the last write ended, or the response was opened, by the clock of the
    loop. unfinished: whether a write has begun that has not ended. It goes on, or was interrupted:
    then nothing is sent any more, since it would continue a part of a message.
    """

    http: HttpRequest
    state: ResponseState = ResponseState.NEW
    spoke: float = 0.0
    unfinished: bool = False
    _actions: list[ExchangeAction] = []
    _size: int = 0
    _writing: "asyncio.Task[None] | None" = None
    _read: asyncio.Event | None = None  # made for a hook that waits: it takes half a KiB
    _silence: float = 0.0  # seconds that the timer was set to
    _watch: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Start to end the response, because the server is shutting down."""
        raise NotImplementedError

    def leave(self) -> None:
        """Handle a disconnect of the client, a write that has failed, or bytes that are dropped."""
        raise NotImplementedError

    def comment(self) -> list[ExchangeAction]:
        """Return the actions of a heartbeat."""
        raise NotImplementedError

    def open(
        self, watching: Coroutine[Any, Any, None], *, idle: bool = False
    ) -> "asyncio.Task[None]":
        """Start all three; return the asyncio.Task of *watching*.

        *watching* returns when the client has disconnected. *idle* is as for `Shutdown.add`.
        """
        http = self.http
        self.state = ResponseState.OPEN
        http.table = {}  # there may be many open responses, and headers are not read again
        http.shutdown.add(self.stop, idle=idle)
        self.spoke = http.loop.time()
        self._watch = watch = http.loop.create_task(watching)
        self._silence = http.heartbeat
        TimerTable.of(http.loop).add(self, self._silence)
        return watch

    def expire(self) -> None:
        """Send a comment if nothing was sent for `Endpoint(heartbeat=)` seconds.

        A message does not restart the timer: a change is written to thousands of streams at once,
        and a timer for each message would cost more than to write it. When the timer expires early,
        it is set again for the remaining seconds of the silence. They are rounded up to ticks, so
        that the `TimerTable` has few different durations.

        A comment cannot overtake a message, such as the head of the response: none is sent while a
        message is stored or written, and it follows those that wait. It cannot follow the last one
        either: `Exchange.beat` has no actions in DONE and DETACHED, and a call that responds with
        one JSON body stops the timer at once (`Responder._respond_whole`).
        """
        http = self.http
        left = http.heartbeat if self.unfinished else self.spoke + http.heartbeat - http.loop.time()
        if left <= 0:
            self.push(self.comment())
            self.wake()
            left = http.heartbeat
        self._silence = TICK * ceil(left / TICK) if left < http.heartbeat else left
        TimerTable.of(http.loop).add(self, self._silence)

    def check(self) -> None:
        """Raise the exception that the host's `receive` has raised in the watch, if any."""
        watch = self._watch
        if watch is not None and watch.done() and not watch.cancelled():
            watch.result()

    def close(self) -> None:
        """Unregister the response, and stop its watch and timer."""
        self.state = ResponseState.ENDED
        http, watch = self.http, self._watch
        if watch is not None and not http.loop.is_closed():
            # Not awaited, since it has nothing to clean up. With a server that reports a disconnect
            # after each response it ends by itself in this iteration of the loop, which is cheaper.
            http.loop.call_soon(watch.cancel)
            self._watch = None
            TimerTable.of(http.loop).discard(self, self._silence)
            http.shutdown.discard(self.stop)

    # Writing.

    @property
    def full(self) -> bool:
        """Whether the client should read some of the buffer before more is sent."""
        # The responses that a batch holds for one JSON body are not read before the last one.
        return bool(self._actions) and self._size > self.http.mux.limits.write_buffer_bytes

    async def room(self) -> None:
        """Wait until the write buffer is not full, or nothing more is sent."""
        while self.full and self.state < ResponseState.CLOSING:
            if self._read is None:
                self._read = asyncio.Event()
            self._read.clear()
            await self._read.wait()

    def push(self, actions: list[ExchangeAction], size: int = 0) -> None:
        """Collect *actions*, of about *size* bytes, for the next write."""
        self._actions += actions
        self._size += size
        if self._size > UNCOUNTED:
            self.http.queue(self._size, self.leave)

    def wake(self) -> None:
        """Send what waits in an asyncio.Task."""
        if self._actions and self._writing is None:
            self._writing = self.http.loop.create_task(self._write())

    def begin_closing(self) -> None:
        """Collect further messages, which are the last ones, for the caller's `flush`."""
        self.state = max(self.state, ResponseState.CLOSING)

    async def flush(self) -> None:
        """Send all messages that wait, and return when they are sent.

        Raises:
            Exception: an exception of the host's `send`.
        """
        if (writing := self._writing) is not None:
            await asyncio.wait({writing})
            writing.result()
        if self._actions:
            await self._flush()

    async def write_last(self) -> None:
        """Send all messages that wait as the last ones.

        Raises:
            Exception: as for `flush`.
        """
        self.begin_closing()
        await self.flush()

    async def stop_writing(self) -> None:
        """Send nothing more."""
        self.begin_closing()
        if self._read is not None:
            self._read.set()
        if self._writing is not None and not self._writing.done():
            await cancel_and_wait(self._writing)

    async def _write(self) -> None:
        while self._actions:
            await self._flush()
        self._writing = None  # unless `send` has raised: `flush` raises that

    async def _flush(self) -> None:
        """Send everything that waits; treat a client that reads too slowly as disconnected."""
        try:
            await self._perform()
        except BaseException as error:
            if isinstance(error, Exception):
                self.leave()
            if not isinstance(error, ClientLeft):
                raise  # a cancellation, or a defect of the host, which gets it back
        finally:
            if self._read is not None:
                self._read.set()
        self.on_read()

    async def prepare(self, actions: list[ExchangeAction]) -> None:
        """Do what has to be done before *actions* are performed."""

    def on_read(self) -> None:
        """Handle that nothing waits any more."""

    async def _perform(self) -> None:
        """Store and send what waits. Only one runs at a time: that of `wake`, or of `flush`."""
        http = self.http
        actions, self._actions = self._actions, []
        self._size = 0
        was_interrupted, self.unfinished = self.unfinished, True
        await self.prepare(actions)
        if http.unread is not None:
            http.unread.queue(0)
        if was_interrupted:
            raise ClientLeft
        writing = perform(http, actions)
        del actions  # a closed connection drops the bytes at once
        await writing
        self.unfinished = False
        self.spoke = http.loop.time()
