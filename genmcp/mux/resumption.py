"""How calls go on where nobody requests it: their job is done, or their questions are answered."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from genmcp.carrier import Carrier
from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Failed, Outcome, unpack
from genmcp.core.request import Request
from genmcp.core.task import Ended, Parked, Task
from genmcp.errors import McpError, OutOfTurn, StoreError
from genmcp.mux.answers import outcome_of
from genmcp.mux.awaitables import is_cancelled
from genmcp.mux.continuations import Continuations
from genmcp.mux.kept_call import KeptCall
from genmcp.mux.task_sink import TaskSink, Writer
from genmcp.mux.tasks import ended
from genmcp.protocol.result import Result
from genmcp.server import Server

__all__ = ["Resumption"]

Failing = Callable[[Request, BaseException], Result | McpError]


class Resumption:
    """Runs `continue_` for calls in the store; *failing* says what an exception means."""

    def __init__(
        self,
        server: Server,
        continuations: Continuations,
        writer: Writer,
        static: Mapping[str, Any],
        failing: Failing,
    ) -> None:
        self._server = server
        self._continuations = continuations
        self._writer = writer
        self._static = static
        self._failing = failing

    async def resume(self, task: Task, call: bytes, outcome: Outcome) -> Parked | Ended:
        """Go on with the call of *task*, whose wait has ended in *outcome*.

        Raises:
            StoreError: the store failed, so that it has to be tried again.
            OutOfTurn: somebody else goes on with it.
        """
        continuation = Continuation.unpack(task.continuation)
        channel = self._channel(task, call, continuation.assigns)
        if continuation.asked:
            outcome = _read(continuation, outcome)
        try:
            step = await self._server.resume(continuation, outcome, channel)
            came_to = await self._continuations.advance(step, channel, continuation)
        except (StoreError, OutOfTurn, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                await self._stopped(task, channel)
                raise
            await self._writer.failed(channel)
            return ended(self._failing(channel.request, error))
        return came_to if isinstance(came_to, Parked) else ended(came_to)

    async def cancelled(self, task: Task, call: bytes) -> None:
        """Let the tool of *task* know that it was cancelled."""
        assigns = Continuation.unpack(task.continuation).assigns if task.continuation else {}
        await self._server.cancelled(self._channel(task, call, assigns))

    async def _stopped(self, task: Task, channel: Channel) -> None:
        """Tell the tool of a task that was cancelled while it waited in this process.

        Whoever cancels it leaves that to the process it lives in.
        """
        channel.carrier.stopped = True
        if channel.carrier.continuation is not None:
            now = await self._writer.jobs.get(task.id, task.owner)
            if now.status == "cancelled":
                await self._server.cancelled(channel)

    def _channel(self, task: Task, call: bytes, own: Mapping[str, Any]) -> Channel:
        carrier = Carrier(task=task.id, turn=task.turn)
        sink = TaskSink(self._writer, carrier)
        channel = KeptCall.unpack(call).channel(self._server, sink, self._static, own)
        channel.carried_by(carrier)
        return channel


def _read(continuation: Continuation, outcome: Outcome) -> Outcome:
    """Return what the answers in *outcome*, by names on the wire, mean to the tool."""
    if isinstance(outcome, Failed):
        return outcome
    answers: dict[str, bytes] = {}
    for each in continuation.asked:
        answer = unpack(msgspec.json.encode(outcome.value[each.name]))
        if isinstance(answer, Failed):
            return answer
        answers[each.key] = msgspec.json.encode(answer.value)
    return outcome_of(continuation.answered(answers))
