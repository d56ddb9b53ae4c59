"""Promotion of a call to a task while its hook runs: the timer, the record, and its handle.

`_core/call.py` decides when a promotion begins and how it ends. If the store fails, the write is
repeated with the same id, since the record may have been written.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from genmcp._core.call import CallAction, CallEvent, CallPhase
from genmcp._core.continuation import Continuation
from genmcp._core.request import RESULT_TOOL
from genmcp._core.task import Task
from genmcp._mux.continuations import has_tasks
from genmcp._mux.mux import EncodedResponse, Mux
from genmcp._mux.sinks import TaskSink
from genmcp._mux.tasks import (
    create_task_result,
    still_running_result,
    suspension_of,
)
from genmcp._transports.timers import TimerTable
from genmcp.channel import Channel
from genmcp.errors import IllegalTransition, StoreError, StoreUnavailable, TaskNotFound
from genmcp.protocol.value import Result

logger = logging.getLogger("genmcp")

_AGAIN: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds before a promotion is retried: `_AGAIN` at first, doubled up to `_LONGEST`."""


_HELD: Final = "This takes longer than a call is held"


class Promotable(Protocol):
    """A running call."""

    def report(self, event: CallEvent) -> None:
        """Report *event*; ignored if the hook has ended."""

    def report_threadsafe(self, event: CallEvent) -> None:
        """Call `report` in the loop of the call. May be called from any thread."""

    def perform(self, actions: Collection[CallAction]) -> None:
        """Perform those of *actions* that need no await."""

    async def send_handle(self, answer: EncodedResponse) -> None:
        """Send *answer*, a handle, while the hook runs on."""


class Promotion(msgspec.Struct, eq=False):
    """How a call becomes a task while its hook runs. Owned by the call.

    Its timer has the length `Tool.promote_after` for a client with the tasks extension, and
    `Tool.max_hold` for any other client. It performs the actions of `_core/call.py` on the timer,
    the record and the handle.

    writing: the asyncio.Task of the last write, read or deletion of the record.
    """

    _mux: Mux
    _call: Promotable
    _channel: Channel
    _as_task: bool
    _timers: TimerTable
    _task: Task | None = None  # as it was written or read
    _step: Continuation | None = None  # as it was written
    _reached: Continuation | None = None  # when the handle was sent
    writing: "asyncio.Task[None] | None" = None
    _seconds: float = 0.0
    _delay: float = _AGAIN

    @classmethod
    def of(cls, mux: Mux, call: Promotable, channel: Channel) -> "Promotion | None":
        """Return a promotion with a started timer; None if the call may be held without limit."""
        policy = channel.request.policy
        as_task = policy.task != "never" and has_tasks(channel.request)
        if not as_task and policy.max_hold is None:
            return None
        promotion = cls(mux, call, channel, as_task, TimerTable.of(asyncio.get_running_loop()))
        promotion.perform(CallAction.RESTART_TIMER)
        return promotion

    def expire(self) -> None:
        """Report that the time of the call has passed."""
        self._call.report(CallEvent.PROMOTE)

    def stop_timer(self) -> None:
        """Stop the timer: the hook has ended, or the promotion has begun."""
        self._timers.discard(self, self._seconds)

    def perform(self, action: CallAction) -> None:
        """Perform *action*, if it concerns the timer or the record; start writes and reads."""
        if action is CallAction.RESTART_TIMER:
            policy = self._channel.request.policy
            self._start_timer((policy.promote_after if self._as_task else policy.max_hold) or 0.0)
        elif action is CallAction.RETRY_SOON:
            self._start_timer(_AGAIN)
        elif action is CallAction.RETRY_LATER:
            self._start_timer(self._delay)
            self._delay = min(2 * self._delay, _LONGEST)
        elif action is CallAction.WRITE_RECORD:
            self._start(self._run(self._write()))
        elif action is CallAction.READ_RECORD:
            self._start(self._run(self._read()))
        # A write that is still in flight deletes the record when it ends. To delete it here would
        # come first, and leave the record that is written after that.
        elif action is CallAction.DELETE_RECORD and self._is_left_over:
            self._start(self._delete())

    @property
    def _is_left_over(self) -> bool:
        return self._channel._call.unconfirmed is not None and (
            self.writing is None or self.writing.done()
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.stop_timer()
        self.writing = asyncio.get_running_loop().create_task(work)

    def _start_timer(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers.add(self, seconds)

    async def _run(self, work: Coroutine[Any, Any, CallEvent]) -> None:
        """Await *work* on the record, report its outcome, and perform the actions that result.

        The asyncio.Task of the call may be cancelled meanwhile; this one is not.
        """
        try:
            event = await work
        except StoreError as error:
            event = CallEvent.FAILED
            logger.warning("a call cannot become a task yet: %s", error)
        except Exception as error:
            event = CallEvent.REFUSED
            logger.error("a call cannot become a task: %s", error, exc_info=error)
        for action in self._channel._call.advance(event):
            try:
                if action is CallAction.SEND_HANDLE:
                    await self._send_handle()
                elif action is CallAction.DELETE_RECORD:
                    await self._delete()
                elif action is CallAction.WRITE_STEP:
                    await self._park()
                else:
                    self._call.perform((action,))
            except Exception as error:  # such as that of the host's `send`: the others follow
                logger.error("the promotion of a call has failed: %s", error, exc_info=error)
        if self._channel._call.phase is CallPhase.OVER:  # it has ended meanwhile: see `perform`
            await self._delete()

    async def _write(self) -> CallEvent:
        """Write the record, and return WRITTEN.

        A repeated write has the id of the first one, which may have succeeded without a response.
        """
        call, tasks = self._channel._call, self._mux.tasks
        self._step = None if call.unconfirmed else call.continuation
        # The id is unguessable: 160 random bits.
        call.unconfirmed = id = call.unconfirmed or secrets.token_urlsafe(20)
        self._task = task = await tasks.promote(self._channel, id)
        # An earlier attempt wrote it, although the store reported a failure, and another process
        # has ended the task as lost in the meantime. The next attempt uses a new id.
        if task.ended:
            call.unconfirmed = None
            raise StoreUnavailable(f"task {id} has ended")
        return CallEvent.WRITTEN

    async def _read(self) -> CallEvent:
        """Read the record of the task that the call follows; return FOUND or REFUSED."""
        channel = self._channel
        assert channel._call.follows is not None
        try:
            self._task = await self._mux.tasks.service.get(channel._call.follows, channel.principal)
        except TaskNotFound as error:
            logger.debug("a task that is followed has no handle: %s", error)
            return CallEvent.REFUSED
        return CallEvent.FOUND

    async def _send_handle(self) -> None:
        """Send the handle, after which the output of a call that runs on goes to the record."""
        channel, mux, task = self._channel, self._mux, self._task
        assert task is not None
        call = channel._call
        if self._as_task:
            handle: Result = create_task_result(task, mux.store.now())
        else:
            found = mux.find("tools/call", RESULT_TOOL)
            tool = None if found is None else RESULT_TOOL
            handle = still_running_result(_HELD, task.id, tool=tool)
        call.handle, self._reached = handle, call.continuation
        if call.phase is CallPhase.TASK:
            call.task, call.fencing_token, call.unconfirmed = task.id, task.fencing_token, None
            channel._sink = TaskSink(
                mux.services, mux.tasks.service, call, channel._sink.client_key
            )
            stop = partial(self._call.report_threadsafe, CallEvent.TASK_CANCEL)
            mux.tasks.running.add(task.id, task.fencing_token, stop)
        await self._call.send_handle(mux.respond(channel.request, handle))

    async def _park(self) -> None:
        """Write the step that the call has reached, unless it is the one in the record."""
        call, tasks = self._channel._call, self._mux.tasks
        reached = self._reached  # a later step is written by the hook itself
        if call.phase is CallPhase.TASK and reached is not None and reached is not self._step:
            try:
                await tasks.park(self._channel, suspension_of(reached, tasks.awaiting))
            except IllegalTransition:
                logger.debug("task %s was resumed elsewhere", call.task)
            except StoreError as error:
                logger.warning("the step of task %s is not written: %s", call.task, error)

    async def _delete(self) -> None:
        """Delete the record. If the store fails, the task fails as lost after a lease."""
        call = self._channel._call
        id, call.unconfirmed = call.unconfirmed, None
        if id is not None:
            try:
                await self._mux.tasks.service.discard(id)
            except StoreError as error:
                logger.warning("the record of a call that has ended is left: %s", error)
