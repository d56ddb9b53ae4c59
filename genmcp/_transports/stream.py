"""Responses that stay open: the third of the three levels in `_transports/responder.py`.

An `OpenResponse` watches for the disconnect, and sends heartbeats. Its `ResponseWriter`, with the
exchange and the stored events, is created on first use: when a message is sent before the response,
or when the exchange has to decide what follows from an event, such as a disconnect.
"""

import asyncio
import secrets
from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from genmcp._core.call import CallEvent, CallPhase, Leave, StopServer
from genmcp._core.exchange import (
    Exchange,
    ExchangeAction,
    ExchangeState,
    StreamRecord,
    exchange_for,
)
from genmcp._core.request import Request, cancels_on_disconnect
from genmcp._mux.replay import StoredStream, log_of
from genmcp._mux.responses import EncodedResponse
from genmcp._transports.request import (
    UNCOUNTED,
    ClientLeft,
    HttpRequest,
    as_headers,
    wait_for_disconnect,
)
from genmcp._transports.running_call import RunningCall
from genmcp._transports.timers import (
    TICK,
    LatestProgress,
    RateLimiter,
    TimerTable,
    start_eagerly,
)
from genmcp._transports.writing import perform
from genmcp.cancellation import cancel_and_wait

# Milliseconds after which a client resumes a stream that ends with this process: a load balancer
# needs a moment to notice, and a restarted server to start.
_RESUME_DELAY: Final = 1000


class OpenResponse(msgspec.Struct, eq=False):
    """The response of one POST with open calls. Owned by the POST.

    The response waits for the client to disconnect, is registered for the shutdown, and sends a
    comment after each silence. `close` ends all three.

    batch: the number of responses of a batch; 0 for a single request. calls: the calls that have
    waited. stopping: whether the server is shutting down. ended: whether the response has ended.
    """

    _http: HttpRequest
    _requests: Sequence[Request]
    _batch_size: int = 0
    calls: list[RunningCall[HttpRequest]] = []
    stopping: bool = False
    ended: bool = False
    _silence: float = 0.0
    _writer: "ResponseWriter | None" = None
    _watch: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended or (self._writer is not None and self._writer.exchange.closed)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was sent, and the client has not left: one JSON body can be sent."""
        return self._writer is None

    @property
    def writer(self) -> "ResponseWriter":
        """The writer of the response; made at the first access."""
        if self._writer is None:
            http, requests = self._http, self._requests
            resumable = http.streams and requests[0].session is not None
            stream = secrets.token_urlsafe(9) if resumable else None
            exchange = exchange_for(
                requests, streams=http.streams, stream=stream, batch=self._batch_size
            )
            now = http.loop.time()
            self._writer = ResponseWriter(http, self, requests, exchange, spoke=now)
            if exchange.batch:  # the stored events count responses that precede the stream
                self._writer.store()
            if self._watch is not None:
                self._writer.start()
        return self._writer

    def keep_open(self, call: RunningCall[HttpRequest]) -> None:
        """Keep the response open for *call*, which waits."""
        self.calls.append(call)
        if self._writer is not None:
            self._writer.follow(call)
        if self._watch is None:
            http = self._http
            http.shutdown.add(self.stop)
            http.table = {}  # there may be many open responses, and headers are not read again
            self._watch = start_eagerly(http.loop, self._watch_client())
            self._silence = http.heartbeat
            TimerTable.of(http.loop).add(self, self._silence)
            if self._writer is not None:  # `shutdown.add` may have made one
                self._writer.start()

    def report(self, event: CallEvent) -> None:
        """Report *event* to the running calls."""
        for call in self.calls:
            call.report(event)

    def stop(self) -> None:
        """Report `StopServer` to the calls, which are cancelled, and shorten the time for writing.

        A call that only follows a task needs no error: its client resumes the stream at another
        process, which follows the task to its end, as it would after the death of this process.
        """
        self.hasten()
        self.stopping = True
        if self._http.mux.store.durable and all(map(_follows_task, self.calls)):
            self.writer.hand_on()
        self.report(StopServer())

    def hasten(self) -> None:
        """Give the client `LAST_WORDS` seconds to read the messages that wait."""
        self._http.hasten()

    def expire(self) -> None:
        """Send a comment if nothing was sent for `Endpoint(heartbeat=)` seconds.

        A message does not restart the timer, since that would cost time for each message. When the
        timer expires early, it is set again for the remaining seconds of the silence. They are
        rounded up to ticks, so that the `TimerTable` has few different durations.
        """
        heartbeat, loop = self._http.heartbeat, self._http.loop
        silent = heartbeat if self._writer is None else loop.time() - self._writer.spoke
        if silent >= heartbeat:
            self.writer.beat()
            silent = 0.0
        self._silence = TICK * ceil((heartbeat - silent) / TICK) if silent else heartbeat
        TimerTable.of(loop).add(self, self._silence)

    async def _watch_client(self) -> None:
        try:
            if (await self._http.receive())["type"] != "http.disconnect":
                await wait_for_disconnect(self._http.receive)
        except Exception:
            # A defect of the host, which `check` raises again in the task of the POST. Nothing can
            # be sent, whatever the exchange would decide for a disconnect: the calls are cancelled.
            self.report(Leave())
            raise
        self.leave()

    def leave(self) -> None:
        """Handle a disconnect of the client: report `Leave` if it cancels the calls."""
        if self.ended:
            return
        self._http.detached = True
        # A provider's tool may be resolved after the exchange was made: read `on_disconnect` again.
        cancels = any(cancels_on_disconnect(call.route) for call in self.calls)
        if self.writer.exchange.leave(cancels=cancels):
            self.report(Leave())

    def check(self) -> None:
        """Raise the exception that the host's `receive` has raised in the watch, if any."""
        watch = self._watch
        if watch is not None and watch.done() and not watch.cancelled():
            watch.result()

    async def finish(self) -> None:
        """Send all messages that wait, and return when they are sent.

        Raises:
            Exception: an exception of the host's `receive` or `send`.
        """
        self.check()
        await self.writer.finish()

    def close(self) -> None:
        """Unregister the response, and stop its watch and timer."""
        self.ended = True
        self.calls = []  # they refer to this: a reference cycle
        http, watch = self._http, self._watch
        if watch is not None and not http.loop.is_closed():
            # Not awaited, since it has nothing to clean up. With a server that reports a disconnect
            # after each response it ends by itself in this iteration of the loop, which is cheaper.
            http.loop.call_soon(watch.cancel)
            self._watch = None
            TimerTable.of(http.loop).discard(self, self._silence)
            http.shutdown.discard(self.stop)

    async def end(self, promotions: "Sequence[asyncio.Task[None]]" = ()) -> None:
        """Close the response; wait for the *promotions*, the writer and the stored events."""
        self.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            self._http.response_begun = writer.begun
        try:
            if writer is not None:
                await writer.close()
            if promotions:  # a host may cancel this, but not the writes and deletions
                await asyncio.wait(promotions)
        finally:
            if writer is not None:
                await writer.end()


class ResponseWriter(msgspec.Struct, eq=False):
    """Sends the messages of one response as fast as its client reads. Owned by the response.

    The exchange decides which bytes are sent for responses, notifications and disconnects. The
    writer has an asyncio.Task only while messages wait to be sent.

    spoke: the time at which the last message was sent, or the writer was made, by the clock of the
    loop. begun: whether any message was sent.
    """

    _http: HttpRequest
    _open_response: OpenResponse
    _requests: Sequence[Request]
    exchange: Exchange
    spoke: float
    begun: bool = False
    _actions: list[ExchangeAction] = []
    _size: int = 0
    _writing: "asyncio.Task[None] | None" = None
    _read: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _progress: LatestProgress | None = None
    _logs: RateLimiter | None = None
    _kept: StoredStream | None = None
    _started: bool = False
    _closing: bool = False
    _handed_on: bool = False

    # Messages and events of the response.

    def send(self, message: bytes) -> None:
        """Send a notification, or a request of the server."""
        if not self.exchange.closed:
            self._push(self.exchange.note(message), len(message))

    def report(self, request: Request, message: bytes) -> None:
        """Send the progress of *request*; while the buffer is full, keep only the latest."""
        if self._progress is None:
            self._progress = LatestProgress(
                RateLimiter(self._http.mux.limits.progress_per_second), self.send
            )
        self._progress.offer(request, message, room=not self._full)

    async def log_turn(self) -> None:
        """Wait as `Limits.logs_per_second` demands before a log message is sent."""
        if self._logs is None:
            self._logs = RateLimiter(self._http.mux.limits.logs_per_second)
        await self._logs.wait()

    def begin_stream(self) -> None:
        """Begin the event stream, if it has not begun."""
        if not self.exchange.closed:
            self._push(self.exchange.begin_stream())

    def beat(self) -> None:
        """Send a comment, so that the silence does not end the connection."""
        self._push(self.exchange.beat())

    def release(self, retry: int) -> None:
        """End the connection, not the stream, if the client can resume it."""
        if not self.exchange.closed:
            self._push(self.exchange.release(retry))

    def hand_over(self) -> None:
        """End the connection, from any thread: the client resumes the stream on another one."""
        self._http.in_loop(lambda: self._push(self.exchange.hand_over()))

    def hand_on(self) -> None:
        """End the connection, but not the stream: another process sends the rest of it.

        Does nothing if the client cannot resume the stream.
        """
        if self.exchange.batch or self.exchange.stream is None:
            return
        actions = self.exchange.hand_over(_RESUME_DELAY)
        # DETACHED: the connection has ended, and the client may resume the stream at any time.
        self._handed_on = self.exchange.state is ExchangeState.DETACHED
        self._push(actions)

    def respond(self, request: Request, response: EncodedResponse) -> None:
        """Send the response to *request*."""
        if self.exchange.closed or self._handed_on:
            return
        if self._progress is not None:
            self._progress.finish(request)
        http, exchange = self._http, self.exchange
        if response.headers and not exchange.batch:
            if exchange.state is ExchangeState.WAITING:
                response = http.as_whole(response)
            http.headers = [*http.headers, *as_headers(response.headers)]
        actions = exchange.respond(response.body, response.status)
        if self._kept is not None:
            self._kept.responded(request, actions)
        self._push(actions, len(response.body or b""))

    def refuse(self, message: bytes) -> None:
        """Send the error *message* that is the response to an invalid member of a batch."""
        self._push(self.exchange.respond(message))

    # The stored events.

    def store(self) -> None:
        """Store the events from now on, if the client can resume the stream."""
        stream, http = self.exchange.stream, self._http
        session = self._requests[0].session
        if session is None or stream is None:
            return
        calls: dict[Request, str | None] = dict.fromkeys(self._requests)
        log, client = log_of(session, stream), http.client_key.client
        self._kept = StoredStream(http.mux.replay, log, calls, client)
        self._kept.add(self)
        for call in self._open_response.calls:
            self.follow(call)

    def follow(self, call: RunningCall[HttpRequest]) -> None:
        """Store, with the events of the response, the id of the task that *call* waits for."""
        if self._kept is not None and call.channel is not None:
            self._kept.set_task(call.request, call.channel.context.follows)

    async def following(self, request: Request, task: str | None) -> None:
        """Store, with the events of the response, that *request* waits for *task*."""
        if self._kept is not None:
            await self._kept.follow(request, task)

    # Writing to the connection.

    def _push(self, actions: list[ExchangeAction], size: int = 0) -> None:
        """Send *actions*, of about *size* bytes, together with those already waiting."""
        if actions and self._kept is None and type(actions[0]) is StreamRecord:
            self.store()
        self._actions += actions
        self._size += size
        if self._size > UNCOUNTED:
            self._http.queue(self._size, self._open_response.leave)
        self._wake()

    def _wake(self) -> None:
        if self._actions and self._started and self._writing is None:
            self._writing = self._http.loop.create_task(self._write())

    def start(self) -> None:
        """Start to send; before, messages are collected, so that a plain response can stay JSON."""
        self._started = True
        self._wake()

    def pause(self) -> None:
        """Start no more asyncio.Task: the caller calls `finish` next, which sends what waits."""
        self._started = False

    @property
    def _full(self) -> bool:
        full = self._size > self._http.mux.limits.write_buffer_bytes
        return full and self.exchange.state is not ExchangeState.WAITING

    async def room(self) -> None:
        """Wait until the write buffer is not full, or the writer is closed."""
        while self._full and not self._closing:
            self._read.clear()
            await self._read.wait()

    async def finish(self) -> None:
        """Send all messages that wait, and return when they are sent.

        Raises:
            Exception: an exception of the host's `send`.
        """
        self._started = False
        self._closing = True
        if self._writing is not None:
            await self._writing
        if self._actions:
            await self._flush()

    async def close(self) -> None:
        """Send nothing more."""
        self._started = False
        self._closing = True
        if self._progress is not None:
            self._progress.close()
        if self._kept is not None:
            self._kept.discard(self)
        self._read.set()
        if self._writing is not None and not self._writing.done():
            await cancel_and_wait(self._writing)

    async def end(self) -> None:
        """End the stored stream, so that no client waits for it, or hand it on."""
        if self._kept is not None:
            await (self._kept.hand_on() if self._handed_on else self._kept.end())

    async def _write(self) -> None:
        while self._actions:
            await self._flush()
        self._writing = None  # unless `send` has raised: `finish` raises that

    async def _flush(self) -> None:
        """Send everything that waits; treat a client that reads too slowly as disconnected."""
        try:
            await self._perform()
        except Exception as error:
            self._open_response.leave()
            if not isinstance(error, ClientLeft):
                raise  # a defect of the host, which gets it back
        finally:
            self._read.set()
        if self._progress is not None:
            self._progress.flush()

    async def _perform(self) -> None:
        http = self._http
        actions, self._actions = self._actions, []
        self._size = 0
        if self._kept is not None:
            records = [action for action in actions if type(action) is StreamRecord]
            if records:
                # Those of all messages that wait are stored at once, before the first of them.
                await self._kept.keep(records)
        self.begun = True
        writing = perform(http, actions)
        del actions  # a closed connection drops the bytes at once
        if http.unread is not None:
            http.unread.queue(0)
        await writing
        self.spoke = http.loop.time()


def _follows_task(call: RunningCall[HttpRequest]) -> bool:
    """Return whether *call* waits for a task, and its own code runs in no process."""
    return call.channel is not None and call.channel.context.phase is CallPhase.FOLLOWING
