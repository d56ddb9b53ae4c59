"""Promotion of a call to a task while its hook runs.

The record is written before the client gets the handle. If the call ends meanwhile it is answered
with its result, and if the client leaves it is cancelled; in both cases the record is withdrawn. If
another client already has the handle, through the same idempotency key, the record stays and the
client gets the handle. If the store fails, the write is retried with the same id, since the record
may have been written.
"""

import asyncio
import logging
from typing import Final, Protocol

import msgspec

from genmcp.channel import Channel
from genmcp.core.task import Task
from genmcp.errors import Conflict, OutOfTurn, StoreError, TaskNotFound, Unavailable
from genmcp.mux.calls import Reason
from genmcp.mux.continuations import has_tasks
from genmcp.mux.mux import Answer, Mux
from genmcp.mux.task_results import handle_of, held_over
from genmcp.mux.task_sink import TaskSink
from genmcp.mux.tasks import suspended
from genmcp.policy import RESULT_TOOL
from genmcp.protocol.result import Result
from genmcp.transports.timers import TimerTable

__all__ = ["PromotionTimer"]

logger = logging.getLogger("genmcp")

_AGAIN: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds before promotion to a task is retried: `_AGAIN` at first, doubled up to `_LONGEST`."""


class Promotable(Protocol):
    """A running call."""

    @property
    def holds(self) -> bool:
        """Whether the hook still runs, and its client waits for it."""

    async def hand_out(self, answer: Answer) -> None:
        """Send *answer*, a handle, while the hook runs on."""

    def cancel(self, reason: Reason) -> None:
        """Cancel the call, from any thread."""


class PromotionTimer(msgspec.Struct, eq=False):
    """The timer after which *call*, the one of *channel*, becomes a task. Owned by the call.

    It expires after `promote_after` for a client with the tasks extension, else after `hold`.
    """

    _mux: Mux
    _call: Promotable
    _channel: Channel
    _as_task: bool
    _timers: TimerTable
    _id: str | None = None  # of a record that may have been written
    _seconds: float = 0.0
    _pause: float = _AGAIN

    @classmethod
    def of(cls, mux: Mux, call: Promotable, channel: Channel) -> "PromotionTimer | None":
        """Return a started timer; None if the call may be held for as long as it takes."""
        policy = channel.request.policy
        as_task = policy.task != "never" and has_tasks(channel.request)
        if not as_task and policy.hold is None:
            return None
        timer = cls(mux, call, channel, as_task, TimerTable.of(asyncio.get_running_loop()))
        timer._start()
        return timer

    def end(self) -> None:
        """Stop the timer: the call has ended."""
        self._timers.discard(self, self._seconds)

    def unfinished(self) -> "list[asyncio.Task[None]]":
        """Return the promotion that the end of the call has to wait for, if any."""
        promotion = self._channel.carrier.promotion
        if promotion is None and self._id is not None:
            promotion = asyncio.get_running_loop().create_task(self._withdraw())
        return [] if promotion is None else [promotion]

    def _start(self) -> None:
        policy = self._channel.request.policy
        self._expire_in((policy.patience if self._as_task else policy.hold) or 0.0)

    def _expire_in(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers.add(self, seconds)

    def expire(self) -> None:
        """Start the promotion, or the timer again if the call can't become a task now."""
        if self._channel.carrier.asks:  # the delay is the client's: start the time again
            self._start()
        elif self._channel.carrier.waits:
            self._expire_in(_AGAIN)
        else:
            self.begin()

    def begin(self) -> "asyncio.Task[None]":
        """Start the promotion, unless it has started, and return it.

        It continues when the call ends: a record that was written is either handed out or deleted.
        """
        self.end()
        carrier = self._channel.carrier
        if carrier.promotion is None:
            carrier.promotion = asyncio.get_running_loop().create_task(self._promote())
        return carrier.promotion

    async def _promote(self) -> None:
        carrier = self._channel.carrier
        try:
            if carrier.follows is not None:
                await self._leave(carrier.follows)
            else:
                await self._keep()
        except Conflict as error:
            logger.error("a call cannot become a task, and is held on: %s", error)
        except StoreError as error:
            logger.warning("a call cannot become a task yet, and is held on: %s", error)
            if carrier.told is None:
                await self._try_again()
        except Exception as error:
            logger.error("a call cannot become a task, and is held on: %s", error, exc_info=error)

    async def _try_again(self) -> None:
        if not self._call.holds:
            await self._withdraw()
            return
        self._channel.carrier.promotion = None
        self._expire_in(self._pause)
        self._pause = min(2 * self._pause, _LONGEST)

    async def _withdraw(self) -> None:
        """Delete a record whose id no client has; if the store fails it becomes Lost in a lease."""
        id, self._id = self._id, None
        if id is not None:
            try:
                await self._mux.tasks.withdraw(self._channel, id)
            except StoreError as error:
                logger.warning("the record of a call that has ended is left: %s", error)

    async def _keep(self) -> None:
        """Write the record, and hand it out if the call still runs and its client is there."""
        channel, tasks = self._channel, self._mux.tasks
        carrier = channel.carrier
        written = None if self._id else carrier.continuation
        self._id = id = self._id or tasks.new_id(channel)
        task = await tasks.promote(channel, id)
        if task is None:  # the call has ended meanwhile, and so has its record
            return
        if task.over:  # written by an earlier attempt, and taken for lost while the store failed
            self._id = None
            raise Unavailable(f"task {id} is over")
        if not self._call.holds:
            await self._withdraw()
            return
        self._id = None
        carrier.task, carrier.fencing_token, carrier.promoted = id, task.fencing_token, True
        channel.hand_over(TaskSink(self._mux, carrier, channel.client_key))
        tasks.stops(task.id, self._stopped)
        await self._hand_out(task)
        if carrier.continuation is not None and carrier.continuation is not written:
            try:  # it went on while the record was written
                await tasks.park(channel, suspended(carrier.continuation, tasks.awaiting))
            except OutOfTurn:
                logger.debug("task %s has gone on by itself", task.id)

    def _stopped(self) -> None:
        self._channel.carrier.stopped = True
        self._call.cancel(Reason.ASKED)

    async def _leave(self, id: str) -> None:
        """Hand out task *id*, which the call only follows, and cancel the call."""
        try:
            task = await self._mux.tasks.service.get(id, self._channel.principal)
        except TaskNotFound as error:
            logger.debug("task %s is followed on: %s", id, error)
            return
        if self._call.holds:
            await self._hand_out(task)
            self._call.cancel(Reason.HELD_OVER)

    async def _hand_out(self, task: Task) -> None:
        self._channel.carrier.told = told = self._told(task)
        await self._call.hand_out(self._mux.said(self._channel.request, told))

    def _told(self, task: Task) -> Result:
        if self._as_task:
            return handle_of(task, self._mux.store.now())
        found = self._mux.find("tools/call", RESULT_TOOL)
        return held_over(task, tool=None if found is None else RESULT_TOOL)
