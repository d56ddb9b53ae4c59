"""Calls whose messages share one connection: standard streams, and the HTTP+SSE transport.

Over such a pipe a message belongs to a request only by the ids and tokens in the message itself.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from genmcp.channel import Channel
from genmcp.core.call import CallEvent
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.mux.mux import Answer, Mux
from genmcp.protocol.notifications import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.value import Value
from genmcp.transports.running_call import RunningCall
from genmcp.transports.timers import RateLimiter

__all__ = ["Pipe", "PipedCall"]


class Pipe:
    """The connection of one client. Sending waits while the client reads slowly."""

    def __init__(
        self,
        mux: Mux,
        principal: str | None,
        client_key: ClientKey,
        copied: Mapping[str, Any] | None = None,
        keep: Collection[str] = (),
    ) -> None:
        self.mux = mux
        self.principal = principal
        self.client_key = client_key
        self.copied = copied
        self.keep = keep

    async def send(self, message: bytes) -> None:
        """Send a *message*."""
        raise NotImplementedError

    async def report(self, request: Request, message: bytes) -> None:
        """Send a *message* with the progress of *request*, or soon a later one instead."""
        await self.send(message)

    async def respond(self, request: Request, message: bytes | None) -> None:
        """Send the response to *request*; None: it gets none. Called once for each request."""
        if message is not None:
            await self.send(message)


class PipedCall(RunningCall[Pipe], eq=False):
    """A call whose hook runs in an asyncio.Task of its own. Owned by the pipe."""

    _logs: RateLimiter | None = None

    async def run(self) -> None:
        """Run the hook, and send the response.

        Raises:
            Overloaded: no slot is free; no response is sent.
        """
        pipe, request = self.caller, self.request
        if self.over:
            await pipe.respond(request, None)
            return
        try:
            begun = self.begin()
            answer = begun if isinstance(begun, Answer) else await self.outcome(begun)
        finally:
            self.over = True
            if promotions := self.promotions():
                await asyncio.wait(promotions)
        if not self.handed_out:
            await pipe.respond(request, answer.message)

    def hold(self, channel: Channel) -> None:
        """Register the call, and start its promotion timer."""
        super().hold(channel)
        self.limit()

    def withdraw(self) -> None:
        """Cancel the call at the request of its client, and send no response.

        A call whose client has a handle continues.
        """
        if not self.handed_out:
            self.over = True
            self.report(CallEvent.CANCEL)

    def leave(self) -> None:
        """Cancel the call: its client has disconnected.

        A client that has a handle may connect again, so that its task is released instead.
        """
        self.report(CallEvent.SHUTDOWN if self.handed_out else CallEvent.LEAVE)

    async def hand_out(self, answer: Answer) -> None:
        """Send a handle while the hook runs on."""
        await super().hand_out(answer)
        await self.caller.respond(self.request, answer.message)

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification, in the revision of the request."""
        pipe = self.caller
        message = pipe.mux.encoder.notification(request.revision, method, params)
        if isinstance(params, ProgressNotificationParams):
            await pipe.report(self.request, message)
        else:
            if isinstance(params, LoggingMessageNotificationParams):
                self._logs = self._logs or RateLimiter(pipe.mux.limits.log_rate)
                if wait := self._logs.turn():
                    await asyncio.sleep(wait)
            await pipe.send(message)
        await asyncio.sleep(0)  # so that it is sent
        return True

    async def send(self, message: bytes) -> None:
        """Send a request of the server, or a notification."""
        await self.caller.send(message)
