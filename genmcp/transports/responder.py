"""A response in the making: what hooks say goes through the exchange and out to the client."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

from genmcp.channel import Channel
from genmcp.core.actions import Abandon, Action, Record
from genmcp.core.exchange import Exchange
from genmcp.core.request import Request
from genmcp.errors import Overloaded
from genmcp.mux.mux import Answer, Mux
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.value import Value
from genmcp.transports.asgi import Headers, Receive, Send, perform

__all__ = ["Responder"]


class Responder:
    """Serves the requests of one POST: the sink of their channels, and the writer of the answer.

    It has an asyncio.Task for each hook (the mux made it) and, once a hook waits, one that
    watches for the client to leave. It ends when the last of them has ended.
    """

    idle = False

    __slots__ = (
        "_exchange",
        "_headers",
        "_heartbeat",
        "_hooks",
        "_mux",
        "_ready",
        "_send",
        "_session",
        "_stopping",
        "_wake",
    )

    def __init__(
        self, mux: Mux, exchange: Exchange, send: Send, *, headers: Headers, heartbeat: float
    ) -> None:
        self._mux = mux
        self._exchange = exchange
        self._send = send
        self._headers = headers
        self._heartbeat = heartbeat
        self._session: str | None = None
        self._stopping = False
        self._ready: list[Action] = []
        self._hooks: dict[asyncio.Task[Answer], Request] = {}
        self._wake = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether the exchange is over."""
        return self._exchange.closed

    async def note(self, request: Request, method: str, params: Value | None) -> None:
        """Send a notification, in the words of the request's revision."""
        message = self._mux.encoder.notification(request.revision, method, params)
        self._push(self._exchange.note(message))
        await asyncio.sleep(0)

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        if request.session is None:
            return request.log_level
        return await self._mux.sessions.level(request.session)

    def open(self) -> None:
        """Make the response an event stream."""
        self._push(self._exchange.open())

    def release(self, retry: int) -> None:
        """End the connection, not the stream."""
        self._push(self._exchange.release(retry))

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool."""
        return await self._mux.in_thread(function, *arguments)

    def stop(self) -> None:
        """Cancel what still runs, and say so to the client: the server is going away."""
        self._stopping = True
        self._abandon()

    async def begin(
        self, calls: Sequence[tuple[Request, Channel]], refused: Sequence[bytes] = ()
    ) -> bool:
        """Begin all *calls*; return whether all of them answered at once, and were sent.

        *refused* are the answers of requests that make no call.
        """
        for message in refused:
            self._ready += self._exchange.answer(message)
        for request, channel in calls:
            self._session = request.session
            self._hooks[self._mux.start(request, channel)] = request
        if not _EAGER:
            await asyncio.sleep(0)  # a hook that does not wait is done after this
        self._collect()
        await self._flush()
        return not self._hooks

    async def wait(self, receive: Receive) -> None:
        """Go on until every hook has ended: send what they say, break silences."""
        for hook in self._hooks:
            hook.add_done_callback(self._wake_up)
        watch = asyncio.get_running_loop().create_task(self._watch(receive))
        try:
            while self._hooks:
                await self._pause()
                self._collect()
                await self._flush()
        finally:
            watch.cancel()
            self._abandon()
            await asyncio.wait([watch, *self._hooks])

    def _push(self, actions: list[Action]) -> None:
        self._ready += actions
        self._wake.set()

    def _wake_up(self, _: object) -> None:
        self._wake.set()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._heartbeat):
                await self._wake.wait()
        except TimeoutError:
            self._push(self._exchange.beat())
        self._wake.clear()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._push(self._exchange.leave())

    def _collect(self) -> None:
        """Take the answers of the hooks that have ended."""
        for hook in [hook for hook in self._hooks if hook.done()]:
            request = self._hooks.pop(hook)
            if not self._exchange.closed:
                answer = self._answer_of(hook, request)
                self._ready += self._exchange.answer(answer.message, answer.status)

    def _answer_of(self, hook: asyncio.Task[Answer], request: Request) -> Answer:
        if not hook.cancelled():
            return hook.result()
        if self._stopping:
            return self._mux.refusal(request, Overloaded("The server is shutting down"))
        return Answer(None)

    async def _flush(self) -> None:
        actions, self._ready = self._ready, []
        try:
            await perform(actions, self._send, self._headers)
        except OSError:
            actions += self._exchange.leave()
        records = [action for action in actions if isinstance(action, Record)]
        if records and self._session is not None:
            await self._mux.replay.keep(self._session, records)
        if any(isinstance(action, Abandon) for action in actions):
            self._abandon()

    def _abandon(self) -> None:
        for hook in self._hooks:
            hook.cancel()


_EAGER = sys.version_info >= (3, 12)
