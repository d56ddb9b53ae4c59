"""The hooks of one response that wait: counted, found again, cancelled, perhaps made tasks."""

import asyncio
from collections.abc import Sequence

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.mux.calls import Hook, Reason
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.transports.patience import Patience, Response
from genmcp.transports.visit import Visit

__all__ = ["Hooks", "tool_of"]


def tool_of(request: Request) -> str | None:
    """Return the name of the tool that *request* calls, if it calls one."""
    params = request.params
    return params.name if isinstance(params, CallToolRequestParams) else None


class Hooks:
    """The hooks of *response*, by their requests.

    handed_out: the requests whose clients have a handle, and get no other answer.
    """

    __slots__ = ("_hooks", "_promotions", "_response", "_visit", "handed_out")

    def __init__(self, visit: Visit, response: Response) -> None:
        self._visit = visit
        self._response = response
        self._hooks: dict[Request, Hook] = {}
        self._promotions: Sequence[asyncio.Task[None]] = ()
        self.handed_out: Sequence[Request] = ()

    def __contains__(self, request: Request) -> bool:
        return request in self._hooks

    def hold(self, channel: Channel) -> None:
        """Take in that the hook of *channel* waits for something, in the running asyncio.Task."""
        request, mux = channel.request, self._visit.mux
        self._hooks[request] = hook = Hook(request)
        if Patience.ends(request):
            hook.patience = Patience(mux, self._response, channel, hook.cancel)
        mux.held.take(principal=self._visit.principal, tool=tool_of(request))
        if request.session is not None:
            mux.calls.add(request.session, hook)

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
        self._visit.mux.held.leave(principal=self._visit.principal, tool=tool_of(request))
        self._forget(request, hook)
        if hook.patience is not None:
            self._promotions = [*self._promotions, *hook.patience.end()]
        return hook.end(cancelled)

    def hand_out(self, request: Request) -> None:
        """Take in that the client has a handle: its request is over for it."""
        self.handed_out = [*self.handed_out, request]
        self._forget(request, self._hooks[request])

    def _forget(self, request: Request, hook: Hook) -> None:
        if request.session is not None:
            self._visit.mux.calls.discard(request.session, hook)

    async def promote(self, request: Request) -> None:
        """Make the call of *request* a task now."""
        patience = self._hooks[request].patience
        if patience is not None:
            await patience.promote()

    def cancel(self, reason: Reason) -> None:
        """Cancel what has not ended, from its own loop."""
        for hook in self._hooks.values():
            hook.cancel_now(reason)

    def end(self) -> Sequence["asyncio.Task[None]"]:
        """Let go of what is left, and return what is still to be waited for."""
        for request in list(self._hooks):
            self.let_go(request)
        return self._promotions
