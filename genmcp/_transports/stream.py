"""Responses that stay open: the third of the three levels in `_transports/responder.py`.

Its exchange, and the stored events, are created on first use: when a message is sent before the
response, or when the exchange has to decide what follows from an event, such as a disconnect.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from genmcp._mux.replay import StoredStream, log_of
from genmcp._mux.responses import EncodedResponse
from genmcp._transports.request import HttpRequest, as_headers, wait_for_disconnect
from genmcp._transports.running_call import RunningCall
from genmcp._transports.timers import LatestProgress, RateLimiter
from genmcp._transports.writing import OpenConnection, ResponseState
from genmcp.core.call import CallEvent, CallPhase, Leave, StopServer
from genmcp.core.exchange import (
    Exchange,
    ExchangeAction,
    ExchangeState,
    StreamRecord,
    exchange_for,
)
from genmcp.core.request import Request, cancels_on_disconnect

# Milliseconds after which a client resumes a stream that ends with this process: a load balancer
# needs a moment to notice, and a restarted server to start.
_RESUME_DELAY: Final = 1000


class OpenResponse(OpenConnection, eq=False):
    """The response of one POST with open calls. Owned by the POST.

    requests: those of the POST. batch_size: the number of responses of a batch; 0 for a single
    request. calls: the calls that have waited.
    """

    requests: Sequence[Request] = ()
    batch_size: int = 0
    calls: list[RunningCall[HttpRequest]] = []
    _exchange: Exchange | None = None
    _progress: LatestProgress | None = None
    _logs: RateLimiter | None = None
    _kept: StoredStream | None = None
    _handed_on: bool = False  # another process sends the rest; DETACHED alone does not imply that

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        if self.state is ResponseState.ENDED:
            return True
        return self._exchange is not None and self._exchange.closed

    @property
    def is_unused(self) -> bool:
        """Whether nothing was sent, and the client has not left: one JSON body can be sent."""
        return self._exchange is None

    @property
    def exchange(self) -> Exchange:
        """Decides which bytes are sent for messages and disconnects; made at the first access."""
        if self._exchange is None:
            http, requests = self.http, self.requests
            resumable = http.streams and requests[0].session is not None
            stream = secrets.token_urlsafe(9) if resumable else None
            self._exchange = exchange_for(
                requests, streams=http.streams, stream=stream, batch=self.batch_size
            )
            if self.batch_size:  # the stored events count responses that precede the stream
                self.store()
        return self._exchange

    def keep_open(self, call: RunningCall[HttpRequest]) -> None:
        """Keep the response open for *call*, which waits."""
        self.calls.append(call)
        self.follow(call)
        if self.state is ResponseState.NEW:
            self.open(self._watch_client())
            self.wake()

    def report_to_calls(self, event: CallEvent) -> None:
        """Report *event* to the running calls."""
        for call in self.calls:
            call.report(event)

    def stop(self) -> None:
        """Report `StopServer` to the calls, which are cancelled, and shorten the time for writing.

        A call that only follows a task needs no error: its client resumes the stream at another
        process, which follows the task to its end, as it would after the death of this process.
        """
        self.http.hasten()
        if self.http.mux.store.durable and all(map(_follows_task, self.calls)):
            self._hand_on()
        self.report_to_calls(StopServer())

    def comment(self) -> list[ExchangeAction]:
        """Return the actions of a heartbeat, which begins the stream of a response without one."""
        return self.exchange.beat()

    async def _watch_client(self) -> None:
        try:
            if (await self.http.receive())["type"] != "http.disconnect":
                await wait_for_disconnect(self.http.receive)
        except Exception:
            # A defect of the host, which `check` raises again in the task of the POST. Nothing can
            # be sent, whatever the exchange would decide for a disconnect: the calls are cancelled.
            self.report_to_calls(Leave())
            raise
        self.leave()

    def leave(self) -> None:
        """Handle a disconnect of the client: report `Leave` if it cancels the calls."""
        if self.state is ResponseState.ENDED:
            return
        self.http.detached = True
        # A provider's tool may be resolved after the exchange was made: read `on_disconnect` again.
        cancels = any(cancels_on_disconnect(call.route) for call in self.calls)
        if self.exchange.leave(cancels=cancels):
            self.report_to_calls(Leave())

    async def finish(self) -> None:
        """Send all messages that wait, and return when they are sent.

        Raises:
            Exception: an exception of the host's `receive` or `send`.
        """
        self.check()
        await self.write_last()

    def close(self) -> None:
        """Unregister the response, and stop its watch and timer."""
        self.calls = []  # they refer to this: a reference cycle
        OpenConnection.close(self)

    async def end(self, promotions: "Sequence[asyncio.Task[None]]" = ()) -> None:
        """Close the response; wait for the *promotions*, the last write and the stored events."""
        self.close()
        try:
            # One may be sending the handle. A host may cancel this, but not writes and deletions.
            if promotions:
                await asyncio.wait(promotions)
        finally:
            if self._exchange is not None:
                await self._end()

    async def _end(self) -> None:
        if self._progress is not None:
            self._progress.close()
        kept = self._kept
        if kept is not None:
            kept.discard(self)
        try:
            await self.stop_writing()
        finally:
            # So that no client waits for the stored stream.
            if kept is not None:
                await (kept.hand_on() if self._handed_on else kept.end())

    # Messages and events of the response.

    def send(self, message: bytes) -> None:
        """Send a notification, or a request of the server."""
        if not self.closed and (actions := self.exchange.note(message)):
            self.push(actions, len(message))

    def report_progress(self, request: Request, message: bytes) -> None:
        """Send the progress of *request*; while the buffer is full, keep only the latest."""
        if self._progress is None:
            self._progress = LatestProgress(
                RateLimiter(self.http.mux.limits.progress_per_second), self.send
            )
        self._progress.offer(request, message, room=not self.full)

    async def log_turn(self) -> None:
        """Wait as `Limits.logs_per_second` demands before a log message is sent."""
        if self._logs is None:
            self._logs = RateLimiter(self.http.mux.limits.logs_per_second)
        await self._logs.wait()

    def hand_over(self) -> None:
        """End the connection, from any thread: the client resumes the stream on another one."""
        self.http.in_loop(lambda: self.push(self.exchange.hand_over()))

    def _hand_on(self) -> None:
        """End the connection, but not the stream: another process sends the rest of it.

        Does nothing if the client cannot resume the stream.
        """
        if self.exchange.batch or self.exchange.stream is None:
            return
        actions = self.exchange.hand_over(_RESUME_DELAY)
        # DETACHED: the connection has ended, and the client may resume the stream at any time.
        self._handed_on = self.exchange.state is ExchangeState.DETACHED
        self.push(actions)

    def respond(self, request: Request, response: EncodedResponse) -> None:
        """Send the response to *request*."""
        if self.exchange.closed or self._handed_on:
            return
        if self._progress is not None:
            self._progress.finish(request)
        http, exchange = self.http, self.exchange
        if response.headers and not exchange.batch:
            if exchange.state is ExchangeState.WAITING:
                response = http.as_whole(response)
            http.headers = [*http.headers, *as_headers(response.headers)]
        actions = exchange.respond(response.body, response.status)
        if self._kept is not None:
            self._kept.responded(request, actions)
        if actions or exchange.state is ExchangeState.WAITING:  # to be sent, or held for a batch
            self.push(actions, len(response.body or b""))

    # The stored events.

    def store(self) -> None:
        """Store the events from now on, if the client can resume the stream."""
        stream, http, requests = self.exchange.stream, self.http, self.requests
        session = requests[0].session
        if session is None or stream is None:
            return
        calls: dict[Request, str | None] = dict.fromkeys(requests)
        log, client = log_of(session, stream), http.client_key.client
        self._kept = StoredStream(http.mux.replay, log, calls, client)
        self._kept.add(self)
        for call in self.calls:
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

    def push(self, actions: list[ExchangeAction], size: int = 0) -> None:
        """Send *actions*, once the response is open, and store the events among them."""
        if actions and self._kept is None and type(actions[0]) is StreamRecord:
            self.store()
        OpenConnection.push(self, actions, size)
        if self.state is ResponseState.OPEN:
            self.wake()

    async def prepare(self, actions: list[ExchangeAction]) -> None:
        """Store the events of all messages that wait at once, before the first is sent."""
        if self._kept is not None:
            records = [action for action in actions if type(action) is StreamRecord]
            if records:
                await self._kept.keep(records)

    def on_read(self) -> None:
        """Send progress that was held back, since there is room again."""
        if self._progress is not None:
            self._progress.flush()


def _follows_task(call: RunningCall[HttpRequest]) -> bool:
    """Return whether *call* waits for a task, and its own code runs in no process."""
    return call.channel is not None and call.channel.context.phase is CallPhase.FOLLOWING
