"""Telemetry of the requests that a mux serves: the interface, and its calls.

Implementations are in `genmcp.telemetry`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from genmcp.channel import Channel
from genmcp.core.outcome import Failed, unpack
from genmcp.core.request import Request
from genmcp.core.session import Session
from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Suspended, Working
from genmcp.errors import ConfigurationError, McpError, StoreError
from genmcp.protocol.content import TextContent
from genmcp.protocol.params import RequestId
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.stores.clocks import steady
from genmcp.stores.deliveries import Backlog
from genmcp.stores.outages import StoreFailure
from genmcp.stores.store import Store
from genmcp.tasks.options import StepObserver
from genmcp.tasks.service import TaskService
from genmcp.wire.encoder import EncodedResult

logger = logging.getLogger("genmcp")


class RequestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a request.

    kind: "error" for an error response, whose code is *code*; "tool_error" for a result with
    `isError`; "cancelled" if the work was cancelled. message: the text that the client received.
    raised: the exception of the hook, if it raised one; its text must not be shown to clients.
    """

    kind: Literal["error", "tool_error", "cancelled"]
    message: str = ""
    code: int | None = None
    raised: BaseException | None = None


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was answered with *error* before it became a request.

    id, method: the id and method of the message, if they could be read. principal: the
    authenticated client. session: the key of its legacy session.
    """

    error: McpError
    id: RequestId | None = None
    method: str | None = None
    principal: str | None = None
    session: str | None = None


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a call that is resumed without a request.

    tag: the tag of the wait that has ended. began: when `continue_` began, in Unix time. seconds:
    how long it ran. request: the request of the call, which another process may have received.
    principal: its client. result: the result of the call. failure: the failure of the call. If both
    are None, the call waits again. mark: what `resume_began` has returned.
    """

    request: Request
    principal: str | None
    tag: str
    began: float
    seconds: float
    result: Result | None = None
    failure: RequestFailure | None = None
    mark: Any = None


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a job of a call, in a worker.

    id: the id of the job, `Run.id`. name: the name of the job. queue: its queue. tool: the tool
    that waits for it. number: the number of the attempt, counted from 1. queued: seconds from when
    the job was due until this attempt began. trace: what `trace_context` has returned in the
    process that received the request of the call.
    """

    id: str
    name: str
    queue: str
    tool: str
    number: int
    queued: float
    trace: Mapping[str, str] | None


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A legacy session that its client has ended.

    key: its key, which is not the id that the client has. version: its revision. seconds: the time
    since its `initialize`.
    """

    key: str
    version: str
    seconds: float


_CACHE: Final = 1.0  # seconds: one collection of metrics calls several methods
_TIMEOUT: Final = 1.0  # seconds for the store to respond to a collection

Backlogs: TypeAlias = Mapping[str, Backlog | None]


class Gauges(msgspec.Struct, eq=False):
    """Numbers of one mux, in this process. Owned by the mux, and read from any thread."""

    _open_calls: Sized
    _open_streams: Sized
    _tasks: TaskService
    _store: Store
    _collected: Backlogs = {}
    _valid_until: float = 0.0

    @property
    def open_calls(self) -> int:
        """The number of calls that wait now. Calls that end at once are not counted."""
        return len(self._open_calls)

    @property
    def open_streams(self) -> int:
        """The number of streams that are open now."""
        return len(self._open_streams)

    def backlogs(self) -> Backlogs:
        """Return the backlog of each queue that this process serves, by its name.

        None: the store does not respond within a second. In a thread that runs an event loop,
        return the previous result: waiting would block the loop.
        """
        loop = self._tasks.worker.loop
        if loop is None:
            return {}
        if steady() >= self._valid_until:
            reading = asyncio.run_coroutine_threadsafe(self._collect(), loop)
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                try:
                    reading.result(3 * _TIMEOUT)
                except (TimeoutError, asyncio.CancelledError):  # the loop is blocked, or was closed
                    return dict.fromkeys(self._tasks.worker.options.queues)
        return self._collected

    def is_store_up(self) -> bool:
        """Return whether the store responds, and no operation fails that has not succeeded since.

        Like `backlogs`, it reads from the store, so that an idle process notices an outage.
        """
        return None not in self.backlogs().values() and not self._store.outages.failing

    async def _collect(self) -> None:
        found: dict[str, Backlog | None] = dict.fromkeys(self._tasks.worker.options.queues)
        try:  # the readiness of the process has the reason of a failure
            async with asyncio.timeout(_TIMEOUT):
                for queue in found:
                    found[queue] = await self._tasks.backlog(queue)
        except (TimeoutError, StoreError, ConfigurationError) as error:
            logger.debug("the gauges are not known: %s", error)
        self._collected, self._valid_until = found, steady() + _CACHE


class Telemetry:
    """Observes the requests of a mux: override the methods for the events of interest.

    Each method is called in the event loop, in the asyncio.Task and the context of the request (a
    contextvar that it sets is set in the hook as well), and must not block. An exception is logged,
    and changes nothing. Later releases may add methods; each does nothing by default.
    """

    def request_began(self, request: Request, channel: Channel) -> Any:
        """Handle the start of *request*.

        The return value is passed as *mark* to `request_ended` or `request_failed`. Exactly one of
        the two is called: when the request is answered, or, if the call has become a task, when the
        task waits for a job or a client, or has ended.
        """

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        """Handle the *result* of *request*.

        If the call has become a task, *result* is the result of the task, or the handle if the task
        waits for a job or a client. If the call exceeded `max_hold`, *result* is the response that
        states that.
        """

    def request_failed(self, request: Request, failure: RequestFailure, mark: Any) -> None:
        """Handle the failure of *request*, or its cancellation."""

    def request_rejected(self, rejection: Rejection) -> None:
        """Handle a message that never became a request: its headers or params are invalid, or the
        tool, prompt or resource that it names does not exist.

        Over a pipe, a `subscriptions/listen` that ends because the store failed is reported here as
        well, even if it was acknowledged: it is answered with an error.
        """

    def request_resumed(self, resumed: Resumed) -> None:
        """Handle a step of a call that has become a task, or waited for a job.

        The process that received the request of the call calls `request_ended` as well, with the
        handle if the client received a handle. `request_resumed` is called in the asyncio.Task of
        the step.
        """

    def attached(self, gauges: Gauges) -> None:
        """Handle the creation of a mux with this telemetry. *gauges* give its state at any time."""

    def session_ended(self, session: EndedSession) -> None:
        """Handle the end of a session by its client."""

    def trace_context(self, mark: Any) -> Mapping[str, str] | None:
        """Return the trace context of a request, to be stored with a call that becomes a task.

        *mark* is what `request_began` has returned. Later steps of the call get the context, also
        in other processes. It is stored as plain text. None (the default): no context.
        """

    def resume_began(self, request: Request, trace: Mapping[str, str] | None) -> Any:
        """Handle the start of a step of the call of *request*, with its trace context.

        The return value is `Resumed.mark`. `request_resumed` follows, unless the step is repeated
        because the store failed, or another process runs it: then `resume_repeated` follows.
        """

    def resume_repeated(self, mark: Any) -> None:
        """Handle the end of a step that has no outcome, because it will be repeated."""

    def job_began(self, job: JobAttempt) -> Any:
        """Handle the start of an attempt at a job; return the *mark* for `job_ended`.

        Both methods are called in the context of the job function.
        """

    def job_ended(self, job: JobAttempt, error: BaseException | None, mark: Any) -> None:
        """Handle the end of an attempt at a job.

        *error*: a WaitError if the job failed, `asyncio.CancelledError` if it was cancelled or this
        process stops, another exception if the job could not be run here, and None if it succeeded.
        """

    def lease_lost(self) -> None:
        """Handle the takeover of a step by this process: its previous worker has died, or was
        suspended for longer than its lease.
        """

    def store_failed(self, error: StoreFailure) -> None:
        """Handle the failure of any operation of the store, also of a heartbeat or a fetch of jobs.

        StoreFull and OverShare: a write was rejected. Called outside of the context of a request.
        """


OnStep = Callable[..., None]
Marks = Sequence[tuple[Telemetry, Any]]


class Observers(StepObserver):
    """Calls several `Telemetry` objects: at the start in order, at the end in reverse order.

    Raises:
        ConfigurationError: one of them is not a Telemetry.
    """

    def __init__(self, given: Telemetry | Iterable[Telemetry]) -> None:
        self.all: list[Telemetry] = [given] if isinstance(given, Telemetry) else [*given]
        for each in self.all:
            if not isinstance(each, Telemetry):
                raise ConfigurationError(f"telemetry takes instances of Telemetry, not {each!r}")

    def __bool__(self) -> bool:
        return bool(self.all)

    def attach(
        self, open_calls: Sized, open_streams: Sized, tasks: TaskService, store: Store
    ) -> None:
        """Notify all observers of their mux; the arguments are those of `Gauges`."""
        self._gauges = Gauges(open_calls, open_streams, tasks, store)
        self._outages = store.outages
        for each in self.all:
            self._attach(each)

    def add(self, telemetry: Telemetry) -> None:
        """Notify *telemetry* as well from now on."""
        self.all.append(telemetry)
        self._attach(telemetry)

    def _attach(self, telemetry: Telemetry) -> None:
        # A set: several muxes with one store and one telemetry report each failure once.
        self._outages.listeners.add(telemetry.store_failed)
        _call(telemetry.attached, self._gauges)

    def session_ended(self, session: Session, now: float) -> None:
        """Notify all observers of the end of *session*."""
        lasted = max(0.0, now - session.issued)
        ended = EndedSession(key=session.key, version=session.version, seconds=lasted)
        for each in self.all:
            _call(each.session_ended, ended)

    def began(self, request: Request, channel: Channel) -> Marks:
        """Notify all observers of the start of *request*; return their marks."""
        return [(each, _call(each.request_began, request, channel)) for each in self.all]

    def ended(
        self,
        request: Request,
        outcome: Result | McpError | None,
        raised: BaseException | None,
        marks: Marks,
    ) -> None:
        """Notify all observers of the *outcome* of *request*; None: the request was cancelled."""
        if isinstance(outcome, EncodedResult):
            outcome = outcome.decoded
        failure = _failure(outcome, raised)
        for each, mark in reversed(marks):
            if failure is None:
                _call(each.request_ended, request, outcome, mark)
            else:
                _call(each.request_failed, request, failure, mark)

    def trace_of(self, channel: Channel) -> Mapping[str, str] | None:
        """Return the trace context of the request of *channel*, None if no telemetry has one."""
        for each, mark in channel.context.marks:
            if trace := _call(each.trace_context, mark):
                return cast(Mapping[str, str], trace)
        return None

    @contextmanager
    def resuming(
        self, channel: Channel, tag: str, trace: Mapping[str, str] | None
    ) -> Iterator[OnStep]:
        """Enter before a step of *channel*, and leave after it; call what is returned at its end.

        The arguments of the call are the outcome of the step (the result, Suspended, or None if the
        call was cancelled), and the exception of the hook, if any.
        """
        if not self.all:
            yield lambda *_: None
            return
        began, start = time.time(), time.perf_counter()
        marks = [(each, _call(each.resume_began, channel.request, trace)) for each in self.all]

        def on_step(
            outcome: Result | McpError | Suspended | None, raised: BaseException | None = None
        ) -> None:
            failure = None if isinstance(outcome, Suspended) else _failure(outcome, raised)
            resumed = Resumed(
                request=channel.request,
                principal=channel.principal,
                tag=tag,
                began=began,
                seconds=time.perf_counter() - start,
                result=outcome if isinstance(outcome, Result) and failure is None else None,
                failure=failure,
            )
            while marks:
                each, mark = marks.pop()
                _call(each.request_resumed, replace(resumed, mark=mark))

        try:
            yield on_step
        finally:
            while marks:
                each, mark = marks.pop()
                _call(each.resume_repeated, mark)

    def rejected(self, rejection: Rejection) -> None:
        """Notify all observers of a message that never became a request."""
        for each in self.all:
            _call(each.request_rejected, rejection)

    @contextmanager
    def job_attempt(self, task: Task) -> Iterator[Callable[[bytes], None]]:
        work = task.work
        if not self.all or not isinstance(work, Working):
            yield lambda outcome: None
            return
        job = JobAttempt(
            id=run_id(task) or task.id,
            name=work.job.name,
            queue=work.job.queue,
            tool=task.tool,
            number=work.attempt,
            queued=max(0.0, task.updated - task.due),
            trace=task.trace,
        )
        error: BaseException | None = None

        def on_end(outcome: bytes) -> None:
            nonlocal error
            ended = unpack(outcome)
            error = ended.error if isinstance(ended, Failed) else None

        marks = [(each, _call(each.job_began, job)) for each in self.all]
        try:
            yield on_end
        except BaseException as raised:
            error = raised
            raise
        finally:
            for each, mark in reversed(marks):
                _call(each.job_ended, job, error, mark)
            del error  # its traceback refers to this frame: a reference cycle

    def lease_lost(self, task: Task) -> None:
        for each in self.all:
            _call(each.lease_lost)


def _failure(
    outcome: Result | McpError | None, raised: BaseException | None
) -> RequestFailure | None:
    if outcome is None:
        return RequestFailure(kind="cancelled", message="The call was cancelled", raised=raised)
    if isinstance(outcome, McpError):
        return RequestFailure(
            kind="error", message=outcome.message, code=outcome.code, raised=raised
        )
    if isinstance(outcome, CallToolResult) and outcome.is_error:
        texts = [block.text for block in outcome.content if isinstance(block, TextContent)]
        return RequestFailure(kind="tool_error", message="\n".join(texts), raised=raised)
    return None


def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception:
        logger.exception("telemetry: %r failed", method)
    return None
