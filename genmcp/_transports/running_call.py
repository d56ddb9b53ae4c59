"""One request while its hook runs, on any transport: the sink of its channel.

`core/call.py` decides the next phase of a call. `RunningCall.perform` performs its actions.

This module also tells apart who has cancelled the hook of a call (`RunningCall.end`). A hook runs
in the asyncio.Task of its transport, over HTTP that of the host's request. A CancelledError in the
hook has one of three sources: the action CANCEL_HOOK, the host, or the hook itself. A cancellation
by CANCEL_HOOK is taken back with `uncancel`, and the transport continues. The others propagate.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from genmcp._mux.limits import Slots
from genmcp._mux.mux import Mux
from genmcp._mux.performing import report
from genmcp._mux.responses import TASK_SUSPENDED, EncodedResponse
from genmcp._mux.tasks import still_running_result
from genmcp._transports.promotion import PROMOTES, Promotion
from genmcp._transports.timers import drive, run_at_once
from genmcp.channel import CallContext, Caller, Channel
from genmcp.core.access import Access
from genmcp.core.call import (
    CallAction,
    CallEvent,
    CallPhase,
    Interrupted,
    Returned,
    StepStored,
    StopServer,
)
from genmcp.core.request import RESULT_TOOL, Request, RouteFacts
from genmcp.core.server import AT_ONCE, SMALL
from genmcp.errors import McpError, Overloaded
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.protocol.value import Value

logger = logging.getLogger("genmcp")

NO_RESPONSE: Final = EncodedResponse(None)

Begun = EncodedResponse | Coroutine[Any, Any, EncodedResponse]
"""A hook after its first step: its response, or the coroutine that continues it."""


class LiveCaller(Caller, Protocol):
    """The source of a request: an HTTP request, or the connection of a client."""

    @property
    def mux(self) -> Mux:
        """The mux that serves it."""

    @property
    def access(self) -> Access | None:
        """The access of the client; None if it is anonymous."""

    @property
    def principal(self) -> str | None:
        """The identity in the access."""


C = TypeVar("C", bound=LiveCaller)


class RunningCall(msgspec.Struct, Generic[C], eq=False):
    """A request and its hook: the sink of its channel. Owned by the transport, which subclasses it.

    Methods that end a hook early: `report` advances the call by an event, on its own loop, and the
    others lead to it. `report_threadsafe` does so from any thread, and `stop` with `StopServer`.
    The `cancel_call` and `leave` of a `PipedCall` report `Cancel` and `Leave`. Over HTTP,
    `OpenResponse.leave` reports `Leave`.

    ended: whether no more messages are sent. responded: whether the response, or a handle, was
    sent. channel: set while the hook waits. interrupted: the response to a call whose hook the
    host, or the hook itself, has cancelled.
    """

    caller: C
    request: Request
    ended: bool = False
    responded: bool = False
    interrupted: EncodedResponse | None = None
    channel: Channel | None = None
    _response: EncodedResponse = NO_RESPONSE
    _task: "asyncio.Task[Any] | None" = None
    _cancels: int = 0
    _counted: int = 0
    _slots: Slots = ()
    _promotion: Promotion | None = None

    # The sink of the channel.

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended

    def watch_client(self) -> None:
        """Watch the connection from now on, so that a disconnect is reported at once."""

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification; return whether the client accepts any."""
        raise NotImplementedError

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request to the client, and return its result as JSON.

        Raises:
            WaitError: the client lacks the capability, responds with an error, or not in time.
        """
        asked = self.caller.mux.server_requests
        return await asked.ask(request, self.caller.principal, method, params, self.send)

    def begin_stream(self) -> None:
        """Make the response an event stream; does nothing here, where there is none."""

    def release(self, retry: int) -> None:
        """End the connection, if the client can resume the stream."""

    # Messages to the client.

    def send(self, message: bytes) -> Awaitable[None] | None:
        """Send a request of the server, or a notification that belongs to one."""
        raise NotImplementedError

    async def respond(self, response: EncodedResponse) -> None:
        """Send *response*. Without a message, the request ends without a response."""
        raise NotImplementedError

    async def send_handle(self, handle: EncodedResponse) -> None:
        """Send *handle* while the hook runs on.

        From now on the client may disconnect, and only `tasks/cancel` cancels the call.
        """
        self.responded = True
        if self.request.session is not None:
            self.caller.mux.calls.discard(self.request.session, self)

    async def note_followed(self, task: str | None) -> None:
        """Store with the events of the response that the call waits for *task*."""

    # The hook.

    def begin(self) -> Begun:
        """Run the hook in the current asyncio.Task up to its first wait.

        Returns:
            The response, if the hook has returned. Otherwise the coroutine that continues the hook,
            which the caller passes to `finish`: the hook waits, occupies a slot of
            `Limits.max_waiting_calls`, and can be cancelled from now on.

        Raises:
            Overloaded: no slot is free, or the client does not read its responses. A subclass may
                return a response instead (`overloaded`).
        """
        caller, request = self.caller, self.request
        mux = caller.mux
        if mux.waiting_calls.full or mux.unsent_bytes.full:
            try:
                self._check_shares()
            except Overloaded as error:
                return self.overloaded(error)
        context = CallContext(
            sink=self,
            caller=caller,
            performer=self,
            services=mux.call_services,
            static=mux.assigns,
        )
        channel = Channel(request, context, caller.access)
        work = mux.handle(request, channel)
        if ClientLogHandler.created:
            work = forwarding(channel, work)
        try:
            waited = work.send(None)
        except StopIteration as done:
            response: EncodedResponse = done.value
            return response
        self.register(channel)
        return drive(work, waited)

    async def complete(self) -> None:
        """Run the hook to its end, and respond.

        Raises:
            Overloaded: as for `begin`.
            asyncio.CancelledError: as for `finish`.
        """
        begun = self.begin()
        if isinstance(begun, EncodedResponse):
            await self.respond(begun)
        else:
            await self.finish(begun)

    def _check_shares(self) -> None:
        mux, client, method = self.caller.mux, self.caller.client_key, self.request.method
        if method not in AT_ONCE:
            mux.waiting_calls.check(client)
        if method not in SMALL:
            mux.unsent_bytes.check(client)

    def overloaded(self, error: Overloaded) -> EncodedResponse:
        """Return the response to a request that found no slot, or raise *error*."""
        raise error

    def register(self, channel: Channel) -> None:
        """Register the call: its hook waits in the current asyncio.Task."""
        caller, request = self.caller, self.request
        self.channel = channel
        self._task = task = asyncio.current_task()
        self._counted = task.cancelling() if task is not None else 0
        self._slots = caller.mux.waiting_calls.acquire(caller.client_key)
        if request.session is not None:
            caller.mux.calls.add(request.session, self)

    def start_timer(self) -> None:
        """Start the promotion timer, if the policy of the route limits how long a call is held.

        Does nothing while the route is pending: `RouteResolved` has the action START_TIMER.
        """
        channel, route = self.channel, self.route
        if channel is not None and route is not None and not route.pending:
            self._promotion = Promotion.of(self.caller.mux, self, channel)

    async def finish(self, work: Awaitable[EncodedResponse]) -> None:
        """Await *work*, which continues the hook, and perform what follows from its end.

        Raises:
            asyncio.CancelledError: the host, or the hook itself, has cancelled the hook.
        """
        channel = self.channel
        assert channel is not None
        try:
            response = await work
        except asyncio.CancelledError as error:
            await self._interrupt(channel, error)
            return
        except BaseException:  # the process exits, or the loop was closed
            self.end()
            raise
        self.end()
        context = channel.context
        if context.phase is CallPhase.RUNNING and context.unconfirmed is None:
            # Nothing has happened to the call that needs a decision.
            await self.respond(response)
            return
        for each in (response.result, response.raised):
            if isinstance(each, BaseException):
                _forget_frames(each)
        self._response = response
        event: CallEvent = Returned(response.result)
        await report(channel, StepStored() if response is TASK_SUSPENDED else event)

    async def _interrupt(self, channel: Channel, error: asyncio.CancelledError) -> None:
        """Handle the end of the hook by a cancellation.

        Raises:
            asyncio.CancelledError: *error*, if the host or the hook itself has cancelled.
        """
        try:
            self.end(error)
        except asyncio.CancelledError:
            self.interrupted = unfinished(self, channel, "The request was cancelled")
            raise
        finally:
            await report(channel, Interrupted())

    def end(self, cancelled: asyncio.CancelledError | None = None) -> None:
        """Release the slot of the call after the end of its hook, and unregister the call.

        Cancellations of the asyncio.Task by CANCEL_HOOK are taken back: the task responds.

        Raises:
            asyncio.CancelledError: *cancelled*, if the host or the hook itself has cancelled.
        """
        task, self._task = self._task, None
        if task is None:
            return
        self.channel = None  # the channel refers to this call: a reference cycle
        caller, request = self.caller, self.request
        caller.mux.waiting_calls.release(self._slots)
        if request.session is not None:
            caller.mux.calls.discard(request.session, self)
        if self._promotion is not None:
            self._promotion.stop_timer()
        # One `uncancel` for each CANCEL_HOOK. If the count does not fall to its value before the
        # hook, the host has cancelled the task too, perhaps in the same iteration of the loop. The
        # cancellation by the host must not get lost.
        for _ in range(self._cancels):
            task.uncancel()
        # The hook may also leave a higher count behind (asyncio.TaskGroup does that before Python
        # 3.13). So a higher count matters only if the hook has ended with a CancelledError.
        if cancelled is not None and (not self._cancels or task.cancelling() > self._counted):
            raise cancelled

    def report_threadsafe(self, event: CallEvent) -> None:
        """Call `report` with *event* in the loop of the call. May be called from any thread."""
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # its loop was closed, and the call with it
                task.get_loop().call_soon_threadsafe(self.report, event)

    def report(self, event: CallEvent) -> None:
        """Report *event*, whose actions do not wait: a timer, a cancellation, the shutdown.

        To be called in the loop of the call. Does nothing if the hook does not wait.
        """
        if self.channel is not None:
            run_at_once(report(self.channel, event))

    def stop(self) -> None:
        """Report `StopServer`: the hook is cancelled, and the client gets an error."""
        self.report(StopServer())

    async def perform(self, action: CallAction, channel: Channel) -> None:
        """Perform *action*: itself, or by the promotion or the mux."""
        promotion = self._promotion
        match action:
            case CallAction.RESPOND:
                await self.respond(self._response)
            case CallAction.REJECT:
                await self.respond(unfinished(self, channel, "The server is shutting down"))
            case CallAction.NO_RESPONSE:
                await self.respond(NO_RESPONSE)
            case CallAction.CANCEL_HOOK:
                if self._task is not None:
                    self._cancels += 1
                    self._task.cancel()
            case CallAction.NOTE_FOLLOWED:
                await self.note_followed(channel.context.follows)
            case CallAction.START_TIMER:
                self.start_timer()
            case CallAction.DELETE_RECORD:
                if promotion is not None:
                    promotion.start_deletion()
            case _ if action in PROMOTES:
                assert promotion is not None
                await promotion.perform(action, channel)
            case _:
                await self.caller.mux.tasks.perform(action, channel)

    @property
    def route(self) -> RouteFacts | None:
        """The route of the request. A route that is `pending` is resolved when the hook begins."""
        return (self.request if self.channel is None else self.channel.request).route

    def promotions(self) -> "list[asyncio.Task[None]]":
        """Return the asyncio.Tasks of a promotion that still run after the call."""
        promotion, self._promotion = self._promotion, None
        return [] if promotion is None else promotion.working


def unfinished(call: RunningCall[C], channel: Channel | None, reason: str) -> EncodedResponse:
    """Return the response to a *call* without a result, whose hook was cancelled for *reason*.

    Other processes continue a call that is stored. Its client must not be invited to send it again,
    which would start its job a second time.
    """
    mux, request = call.caller.mux, call.request
    id = None if channel is None else channel.task or channel.context.follows
    if id is None or not (mux.store.shared or mux.store.durable):
        return mux.responses.encode(request, Overloaded(reason))
    reason = f"{reason}, and the call has no result yet"
    if request.method == "tools/call" and mux.find("tools/call", RESULT_TOOL) is not None:
        return mux.responses.encode(request, still_running_result(reason, id, tool=RESULT_TOOL))
    # Without `retryAfter`, and with the status 200: clients repeat a request after a 503.
    return mux.responses.encode(request, McpError(f"{reason}. It continues as call {id}"))


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of *error*, which was logged, and of its causes.

    Their frames have the call, which has the error. The cycle would keep the whole request in
    memory until the next collection of garbage.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
