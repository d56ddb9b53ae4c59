"""One request while its hook runs, on any transport: the sink of its channel.

`core/call.py` decides the next phase of a call. `RunningCall.perform` performs its actions.

This module also tells apart who has cancelled the hook of a call (`RunningCall.end`). A hook runs
in the asyncio.Task of its transport, over HTTP that of the host's request. A CancelledError in the
hook has one of three sources: the action CANCEL_HOOK, the host, or the hook itself. A cancellation
by CANCEL_HOOK is taken back with `uncancel`, and the transport continues. The others propagate.

A call that runs long becomes a task while its hook runs (`Promotion`). If the store fails, the
write is repeated with the same id, since the record may have been written.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from genmcp._mux.continuations import has_tasks
from genmcp._mux.limits import Slots
from genmcp._mux.mux import Mux
from genmcp._mux.performing import perform, report
from genmcp._mux.responses import TASK_SUSPENDED, EncodedResponse
from genmcp._mux.task_results import create_task_result, still_running_result
from genmcp._mux.task_sink import TaskSink
from genmcp._mux.tasks import new_id, suspension_of
from genmcp._transports.timers import TimerTable, drive, run_at_once
from genmcp.channel import CallContext, Caller, Channel
from genmcp.core.access import Access
from genmcp.core.call import (
    CallAction,
    CallEvent,
    CallPhase,
    CancelTask,
    Found,
    Interrupted,
    Promote,
    RecordDeleted,
    Refused,
    Returned,
    StepStored,
    StopServer,
    StoreFailed,
    Written,
)
from genmcp.core.continuation import Continuation
from genmcp.core.request import RESULT_TOOL, Request, RouteFacts
from genmcp.core.server import AT_ONCE, SMALL
from genmcp.core.task import Task
from genmcp.errors import IllegalTransition, McpError, Overloaded, StoreError, TaskNotFound
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.protocol.value import Result, Value

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


_AGAIN: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds before a promotion is retried: `_AGAIN` at first, doubled up to `_LONGEST`."""

_HELD: Final = "This takes longer than a call is held"

_PROMOTES: Final = (
    *(CallAction.RESTART_TIMER, CallAction.RETRY_SOON, CallAction.RETRY_LATER),
    *(CallAction.WRITE_RECORD, CallAction.READ_RECORD, CallAction.REGISTER_TASK),
    *(CallAction.SEND_HANDLE, CallAction.UPDATE_STEP, CallAction.DELETE_RECORD),
)
"""The actions that a `Promotion` performs."""


C = TypeVar("C", bound=LiveCaller)


class RunningCall(msgspec.Struct, Generic[C], eq=False):
    """A request and its hook: the sink of its channel. Owned by the transport, which subclasses it.

    Methods that end a hook early: `report` advances the call by an event, on its own loop, and the
    others lead to it. `report_threadsafe` does so from any thread, and `stop` with `StopServer`.
    The `cancel_call` and `leave` of a `PipedCall` report `Cancel` and `Leave`. Over HTTP,
    `OpenResponse.leave` reports `Leave`.

    ended: whether no more messages are sent. responded: whether the response was sent, or a handle,
    after which the hook may run on. channel: set while the hook waits. interrupted: the response to
    a call whose hook the host, or the hook itself, has cancelled.
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
    _promotion: "Promotion | None" = None

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
            case _ if action in _PROMOTES:
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


class Promotion(msgspec.Struct, eq=False):
    """How a call becomes a task while its hook runs. Owned by the call.

    Its timer has the length `Tool.promote_after` for a client with the tasks extension, and
    `Tool.max_hold` for any other client.

    working: the asyncio.Tasks of writes, reads and deletions of the record.
    """

    _mux: Mux
    _call: RunningCall[Any]
    _channel: Channel
    _as_task: bool
    _timers: TimerTable
    working: "list[asyncio.Task[None]]" = []
    _record: str | None = None  # of the record that was begun last
    _written: Continuation | None = None  # the step in it; None also if that is unknown
    _reached: Continuation | None = None  # the step when it was known to be written
    _seconds: float = 0.0
    _retry_delay: float = _AGAIN

    @classmethod
    def of(cls, mux: Mux, call: RunningCall[Any], channel: Channel) -> "Promotion | None":
        """Return a promotion with a started timer; None if the call may be held without limit."""
        policy = channel.request.policy
        as_task = policy.task != "never" and has_tasks(channel.request)
        if not as_task and policy.max_hold is None:
            return None
        promotion = cls(mux, call, channel, as_task, TimerTable.of(asyncio.get_running_loop()))
        promotion._restart_timer()
        return promotion

    def expire(self) -> None:
        """Report that the time of the call has passed."""
        # A repeated write has the id of the first one, which may have succeeded unnoticed.
        self._call.report(Promote(self._channel.context.unconfirmed or new_id()))

    def stop_timer(self) -> None:
        """Stop the timer: the hook has ended, or the promotion has begun."""
        self._timers.discard(self, self._seconds)

    async def perform(self, action: CallAction, channel: Channel) -> None:
        """Perform *action*: itself, or by the call. Writes and reads are only started."""
        match action:
            case CallAction.RESTART_TIMER:
                self._restart_timer()
            case CallAction.RETRY_SOON:
                self._start_timer(_AGAIN)
            case CallAction.RETRY_LATER:
                self._start_timer(self._retry_delay)
                self._retry_delay = min(2 * self._retry_delay, _LONGEST)
            case CallAction.WRITE_RECORD:
                self._start(self._write())
            case CallAction.READ_RECORD:
                self._start(self._read())
            case CallAction.REGISTER_TASK:
                self._register_task()
            case CallAction.SEND_HANDLE:
                handle = channel.context.handle
                assert handle is not None
                await self._call.send_handle(self._mux.responses.encode(channel.request, handle))
            case CallAction.UPDATE_STEP:
                await self._update_step()
            case CallAction.DELETE_RECORD:
                await self._delete()
            case _:
                await self._call.perform(action, channel)

    def _restart_timer(self) -> None:
        policy = self._channel.request.policy
        self._start_timer((policy.promote_after if self._as_task else policy.max_hold) or 0.0)

    def _start_timer(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers.add(self, seconds)

    def _start(self, access: Coroutine[Any, Any, CallEvent]) -> None:
        self.stop_timer()
        self._channel.context.promoting = self._work(self._run(access))

    def _work(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self.working = [*(each for each in self.working if not each.done()), task]
        return task

    async def _run(self, access: Coroutine[Any, Any, CallEvent]) -> None:
        """Await *access* to the store, report its end, and perform the actions that result.

        The asyncio.Task of the call may be cancelled meanwhile; this one is not.
        """
        context = self._channel.context
        try:
            event = await access
        except StoreError as error:
            event = StoreFailed(context.unconfirmed)
            logger.warning("a call cannot become a task yet: %s", error)
        except Exception as error:
            event = Refused()
            logger.error("a call cannot become a task: %s", error, exc_info=error)
        context.promoting = None
        try:
            # Not by the call: it may have ended, and dropped its promotion.
            await perform(self, iter(context.advance(event)), self._channel)
        except Exception as error:  # such as that of the host's `send`
            logger.error("the promotion of a call has failed: %s", error, exc_info=error)

    async def _write(self) -> CallEvent:
        """Write the record; return `Written`, or an event of its failure."""
        context, tasks = self._channel.context, self._mux.tasks
        id = context.unconfirmed
        assert id is not None
        # A repeated write may find the record as the first one has written it, with another step.
        self._written = None if id == self._record else context.continuation
        self._record = id
        task = await tasks.create(self._channel, id)
        # An earlier attempt wrote it, although the store reported a failure, and another process
        # has ended the task as lost in the meantime. The next attempt uses a new id.
        if task.ended:
            logger.warning("a call cannot become a task yet: task %s has ended", id)
            return StoreFailed(None)
        return Written(task.id, task.fencing_token, self._handle_of(task))

    async def _read(self) -> CallEvent:
        """Read the record of the task that the call follows; return `Found` or `Refused`."""
        channel = self._channel
        assert channel.context.follows is not None
        try:
            task = await self._mux.tasks.service.get(channel.context.follows, channel.principal)
        except TaskNotFound as error:
            logger.debug("a task that is followed has no handle: %s", error)
            return Refused()
        return Found(self._handle_of(task))

    def _handle_of(self, task: Task) -> Result:
        if self._as_task:
            return create_task_result(task, self._mux.store.now())
        found = self._mux.find("tools/call", RESULT_TOOL)
        return still_running_result(_HELD, task.id, tool=None if found is None else RESULT_TOOL)

    def _register_task(self) -> None:
        context, tasks = self._channel.context, self._mux.tasks
        assert context.task is not None
        self._reached = context.continuation
        context.sink = TaskSink(tasks.service, context.task, context.fencing_token)
        stop = partial(self._call.report_threadsafe, CancelTask())
        tasks.running[context.task, context.fencing_token] = stop

    async def _update_step(self) -> None:
        """Write the step that the call has reached, unless it is the one in the record."""
        context, tasks = self._channel.context, self._mux.tasks
        reached = self._reached  # a later step is written by the hook itself
        is_task = context.phase is CallPhase.TASK
        if is_task and reached is not None and reached is not self._written:
            try:
                await tasks.park(self._channel, suspension_of(reached, tasks.awaiting))
            except IllegalTransition:
                logger.debug("task %s was resumed elsewhere", context.task)
            except StoreError as error:
                logger.warning("the step of task %s is not written: %s", context.task, error)

    def start_deletion(self) -> None:
        """Delete the record in an asyncio.Task, since the host may cancel that of the call."""
        # A write that is still in flight deletes the record when it ends. To delete it here would
        # come first, and leave the record that is written after that.
        context = self._channel.context
        if context.unconfirmed is not None and context.promoting is None:
            self._work(self._delete())

    async def _delete(self) -> None:
        """Delete the record. If the store fails, the task fails as lost after a lease."""
        id = self._channel.context.unconfirmed
        if id is not None:
            self._channel.context.advance(RecordDeleted())
            try:
                await self._mux.tasks.service.discard(id)
            except StoreError as error:
                logger.warning("the record of a call that has ended is left: %s", error)


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
