"""How calls go on where nobody requests it: their job is done, or their questions are answered."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from genmcp.carrier import Carrier
from genmcp.channel import Channel
from genmcp.continuing import UnknownTag
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Failed, Outcome, unpack
from genmcp.core.request import Request
from genmcp.core.task import Ended, Parked, Task, run_id
from genmcp.errors import ConfigurationError, McpError, OutOfTurn, StoreError, ToolError
from genmcp.jobs.elsewhere import Elsewhere
from genmcp.mux.answers import outcome_of
from genmcp.mux.awaitables import is_cancelled
from genmcp.mux.continuations import Continuations
from genmcp.mux.kept_call import KeptCall
from genmcp.mux.limits import Limits
from genmcp.mux.routes import find_route
from genmcp.mux.task_sink import TaskSink, Writer
from genmcp.mux.tasks import ended
from genmcp.mux.telemetry import Observers
from genmcp.protocol.result import Result
from genmcp.server import Server

__all__ = ["Resumption"]

_CANNOT_GO_ON: Final = "No process of the server can go on with the call"


class Host(Protocol):
    """The mux, as far as it is needed here."""

    server: Server
    assigns: dict[str, Any]
    limits: Limits
    observers: Observers

    def outcome(self, request: Request, error: BaseException) -> Result | McpError:
        """Return what a call that has ended with *error* comes to."""


class Resumption:
    """Runs `continue_` for calls in the store."""

    def __init__(self, continuations: Continuations, writer: Writer, host: Host) -> None:
        self._continuations = continuations
        self._writer = writer
        self._host = host
        self._server = host.server

    async def resume(self, task: Task, call: bytes, outcome: Outcome) -> Parked | Ended:
        """Continue the call of *task*, whose wait has ended with *outcome*.

        Raises:
            StoreError: the store failed, so that it has to be tried again.
            OutOfTurn: another process continues it.
            Elsewhere: this process lacks the code that continues it.
        """
        try:
            continuation = Continuation.unpack(task.continuation)
            channel = self._channel(task, call, continuation.assigns)
            if continuation.asked:
                outcome = _read(continuation, outcome)
        except (ConfigurationError, msgspec.MsgspecError) as error:
            unknown = f"a continuation of {task.tool} was kept by another release: {error}"
            raise Elsewhere(unknown, _CANNOT_GO_ON) from error
        tell = self._host.observers.resuming(channel, continuation.tag)
        raised: BaseException | None = None
        try:
            await find_route(channel)
            step = await self._server.resume(continuation, outcome, channel)
            came_to: Any = await self._continuations.advance(step, channel, continuation)
        except (StoreError, OutOfTurn, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                tell(None, error)
                await self._stopped(task, channel)
                raise
            latest = channel.carrier.continuation or continuation
            if isinstance(error, UnknownTag) and latest.release != self._server.info.version:
                tell(None, error)
                unknown = f"{error} (of a call of release {latest.release!r})"
                raise Elsewhere(unknown, _CANNOT_GO_ON) from error
            await self._writer.failed(channel)
            came_to, raised = self._host.outcome(channel.request, error), error
        finally:
            await channel.carrier.flush()
        if isinstance(came_to, Parked):
            tell(came_to)
            return came_to
        kept = ended(came_to)
        limits = self._host.limits
        if kept.result is not None and len(kept.result) > limits.result:
            raised = limits.too_large()
            if await self._writer.values.keep(task):
                raised = ToolError(f"{raised}. The value of its job is kept by the server")
            came_to = self._host.outcome(channel.request, raised)
            kept = ended(came_to)
        tell(came_to, raised)
        return kept

    async def cancelled(self, task: Task, call: bytes) -> None:
        """Let the tool of *task* know that it was cancelled."""
        assigns = Continuation.unpack(task.continuation).assigns if task.continuation else {}
        channel = self._channel(task, call, assigns)
        with suppress(McpError):  # hidden from its caller by now: notified nevertheless
            await find_route(channel)
        await self._server.cancelled(channel)

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
        carrier = Carrier(task=task.id, run=run_id(task), turn=task.turn)
        kept = KeptCall.unpack(call)
        sink = TaskSink(self._writer, carrier, kept.client_key)
        channel = kept.channel(self._server, sink, self._host.assigns, own)
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
