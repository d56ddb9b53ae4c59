"""One HTTP request to an endpoint, admitted, and what it takes to answer it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from genmcp.channel import Channel
from genmcp.core.exchange import Exchange, State
from genmcp.core.request import Request
from genmcp.mux.mux import EAGER, Mux
from genmcp.protocol.meta import RequestId
from genmcp.transports.asgi import Headers, Receive, Send, reply
from genmcp.transports.responder import Responder
from genmcp.transports.shutdown import Shutdown

__all__ = ["Visit"]


class Visit(msgspec.Struct, eq=False):
    """One HTTP request.

    table: its headers. headers: what every answer to it carries besides. principal: who it was
    authenticated as. copied: the assigns copied from the host's request. id: that of the JSON-RPC
    request it carries, once that is known. answered: whether the response has begun.
    """

    mux: Mux
    shutdown: Shutdown
    heartbeat: float
    receive: Receive
    send: Send
    table: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    headers: Headers = ()
    principal: str | None = None
    copied: Mapping[str, Any] | None = None
    id: RequestId | None = None
    answered: bool = False

    async def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Send a complete answer; a *body* is JSON."""
        self.answered = True
        await reply(self.send, status, body, [*self.headers, *headers])

    async def serve(
        self, requests: Sequence[Request], exchange: Exchange, refused: Sequence[bytes] = ()
    ) -> None:
        """Answer *requests*, which with the *refused* ones' errors make up *exchange*."""
        held = self.mux.held
        responder = Responder(self.mux, exchange, self.send, self.headers, self.heartbeat)
        try:
            for message in refused:
                responder.refuse(message)
            for request in requests:
                if request.route is not None:  # what the mux answers itself waits for nothing
                    held.check(self.principal)
                responder.start(request, self._channel(request, responder))
            if responder.waits:
                # The place is taken before anybody else is asked whether there is one left.
                held.take(self.principal)
                try:
                    await self._hold(responder, requests[0].session, exchange.stream)
                finally:
                    held.leave(self.principal)
            else:
                await responder.flush()
        finally:
            self.answered = exchange.state is not State.WAITING
            if responder.waits:
                await responder.end()

    def _channel(self, request: Request, responder: Responder) -> Channel:
        return Channel(
            request,
            responder,
            principal=self.principal,
            static=self.mux.assigns,
            copied=self.copied,
        )

    async def _hold(self, responder: Responder, session: str | None, stream: str | None) -> None:
        """Keep the response open until the last hook has ended."""
        if not EAGER:
            await asyncio.sleep(0)  # a hook that does not wait is done after this
            if responder.ended:
                await responder.flush()
                return
        self.shutdown.add(responder)
        try:
            with self.mux.replay.written(session, stream, responder):
                await responder.wait(self.receive)
        finally:
            self.shutdown.discard(responder)
