"""Calls that are tasks: their stored requests, their records, and the sink that writes to those.

For a client that supports the tasks extension (SEP-2663), a call with a continuation in the store
is a task of the protocol. For another client, the process that holds its response follows the task
to its end. It may be resumed without a request: its channel is then rebuilt from the stored one,
and its messages go to the record.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from math import ceil, inf
from sys import maxsize
from typing import Any, ClassVar, Final, cast

import msgspec

from genmcp._mux.performing import report
from genmcp._mux.services import MuxServices
from genmcp._mux.threads import ThreadPool
from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.call import CallAction, WorkCancelled
from genmcp.core.client_key import ClientKey, client_of
from genmcp.core.continuation import Continuation
from genmcp.core.failures import tool_error
from genmcp.core.request import REQUEST_TYPES, ClientInfo, Request
from genmcp.core.seal import Purpose
from genmcp.core.server_dispatch import reader_of
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import (
    Asking,
    Awaiting,
    ExternalJob,
    Finished,
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
from genmcp.errors import (
    CapabilityMissing,
    IllegalTransition,
    InsufficientScope,
    McpError,
    Overloaded,
    StoreError,
    TaskNotFound,
    ToolError,
)
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.params import SUBSCRIPTION_ID, ProgressNotificationParams, RequestId
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.tasks import (
    PROGRESS,
    CreateTaskResult,
    DetailedTask,
    TaskStatusNotificationParams,
)
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result, Value
from genmcp.question.packing import unpack
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.outcomes import NotRunnableHere, finished_with_error
from genmcp.tasks.progress import JobProgress, ProgressWriter
from genmcp.tasks.queues import ExternalQueue
from genmcp.tasks.service import Resume, TaskService
from genmcp.tasks.values import store_types
from genmcp.wire.encoder import EncodedResult, Encoder
from genmcp.wire.jsonrpc import ErrorBody

logger = logging.getLogger("genmcp")

_JOB_THREADS: Final = 1000
"""The maximum number of threads of `def` jobs.

A job needs a thread, and `JobOptions.concurrency`, or an engine, bounds the jobs. The rest is for
threads that run on after their jobs have ended, since no thread can be stopped.
"""


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: the params as received, JSON; *whole*: the message with them. kept: the assigns copied
    from the host's request whose keys are in the endpoint's `keep_assigns`. gone: the keys of the
    other copied assigns, which are not stored. address: the peer address that an anonymous request
    counts towards. access: that of the client, without its claims, which may be private, and its
    time of expiry: a call that was authorized when it began continues after that.
    """

    id: RequestId
    method: str
    params: bytes
    version: str
    info: Implementation | None
    capabilities: ClientCapabilities
    session: str | None
    kept: Mapping[str, Any]
    gone: Collection[str]
    address: str | None
    access: Access | None
    whole: bool

    @classmethod
    def of(cls, channel: Channel) -> "StoredRequest":
        """Return the request of *channel*, with those copied assigns that the endpoint keeps."""
        request, caller = channel.request, channel.context.caller
        copied, keep, access = caller.copied or {}, caller.keep, channel.access
        if access is not None:
            access = msgspec.structs.replace(access, claims={}, expires=None)
        raw = request.raw
        kept = {key: copied[key] for key in keep if key in copied} if copied else {}
        return cls(
            id=request.id,
            method=request.method,
            params=bytes(raw),
            version=request.revision.version,
            info=request.client.info,
            capabilities=request.client.capabilities,
            session=request.session,
            kept=store_types("keep_assigns", kept) if kept else kept,
            gone=[*(copied.keys() - kept.keys())] if copied else [],
            address=caller.client_key.address,
            access=access,
            whole=isinstance(raw, bytes),
        )

    def pack(self) -> bytes:
        """Return the bytes to store."""
        # A copy: msgspec leaves half as much memory again behind what it encodes.
        return bytes(memoryview(_encoder.encode(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> "StoredRequest":
        """Return the request that `pack` has packed.

        Raises:
            NotRunnableHere: it was packed by a release with another format.
        """
        try:
            return _decoder.decode(packed)
        except msgspec.MsgspecError as error:
            unknown = f"a request was stored by another release: {error}"
            raise NotRunnableHere(
                unknown, "The call was stored by another release of the server"
            ) from error

    def request(self) -> Request:
        """Return the request, without its route.

        Raises:
            NotRunnableHere: its revision is not supported here.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            unknown = f"{self.version} is no longer supported"
            raise NotRunnableHere(unknown, unknown)
        method = revision.methods[self.method]
        if self.whole:
            params = reader_of(method)(self.params).params
        else:
            params = method.params_decoder.decode(self.params or b"{}")
        return REQUEST_TYPES.get(self.method, Request)(
            id=self.id,
            method=self.method,
            params=revision.up(params),
            raw=self.params if self.whole else msgspec.Raw(self.params),
            revision=revision,
            client=ClientInfo(self.version, self.info, self.capabilities),
            session=self.session,
        )


class TaskCaller(msgspec.Struct, frozen=True, eq=False):
    """The caller of a call that is a task, which runs without a connection."""

    client_key: ClientKey
    copied: Mapping[str, Any] | None
    keep: ClassVar[Collection[str]] = ()
    detached: ClassVar[bool] = False

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check nothing: the call was authorized when it began."""


class StoredNotification(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, as stored for the process that sends it to the client.

    params: the params of the notification, as JSON.
    """

    method: str
    params: bytes


class TaskSink(msgspec.Struct, eq=False):
    """The sink of a call that is the task *id*: writes its progress and messages to the record."""

    _service: TaskService
    _id: str
    _fencing_token: int
    _progress_writer: ProgressWriter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """False: whether the task was cancelled, or has ended, is known to the call."""
        return False

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Store progress in the task, and log other notifications for its followers.

        Progress is written at a limited rate, and only the newest. If the store cannot be reached,
        the notification is lost, and the call continues.
        """
        if isinstance(params, ProgressNotificationParams):
            return self._report(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            stored = msgspec.msgpack.encode(StoredNotification(method, encoded))
            await self._service.records.log_message(self._id, stored)
        except (StoreError, IllegalTransition):
            return False
        return True

    def _report(self, params: ProgressNotificationParams) -> bool:
        """Schedule the write of progress; return False if the task has ended or was taken over."""
        writer = self._progress_writer
        if writer is None:
            writer = self._progress_writer = ProgressWriter(self._write)
        if writer.rejected:
            return False
        writer.report(params.progress, params.total, params.message)
        return True

    async def flush(self) -> None:
        """Write progress that is still pending."""
        # Sink and writer refer to each other: the cycle is broken here.
        writer, self._progress_writer = self._progress_writer, None
        if writer is None:
            return
        left = await writer.close()
        if left is not None and not writer.rejected:
            with suppress(StoreError, IllegalTransition):
                await self._write(left)

    async def _write(self, newest: JobProgress) -> None:
        await self._service.progress(self._id, newest, fencing_token=self._fencing_token)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Raise CapabilityMissing: the questions of a task are stored in its record."""
        raise CapabilityMissing({})

    def watch_client(self) -> None:
        """Watch nothing: no client waits for the result here."""

    def begin_stream(self) -> None:
        """Begin nothing: there is no stream."""

    def release(self, retry: int) -> None:
        """Close nothing: there is no connection."""


class StopTask(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Cancels the call that runs as *task*, with *fencing_token*, in the recipient's process."""

    task: str
    fencing_token: int


class Tasks:
    """The calls of one mux that are tasks, and the worker of their steps. Owned by the mux.

    running: the tasks with a hook that runs in this process. resume: continues a call after its
    wait.
    """

    def __init__(
        self,
        services: MuxServices,
        *,
        jobs: JobOptions,
        external: Sequence[ExternalQueue],
        resume: Resume,
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

    async def begin(self, channel: Channel, id: str, suspended: Suspended | None = None) -> Task:
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
                if context.follows in (None, context.task):
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
                await report(channel, WorkCancelled(None if was is None else run_id(was)))
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


async def flush(channel: Channel) -> None:
    """Write the notifications of *channel* that are pending, if its call is a task."""
    if isinstance(channel.context.sink, TaskSink):
        await channel.context.sink.flush()


def new_id() -> str:
    """Return an id for a call that becomes a task: unguessable, 160 random bits."""
    return secrets.token_urlsafe(20)


async def notify(notifying: Coroutine[Any, Any, None]) -> None:
    """Await *notifying*, which calls `on_cancel` of a tool, and log its error."""
    try:
        await notifying
    except Exception as error:  # the tool's own: nothing waits for it
        logger.error("on_cancel failed", exc_info=error)


def to_finished(result: Result | McpError, raised: BaseException | None = None) -> Finished:
    """Return the stored form of the *result* of a call.

    *raised*: the exception of the hook that has led to *result*, if any.
    """
    # An error that asks its client to send the call again must not be the response to that.
    frees_key = isinstance(result, Overloaded) or isinstance(raised, InsufficientScope)
    frees_key = frees_key or (isinstance(raised, ToolError) and raised.retry)
    if isinstance(result, McpError):
        return msgspec.structs.replace(finished_with_error(result), frees_key=frees_key)
    encoded = result.body if isinstance(result, EncodedResult) else msgspec.json.encode(result)
    return Finished(result=encoded, raised=raised is not None, frees_key=frees_key)


def task_result(task: Task, method: str) -> EncodedResult:
    """Return the result of a *task* that has ended; *method* is that of its request.

    Raises:
        McpError: it ended with an error, or was cancelled.
    """
    if task.error is not None:
        error = msgspec.json.decode(task.error, type=ErrorBody)
        raise McpError(error.message, error.data, code=error.code)
    if task.result is None:
        raise McpError("The call was cancelled")
    kind = cast(type[Result], LATEST.methods[method].result)
    return EncodedResult(kind=kind, body=task.result)


def create_task_result(task: Task, now: float) -> CreateTaskResult:
    """Return the handle of a task as of *now* (`Store.now`), the response to its call."""
    return CreateTaskResult(**task_fields(task, now))


def still_running_result(reason: str, id: str, *, tool: str | None) -> CallToolResult:
    """Return the response to a client without tasks, whose call continues as the task *id*.

    *tool* is the name of the tool that returns the result, if the server offers one.
    """
    text = f"{reason}. It continues as call {id}"
    return tool_error(text + (f"; the tool {tool} returns its result." if tool else "."))


def task_fields(task: Task, now: float) -> dict[str, Any]:
    """Return the members of a *task* that clients see in every status, as of *now*."""
    kept = advertised_ttl(task, now)
    return {
        "task_id": task.id,
        "status": task.status,
        "created_at": _at(task.created),
        "last_updated_at": _at(task.updated),
        "ttl_ms": None if kept is None else ceil(kept * 1000),
        "poll_interval_ms": ceil(task.poll * 1000),
        # The latest message of the work describes neither a question nor a result.
        "status_message": task.message if task.status == "working" else None,
    }


def detailed_task(task: Task, encoder: Encoder, now: float) -> DetailedTask:
    """Return the state of *task* as of *now* (`Store.now`), for its client."""
    return DetailedTask(**_members(task, encoder, now))


def task_status_notification(
    task: Task, encoder: Encoder, subscription: RequestId, now: float
) -> TaskStatusNotificationParams:
    """Return the state of *task* as a notification on the stream of *subscription*."""
    members = _members(task, encoder, now)
    members["meta"] = {**(members.get("meta") or {}), SUBSCRIPTION_ID: subscription}
    return TaskStatusNotificationParams(**members)


def _members(task: Task, encoder: Encoder, now: float) -> dict[str, Any]:
    members = task_fields(task, now)
    if task.progress is not None:
        # With its message, which `status_message` of a task that has ended does not contain.
        latest = {"progress": task.progress, "total": task.total, "message": task.message}
        members["meta"] = {PROGRESS: {k: v for k, v in latest.items() if v is not None}}
    if task.error is not None:
        # "Task Execution Errors": the error replaces the latest message of the work.
        members["status_message"] = msgspec.json.decode(task.error, type=ErrorBody).message
        members["error"] = msgspec.Raw(task.error)
    elif task.result is not None:
        result = task_result(task, "tools/call")
        members["result"] = msgspec.Raw(encoder.result(LATEST, result))
    elif isinstance(task.work, Asking) and task.status == "input_required":
        asked = task.work.missing.items()
        members["input_requests"] = {name: msgspec.Raw(each) for name, each in asked}
    return members


def advertised_ttl(task: Task, now: float) -> float | None:
    """Return the `ttl` that clients see: seconds from the creation of *task*; None: never expires.

    A task that waits for its client, or has ended, expires `Task.ttl` after its last change. A task
    that works may end at any moment, and expires `Task.ttl` after that. For such a task the value
    is counted from *now*, in whole seconds, so that two polls in one second give the same value.
    """
    if task.ttl is None:
        return None
    passed = task.updated - task.created
    if task.status == "working":
        passed = float(int(max(passed, now - task.created)))
    return task.ttl + passed


def progress_text(task: Task) -> str:
    """Return the state of a *task* that has not ended, in words."""
    if task.status == "input_required":
        return "it waits for answers"
    if task.progress is None:
        done = "it is running"
    else:
        total = "" if task.total is None else f" of {task.total:g}"
        done = f"{task.progress:g}{total} done"
    return done if task.message is None else f"{done} ({task.message})"


def _at(seconds: float) -> str:
    """Return Unix time as ISO 8601."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


async def forward_notification(packed: bytes, channel: Channel) -> None:
    """Send on *channel* a notification that a task has stored."""
    stored = msgspec.msgpack.decode(packed, type=StoredNotification)
    method = LATEST.methods.get(stored.method)
    params: Any = msgspec.Raw(stored.params) if stored.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(stored.method, params)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRequest)
