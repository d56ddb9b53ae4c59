"""When a call has run so long that its client gets a handle instead of waiting on."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.task import Task
from genmcp.errors import OutOfTurn, StoreError
from genmcp.mux.continuations import has_tasks
from genmcp.mux.mux import Answer, Mux
from genmcp.mux.task_sink import TaskSink
from genmcp.mux.tasks import handle_of, held_over
from genmcp.protocol.result import Result

__all__ = ["Patience"]

logger = logging.getLogger("genmcp")


class Response(Protocol):
    """The response in which a call is held."""

    def holds(self, request: Request) -> bool:
        """Whether the call still runs, and its client is still there."""

    async def hand_out(self, request: Request, answer: Answer) -> None:
        """Send what answers the call while it runs on; from now on a disconnect means nothing."""


class Patience:
    """What makes the call of *channel*, held in *response*, a task, while it runs on.

    *stop* cancels it, from any thread.

    The order is that of DESIGN.md, "How long a call is held": the record is written first; a call
    that has ended meanwhile is answered plainly, one whose client has left is cancelled, and both
    leave no record; then the client gets the handle.
    """

    def __init__(
        self, mux: Mux, response: Response, channel: Channel, stop: Callable[[], None]
    ) -> None:
        self._mux = mux
        self._response = response
        self._channel = channel
        self._stop = stop
        self._timer: asyncio.TimerHandle | None = None
        request = channel.request
        policy = request.route.policy
        self._as_task = policy.task != "never" and has_tasks(request)
        seconds = policy.patience if self._as_task else policy.hold
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def end(self) -> "list[asyncio.Task[None]]":
        """Have none any more; return what still has to be waited for."""
        if self._timer is not None:
            self._timer.cancel()
        promotion = self._channel.carrier.promotion
        return [] if promotion is None else [promotion]

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._channel.carrier.promotion = loop.create_task(self.promote())

    async def promote(self) -> None:
        """Make the call a task now."""
        channel, request, tasks = self._channel, self._channel.request, self._mux.long.tasks
        carrier = channel.carrier
        if carrier.task is not None:
            return  # its job is in the store already, and it is only followed here
        written = carrier.continuation
        try:
            task = await tasks.promote(channel)
            if not self._response.holds(request):
                await tasks.jobs.discard(task.id)
                return
        except StoreError as error:
            logger.warning("a call cannot become a task, and is held on: %s", error)
            return
        carrier.task, carrier.turn, carrier.promoted = task.id, task.turn, True
        channel.hand_over(TaskSink(self._mux.long, carrier))
        tasks.stops(task.id, self._stop)
        await self._response.hand_out(request, self._mux.said(request, self._told(task)))
        if carrier.continuation is not None and carrier.continuation is not written:
            try:  # it went on while the record was written
                await tasks.park(channel, tasks.awaiting(carrier.continuation))
            except OutOfTurn:
                logger.debug("task %s has gone on by itself", task.id)

    def _told(self, task: Task) -> Result:
        return handle_of(task) if self._as_task else held_over(task)
