"""Calls that are tasks: their records, from the first to the last write.

For a client that supports the tasks extension (SEP-2663), a call with a continuation in the store
is a task of the protocol. For another client, the process that holds its response follows the task
to its end. It may be resumed without a request: its channel is then rebuilt from the stored one,
and its messages go to the record.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from sys import maxsize
from typing import Any, Final, cast

import msgspec

from genmcp._mux.performing import report
from genmcp._mux.services import MuxServices
from genmcp._mux.stored_request import StoredRequest
from genmcp._mux.task_results import progress_text, task_result, to_finished
from genmcp._mux.task_sink import flush
from genmcp._mux.threads import ThreadPool
from genmcp.channel import Channel
from genmcp.core.call import CallAction, WorkCancelled
from genmcp.core.client_key import client_of
from genmcp.core.continuation import Continuation
from genmcp.core.failures import tool_error
from genmcp.core.seal import Purpose
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import (
    Asking,
    Awaiting,
    ExternalJob,
    Following,
    Gathering,
    Job,
    JobGroup,
    Running,
    StoredWork,
    Suspended,
    Work,
    Working,
    scheduled,
)
from genmcp.errors import IllegalTransition, McpError, StoreError, TaskNotFound
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.tools import CallToolResult
from genmcp.question.packing import unpack
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.queues import ExternalQueue
from genmcp.tasks.service import Resume, TaskService

logger = logging.getLogger("genmcp")

_JOB_THREADS: Final = 1000
"""The maximum number of threads of `def` jobs.

A job needs a thread, and `JobOptions.concurrency`, or an engine, bounds the jobs. The rest is for
threads that run on after their jobs have ended, since no thread can be stopped.
"""


class StopTask(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Cancels the call that runs as *task*, with *fencing_token*, in the recipient's process."""

    task: str
    fencing_token: int


class Tasks:
    """The calls of one mux that are tasks, and the worker of their steps. Owned by the mux.

    running: the tasks with a hook that runs in this process. resume: continues a call after its
    wait. cancelled: notifies the tool of a cancelled call.
    """

    def __init__(
        self,
        services: MuxServices,
        *,
        jobs: JobOptions,
        external: Sequence[ExternalQueue],
        resume: Resume,
        cancelled: Callable[[Task], Awaitable[None]],
    ) -> None:
        self._services = services
        # Not the threads of hooks: jobs may run for hours, and would let no hook run.
        self._threads = ThreadPool(_JOB_THREADS, maxsize)
        self.service = TaskService(
            services.store,
            process_name=services.bus.process_name,
            resume=resume,
            external=external,
            options=jobs,
            environment=JobEnvironment(
                assigns=lambda task: services.assigns,
                in_thread=self._in_thread,
                observer=services.observers,
                owner=lambda task: services.owner(task.owner, client_of(task.owner, task.address)),
                cancelled=cancelled,
            ),
            namespace=services.audience,
        )
        self.worker = self.service.worker
        self.running = self.service.running
        stop = self.service.runner.stop_call
        services.bus.subscribe(StopTask, lambda each: stop(each.task, each.fencing_token))

    # Calls that become tasks.

    @property
    def awaiting(self) -> Awaiting:
        """The state of a task that waits for an awaitable: it names this process."""
        return Awaiting(self._services.bus.process_name())

    def id_of_work(self, continuation: Continuation) -> str:
        """Return the id of a call as a task that waits for the work of *continuation*.

        A repeated answer has the same continuation, and therefore the same id, so that its work is
        started once.
        """
        step, key_id = str(continuation.step), continuation.key_id
        return self._services.seal.mark(Purpose.TASK, continuation.id, step, key_id=key_id)

    async def create(self, channel: Channel, id: str, suspended: Suspended | None = None) -> Task:
        """Store the call as the task *id*, start its work, and return the task.

        If the call is stored already, return its task, and start nothing. *suspended* is its state;
        None: it runs, or waits for an awaitable, in this process.
        """
        if suspended is None:
            self._services.bus.open()
            continuation, suspended = channel.context.continuation, self.running_here
            if continuation is not None:
                suspended = suspension_of(continuation, self.awaiting)
        packed_request = StoredRequest.of(channel).pack()
        return await self.service.create(self.new_task(channel, id, suspended), packed_request)

    @property
    def running_here(self) -> Suspended:
        """The state of a task whose hook `call` runs in this process."""
        return Suspended(0, b"", Running(self._services.bus.process_name()))

    def new_task(
        self, channel: Channel, id: str, suspended: Suspended, *, token: int = 0, **fields: Any
    ) -> Task:
        """Return a new task for the call of *channel*, in the state *suspended*.

        *token* is its fencing token.
        """
        services, now, policy = self._services, self._services.store.now(), channel.request.policy
        work, due = scheduled(suspended.work, now)
        return Task(
            id=id,
            owner=channel.principal,
            address=channel.context.caller.client_key.address,
            tool=channel.request.key,
            node=services.bus.process_name(),
            created=now,
            updated=now,
            due=due,
            ttl=policy.result_ttl,
            on_lost=policy.on_worker_lost,
            step=suspended.step,
            continuation=suspended.continuation,
            work=work,
            fencing_token=token,
            trace=services.observers.trace_of(channel),
            **fields,
        )

    # Calls that are tasks.

    async def perform(self, action: CallAction, channel: Channel) -> None:
        """Perform *action* on the record of the call of *channel*, or on its tool."""
        context = channel.context
        match action:
            case CallAction.WRITE_STEP:
                assert context.continuation is not None
                await self.park(channel, suspension_of(context.continuation, self.awaiting))
            case CallAction.WRITE_RESULT | CallAction.LEAVE_RECORD:
                await self._end(channel, abandoned=action is CallAction.LEAVE_RECORD)
            case CallAction.UNREGISTER_TASK:
                assert context.task is not None
                await flush(channel)
                self.running.pop((context.task, context.fencing_token), None)
            case CallAction.CANCEL_WORK:
                await self._cancel_work(channel)
            case CallAction.NOTIFY_TOOL:
                # The call of an idempotency key continues without its client.
                if context.follows in (None, context.task) and not context.runs_elsewhere:
                    await notify(self._services.server.cancelled(channel))

    async def park(self, channel: Channel, suspended: Suspended) -> None:
        """Write to the record of the task which step the call of *channel* has reached."""
        context = channel.context
        assert context.task is not None
        await flush(channel)
        await self.service.suspend(context.task, suspended, fencing_token=context.fencing_token)

    async def _end(self, channel: Channel, *, abandoned: bool) -> None:
        """Write the end of the hook of *channel*, a call that is a task, or abandon its record.

        An error of the store is logged: the client already has its response.
        """
        context = channel.context
        id, token = context.task, context.fencing_token
        assert id is not None
        await flush(channel)
        try:
            # IllegalTransition: it was cancelled, or another process has taken it over.
            with suppress(IllegalTransition):
                if abandoned:
                    await self.service.abandon(id, fencing_token=token)
                else:
                    assert context.result is not None
                    ended = to_finished(context.result)
                    await self.service.finish(id, ended, fencing_token=token)
        except (StoreError, TaskNotFound) as error:  # it may have expired
            logger.warning("the end of task %s is not written yet: %s", id, error)

    async def _cancel_work(self, channel: Channel) -> None:
        """Cancel the stored call of *channel*, and its job."""
        id = channel.context.task
        if id is not None:
            try:
                was = await self.cancel(id, channel.principal, wait=False)
                if was is not None:
                    await report(channel, WorkCancelled(run_id(was), was.runs_hook))
            except TaskNotFound:  # it has expired
                pass
            except StoreError as error:  # its tool is notified nevertheless
                logger.warning("task %s is not cancelled: %s", id, error)

    async def cancel(self, id: str, owner: str | None, *, wait: bool = True) -> Task | None:
        """Cancel a task in any process, and stop its hook; the tool is not notified.

        Return the task as it was before; None if it had ended. *wait*: as for `TaskService.cancel`.

        Raises:
            TaskNotFound: the task does not exist.
        """
        task = await self.service.cancel(id, owner, wait=wait)
        if task is not None and (node := task.bound_node) is not None:
            send = partial(self._services.bus.send, node, StopTask(id, task.fencing_token))
            try:
                await send()
            except StoreError:  # the client need not wait: the record is cancelled
                self.service.writer.retry.defer(send)
        return task

    async def result_of(self, id: str, owner: str | None) -> CallToolResult:
        """Return the result of the task *id*, or a text for the model that explains its absence."""
        try:
            task = await self.service.get(id, owner)
            if task.ended:
                return cast(CallToolResult, task_result(task, "tools/call").decoded)
        except TaskNotFound:
            return tool_error(f"There is no call {id}, or its result has expired.")
        except McpError as error:
            return tool_error(f"There is no result of call {id}: {error.message}")
        return tool_error(f"Call {id} has no result yet: {progress_text(task)}.")

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._threads.full:
            logger.warning(
                "a job waits for a thread: all %d are taken, by jobs that run or by functions of "
                "jobs that have ended (timeout, cancellation) and do not return",
                _JOB_THREADS,
            )
        return await self._threads.run(function, *arguments)

    async def aclose(self) -> None:
        """Stop working on tasks. If the store ends with this process, jobs have no grace period."""
        await self.service.aclose(within=inf if self._services.store.durable else 0.0)
        self._threads.close()


def suspension_of(continuation: Continuation, work: StoredWork | Awaiting | None) -> Suspended:
    """Return the suspension for *work*, or for the answers to the questions of *continuation*."""
    waits_for: Work
    if isinstance(work, Job):
        waits_for = Working(work)
    elif isinstance(work, ExternalJob):
        waits_for = Following(work)
    elif isinstance(work, JobGroup):
        waits_for = Gathering.of(work)
    elif work is not None:
        waits_for = work
    else:
        encode = msgspec.json.encode
        waits_for = Asking({k: encode(v) for k, v in pending_requests(continuation).items()})
    return Suspended(continuation.step, continuation.pack(), waits_for)


def pending_requests(continuation: Continuation) -> dict[str, InputRequest]:
    """Return the unanswered questions, by their keys in the protocol message."""
    return {each.name: unpack(each.question).request for each in continuation.missing}


def new_id() -> str:
    """Return an id for a call that becomes a task: unguessable, 160 random bits."""
    return secrets.token_urlsafe(20)


async def notify(notifying: Coroutine[Any, Any, None]) -> None:
    """Await *notifying*, which calls `on_cancel` of a tool, and log its error."""
    try:
        await notifying
    except Exception as error:  # the tool's own: nothing waits for it
        logger.error("on_cancel failed", exc_info=error)
