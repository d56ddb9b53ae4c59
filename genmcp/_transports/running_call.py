"""One request while its hook runs, on any transport: the sink of its channel.

`_core/call.py` decides the next phase of a call. This module performs its actions.

This module also tells apart who has cancelled the hook of a call (`RunningCall.end`). A hook runs
in the asyncio.Task of its transport, over HTTP that of the host's request. A CancelledError in the
hook has one of three sources: the action CANCEL_HOOK, the host, or the hook itself. A cancellation
by CANCEL_HOOK is taken back with `uncancel`, and the transport continues. The others propagate.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from genmcp._core.access import Access
from genmcp._core.call import CallAction, CallEvent
from genmcp._core.client_key import ClientKey
from genmcp._core.request import RESULT_TOOL, Request, RouteFacts
from genmcp._core.server import AT_ONCE, SMALL
from genmcp._mux.limits import Slots
from genmcp._mux.mux import TASK_SUSPENDED, EncodedResponse, Mux
from genmcp._mux.sinks import MuxSink, Services
from genmcp._mux.tasks import still_running_result
from genmcp._transports.promotion import Promotion
from genmcp._transports.timers import drive
from genmcp.channel import Channel
from genmcp.errors import McpError, Overloaded
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.protocol.tools import CallToolRequestParams
from genmcp.protocol.value import Value

logger = logging.getLogger("genmcp")

NO_ANSWER: Final = EncodedResponse(None)

Begun = EncodedResponse | Coroutine[Any, Any, EncodedResponse]
"""A hook after its first step: its answer, or the coroutine that continues it."""


class Caller(Protocol):
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

    @property
    def client_key(self) -> ClientKey:
        """The client that its requests count towards."""

    @property
    def copied(self) -> Mapping[str, Any] | None:
        """The assigns copied from the host's request."""

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that are stored with a call."""

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check that the client was granted *scopes*, where the transport authenticates clients.

        Raises:
            InsufficientScope: it lacks one.
        """


C = TypeVar("C", bound=Caller)


class CallSink(msgspec.Struct, MuxSink, Generic[C], eq=False):
    """Sends the messages of one call to its *caller*. Owned by the channel of the call.

    ended: whether no more messages are sent.
    """

    caller: C
    request: Request
    ended: bool = False

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.ended

    @property
    def services(self) -> Services:
        """The parts of the mux."""
        return self.caller.mux.services

    @property
    def client_key(self) -> ClientKey:
        """The client that the request counts towards."""
        return self.caller.client_key

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that are stored with a call."""
        return self.caller.keep

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check that the client was granted *scopes*."""
        self.caller.require_scopes(scopes)

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification; return whether the client accepts any."""
        raise NotImplementedError

    def send(self, message: bytes) -> Awaitable[None] | None:
        """Send a request of the server, or a notification that belongs to one."""
        raise NotImplementedError

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request to the client, and return its result as JSON.

        Raises:
            WaitError: the client lacks the capability, responds with an error, or not in time.
        """
        asked = self.caller.mux.server_requests
        return await asked.ask(request, self.caller.principal, method, params, self.send)


class RunningCall(CallSink[C], eq=False):
    """A request and its hook. Owned by the transport, which subclasses it.

    Methods that end a hook early: `report` advances the call by an event, on its own loop, and the
    others lead to it. `report_threadsafe` does so from any thread, and `stop` with SHUTDOWN. The
    `cancel_call` and `leave` of a `PipedCall` report CANCEL and LEAVE. Over HTTP,
    `OpenResponse.leave` reports LEAVE.

    has_handle: whether the client got a handle, after which no other response is sent. channel: set
    while the hook waits. interrupted: the answer to a call whose hook the host, or the hook itself,
    has cancelled.
    """

    has_handle: bool = False
    interrupted: EncodedResponse | None = None
    channel: Channel | None = None
    _task: "asyncio.Task[Any] | None" = None
    _cancels: int = 0
    _counted: int = 0
    _slots: Slots = ()
    _promotion: Promotion | None = None

    def begin(self) -> Begun:
        """Run the hook in the current asyncio.Task up to its first wait.

        Returns:
            The answer, if the hook has returned. Otherwise the coroutine that continues the hook,
            which the caller passes to `outcome`: the hook waits, occupies a slot of
            `Limits.max_waiting_calls`, and can be cancelled from now on.

        Raises:
            Overloaded: no slot is free, or the client does not read its responses. A subclass may
                return an answer instead (`overloaded`).
        """
        caller, request = self.caller, self.request
        mux = caller.mux
        if mux.waiting_calls.full or mux.unsent_bytes.full:
            try:
                self._check_shares()
            except Overloaded as error:
                return self.overloaded(error)
        channel = Channel(request, self, caller.access, mux.assigns, caller.copied)
        work = mux.answer(request, channel)
        if ClientLogHandler.created:
            work = forwarding(channel, work)
        try:
            waited = work.send(None)
        except StopIteration as done:
            answer: EncodedResponse = done.value
            return answer
        self.hold(channel)
        return drive(work, waited)

    def _check_shares(self) -> None:
        mux, client, method = self.caller.mux, self.caller.client_key, self.request.method
        if method not in AT_ONCE:
            mux.waiting_calls.check(client, _tool_of(self.request))
        if method not in SMALL:
            mux.unsent_bytes.check(client)

    def overloaded(self, error: Overloaded) -> EncodedResponse:
        """Return the answer of a request that found no slot, or raise *error*."""
        raise error

    def hold(self, channel: Channel) -> None:
        """Register the call: its hook waits in the current asyncio.Task."""
        caller, request = self.caller, self.request
        self.channel = channel
        self._task = task = asyncio.current_task()
        self._counted = task.cancelling() if task is not None else 0
        self._slots = caller.mux.waiting_calls.acquire(caller.client_key, _tool_of(request))
        if request.session is not None:
            caller.mux.calls.add(request.session, self)

    def limit(self) -> None:
        """Start the promotion timer, if the policy of the route limits how long a call is held."""
        channel, route = self.channel, self.route
        # The policy of a pending route is not known yet: see `route_resolved`.
        if channel is not None and route is not None and not route.pending:
            self._promotion = Promotion.of(self.caller.mux, self, channel)

    def route_resolved(self) -> None:
        """Start the promotion timer; a call that has not waited yet starts it when it does."""
        self.limit()

    async def outcome(self, work: Awaitable[EncodedResponse]) -> EncodedResponse:
        """Await *work*, which continues the hook, and return the answer to send.

        The answer has no message if there is nothing to send, such as after a cancellation.

        Raises:
            asyncio.CancelledError: the host, or the hook itself, has cancelled the hook.
        """
        channel = self.channel
        assert channel is not None
        try:
            answer = await work
        except asyncio.CancelledError as error:
            return await self._interrupted(channel, error)
        except BaseException:  # the process exits, or the loop was closed
            self.end()
            raise
        self.end()
        call = channel._state
        if call is None:  # nothing happened to the call that needs a decision
            return answer
        # Before the end is reported: a promotion that is in flight reads it to end its record.
        call.outcome = answer.outcome
        for each in (answer.outcome, answer.raised):
            if isinstance(each, BaseException):
                _forget_frames(each)
        event = CallEvent.STORED if answer is TASK_SUSPENDED else CallEvent.RETURNED
        return await self._finish(channel, answer, await self._report_end(channel, event))

    async def _interrupted(
        self, channel: Channel, error: asyncio.CancelledError
    ) -> EncodedResponse:
        """Handle the end of the hook by a cancellation; return the answer to send.

        Raises:
            asyncio.CancelledError: *error*, if the host or the hook itself has cancelled.
        """
        try:
            self.end(error)
        except asyncio.CancelledError:
            self.interrupted = unfinished(self, channel, "The request was cancelled")
            raise
        finally:
            actions = await self._report_end(channel, CallEvent.INTERRUPTED)
        return await self._finish(channel, NO_ANSWER, actions)

    async def _report_end(self, channel: Channel, event: CallEvent) -> Collection[CallAction]:
        """Report the end of the hook, and write it to the record of a task; return the actions."""
        call = channel._call
        promoted = call.promoted
        actions = call.advance(event)
        self.perform(actions)
        if promoted:
            await self.caller.mux.tasks.ended(channel, actions)
        return actions

    async def _finish(
        self, channel: Channel, answer: EncodedResponse, actions: Collection[CallAction]
    ) -> EncodedResponse:
        """Perform the *actions* that concern the client and the tool; return the answer to send."""
        mux = self.caller.mux
        if CallAction.CANCEL_WORK in actions:
            await mux.tasks.cancel_work(channel)
        if CallAction.NOTIFY_TOOL in actions:
            await mux.tasks.notify_tool(channel)
        if CallAction.RESPOND in actions:
            return answer
        if CallAction.REJECT in actions:
            return unfinished(self, channel, "The server is shutting down")
        return NO_ANSWER

    def end(self, cancelled: asyncio.CancelledError | None = None) -> None:
        """Release the slot of the call after the end of its hook, and unregister the call.

        Cancellations of the asyncio.Task by CANCEL_HOOK are taken back: the task sends the answer.

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
        """Advance the phase of the call by *event*, and perform the actions that result.

        To be called in the loop of the call. Does nothing if the hook does not wait.
        """
        if self.channel is not None:
            self.perform(self.channel._call.advance(event))

    def perform(self, actions: Collection[CallAction]) -> None:
        """Perform those of *actions* that need no await: CANCEL_HOOK, and those of `Promotion`."""
        for action in actions:
            if action is CallAction.CANCEL_HOOK:
                if self._task is not None:
                    self._cancels += 1
                    self._task.cancel()
            elif self._promotion is not None:
                self._promotion.perform(action)

    def stop(self) -> None:
        """Report SHUTDOWN: the hook is cancelled, and the client gets an error."""
        self.report(CallEvent.SHUTDOWN)

    @property
    def route(self) -> RouteFacts | None:
        """The route of the request. A route that is `pending` is resolved when the hook begins."""
        return (self.request if self.channel is None else self.channel.request).route

    async def send_handle(self, answer: EncodedResponse) -> None:
        """Send *answer*, a handle, while the hook runs on.

        From now on the client may disconnect, and only `tasks/cancel` cancels the call.
        """
        self.has_handle = True
        if self.request.session is not None:
            self.caller.mux.calls.discard(self.request.session, self)

    def promotions(self) -> "list[asyncio.Task[None]]":
        """Return the asyncio.Task of a promotion that still runs after the call, in a list."""
        promotion, self._promotion = self._promotion, None
        return [] if promotion is None or promotion.writing is None else [promotion.writing]

    async def promote(self) -> None:
        """Make the call a task, while it runs on."""
        await asyncio.sleep(0)  # the call is registered when its hook first waits
        self.watch_client()
        self.report(CallEvent.PROMOTE)
        await self.settle()

    async def settle(self) -> None:
        """Wait until a promotion that was started has succeeded or failed."""
        if self._promotion is not None and self._promotion.writing is not None:
            await asyncio.wait([self._promotion.writing])


def _tool_of(request: Request) -> str | None:
    params = request.params
    return params.name if isinstance(params, CallToolRequestParams) else None


def unfinished(call: RunningCall[C], channel: Channel | None, reason: str) -> EncodedResponse:
    """Return the answer to a *call* without a result, whose hook was cancelled for *reason*.

    Other processes continue a call that is stored. Its client must not be invited to send it again,
    which would start its job a second time.
    """
    mux, request = call.caller.mux, call.request
    state = None if channel is None else channel._call
    id = None if state is None else state.task or state.follows
    if id is None or not (mux.store.shared or mux.store.durable):
        return mux.respond(request, Overloaded(reason))
    reason = f"{reason}, and the call has no result yet"
    if request.method == "tools/call" and mux.find("tools/call", RESULT_TOOL) is not None:
        return mux.respond(request, still_running_result(reason, id, tool=RESULT_TOOL))
    # Without `retryAfter`, and with the status 200: clients repeat a request after a 503.
    return mux.respond(request, McpError(f"{reason}. It continues as call {id}"))


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of *error*, which was logged, and of its causes.

    Their frames have the call, which has the error. The cycle would keep the whole request in
    memory until the next collection of garbage.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
