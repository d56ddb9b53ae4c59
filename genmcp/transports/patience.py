"""When a call has run so long that its client gets a handle instead of waiting on."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.task import Task
from genmcp.errors import Conflict, OutOfTurn, StoreError, TaskNotFound, Unavailable
from genmcp.mux.calls import Reason
from genmcp.mux.continuations import has_tasks
from genmcp.mux.mux import Answer, Mux
from genmcp.mux.task_sink import TaskSink
from genmcp.mux.tasks import handle_of, held_over
from genmcp.policy import RESULT_TOOL
from genmcp.protocol.result import Result

__all__ = ["Patience"]

logger = logging.getLogger("genmcp")

_AGAIN: Final = 0.1
_LONGEST: Final = 5.0
"""Seconds before promotion to a task is retried: `_AGAIN` at first, doubled up to `_LONGEST`."""


class Response(Protocol):
    """The response in which a call is held."""

    def holds(self, request: Request) -> bool:
        """Whether the call still runs, and its client is still there."""

    async def hand_out(self, request: Request, answer: Answer) -> None:
        """Send what answers the call while it runs on; from now on a disconnect means nothing."""


class Patience:
    """The timer that promotes the call of *channel*, held in *response*, to a task while it runs.

    Owned by the hook of the call. *stop* cancels the call, from any thread.

    The record is written before the client gets the handle. If the call ended meanwhile it is
    answered with its result, and if the client left it is cancelled; in both cases the record is
    withdrawn. If another client already has its handle through the same idempotency key, the record
    stays and the client gets the handle. If the store fails, the write is retried with the same id,
    since the record may have been written.
    """

    __slots__ = ("_as_task", "_channel", "_id", "_mux", "_pause", "_response", "_stop", "_timer")

    def __init__(
        self, mux: Mux, response: Response, channel: Channel, stop: Callable[[Reason], None]
    ) -> None:
        self._mux = mux
        self._response = response
        self._channel = channel
        self._stop = stop
        policy = channel.request.route.policy
        self._as_task = policy.task != "never" and has_tasks(channel.request)
        self._pause = _AGAIN
        self._id: str | None = None  # id of a record that may have been written
        self._timer = self._armed()

    @staticmethod
    def ends(request: Request) -> bool:
        """Whether the call of *request* may not be held for as long as it takes."""
        route = request.route
        if route is None:
            return False
        policy = route.policy
        return policy.hold is not None or (policy.task != "never" and has_tasks(request))

    def end(self) -> "list[asyncio.Task[None]]":
        """Have none any more; return what still has to be waited for."""
        self._timer.cancel()
        promotion = self._channel.carrier.promotion
        if promotion is None and self._id is not None:
            promotion = asyncio.get_running_loop().create_task(self._withdraw())
        return [] if promotion is None else [promotion]

    def _armed(self) -> asyncio.TimerHandle:
        policy = self._channel.request.route.policy
        seconds = policy.patience if self._as_task else policy.hold
        return asyncio.get_running_loop().call_later(seconds or 0, self._begin)

    def _begin(self) -> None:
        if self._channel.carrier.asks:  # the delay is the client's: start the time again
            self._timer = self._armed()
        elif self._channel.carrier.waits:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN, self._begin)
        else:
            self.promotion()

    def promotion(self) -> "asyncio.Task[None]":
        """Begin to make the call a task, unless that has begun, and return what does it.

        It goes on whatever becomes of the call: a record that was written is either told of or
        deleted.
        """
        self._timer.cancel()
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
        if not self._response.holds(self._channel.request):
            await self._withdraw()
            return
        self._channel.carrier.promotion = None
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._begin)
        self._pause = min(2 * self._pause, _LONGEST)

    async def _withdraw(self) -> None:
        """Delete a record whose id no client has; if the store fails it becomes Lost in a lease."""
        id, self._id = self._id, None
        if id is not None:
            try:
                await self._mux.long.tasks.withdraw(self._channel, id)
            except StoreError as error:
                logger.warning("the record of a call that has ended is left: %s", error)

    async def _keep(self) -> None:
        """Write the record, and hand it out if the call still runs and its client is there."""
        channel, request, tasks = self._channel, self._channel.request, self._mux.long.tasks
        carrier = channel.carrier
        written = None if self._id else carrier.continuation
        self._id = id = self._id or tasks.new_id()
        task = await tasks.promote(channel, id)
        if task.over:  # written by an earlier attempt, and taken for lost while the store failed
            self._id = None
            raise Unavailable(f"task {id} is over")
        if not self._response.holds(request):
            await self._withdraw()
            return
        self._id = None
        carrier.task, carrier.turn, carrier.promoted = id, task.turn, True
        channel.hand_over(TaskSink(self._mux.long, carrier, channel.client_key))
        tasks.stops(task.id, self._stopped)
        await self._hand_out(task)
        if carrier.continuation is not None and carrier.continuation is not written:
            try:  # it went on while the record was written
                await tasks.park(channel, tasks.awaiting(carrier.continuation))
            except OutOfTurn:
                logger.debug("task %s has gone on by itself", task.id)

    def _stopped(self) -> None:
        self._channel.carrier.stopped = True
        self._stop(Reason.ASKED)

    async def _leave(self, id: str) -> None:
        """Let go of a call whose task, *id*, is in the store already, and is only followed here."""
        channel, request = self._channel, self._channel.request
        try:
            task = await self._mux.long.jobs.get(id, channel.principal)
        except TaskNotFound as error:
            logger.debug("task %s is followed on: %s", id, error)
            return
        if self._response.holds(request):
            await self._hand_out(task)
            self._stop(Reason.HELD_OVER)

    async def _hand_out(self, task: Task) -> None:
        request = self._channel.request
        self._channel.carrier.told = told = self._told(task)
        await self._response.hand_out(request, self._mux.said(request, told))

    def _told(self, task: Task) -> Result:
        if self._as_task:
            return handle_of(task, self._mux.store.now())
        found = self._mux.find("tools/call", RESULT_TOOL)
        return held_over(task, tool=None if found is None else RESULT_TOOL)
