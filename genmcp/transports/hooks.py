"""The hooks of one response that wait: counted, found again, cancelled, perhaps made tasks."""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, Protocol

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.errors import Overloaded
from genmcp.mux.calls import Hook, Reason
from genmcp.mux.mux import Answer, Mux
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.transports.patience import Patience, Response

__all__ = ["NO_ANSWER", "Caller", "Hooks", "begin", "release", "tool_of"]

NO_ANSWER: Final = Answer(None)


class Caller(Protocol):
    """Whoever sends requests to a mux, in what the transport calls an exchange with it."""

    @property
    def mux(self) -> Mux:
        """The mux."""

    @property
    def principal(self) -> str | None:
        """Who it was authenticated as."""

    @property
    def client_key(self) -> ClientKey:
        """The client that its requests count towards."""


def tool_of(request: Request) -> str | None:
    """Return the name of the tool that *request* calls, if it calls one."""
    params = request.params
    return params.name if isinstance(params, CallToolRequestParams) else None


def begin(caller: Caller, request: Request) -> Hook:
    """Acquire a slot for *request* in the running asyncio.Task, and return its hook.

    The client can cancel it from now on. `release` returns the slot.
    """
    hook = Hook(request)
    caller.mux.held.take(caller.client_key, tool_of(request))
    if request.session is not None:
        caller.mux.calls.add(request.session, hook)
    return hook


def release(caller: Caller, request: Request, hook: Hook) -> None:
    """Return the slot of a *hook* that has ended; it cannot be cancelled any more."""
    caller.mux.held.leave(caller.client_key, tool_of(request))
    if request.session is not None:
        caller.mux.calls.discard(request.session, hook)


class Hooks:
    """The hooks of *response*, by their requests.

    handed_out: the requests that were answered with a handle, and get no other answer. reason: why
    all running hooks were cancelled; None if they were not.
    """

    __slots__ = ("_caller", "_hooks", "_promotions", "_response", "handed_out", "reason")

    def __init__(self, caller: Caller, response: Response) -> None:
        self._caller = caller
        self._response = response
        self._hooks: dict[Request, Hook] = {}
        self._promotions: Sequence[asyncio.Task[None]] = ()
        self.handed_out: Sequence[Request] = ()
        self.reason: Reason | None = None

    def __contains__(self, request: Request) -> bool:
        return request in self._hooks

    def hold(self, channel: Channel, hook: Hook | None = None) -> None:
        """Add the suspended hook of *channel*: *hook*, or one of the running asyncio.Task."""
        request = channel.request
        if hook is None:
            hook = begin(self._caller, request)
        self._hooks[request] = hook
        if request.route is not None and request.route.pending:
            channel.carrier.found = partial(self._be_patient, hook, channel)
        else:
            self._be_patient(hook, channel)

    def _be_patient(self, hook: Hook, channel: Channel) -> None:
        if Patience.ends(channel.request):
            hook.patience = Patience(self._caller.mux, self._response, channel, hook.cancel)

    @property
    def are_cancelled_when_left(self) -> bool:
        """Whether one wants to be cancelled when its client leaves; known late of extensions'."""
        routes = [request.route for request in self._hooks]
        return any(route is not None and route.on_disconnect == "cancel" for route in routes)

    async def outcome(self, channel: Channel, work: Awaitable[Answer]) -> Answer:
        """Go on with *work*, which answers *channel*'s request; return what is said in the end.

        That is no message if the request was cancelled.

        Raises:
            asyncio.CancelledError: somebody else has cancelled the asyncio.Task it runs in.
        """
        try:
            answer = await work
        except asyncio.CancelledError as error:
            return await self.settle(channel, NO_ANSWER, error)
        return await self.settle(channel, answer)

    async def settle(
        self,
        channel: Channel,
        answer: Answer,
        cancelled: asyncio.CancelledError | None = None,
    ) -> Answer:
        """Return what to send for a call whose hook has ended, with *answer* or *cancelled*.

        Raises:
            asyncio.CancelledError: the asyncio.Task was not cancelled through its hook.
        """
        request, mux = channel.request, self._caller.mux
        channel.carrier.outcome = answer.outcome  # set before a late promotion looks for it
        try:
            reason = self.let_go(request, cancelled)
        finally:
            if channel.promoted:
                await mux.long.ended(channel, answer.outcome, stopped=answer is NO_ANSWER)
        if reason in (Reason.ASKED, Reason.LEFT):
            await mux.long.abandon(channel)
        if reason is Reason.ASKED:
            return NO_ANSWER
        if reason is Reason.STOPPING and answer is NO_ANSWER:
            return mux.refusal(request, Overloaded("The server is shutting down"))
        return answer

    def let_go(
        self, request: Request, cancelled: asyncio.CancelledError | None = None
    ) -> Reason | None:
        """Take in that a hook has ended; return why it was cancelled, if it was.

        Raises:
            asyncio.CancelledError: somebody else has cancelled the asyncio.Task it ran in.
        """
        hook = self._hooks.pop(request, None)
        if hook is None:
            return None
        release(self._caller, request, hook)
        if hook.patience is not None:
            self._promotions = [*self._promotions, *hook.patience.end()]
        return hook.end(cancelled)

    def hand_out(self, request: Request) -> None:
        """Take in that the client has a handle: its request is over for it."""
        self.handed_out = [*self.handed_out, request]
        if request.session is not None:
            self._caller.mux.calls.discard(request.session, self._hooks[request])

    async def promote(self, request: Request) -> None:
        """Make the call of *request* a task now."""
        patience = self._hooks[request].patience
        if patience is not None:
            await asyncio.shield(patience.promotion())

    def cancel(self, reason: Reason) -> None:
        """Cancel what has not ended, from its own loop.

        A client that has a handle may leave: its call goes on.
        """
        self.reason = reason
        for request, hook in self._hooks.items():
            if reason is not Reason.LEFT or request not in self.handed_out:
                hook.cancel_now(reason)

    def end(self) -> Sequence["asyncio.Task[None]"]:
        """Let go of what is left, and return what is still to be waited for."""
        for request in list(self._hooks):
            self.let_go(request)
        del self._response  # breaks a reference cycle: the response refers to this
        return self._promotions
