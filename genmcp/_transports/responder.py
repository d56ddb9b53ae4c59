"""The calls of POST requests, and their responses: immediate, pending or open.

A response allocates only what it uses. It has one of three levels:

1. *Immediate*: the hook returns at its first step, and `Responder._reply` writes one JSON body.
2. *Pending*: the call waits. It has a slot and an entry in the `TimerTable` of its loop.
3. *Open*: the call was pending for a tick (`TICK`, 50 ms), or has sent a message. It then has an
   `OpenResponse` (`_transports/stream.py`), with an asyncio.Task that waits for the client to
   disconnect. Before that, a disconnect is not noticed.

The hook of a single request runs in the asyncio.Task of its POST. Each hook of a batch has an
asyncio.Task of its own.

The state of one response, from the call to the bytes:

- `Responder`: whether its call has a response or a handle (`responded`), and whether its channel
  takes no more messages (`ended`). The phase of its call: `core/call.py`.
- `OpenResponse`: how far the connection has come (`ResponseState`), for all calls of a batch.
- `Exchange` (`core/exchange.py`): whether the response is JSON or a stream, and what may follow.
- `HttpRequest`: whether a byte was sent (`response_begun`), whether the client has left
  (`detached`), and whether it has little time to read (`hastened`).
- `UnreadResponse`: the bytes that the client has not read yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from threading import get_ident
from typing import Any, Final

from genmcp._mux.responses import EncodedResponse
from genmcp._transports.batch import BatchLimits
from genmcp._transports.listening import listen
from genmcp._transports.request import ClientLeft, Headers, HttpRequest, as_headers, reject
from genmcp._transports.running_call import NO_RESPONSE, RunningCall, unfinished
from genmcp._transports.stream import OpenResponse
from genmcp._transports.timers import TICK, TimerTable, drive
from genmcp._transports.writing import ResponseState, reply
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Channel
from genmcp.core.exchange import Exchange, ExchangeAction
from genmcp.core.request import Request
from genmcp.core.server import LISTEN, Reject
from genmcp.errors import CapabilityMissing, Overloaded
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.value import Value

_TURN: Final = 0.001
"""Seconds for which a hook may send messages before other asyncio.Tasks run."""


class Responder(RunningCall[HttpRequest], eq=False):
    """A call that a POST request makes. Owned by the POST.

    open_response: made when the call is open, or sends something before its response; the calls of
    a batch share one. batch_limits: those of that batch.
    """

    open_response: OpenResponse | None = None
    batch_limits: BatchLimits | None = None
    _timers: TimerTable | None = None
    _turn: float = 0.0

    def serve(self) -> Awaitable[None]:
        """Run the hook up to its first wait; return the awaitable that sends the response.

        If the hook has neither waited nor sent a message, no other object is allocated.
        """
        request = self.request
        if request.route is None and request.method == LISTEN:
            return listen(self.caller, request)
        begun = self.begin()
        if isinstance(begun, EncodedResponse):
            if self.open_response is None:
                return self._reply(begun)
            return self._serve(self.respond(begun))
        return self._serve(self.finish(begun))

    def _reply(self, response: EncodedResponse) -> Coroutine[Any, Any, None]:
        """Send *response* as the whole response."""
        self.ended = True
        http = self.caller
        headers: Headers = ()
        if response.headers:
            response = http.as_whole(response)
            headers = as_headers(response.headers)
        return reply(http, response.status, response.body or b"", headers)

    async def _serve(self, work: Awaitable[None]) -> None:
        """Await *work*, which ends the hook and responds."""
        try:
            await work
        except asyncio.CancelledError:
            # The host, or the hook itself, has cancelled; CANCEL_HOOK is handled in `finish`. A
            # client that still waits for its response gets an error.
            self.put(self.cancelled_response())
            await _finish_at_once(self.opened())
            raise
        finally:
            self.ended = True
            response = self.open_response
            if response is not None:
                promotions = self.promotions()
                if promotions or response.state is not ResponseState.ENDED:
                    await response.end(promotions)

    async def respond(self, response: EncodedResponse) -> None:
        """Send *response*, as one JSON body if nothing else was sent."""
        opened = self.open_response
        if opened is None and response.body is not None:
            self.responded = True
            await self._reply(response)
        elif self.batch_limits is not None:
            self.put(self.batch_limits.bounded(self.request, response))
        elif opened is not None and opened.is_unused and response.body is not None:
            self.responded = True
            await self._respond_whole(opened, response)
        else:
            opened = self.opened()
            opened.begin_closing()
            self.put(response)
            await opened.finish()

    async def _respond_whole(self, opened: OpenResponse, response: EncodedResponse) -> None:
        """Send *response* as the whole response of a call that is open."""
        opened.check()
        sending = self._reply(response)
        try:
            waited = sending.send(None)
        except StopIteration:
            opened.close()
            return
        # The client has not read the response yet. Nothing more is sent, so that the heartbeat and
        # the watch for a disconnect end now.
        opened.close()
        await drive(sending, waited)

    def put(self, response: EncodedResponse) -> None:
        """Pass *response* to the open response, unless the client got one, or a handle."""
        if not self.responded:
            self.responded = True
            self.opened().respond(self.request, response)

    def cancelled_response(self) -> EncodedResponse:
        """Return the response to a call that its host, or its hook, has cancelled."""
        return self.interrupted or unfinished(self, self.channel, "The request was cancelled")

    def overloaded(self, error: Overloaded) -> EncodedResponse:
        """Return the response to a request that found no slot, with the status of *error*."""
        http, request = self.caller, self.request
        action = Reject(error, True, request.id, request.method)
        message = reject(http, action, request.session, request.revision)
        # The status is sent on every revision, since the response has not begun.
        return EncodedResponse(message, error.status, error.headers, error)

    # Pending and open.

    def register(self, channel: Channel) -> None:
        """Register the call as pending; open it now if a tick is longer than its timers permit."""
        super().register(channel)
        if self.open_response is None and _may_be_pending(channel.request):
            self._timers = timers = TimerTable.of(self.caller.loop)
            timers.add(self, TICK)
        else:
            self._open_call()

    def end(self, cancelled: asyncio.CancelledError | None = None) -> None:
        """Return the slot of the call, and remove it from the pending ones."""
        if self._timers is not None:
            self._timers.discard(self, TICK)
            self._timers = None
        try:
            super().end(cancelled)
        except asyncio.CancelledError:
            # The host waits for the end of the request. The call may have an end of its stream to
            # send, if its client had cancelled it before, and that client may not read.
            if self.batch_limits is None:
                self.caller.hasten()
            raise

    def expire(self) -> None:
        """Open the call: it has been pending for a tick."""
        self._timers = None
        self._open_call()

    def _open_call(self) -> None:
        self.opened().keep_open(self)
        self.start_timer()

    def opened(self) -> OpenResponse:
        """Return the open response, which the first use makes; a pending call becomes open."""
        if self.open_response is None:
            self.open_response = OpenResponse(self.caller, requests=(self.request,))
        if self._timers is not None:
            self._timers.discard(self, TICK)
            self._timers = None
            self._open_call()
        return self.open_response

    # The sink of the channel.

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended or (self.open_response is not None and self.open_response.closed)

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification; return whether the client accepts an event stream.

        Raises:
            RuntimeError: it is awaited in another event loop, such as one of a thread.
        """
        http = self.caller
        if get_ident() != http.thread:
            raise RuntimeError("a thread sends messages by channel.in_loop(channel.progress(...))")
        message = http.mux.encoder.notification(request.revision, method, params)
        opened = self.opened()
        if isinstance(params, ProgressNotificationParams):
            opened.report_progress(self.request, message)
        else:
            await opened.room()
            if isinstance(params, LoggingMessageNotificationParams):
                await opened.log_turn()
            opened.send(message)
        # Let other calls run, once a millisecond: what is sent within one goes out together.
        if time.monotonic() - self._turn > _TURN:
            await asyncio.sleep(0)
            self._turn = time.monotonic()
        return http.streams

    def send(self, message: bytes) -> None:
        """Send a request of the server, or a notification."""
        if not self.closed:
            self.opened().send(message)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request to the client, and return its result as JSON.

        Raises:
            WaitError: the client lacks the capability, responds with an error, or not in time.
        """
        if not self.caller.streams:
            raise CapabilityMissing({"streams": {}})
        self.opened()
        return await super().ask(request, method, params)

    def watch_client(self) -> None:
        """Open the call now, or when it first waits, so that a disconnect is noticed."""
        self.caller.in_loop(self.opened)

    def begin_stream(self) -> None:
        """Make the response an event stream, unless it is one."""
        self.caller.in_loop(self._push, Exchange.begin_stream)

    def release(self, retry: int) -> None:
        """End the connection, not the stream, if the client can resume it."""
        self.caller.in_loop(self._push, Exchange.release, retry)

    def _push(self, event: Callable[..., list[ExchangeAction]], *arguments: int) -> None:
        if not self.closed:  # a thread may be late
            opened = self.opened()
            opened.push(event(opened.exchange, *arguments))

    async def note_followed(self, task: str | None) -> None:
        """Store with the events of the response that the call waits for *task*."""
        if self.open_response is not None and not self.open_response.is_unused:
            await self.open_response.following(self.request, task)

    async def send_handle(self, handle: EncodedResponse) -> None:
        """Send *handle*; if it is the whole response, before the promotion continues."""
        opened = self.opened()
        opened.respond(self.request, handle)
        await super().send_handle(handle)
        if opened.closed:  # so that a disconnect does not matter any more
            await opened.write_last()


async def _finish_at_once(response: OpenResponse) -> None:
    """Send the messages that wait, within `LAST_WORDS` seconds; stop at a cancellation."""
    response.http.hasten()
    with suppress(ClientLeft, asyncio.CancelledError):
        await response.finish()


def _may_be_pending(request: Request) -> bool:
    """Return whether *request* needs no timer that would expire within a tick."""
    route = request.route
    if route is None:
        return True
    if route.pending:
        return False
    policy = route.policy
    return policy.promote_after > TICK and (policy.max_hold is None or policy.max_hold > TICK)


# Batches.


async def serve_batch(
    http: HttpRequest, requests: Sequence[Request], rejections: Sequence[bytes]
) -> None:
    """Respond to *requests*, each hook in a task of its own, and with the errors *rejections*."""
    response = OpenResponse(http, requests=requests, batch_size=len(requests) + len(rejections))
    limits = BatchLimits(http.mux, rejections)
    calls = [
        Responder(http, request, open_response=response, batch_limits=limits)
        for request in requests
    ]
    members: set[asyncio.Task[None]] = set()

    try:
        for message in rejections:
            response.push(response.exchange.respond(message))
        # The asyncio.Task of a request is made when the semaphore admits the request. A client may
        # send many batches whose first requests wait, and tasks for all others would take memory.
        for call in calls:
            await limits.turns.acquire()
            members.add(asyncio.create_task(_serve_member(call, response, limits)))
        for ended in await asyncio.gather(*members, return_exceptions=True):
            # A hook that has cancelled itself does not cancel the others.
            if isinstance(ended, Exception):
                raise ended
        for call in calls:
            call.put(call.cancelled_response())
        await response.finish()
    except asyncio.CancelledError:
        for call in calls:
            call.put(call.cancelled_response())
        await _finish_at_once(response)
        raise
    finally:
        try:
            await cancel_and_wait(*members)
        finally:  # a host may cancel again and again
            promotions = [each for call in calls for each in call.promotions()]
            await response.end(promotions)


async def _serve_member(call: Responder, response: OpenResponse, limits: BatchLimits) -> None:
    """Run *call*, a member of a batch, which holds one of the turns in *limits*.

    It is not started if the *response* or the session has ended, if the server is shutting down
    (`hastened`), or if the response is full.
    """
    mux, request = call.caller.mux, call.request
    try:
        if call.closed or request.session in mux.sessions:
            call.put(NO_RESPONSE)
        elif response.http.hastened:
            call.put(mux.responses.encode(request, Overloaded("The server is shutting down")))
        elif limits.full:  # not started, so the client can retry it
            call.put(mux.responses.encode(request, limits.overflow()))
        else:
            await call.complete()
        await asyncio.sleep(0)  # let requests of other clients run between two members
    finally:
        limits.turns.release()
