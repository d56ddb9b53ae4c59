"""A response in the making: what hooks say goes through the exchange and out to the client."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.actions import Abandon, Action, Record
from genmcp.core.exchange import Exchange, State
from genmcp.core.request import Request
from genmcp.errors import Overloaded, StoreError
from genmcp.mux.mux import Answer, Mux
from genmcp.protocol.meta import RequestId
from genmcp.protocol.notifications import ProgressNotificationParams
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.value import Value
from genmcp.transports.asgi import ClientLeft, Headers, Receive, Send, encoded, left, perform
from genmcp.transports.deadline import Deadline

__all__ = ["Responder"]

logger = logging.getLogger("genmcp")

_LAST_WORDS: Final = 1.0
"""How long a client may take to read its answer when the server goes away."""


class Responder(msgspec.Struct, eq=False):
    """Serves the requests of one POST: the sink of their channels, and the writer of the answer.

    It has an asyncio.Task for each hook (the mux made it) and, once a hook waits, one that
    watches for the client to leave. However it ends, none of them is left behind.
    """

    idle: ClassVar[bool] = False

    _mux: Mux
    _exchange: Exchange
    _send: Send
    _headers: Headers
    _heartbeat: float
    _session: str | None = None
    _resumable: bool = False
    _stopping: bool = False
    _over: bool = False
    _ready: list[Action] = msgspec.field(default_factory=list)
    _hooks: dict[asyncio.Task[Answer], Request] = msgspec.field(default_factory=dict)
    _unsent: int = 0
    _newest: dict[RequestId, bytes] = msgspec.field(default_factory=dict)
    _sent: asyncio.Event | None = None
    _wake: asyncio.Event | None = None
    _spoke: float = 0.0
    _timer: asyncio.TimerHandle | None = None
    _deadline: Deadline | None = None
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _thread: int = msgspec.field(default_factory=threading.get_ident)

    @property
    def closed(self) -> bool:
        """Whether the exchange is over."""
        return self._over or self._exchange.closed

    # What channels say. `def` hooks say it from threads.

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification, in the words of the request's revision."""
        message = self._mux.encoder.notification(request.revision, method, params)
        if self._unsent > self._mux.limits.buffer and self._exchange.state is State.STREAMING:
            if isinstance(params, ProgressNotificationParams):
                self._newest[request.id] = message
                await asyncio.sleep(0)
                return True
            await self._room()
        self._unsent += len(message)
        self._step(partial(self._exchange.note, message))
        await asyncio.sleep(0)
        return self._exchange.state is not State.WAITING

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        if request.session is None:
            return request.log_level
        return await self._mux.sessions.level(request.session)

    def open(self) -> None:
        """Make the response an event stream."""
        self._step(self._exchange.open)

    def release(self, retry: int) -> None:
        """End the connection, not the stream, where the client can come back for it."""
        self._step(partial(self._exchange.release, retry))

    def hand_over(self) -> None:
        """End the connection: another one goes on with the stream."""
        self._step(self._exchange.hand_over)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool."""
        return await self._mux.in_thread(function, *arguments)

    async def _room(self) -> None:
        """Wait until the client has read what is there for it, or is given up."""
        while self._sent and self._unsent > self._mux.limits.buffer and not self.closed:
            self._sent.clear()
            await self._sent.wait()

    def _step(self, step: Callable[[], list[Action]]) -> None:
        """Take a *step* of the exchange, in its own thread: now, or as soon as it is free."""
        if threading.get_ident() == self._thread:
            self._take(step)
        else:
            with suppress(RuntimeError):  # the loop was closed, and the exchange with it
                self._loop.call_soon_threadsafe(self._take, step)

    def _take(self, step: Callable[[], list[Action]]) -> None:
        if not self.closed:
            self._push(step())

    # The life of the response.

    def stop(self) -> None:
        """Cancel what still runs, and say so to the client: the server is going away."""
        self._stopping = True
        if self._deadline is not None:
            self._deadline.hasten(_LAST_WORDS)
        self._abandon()

    @property
    def waits(self) -> bool:
        """Whether there are hooks that have not ended."""
        return bool(self._hooks)

    @property
    def ended(self) -> bool:
        """Whether every hook has ended, so that all there is can be sent at once."""
        return all(hook.done() for hook in self._hooks)

    def refuse(self, message: bytes) -> None:
        """Take in the answer of a request that makes no call."""
        self._ready += self._exchange.answer(message)

    def start(self, request: Request, channel: Channel) -> None:
        """Begin to answer *request*; a hook that does not wait may have ended behind this."""
        self._session = request.session
        hook = self._mux.start(request, channel)
        if hook.done():
            self._answered(hook, request)
        else:
            self._hooks[hook] = request

    async def wait(self, receive: Receive) -> None:
        """Go on until every hook has ended: send what they say, break silences."""
        self._wake = wake = asyncio.Event()
        self._sent = sent = asyncio.Event()
        watch = self._loop.create_task(self._watch(receive))
        for task in (watch, *self._hooks):
            task.add_done_callback(lambda _: wake.set())
        self._spoke = self._loop.time()
        self._timer = self._loop.call_later(self._heartbeat, self._beat)
        try:
            await self._flush_in_time()  # what was said before the first wait
            while self._hooks:
                await wake.wait()
                wake.clear()
                if watch.done():
                    watch.result()
                await self._flush_in_time()
                sent.set()
        finally:
            self._timer.cancel()
            watch.cancel()
            await self.end(watch)

    async def end(self, *tasks: "asyncio.Task[None]") -> None:
        """Leave nothing behind: no hook that runs, no stream that somebody could wait for."""
        self._over = True
        self._abandon()
        if self._sent is not None:
            self._sent.set()  # a hook in a thread may wait for room that never comes
        await asyncio.gather(*tasks, *self._hooks, return_exceptions=True)
        if self._resumable and self._session is not None:
            with suppress(StoreError):
                await self._mux.replay.end(self._session, self._exchange.stream or "")

    def _push(self, actions: list[Action]) -> None:
        self._ready += actions
        if self._wake is not None:
            self._wake.set()

    def _beat(self) -> None:
        """Break the silence, if there was one since the last time."""
        silent = self._loop.time() - self._spoke
        if silent >= self._heartbeat:
            self._push(self._exchange.beat())
            silent = 0.0
        self._timer = self._loop.call_later(self._heartbeat - silent, self._beat)

    async def _watch(self, receive: Receive) -> None:
        await left(receive)
        self._push(self._exchange.leave())

    def _collect(self) -> None:
        """Take the answers of the hooks that have ended."""
        for hook in [hook for hook in self._hooks if hook.done()]:
            self._answered(hook, self._hooks.pop(hook))

    def _answered(self, hook: asyncio.Task[Answer], request: Request) -> None:
        if not self._exchange.closed:
            if request.id in self._newest:
                self._ready += self._exchange.note(self._newest.pop(request.id))
            answer = self._answer_of(hook, request)
            if answer.headers:
                self._headers = [*self._headers, *encoded(answer.headers)]
            self._ready += self._exchange.answer(answer.message, answer.status)

    def _answer_of(self, hook: asyncio.Task[Answer], request: Request) -> Answer:
        if not hook.cancelled():
            return hook.result()
        if self._stopping:
            return self._mux.refusal(request, Overloaded("The server is shutting down"))
        # Nobody here asked for it: a hook that cancels its own task has failed.
        return self._mux.failure(request, RuntimeError("a hook cancelled itself"))

    async def _flush_in_time(self) -> None:
        """Flush, but give the connection up if the client reads nothing of it for too long."""
        stall = _LAST_WORDS if self._stopping else self._mux.limits.stall
        self._deadline = deadline = Deadline(stall)
        try:
            await self.flush()
        except asyncio.CancelledError:
            if not deadline.was_the_only_reason():
                raise
            logger.info("a client reads nothing any more: its connection is given up")
            self._push(self._exchange.leave())
        finally:
            deadline.lift()
        newest, self._newest = self._newest, {}
        for message in newest.values():
            self._take(partial(self._exchange.note, message))

    async def flush(self) -> None:
        """Take the answers that are there, and do what the exchange asks for.

        What is sent can be resumed from at once.
        """
        if self._hooks:
            self._collect()
        actions, self._ready = self._ready, []
        self._unsent = 0
        if not actions:
            return
        kinds = set(map(type, actions))
        if Record in kinds:
            await self._keep([action for action in actions if isinstance(action, Record)])
        try:
            await perform(actions, self._send, self._headers)
            self._spoke = self._loop.time()
        except ClientLeft:
            kinds.update(map(type, self._exchange.leave()))
        if Abandon in kinds:
            self._abandon()

    async def _keep(self, records: Sequence[Record]) -> None:
        if self._session is None:
            return
        self._resumable = not records[-1].last
        try:
            await self._mux.replay.keep(self._session, records)
        except StoreError as error:
            # Its client is still told; only one that lost its connection cannot come back.
            logger.warning("what a stream says cannot be kept for resuming it: %s", error)

    def _abandon(self) -> None:
        for hook in self._hooks:
            hook.cancel()
