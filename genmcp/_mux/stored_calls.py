"""Calls that run without a request: after their job, or with the answers to their questions.

The request is stored beside the task, so that any process can continue it. Calls with idempotency
keys begin here, too: no client ends them by leaving.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp._core.call import CallPhase, CancelTask
from genmcp._core.continuation import Continuation
from genmcp._core.outcome import Failed, Outcome, unpack
from genmcp._core.task import Task, run_id
from genmcp._core.waiting import Continue, Finished, Suspended
from genmcp._mux.continuations import Continuations
from genmcp._mux.responses import Responses
from genmcp._mux.sinks import Services, StoredRequest, TaskCaller, TaskSink
from genmcp._mux.tasks import Tasks, flush, notify, to_finished
from genmcp._mux.telemetry import OnStep
from genmcp._mux.waits import answers_outcome
from genmcp.cancellation import cancel_requested
from genmcp.channel import CallContext, CallServices, Channel
from genmcp.errors import (
    ConfigurationError,
    IllegalTransition,
    InvalidArguments,
    McpError,
    StoreError,
    ToolError,
)
from genmcp.hook import UnknownTag
from genmcp.protocol.value import Result
from genmcp.server import resolve_route
from genmcp.tasks.attempt import NotRunnableHere
from genmcp.tasks.options import JobOptions
from genmcp.tasks.queues import ExternalQueue
from genmcp.tasks.values import restore_types
from genmcp.tasks.writes import ProcessStops

_NO_CODE: Final = "No process of the server can continue the call"


class StoredCalls:
    """The calls of one mux in its store. Owned by the mux.

    tasks, continuations: their records, and their steps. call_services: for their channels.
    """

    def __init__(
        self,
        services: Services,
        responses: Responses,
        namespace: str,
        *,
        jobs: JobOptions,
        external: Sequence[ExternalQueue],
    ) -> None:
        self._services = services
        self._responses = responses
        self.tasks = Tasks(services, namespace, jobs=jobs, external=external, resume=self.resume)
        self.continuations = Continuations(services, self.tasks)
        self.call_services = CallServices(
            services.changes,
            services.sessions.level_of,
            self.tasks.result_of,
            services.threads.run,
        )

    async def resume(
        self, task: Task, packed_request: bytes, outcome: Outcome
    ) -> Suspended | Finished:
        """Continue the call of *task* with the *outcome* of its wait.

        Raises:
            ProcessStops: this process stops; the step is repeated elsewhere.
            IllegalTransition: another process continues it.
            NotRunnableHere: this process lacks the code that continues it.
        """
        try:
            continuation = Continuation.unpack(task.continuation)
            channel = self._channel(task, packed_request, continuation.assigns)
            if continuation.asked:
                outcome = _read(continuation, outcome)
        except (ConfigurationError, msgspec.MsgspecError) as error:
            unknown = f"a continuation of {task.tool} was stored by another release: {error}"
            raise NotRunnableHere(unknown, _NO_CODE) from error
        server = self._services.server
        with self._services.observers.resuming(channel, continuation.tag, task.trace) as report:
            return await self._step(
                task,
                channel,
                lambda: server.resume(continuation, outcome, channel),
                continuation,
                report,
            )

    async def begin(self, task: Task, request_channel: Channel) -> Suspended | Finished:
        """Run `call` for the request of *request_channel*, which is *task* from its beginning.

        Raises:
            ProcessStops, IllegalTransition: as for `resume`.
        """
        caller = request_channel.context.caller
        context = self._context(task, TaskCaller(caller.client_key, caller.copied))
        context.restore(request_channel.context.own_assigns)
        channel = Channel(request_channel.request, context, request_channel.access)
        server = self._services.server

        def report(*_: object) -> None:
            """Do nothing: the request that waits for the result reports it to the telemetry."""

        finished = await self._step(
            task, channel, lambda: server.handle(channel.request, channel), None, report
        )
        if cancel_requested():  # the hook has a result nevertheless
            await self._stopped(task, channel)
        return finished

    async def _step(
        self,
        task: Task,
        channel: Channel,
        hook: Callable[[], Awaitable[Result | Continue]],
        continuation: Continuation | None,
        report: OnStep,
    ) -> Suspended | Finished:
        """Run *hook*, and what follows in this process; *continuation* is None for `call`."""
        raised: BaseException | None = None
        try:
            await resolve_route(channel)
            result: Any = await self.continuations.advance(await hook(), channel, continuation)
        except (ProcessStops, IllegalTransition, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # any exception of a hook ends only its own call
            if isinstance(error, asyncio.CancelledError) and cancel_requested():
                report(None, error)
                await self._stopped(task, channel)
                raise
            latest = channel.context.continuation or continuation
            release = self._services.server.info.version
            if isinstance(error, UnknownTag) and latest and latest.release != release:
                report(None, error)
                unknown = f"{error} (of a call of release {latest.release!r})"
                raise NotRunnableHere(unknown, _NO_CODE) from error
            result, raised = self._responses.result_of(channel.request, error), error
        finally:
            await flush(channel)
        if isinstance(result, Suspended):
            report(result)
            return result
        finished = to_finished(result, raised)
        if continuation is None and isinstance(raised, InvalidArguments):  # `call` did not begin
            finished = msgspec.structs.replace(finished, frees_key=True)
        limits = self._services.limits
        if finished.result is not None and len(finished.result) > limits.max_result_bytes:
            raised = limits.too_large()
            if await self.tasks.service.records.keep_value(task):
                raised = ToolError(f"{raised}. The value of its job is kept by the server")
            result = self._responses.result_of(channel.request, raised)
            finished = to_finished(result)
        report(result, raised)
        del raised  # its traceback refers to this frame: a reference cycle
        return finished

    async def cancel(self, id: str, owner: str | None) -> None:
        """Cancel a task in any process, and notify its tool. Does nothing if it has ended.

        Raises:
            TaskNotFound: the task does not exist.
        """
        task = await self.tasks.cancel(id, owner)
        # The process that a task is bound to cancels its hook, and notifies the tool after that.
        if task is not None and task.bound_node is None:
            packed_request = await self.tasks.service.records.call(id)
            if packed_request is not None:
                await notify(self._cancelled(task, packed_request))

    async def _cancelled(self, task: Task, packed_request: bytes) -> None:
        """Notify the tool of *task* that it was cancelled."""
        assigns = Continuation.unpack(task.continuation).assigns if task.continuation else {}
        channel = self._channel(task, packed_request, assigns)
        with suppress(McpError):  # the tool may be hidden from its client now: notify it anyway
            await resolve_route(channel)
        await self._services.server.cancelled(channel)

    async def _stopped(self, task: Task, channel: Channel) -> None:
        """Notify the tool of a task that was cancelled while its step ran in this process.

        The process that has cancelled the task does not notify the tool, because `on_cancel` must
        run after the end of the hook, which only this process knows.
        """
        channel.context.advance(CancelTask())  # without its action: the hook has ended
        if task.bound_node is not None or channel.context.continuation is not None:
            stored = None
            with suppress(StoreError):  # the record of a cancelled task was written before
                stored = await self.tasks.service.records.find(task.id)
            # The token differs if the key of the cancelled call is in use again.
            if stored is not None and (
                stored.task.end == "cancelled" or stored.task.fencing_token != task.fencing_token
            ):
                await self._services.server.cancelled(channel)

    def _channel(self, task: Task, packed_request: bytes, own: Mapping[str, Any]) -> Channel:
        stored = StoredRequest.unpack(packed_request)
        context = self._context(task, TaskCaller(stored.client_key, restore_types(stored.kept)))
        return stored.channel(self._services.server, context, own)

    def _context(self, task: Task, caller: TaskCaller) -> CallContext:
        token = task.fencing_token
        return CallContext(
            phase=CallPhase.TASK,
            task=task.id,
            run=run_id(task),
            fencing_token=token,
            sink=TaskSink(self.tasks.service, task.id, token),
            caller=caller,
            performer=self.tasks,
            services=self.call_services,
            static=self._services.assigns,
        )


def _read(continuation: Continuation, outcome: Outcome) -> Outcome:
    """Return the outcome of the questions, with the answers decoded from *outcome*.

    *outcome* has the answers by their keys in the protocol message.
    """
    if isinstance(outcome, Failed):
        return outcome
    answers: dict[str, bytes] = {}
    for each in continuation.asked:
        answer = unpack(msgspec.json.encode(outcome.value[each.name]))
        if isinstance(answer, Failed):
            return answer
        answers[each.key] = msgspec.json.encode(answer.value)
    return answers_outcome(continuation.answered(answers))
