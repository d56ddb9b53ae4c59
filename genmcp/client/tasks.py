"""Handles of tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.client.backoff import Polling, is_transient, repeated
from genmcp.client.cache import copied
from genmcp.client.connection import Connection, Deadline, OnProgress, Timeout
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    HttpStatusError,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
    ServerError,
    TaskCancelled,
    as_task_error,
)
from genmcp.client.hooks import ProgressCallback, ProgressReporter
from genmcp.client.subscriptions import ChangeStream
from genmcp.core.client.lifecycle import Timeouts
from genmcp.errors import GenmcpError
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import ErrorBody

_ACTIVE: Final = ("working", "input_required")
#: Errors that tell nothing about the task, besides transient ones.
_UNREACHABLE: Final = (ClientClosed, HttpStatusError, ProcessExited)
#: Seconds that the first poll of a task waits for its change stream to open.
_STREAM_TIMEOUT: Final = 1.0
# Failed polls in a row after which waiting fails. The pauses double from 0.5 to 30 seconds.
_MAX_POLL_FAILURES = 8
# Seconds without a notification after which a task is polled although its server sends them.
_CHECK_INTERVAL = 30.0

Check = Callable[[CallToolResult], Awaitable[None]]


class TaskUpdates:
    """The notifications about one task. Owned by `TaskHandle.wait`, as an async context manager.

    SEP-2663, "Task Status Notifications". Entering the context waits one second at most for the
    change stream to open. Until the server acknowledges the stream, the task is polled.
    """

    def __init__(self, stream: ChangeStream, id: str) -> None:
        self._stream = stream
        self._id = id
        self._opening: asyncio.Task[ChangeStream]
        self._complete = False

    async def __aenter__(self) -> "TaskUpdates":
        opening = self._stream.__aenter__()
        self._opening = asyncio.get_running_loop().create_task(opening)
        try:
            await asyncio.wait({self._opening}, timeout=_STREAM_TIMEOUT)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._opening)
        if self._is_open:
            await self._stream.__aexit__()

    def before_poll(self) -> None:
        """Record, before a poll, whether the stream reports every change after that poll."""
        self._complete = self._is_open and self._id in (self._stream.honored.task_ids or ())

    @property
    def suffice(self) -> bool:
        """Whether the server notifies of every change since the last poll.

        True only if the stream was open before that poll. Otherwise a change between the poll and
        the opening of the stream would be missed.
        """
        return self._complete and not self._stream.is_over

    async def next(self) -> Any:
        """Wait for the next notification, and return its params.

        Raises:
            StopAsyncIteration, ClientError: The stream has ended.
        """
        return (await anext(self._stream)).params

    @property
    def _is_open(self) -> bool:
        opening = self._opening
        return opening.done() and not opening.cancelled() and opening.exception() is None


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
        self._polling = Polling()
        self._over = self._result is not None

    @property
    def is_over(self) -> bool:
        """Whether the task is known to have ended."""
        return self._over

    async def status(self) -> DetailedTask:
        """Get the state of the task from the server.

        Raises:
            ServerError: The server does not know the task.
            ClientError: The server could not be asked, or there is no task, since the call was
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
            ServerError: The task failed with this error.
            TaskCancelled: The task was cancelled.
            RequestTimeout: The timeout expired.
            InputFailed: The handler did not answer an input request.
            ProtocolError: The result does not match the `outputSchema` of its tool.
            OutcomeUnknown, ClientError: The server could not be asked. The task continues; `task`
                of the error is its id.
        """
        deadline = self._connection.deadline(timeout)
        if progress is None:
            return copied(await self.wait_until(deadline))
        reporter = ProgressReporter(progress)
        try:
            result = await self.wait_until(deadline, reporter)
        except BaseException:
            await reporter.cancel()
            raise
        await reporter.end()
        return copied(result)

    async def wait_until(
        self, deadline: Deadline, on_progress: OnProgress | None = None
    ) -> CallToolResult:
        """Wait as `wait` does, until *deadline*; the result is not a copy."""
        if self._result is None:
            id = self.id or ""
            try:
                async with deadline.limit():
                    self._result = await self._wait(deadline, on_progress)
            except TimeoutError:
                seconds = deadline.total or 0
                raise RequestTimeout(f"the task {id}", self._server_name, seconds) from None
            except ClientError as error:
                if self._over or not (is_transient(error) or isinstance(error, _UNREACHABLE)):
                    raise
                unknown = as_task_error(error, id)
                raise unknown from unknown.__cause__
        return self._result

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Answer input requests of the task; *answers* has the keys of the requests.

        Raises:
            ServerError: The server does not know the task, or rejects the answers.
            ClientError: The server could not be reached.
        """
        await self._update(answers)

    async def cancel(self) -> None:
        """Ask the server to cancel the task; `status` shows when it is cancelled.

        Raises:
            ServerError: The server does not know the task.
            ClientError: The server could not be reached.
        """
        await self._send("tasks/cancel", {})

    async def _send(
        self, method: str, params: Mapping[str, Any], timeouts: Timeouts | None = None
    ) -> Any:
        if self.id is None:
            raise ClientError("the call was answered at once: there is no task", self._server_name)
        return await self._connection.result(method, {"taskId": self.id, **params}, timeouts)

    async def _poll(self, updates: TaskUpdates, deadline: Deadline) -> DetailedTask:
        """Get the state of the task; a transient failure is retried."""
        updates.before_poll()
        # No total timeout: `wait_until` bounds the time of all polls together.
        timeouts = Timeouts(idle=deadline.idle, total=None)
        task: DetailedTask = await repeated(
            lambda: self._send("tasks/get", {}, timeouts),
            _MAX_POLL_FAILURES,
        )
        return task

    async def _update(self, answers: Mapping[str, Any], timeouts: Timeouts | None = None) -> None:
        # Marked before they are sent: a notification may repeat the input requests meanwhile.
        self._answered.update(answers)
        try:
            await self._send("tasks/update", {"inputResponses": answers}, timeouts)
        except BaseException:
            self._answered.difference_update(answers)
            raise

    async def _answer(self, answers: Mapping[str, Any], deadline: Deadline) -> None:
        """Send answers; a transient failure is retried.

        SEP-2663, "Task Update Requests": a server ignores answers that it does not need any more,
        so that a repetition does no harm.
        """
        timeouts = Timeouts(idle=deadline.idle, total=None)
        await repeated(lambda: self._update(answers, timeouts), _MAX_POLL_FAILURES)

    async def _wait(self, deadline: Deadline, on_progress: OnProgress | None) -> CallToolResult:
        id = self.id or ""
        reported: _TaskProgress | None = None
        stream = ChangeStream(self._connection, SubscriptionFilter(task_ids=[id]))
        async with TaskUpdates(stream, id) as updates:
            task = await self._poll(updates, deadline)
            while True:
                progress = _progress_of(task)
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
                task = await self._next(task, updates, deadline)

    async def _next(
        self, task: DetailedTask, updates: TaskUpdates, deadline: Deadline
    ) -> DetailedTask:
        """Answer the input requests of *task*, and return its next state."""
        requests = {
            key: raw
            for key, raw in (task.input_requests or {}).items()
            if key not in self._answered
        }
        if not requests:
            return await self._change(task, updates, deadline)
        loop = asyncio.get_running_loop()
        decoded = self._decode_requests(requests)
        answering = loop.create_task(self._connection.answers(decoded))
        try:
            # While the user of this client thinks, another client may answer or cancel the task.
            while task.status == "input_required" and not answering.done():
                changing = loop.create_task(self._change(task, updates, deadline))
                try:
                    await asyncio.wait({answering, changing}, return_when="FIRST_COMPLETED")
                    if changing.done():
                        task = changing.result()
                finally:
                    await cancel_and_wait(changing)
            if task.status == "input_required":
                await self._answer(answering.result(), deadline)
                self._polling.restart()
                task = await self._poll(updates, deadline)
            return task
        finally:
            await cancel_and_wait(answering)

    def _decode_requests(self, requests: Mapping[str, msgspec.Raw]) -> dict[str, InputRequest]:
        try:
            return {key: decoder_for(InputRequest).decode(raw) for key, raw in requests.items()}
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"an input request of a task: {error}", self._server_name) from None

    async def _change(
        self, task: DetailedTask, updates: TaskUpdates, deadline: Deadline
    ) -> DetailedTask:
        """Wait until the task may have changed, and return its state."""
        if not updates.suffice:
            await asyncio.sleep(self._polling.pause(task.poll_interval_ms))
        else:
            with suppress(ClientError, StopAsyncIteration, TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL):
                    update = await updates.next()
                    # A final state is final. Any other notification may be older than the last
                    # poll, so that the task is polled again.
                    if isinstance(update, DetailedTask) and update.status not in _ACTIVE:
                        return update
        return await self._poll(updates, deadline)

    async def _completed(self, task: DetailedTask) -> CallToolResult:
        try:
            result: CallToolResult = decoder_for(CallToolResult).decode(task.result)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the result of a task: {error}", self._server_name) from None
        if self._check is not None:
            await self._check(result)
        return result

    def _failed(self, task: DetailedTask) -> GenmcpError:
        try:
            body: ErrorBody = decoder_for(ErrorBody).decode(task.error)
        except msgspec.MsgspecError as error:
            return ProtocolError(f"the error of a task: {error}", self._server_name)
        return ServerError(body.code, body.message, body.data, server_name=self._server_name)


class _TaskProgress(Value):
    progress: float
    total: float | None = None
    message: str | None = None


def _progress_of(task: DetailedTask) -> _TaskProgress | None:
    """Return the latest progress of *task*; None if the task has no valid progress."""
    try:
        return msgspec.convert((task.meta or {}).get(PROGRESS), _TaskProgress)
    except msgspec.ValidationError:
        return None
