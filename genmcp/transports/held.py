"""A response that takes its time: its hooks wait, or have something to say on the way."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from genmcp.channel import Channel
from genmcp.core.actions import Action, Record
from genmcp.core.exchange import Exchange, State
from genmcp.core.request import Request
from genmcp.core.server_dispatch import exchange_of
from genmcp.mux.calls import Hook, Reason
from genmcp.mux.mux import Answer
from genmcp.protocol.notifications import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.value import Value
from genmcp.transports.asgi import encoded, left
from genmcp.transports.hooks import Hooks
from genmcp.transports.kept_stream import KeptStream
from genmcp.transports.outgoing import Outgoing
from genmcp.transports.pace import Newest, Pace
from genmcp.transports.steps import start
from genmcp.transports.visit import Visit

__all__ = ["Held"]

logger = logging.getLogger("genmcp")

_TURN: Final = 0.001
"""For how many seconds a hook may go on speaking before others run."""


class Held:
    """The response to the requests of *exchange*.

    Once one of their hooks waits it has a watch for the client to leave and a heartbeat, and
    counts as open; however it ends, none of that is left behind.
    """

    idle = False

    __slots__ = (
        "_exchange",
        "_kept",
        "_logs",
        "_loop",
        "_newest",
        "_outgoing",
        "_over",
        "_timer",
        "_turn",
        "_visit",
        "_watch",
        "hooks",
    )

    def __init__(
        self, visit: Visit, exchange: Exchange, session: str | None, requests: Sequence[Request]
    ) -> None:
        self._visit = visit
        self._exchange = exchange
        self._kept: KeptStream | None = None
        if session is not None and exchange.stream is not None:
            owner = visit.mux.owners.of(visit.client_key)
            self._kept = KeptStream(visit.mux.replay, session, exchange.stream, requests, owner)
        self._newest = Newest(visit.mux.limits.progress_rate, self.send_note)
        self._outgoing = Outgoing(
            visit.send,
            visit.headers,
            visit.mux.limits,
            keep=self._keep,
            left=self._leave,
            said=self._newest.say,
        )
        self.hooks = Hooks(visit, self)
        self._logs: Pace | None = None
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = visit.loop
        self._turn = 0.0
        self._over = False

    @classmethod
    def of(cls, visit: Visit, request: Request, *, streams: bool) -> "Held":
        """Return the response to the one *request* of a POST."""
        resumable = streams and request.session is not None
        stream = secrets.token_urlsafe(9) if resumable else None
        exchange = exchange_of([request], request.revision, stream=stream, streams=streams)
        return cls(visit, exchange, request.session, [request])

    @property
    def streams(self) -> bool:
        """Whether the client accepts an event stream."""
        return self._exchange.streams

    @property
    def closed(self) -> bool:
        """Whether the exchange is over."""
        return self._over or self._exchange.closed

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification; return whether the client takes any."""
        message = self._visit.mux.encoder.notification(request.revision, method, params)
        full = self._outgoing.full and self._exchange.state is not State.WAITING
        if isinstance(params, ProgressNotificationParams):
            self._newest.offer(request, message, room=not full)
        else:
            if full:
                await self._outgoing.room()
            if isinstance(params, LoggingMessageNotificationParams):
                self._logs = self._logs or Pace(self._visit.mux.limits.log_rate)
                if wait := self._logs.turn():
                    await asyncio.sleep(wait)
            self.send_note(message)
        await self._let_others_run()
        return self._exchange.state is not State.WAITING

    def send_note(self, message: bytes) -> None:
        """Send a notification, or a request of the server's own."""
        self._step(partial(self._exchange.note, message), len(message))

    async def _let_others_run(self) -> None:
        """Take turns, but not after each of many words: those said in one turn go out together."""
        now = time.monotonic()
        if now - self._turn > _TURN:
            await asyncio.sleep(0)
            self._turn = time.monotonic()

    def open(self) -> None:
        """Make the response an event stream."""
        self._step(self._exchange.open)

    def give_up(self, retry: int) -> None:
        """End the connection, not the stream, where the client can come back for it."""
        self._step(partial(self._exchange.release, retry))

    def hand_over(self) -> None:
        """End the connection: another one goes on with the stream."""
        self._step(self._exchange.hand_over)

    def _step(self, step: Callable[[], list[Action]], size: int = 0) -> None:
        """Take a *step* of the exchange, in its own thread: now, or as soon as it is free."""
        if threading.get_ident() == self._visit.thread:
            self._take_step(step, size)
        else:
            with suppress(RuntimeError):  # the loop was closed, and the exchange with it
                self._loop.call_soon_threadsafe(self._take_step, step, size)

    def _take_step(self, step: Callable[[], list[Action]], size: int = 0) -> None:
        if not self.closed:
            self._outgoing.push(step(), size)

    # Its hooks.

    def hold(self, channel: Channel, hook: Hook | None = None) -> None:
        """Hold the response open for *channel*: for *hook*, or one of the running asyncio.Task."""
        self.hooks.hold(channel, hook)
        if self._kept is not None:
            channel.carrier.following = partial(self._kept.follow, channel.request)
        if self._watch is None:
            self._begin()

    def holds(self, request: Request) -> bool:
        """Whether the hook of *request* still runs, and its client is still there."""
        return request in self.hooks and not self.closed

    async def hand_out(self, request: Request, answer: Answer) -> None:
        """Send what answers *request* while its hook runs on; its client may leave then."""
        self.take(request, answer)
        self.hooks.hand_out(request)
        if self._exchange.closed:  # so that nobody minds a client that leaves
            await self._outgoing.finish()

    def take(self, request: Request, answer: Answer) -> None:
        """Take in what answers *request*."""
        if self.closed or request in self.hooks.handed_out:
            return
        self._newest.finish(request)
        if answer.headers and not self._exchange.batch:
            self._outgoing.headers = [*self._outgoing.headers, *encoded(answer.headers)]
        actions = self._exchange.answer(answer.message, answer.status)
        if self._kept is not None:
            self._kept.answered(request, actions)
        self._outgoing.push(actions)

    def refuse(self, message: bytes) -> None:
        """Take in the answer of a request that makes no call."""
        self._outgoing.push(self._exchange.answer(message))

    def _begin(self) -> None:
        """Count as open, watch for the client to leave, break silences: until `end`."""
        visit = self._visit
        visit.shutdown.add(self)
        visit.table = {}  # there may be many of these, and nobody looks at its headers again
        if self._kept is not None:
            self._kept.add(self)
        self._watch = start(self._loop, self._watch_client())
        self._timer = self._loop.call_later(visit.heartbeat, self._beat)
        self._outgoing.write()

    def _uncount(self) -> None:
        visit = self._visit
        if self._kept is not None:
            self._kept.discard(self)
        visit.shutdown.discard(self)

    def take_last(self, request: Request, answer: Answer) -> None:
        """Add the answer to *request*, the only one of the response; `finish` sends it."""
        self._outgoing.pause()
        self.take(request, answer)

    async def finish(self) -> None:
        """Send what is left.

        Raises:
            Exception: what the host's `receive` or `send` has raised.
        """
        if self._watch is not None and self._watch.done() and not self._watch.cancelled():
            self._watch.result()
        await self._outgoing.finish()

    async def end(self) -> None:
        """Leave nothing behind: no asyncio.Task, no stream that somebody could wait for."""
        self._over = True
        promotions = self.hooks.end()
        self._visit.answered = self._outgoing.begun
        self._newest.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # its context may lead back here
        tasks = [*promotions, *self._outgoing.close()]
        if self._watch is not None:
            # Not awaited, since it has nothing to clean up. With a server that reports a disconnect
            # after each response it ends by itself in this iteration of the loop, which is cheaper.
            self._loop.call_soon(self._watch.cancel)
            self._watch = None
            self._uncount()
        try:
            if tasks:  # a host may cancel this, but not what is written or deleted meanwhile
                await asyncio.wait(tasks)
        finally:
            if self._kept is not None:
                await self._kept.end()

    def stop(self) -> None:
        """Cancel what still runs, and say so to the client: the server is going away."""
        self.hasten()
        self.hooks.cancel(Reason.STOPPING)

    def hasten(self) -> None:
        """Give the client no more than a moment to read what is left."""
        self._outgoing.hasten()

    def _leave(self) -> None:
        self._visit.detached = True
        self._exchange.cancels |= self.hooks.are_cancelled_when_left
        if self._exchange.leave():
            self.hooks.cancel(Reason.LEFT)

    async def _watch_client(self) -> None:
        try:
            await left(self._visit.receive)
        except Exception:
            self.hooks.cancel(Reason.LEFT)
            raise
        self._leave()

    def _beat(self) -> None:
        """Send a comment if nothing was sent for `Endpoint(heartbeat=)` seconds.

        Each response has one timer. Sending does not reset it, which would cost every message.
        """
        heartbeat = self._visit.heartbeat
        silent = self._loop.time() - self._outgoing.spoke
        if silent >= heartbeat:
            self._outgoing.push(self._exchange.beat())
            silent = 0.0
        self._timer = self._loop.call_later(heartbeat - silent, self._beat)

    async def _keep(self, records: Sequence[Record]) -> None:
        if self._kept is not None:
            await self._kept.keep(records)
