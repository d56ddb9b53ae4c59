"""Promotion of a call to a task while its hook runs: the timer, the record, and its handle.

`core/call.py` decides when a promotion begins and how it ends. If the store fails, the write is
repeated with the same id, since the record may have been written.
"""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from genmcp._mux.continuations import has_tasks
from genmcp._mux.mux import Mux
from genmcp._mux.performing import perform
from genmcp._mux.responses import EncodedResponse
from genmcp._mux.sinks import TaskSink
from genmcp._mux.tasks import create_task_result, new_id, still_running_result, suspension_of
from genmcp._transports.timers import TimerTable
from genmcp.channel import Channel, Performer
from genmcp.core.call import (
    CallAction,
    CallEvent,
    CallPhase,
    CancelTask,
    Found,
    Promote,
    RecordDeleted,
    Refused,
    StoreFailed,
    Written,
)
from genmcp.core.continuation import Continuation
from genmcp.core.request import RESULT_TOOL
from genmcp.core.task import Task
from genmcp.errors import IllegalTransition, StoreError, TaskNotFound
from genmcp.protocol.value import Result

logger = logging.getLogger("genmcp")

_AGAIN: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds before a promotion is retried: `_AGAIN` at first, doubled up to `_LONGEST`."""


_HELD: Final = "This takes longer than a call is held"

PROMOTES: Final = (
    *(CallAction.RESTART_TIMER, CallAction.RETRY_SOON, CallAction.RETRY_LATER),
    *(CallAction.WRITE_RECORD, CallAction.READ_RECORD, CallAction.REGISTER_TASK),
    *(CallAction.SEND_HANDLE, CallAction.UPDATE_STEP, CallAction.DELETE_RECORD),
)
"""The actions that a `Promotion` performs."""


class Promotable(Performer, Protocol):
    """A running call."""

    def report(self, event: CallEvent) -> None:
        """Report *event*; ignored if the hook has ended."""

    def report_threadsafe(self, event: CallEvent) -> None:
        """Call `report` in the loop of the call. May be called from any thread."""

    async def send_handle(self, handle: EncodedResponse) -> None:
        """Send *handle* while the hook runs on."""


class Promotion(msgspec.Struct, eq=False):
    """How a call becomes a task while its hook runs. Owned by the call.

    Its timer has the length `Tool.promote_after` for a client with the tasks extension, and
    `Tool.max_hold` for any other client.

    working: the asyncio.Tasks of writes, reads and deletions of the record.
    """

    _mux: Mux
    _call: Promotable
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
    def of(cls, mux: Mux, call: Promotable, channel: Channel) -> "Promotion | None":
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
        task = await tasks.promote(self._channel, id)
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
