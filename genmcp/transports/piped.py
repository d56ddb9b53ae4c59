"""Calls whose messages all go through one connection: standard streams, the HTTP+SSE pair.

Over such a pipe, nothing tells which request a message belongs to but the message itself.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.mux.calls import Reason
from genmcp.mux.mux import AT_ONCE, Answer
from genmcp.protocol.notifications import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.subscription import Announcer
from genmcp.transports.hooks import Caller, Hooks, tool_of
from genmcp.transports.pace import Pace

__all__ = ["Pipe", "PipedCall"]


class Pipe(Caller, Protocol):
    """The connection of one client. What it says has to wait while its reader is slow."""

    @property
    def copied(self) -> Mapping[str, Any] | None:
        """The assigns copied from the host's request."""

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that go along where a store keeps a call."""

    async def say(self, message: bytes) -> None:
        """Send a *message*."""

    async def report(self, request: Request, message: bytes) -> None:
        """Send a *message* of how far *request* is, or soon a newer one instead."""

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send what answers *request*; None: it gets no answer. Once for each request."""


class PipedCall:
    """A request whose hook runs in an asyncio.Task of its own; the sink of its channel."""

    idle = False

    def __init__(self, pipe: Pipe, request: Request) -> None:
        self.request = request
        self.closed = False
        self._pipe = pipe
        self._hooks = Hooks(pipe, self)
        self._logs = Pace(pipe.mux.limits.log_rate)

    async def run(self) -> None:
        """Run the hook, and answer.

        Raises:
            Overloaded: too many calls run; nothing is answered.
        """
        pipe, request, mux, hooks = self._pipe, self.request, self._pipe.mux, self._hooks
        if self.closed:
            await pipe.answer(request, None)
            return
        if mux.held.full and request.method not in AT_ONCE:
            mux.held.check(pipe.client_key, tool_of(request))
        channel = Channel(request, self, pipe.principal, mux.assigns, pipe.copied)
        hooks.hold(channel)
        work = mux.answer(request, channel)
        if ClientLogHandler.made:
            work = forwarding(channel, work)
        try:
            answer = await hooks.outcome(channel, work)
        finally:
            self.closed = True
            if promotions := hooks.end():
                await asyncio.gather(*promotions, return_exceptions=True)
        if request not in hooks.handed_out:
            await pipe.answer(request, answer.message)

    def cancel(self) -> None:
        """Cancel it: its client asked for that, and hears no more of it.

        One whose client has a handle goes on.
        """
        if self.request not in self._hooks.handed_out:
            self.closed = True
            self._hooks.cancel(Reason.ASKED)

    def stop(self) -> None:
        """Cancel it: the server is going away."""
        self._hooks.cancel(Reason.STOPPING)

    def leave(self) -> None:
        """Cancel it: its client is gone. One that has a handle may come back elsewhere."""
        promoted = self.request in self._hooks.handed_out
        self._hooks.cancel(Reason.STOPPING if promoted else Reason.LEFT)

    # For its patience.

    def holds(self, request: Request) -> bool:
        """Whether the hook still runs, and its client wants it."""
        return request in self._hooks and not self.closed

    async def hand_out(self, request: Request, answer: Answer) -> None:
        """Send what answers *request* while its hook runs on."""
        self._hooks.hand_out(request)
        await self._pipe.answer(request, answer.message)

    # What its channel says.

    @property
    def client_key(self) -> ClientKey:
        """The client that the request counts towards."""
        return self._pipe.client_key

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self._pipe.mux.announcer

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that go along where a store keeps a call."""
        return self._pipe.keep

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification, in the words of the request's revision."""
        message = self._pipe.mux.encoder.notification(request.revision, method, params)
        if isinstance(params, ProgressNotificationParams):
            await self._pipe.report(request, message)
        else:
            if isinstance(params, LoggingMessageNotificationParams) and (wait := self._logs.turn()):
                await asyncio.sleep(wait)
            await self._pipe.say(message)
        await asyncio.sleep(0)  # so that it is sent
        return True

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request of the server's own, and return its result as JSON.

        Raises:
            Failure: the client cannot be asked, answers with an error, or not in time.
        """
        pipe = self._pipe
        return await pipe.mux.long.asked.ask(request, pipe.principal, method, params, pipe.say)

    def watch_client(self) -> None:
        """Do nothing: the connection itself is watched."""

    async def promote(self, channel: Channel) -> None:
        """Make the call of *channel* a task, while it runs on."""
        await self._hooks.promote(channel.request)

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id*."""
        return await self._pipe.mux.long.outcome_of(id, principal)

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        return await self._pipe.mux.long.level_of(request)

    def open(self) -> None:
        """Do nothing: the connection is open."""

    def release(self, retry: int) -> None:
        """Do nothing: who loses this connection does not come back for it."""

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool."""
        client = self._pipe.client_key.owner
        return await self._pipe.mux.threads.run(function, *arguments, client=client)
