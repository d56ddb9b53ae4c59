"""Calls that became tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.client.backoff import Polling, is_transient, repeated
from genmcp.client.cache import copied
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    HttpStatusError,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
    ServerError,
    TaskCancelled,
    left,
)
from genmcp.client.pending import Report
from genmcp.client.requests import RequestDeadline, Requests, Wait
from genmcp.client.subscriptions import ChangeStream
from genmcp.core.client.lifecycle import Timeouts
from genmcp.errors import GenmcpError
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["TaskHandle", "TaskUpdates"]

_UNDER_WAY: Final = ("working", "input_required")
#: What says nothing of a task, besides what may pass.
_NO_SERVER: Final = (ClientClosed, HttpStatusError, ProcessExited)
#: Seconds after which a task is looked at although its server tells of changes.
_BACKSTOP: Final = 30.0

Check = Callable[[CallToolResult], Awaitable[None]]
Listen = Callable[[str], ChangeStream]


class TaskHandle:
    """A call whose result may be long in coming, or is there already.

    `id` is what another process, or this one after a restart, finds the task again by
    (`client.task(id)`); None where the server answered at once. It is the only key to the task
    where nobody has to say who they are: keep it secret.
    """

    def __init__(
        self, requests: Requests, listen: Listen, check: Check, found: str | CallToolResult
    ) -> None:
        self.id = None if isinstance(found, CallToolResult) else found
        self._result = found if isinstance(found, CallToolResult) else None
        self._requests = requests
        self._where = requests.connection.where
        self._listen = listen
        self._check = check
        self._answered: set[str] = set()
        self._polling = Polling(requests.options.first_poll)
        self._over = self._result is not None

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended: with a result, an error, or cancelled."""
        return self._over

    async def status(self) -> DetailedTask:
        """Ask the server how the task stands.

        Raises:
            LookupError: there is no task: the result is here.
            ServerError: the server does not know the task, or not any more.
            ClientError: the server could not be asked.
        """
        task: DetailedTask = await self._send("tasks/get", {})
        return task

    async def wait(self, *, timeout: Wait = msgspec.UNSET) -> CallToolResult:
        """Wait for the result, and let the handler answer the questions of the task meanwhile.

        The server notifies of changes if it can. Otherwise it is polled: soon at first (option:
        first_poll), then at its own interval; a failed poll is retried (option: polls). If the
        waiting is cancelled, or ends after *timeout* seconds, the task continues.

        Raises:
            ServerError: the task failed with this error.
            TaskCancelled: it was cancelled.
            RequestTimeout: it was not over in time.
            McpError: a question was not answered: the handler refused.
            ProtocolError: the result does not fit the output schema of its tool.
            OutcomeUnknown, ClientError: the server could not be asked; `task` of the error is the
                id of the task, which goes on.
        """
        return copied(await self.wait_for(self._requests.patience(timeout)))

    async def wait_for(
        self, patience: RequestDeadline, report: Report | None = None
    ) -> CallToolResult:
        """Wait as `wait` does, for as long as *patience* lasts; *report* is told of progress.

        The result is the one that is kept here.
        """
        if self._result is None:
            try:
                async with patience.limit():
                    self._result = await self._outcome(patience, report)
            except TimeoutError:
                raise RequestTimeout(
                    f"the task {self.id}", self._where, patience.total or 0
                ) from None
            except ClientError as error:
                if self._over or not (is_transient(error) or isinstance(error, _NO_SERVER)):
                    raise
                ended = left(error, self.id or "")
                raise ended from ended.__cause__
        return self._result

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Answer what the task asks, each answer under the key of its question.

        Raises:
            ServerError: the server does not know the task, or does not take the answers.
            ClientError: the server could not be told.
        """
        await self._update(answers)

    async def cancel(self) -> None:
        """Ask the server to cancel the task; whether and when it does, `status` tells.

        Raises:
            ServerError: the server does not know the task.
            ClientError: the server could not be told.
        """
        await self._send("tasks/cancel", {})

    async def _send(
        self, method: str, params: Mapping[str, Any], timeouts: Timeouts | None = None
    ) -> Any:
        if self.id is None:
            raise LookupError("the call was answered at once: there is no task")
        return await self._requests.result(method, {"taskId": self.id, **params}, timeouts)

    async def _look(self, news: "TaskUpdates", patience: RequestDeadline) -> DetailedTask:
        """Ask how the task stands, and again while that fails in a way that may pass."""
        news.looks()
        # The total is that of `wait_for`.
        waits = Timeouts(idle=patience.idle, total=None)
        task: DetailedTask = await repeated(
            lambda: self._send("tasks/get", {}, waits), self._requests.options.max_poll_failures
        )
        return task

    async def _update(self, answers: Mapping[str, Any], timeouts: Timeouts | None = None) -> None:
        self._answered.update(answers)  # it may be told of again before the server knows
        try:
            await self._send("tasks/update", {"inputResponses": answers}, timeouts)
        except BaseException:
            self._answered.difference_update(answers)  # if it asks again, it does not know
            raise

    async def _answer(self, answers: Mapping[str, Any], patience: RequestDeadline) -> None:
        """Answer what the task asks, and again while that fails in a way that may pass.

        SEP-2663, "Task Update Requests": a server ignores answers to what it does not ask any more.
        """
        waits = Timeouts(idle=patience.idle, total=None)
        await repeated(
            lambda: self._update(answers, waits), self._requests.options.max_poll_failures
        )

    async def _outcome(self, patience: RequestDeadline, report: Report | None) -> CallToolResult:
        async with TaskUpdates(self._listen(self.id or ""), self.id or "") as news:
            task = await self._look(news, patience)
            while True:
                if report is not None and (progress := _progress_of(task)) is not None:
                    report(progress.progress, progress.total, task.status_message)
                self._over = task.status not in _UNDER_WAY
                match task.status:
                    case "completed":
                        return await self._completed(task)
                    case "failed":
                        raise self._failed(task)
                    case "cancelled":
                        raise TaskCancelled(self.id or "", self._where, task.status_message)
                task = await self._next(task, news, patience)

    async def _next(
        self, task: DetailedTask, news: "TaskUpdates", patience: RequestDeadline
    ) -> DetailedTask:
        """Answer what is asked, and return how the task stands when that may have changed."""
        asked = {
            key: raw
            for key, raw in (task.input_requests or {}).items()
            if key not in self._answered
        }
        if not asked:
            return await self._change(task, news, patience)
        loop = asyncio.get_running_loop()
        answering = loop.create_task(self._requests.answering.answer_all(self._questions(asked)))
        try:
            # Somebody else may answer, or cancel the task, while a person thinks.
            while task.status == "input_required" and not answering.done():
                looking = loop.create_task(self._change(task, news, patience))
                try:
                    await asyncio.wait({answering, looking}, return_when="FIRST_COMPLETED")
                    if looking.done():
                        task = looking.result()
                finally:
                    await cancel_and_wait(looking)
            if task.status == "input_required":
                await self._answer(answering.result(), patience)
                self._polling.restart()
                task = await self._look(news, patience)
            return task
        finally:
            await cancel_and_wait(answering)

    def _questions(self, asked: Mapping[str, msgspec.Raw]) -> dict[str, InputRequest]:
        try:
            return {key: decoder_for(InputRequest).decode(raw) for key, raw in asked.items()}
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a question of a task: {error}", self._where) from None

    async def _change(
        self, task: DetailedTask, news: "TaskUpdates", patience: RequestDeadline
    ) -> DetailedTask:
        """Wait until there may be something new, and return it."""
        if not news.suffices:
            await asyncio.sleep(self._polling.pause(task.poll_interval_ms))
        else:
            with suppress(ClientError, StopAsyncIteration, TimeoutError):
                async with asyncio.timeout(_BACKSTOP):
                    told = await news.next()
                    # What was told on the way may be older than what was asked for meanwhile.
                    if isinstance(told, DetailedTask) and told.status not in _UNDER_WAY:
                        return told
        return await self._look(news, patience)

    async def _completed(self, task: DetailedTask) -> CallToolResult:
        try:
            result: CallToolResult = decoder_for(CallToolResult).decode(task.result)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"the result of a task: {error}", self._where) from None
        await self._check(result)
        return result

    def _failed(self, task: DetailedTask) -> GenmcpError:
        try:
            body: ErrorBody = decoder_for(ErrorBody).decode(task.error)
        except msgspec.MsgspecError as error:
            return ProtocolError(f"the error of a task: {error}", self._where)
        return ServerError(body.code, body.message, body.data, where=self._where)


class _TaskProgress(Value):
    """How far a task is."""

    progress: float
    total: float | None = None


def _progress_of(task: DetailedTask) -> _TaskProgress | None:
    """Return how far *task* is, None if it does not say, or not so that it can be understood."""
    try:
        return msgspec.convert((task.meta or {}).get(PROGRESS), _TaskProgress)
    except msgspec.ValidationError:
        return None


_PATIENCE: Final = 1.0  # seconds that are waited until it is heard of, before the task is looked at


class TaskUpdates:
    """Listens with *listening* for the task *id*, from when this is entered until it is left.

    A server that does not say whether it tells of the task holds nobody up: the task is looked at
    meanwhile.
    """

    def __init__(self, listening: ChangeStream, id: str) -> None:
        self._listening = listening
        self._id = id
        self._entering: asyncio.Task[ChangeStream]
        self._heard = False

    async def __aenter__(self) -> "TaskUpdates":
        entering = self._listening.__aenter__()
        self._entering = asyncio.get_running_loop().create_task(entering)
        try:
            await asyncio.wait({self._entering}, timeout=_PATIENCE)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._entering)
        if self._entered:
            await self._listening.__aexit__()

    def looks(self) -> None:
        """Take note that the task is looked at now: what was told before is known then."""
        self._heard = self._entered and self._id in (self._listening.honored.task_ids or ())

    @property
    def suffices(self) -> bool:
        """Whether all is told that happens since the task was looked at last.

        If not, it has to be looked at again.
        """
        return self._heard and not self._listening.is_over

    async def next(self) -> Any:
        """Return what is told next.

        Raises:
            StopAsyncIteration, ClientError: nothing more is told.
        """
        return (await anext(self._listening)).params

    @property
    def _entered(self) -> bool:
        entering = self._entering
        return entering.done() and not entering.cancelled() and entering.exception() is None
