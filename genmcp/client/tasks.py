"""Handles of tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import msgspec

from genmcp.client.connection import Connection, Deadline, OnProgress, ProgressReports, Timeout
from genmcp.client.errors import (
    ClientError,
    InputFailed,
    ProtocolError,
    ServerError,
    TaskCancelled,
    as_task_error,
    is_transient,
)
from genmcp.client.hooks import ProgressCallback
from genmcp.client.subscriptions import ChangeStream
from genmcp.core.backoff import backoff
from genmcp.core.client.lifecycle import Timeouts
from genmcp.errors import InvalidParams
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import ErrorBody

_ACTIVE: Final = ("working", "input_required")
#: Seconds to open the stream of notifications about a task; without it the task is polled.
_STREAM_TIMEOUT: Final = 1.0
# The most attempts at a poll, and the seconds between them, which double.
_MAX_POLL_FAILURES = 8
_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0
# Seconds between two polls. An interval of 5 s suits tasks that take minutes, but with it a task of
# 0.1 s would take 5 s as well. So the pauses double up to the interval of the server: this costs
# about eight more requests for each task.
_FIRST_POLL: Final = 0.02
_MIN_POLL_INTERVAL: Final = 0.01
_POLL_INTERVAL: Final = 1.0  # if the server gives none
# Seconds without a notification after which a task is polled although its server sends them.
_CHECK_INTERVAL = 30.0

Check = Callable[[CallToolResult], Awaitable[None]]


class TaskHandle:
    """A tool call that may have become a task. Returned by `Client.call_task` and `Client.task`.

    `id` is the id of the task; None if the server answered the call at once, without a task.
    `client.task(id)` returns a handle of the task in another process, or after a restart. Without
    authentication, everyone who has the id has access to the task: keep it secret.
    """

    def __init__(
        self, connection: Connection, check: Check | None, call: str | CallToolResult
    ) -> None:
        self.id = None if isinstance(call, CallToolResult) else call
        self._result = call if isinstance(call, CallToolResult) else None
        self._connection = connection
        self._server_name = connection.server_name
        self._check = check
        self._answered: set[str] = set()
        self._polls = 0  # since the task began, or resumed after its input
        self._over = self._result is not None

    @property
    def is_over(self) -> bool:
        """Whether the task is known to have ended, or the server does not know it."""
        return self._over

    async def status(self) -> DetailedTask:
        """Get the state of the task from the server.

        Raises:
            ServerError: the server does not know the task.
            ClientError: the server could not be asked, or there is no task, since the call was
                answered at once.
        """
        task: DetailedTask = await self._send("tasks/get", {})
        return task

    async def wait(
        self, *, progress: ProgressCallback | None = None, timeout: Timeout = msgspec.UNSET
    ) -> CallToolResult:
        """Wait for the result; the handler answers the input requests of the task meanwhile.

        The server notifies of changes if it can. Otherwise it is polled, at first soon, then at its
        own interval; a failed poll is retried. If the caller is cancelled, or *timeout* seconds
        have passed, the task continues.

        Args:
            progress: a function or coroutine function, called with the progress, the total or None,
                and a message or None. Default: none.
            timeout: seconds; None: no limit. Default: that of the client.

        Raises:
            ServerError: the task failed with this error.
            TaskCancelled: the task was cancelled.
            RequestTimeout: the timeout expired.
            InputFailed: the handler did not answer an input request.
            ProtocolError: the result does not match the `outputSchema` of its tool.
            OutcomeUnknown, ClientError: the server could not be asked. The task continues; `task`
                of the error is its id.
        """
        deadline = self._connection.deadline(timeout)
        async with ProgressReports(progress, deadline) as on_progress:
            return await self.wait_until(deadline, on_progress)

    async def wait_until(
        self, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> CallToolResult:
        """Wait as `wait` does, until *deadline*."""
        if self._result is None:
            id = self.id or ""
            async with deadline.limit(f"the task {id}", self._server_name):
                try:
                    self._result = await self._wait(deadline, on_progress)
                except ClientError as error:
                    if self._over or isinstance(error, InputFailed):
                        raise
                    unknown = as_task_error(error, id)
                    raise unknown from unknown.__cause__
        return self._result

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Answer input requests of the task; *answers* has the keys of the requests.

        Raises:
            ServerError: the server does not know the task, or rejects the answers.
            ClientError: the server could not be reached.
        """
        await self._send("tasks/update", {"inputResponses": answers})
        self._answered.update(answers)

    async def cancel(self) -> None:
        """Ask the server to cancel the task; `status` shows when it is cancelled.

        Raises:
            ServerError: the server does not know the task.
            ClientError: the server could not be reached.
        """
        await self._send("tasks/cancel", {})

    async def _send(
        self, method: str, params: Mapping[str, Any], deadline: Deadline | None = None
    ) -> Any:
        """Send a request about the task. With a *deadline* of a wait, it has no other limit."""
        if self.id is None:
            raise ClientError("the call was answered at once: there is no task", self._server_name)
        timeouts = None if deadline is None else Timeouts(idle=deadline.idle, total=None)
        return await self._connection.result(method, {"taskId": self.id, **params}, timeouts)

    async def _poll(self, deadline: Deadline) -> DetailedTask:
        """Get the state of the task; a transient failure is retried."""
        try:
            task: DetailedTask = await self._repeated("tasks/get", {}, deadline)
        except ServerError as error:
            # SEP-2663: the error for a task that does not exist, or not any more.
            self._over = error.code == InvalidParams.code
            raise
        return task

    async def _repeated(self, method: str, params: Mapping[str, Any], deadline: Deadline) -> Any:
        """Send a request until it succeeds, or fails for good: one that does no harm twice.

        Raises:
            ClientError: the last attempt failed, or an error is not transient.
        """
        for failures in range(1, _MAX_POLL_FAILURES):
            try:
                return await self._send(method, params, deadline)
            except ClientError as error:
                if not is_transient(error):
                    raise
            await self._pause(backoff(failures, _FIRST_DELAY, _MAX_DELAY))
        return await self._send(method, params, deadline)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the connection, whose error the next request raises."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._connection.ended()

    async def _wait(self, deadline: Deadline, on_progress: OnProgress | None) -> CallToolResult:
        id = self.id or ""
        reported: _TaskProgress | None = None
        async with AsyncExitStack() as stack:
            # Before the first poll: a change between the two would be missed otherwise.
            changes = await self._open_changes(id, stack)
            task = await self._poll(deadline)
            while True:
                progress = progress_of(task)
                if on_progress is not None and progress is not None and progress != reported:
                    reported = progress
                    on_progress(progress.progress, progress.total, progress.message)
                self._over = task.status not in _ACTIVE
                match task.status:
                    case "completed":
                        return await self._completed(task)
                    case "failed":
                        raise self._failed(task)
                    case "cancelled":
                        raise TaskCancelled(id, self._server_name, task.status_message)
                task = await self._next(task, changes, deadline)

    async def _open_changes(self, id: str, stack: AsyncExitStack) -> ChangeStream | None:
        """Open the stream of notifications about the task; None if the server has none.

        SEP-2663, "Task Status Notifications".
        """
        changes = ChangeStream(self._connection, SubscriptionFilter(task_ids=[id]))
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_STREAM_TIMEOUT):
                await stack.enter_async_context(changes)
            if id in (changes.honored.task_ids or ()):
                return changes
        return None

    async def _next(
        self, task: DetailedTask, changes: ChangeStream | None, deadline: Deadline
    ) -> DetailedTask:
        """Answer the input requests of *task* or wait for a change; return the next state."""
        requests = {
            key: self._decoded(InputRequest, raw, "an input request")
            for key, raw in (task.input_requests or {}).items()
            if key not in self._answered
        }
        if requests:
            answers = await self._connection.answers(requests)
            # SEP-2663, "Task Update Requests": a server ignores answers that it does not need any
            # more, so that a repetition does no harm.
            sent = {"inputResponses": answers}
            await self._repeated("tasks/update", sent, deadline)
            self._answered.update(answers)
            self._polls = 0
        elif changes is None or changes.is_over:
            interval = task.poll_interval_ms
            limit = _POLL_INTERVAL if interval is None else interval / 1000
            self._polls += 1
            # SEP-2663, "Task Polling": never longer than the interval of the server.
            await self._pause(backoff(self._polls, _FIRST_POLL, max(limit, _MIN_POLL_INTERVAL)))
        else:
            with suppress(ClientError, StopAsyncIteration, TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL):
                    update = (await anext(changes)).params
                    # A final state is final. Any other notification may be older than the last
                    # poll, so that the task is polled again.
                    if isinstance(update, DetailedTask) and update.status not in _ACTIVE:
                        return update
        return await self._poll(deadline)

    async def _completed(self, task: DetailedTask) -> CallToolResult:
        result: CallToolResult = self._decoded(CallToolResult, task.result, "the result")
        if self._check is not None:
            await self._check(result)
        return result

    def _failed(self, task: DetailedTask) -> ServerError:
        body: ErrorBody = self._decoded(ErrorBody, task.error, "the error")
        return ServerError(body.code, body.message, body.data, server_name=self._server_name)

    def _decoded(self, kind: Any, raw: Any, what: str) -> Any:
        try:
            return decoder_for(kind).decode(raw)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"{what} of a task: {error}", self._server_name) from None


class _TaskProgress(Value):
    progress: float
    total: float | None = None
    message: str | None = None


def progress_of(task: DetailedTask) -> _TaskProgress | None:
    """Return the latest progress of *task*; None if the task has no valid progress."""
    try:
        return msgspec.convert((task.meta or {}).get(PROGRESS), _TaskProgress)
    except msgspec.ValidationError:
        return None
