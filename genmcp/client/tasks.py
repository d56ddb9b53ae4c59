"""Calls that became tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec

from genmcp.client.errors import ClientError, ProtocolFault, ServerSaid, TaskCancelled, Timeout
from genmcp.client.listening import Listening
from genmcp.client.requests import Patience, Requests, Wait
from genmcp.client.waiting import Report
from genmcp.errors import GenmcpError
from genmcp.protocol.input_required import InputRequest
from genmcp.protocol.tasks import PROGRESS, DetailedTask, TaskStatusNotificationParams
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["TaskHandle"]

_UNDER_WAY: Final = ("working", "input_required")
#: Seconds between two looks, where the server does not say.
_USUAL: Final = 1.0
#: Milliseconds that are waited at least.
_LEAST: Final = 10
#: Seconds after which a task is looked at although its server tells of changes.
_BACKSTOP: Final = 30.0

Check = Callable[[CallToolResult], Awaitable[None]]
Listen = Callable[[str], Listening]


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
        self._over = self._result is not None

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended: with a result, an error, or cancelled."""
        return self._over

    async def status(self) -> DetailedTask:
        """Ask the server how the task stands.

        Raises:
            LookupError: there is no task: the result is here.
            ServerSaid: the server does not know the task, or not any more.
            ClientError: the server could not be asked.
        """
        task: DetailedTask = await self._send("tasks/get")
        return task

    async def wait(self, *, timeout: Wait = msgspec.UNSET) -> CallToolResult:
        """Wait for the result, and let the handler answer what the task asks meanwhile.

        The server tells of changes if it can, else it is asked as often as it says. Leaving this
        early, by cancelling it or after *timeout* seconds, leaves the task as it is.

        Raises:
            ServerSaid: the task failed with this error.
            TaskCancelled: it was cancelled.
            Timeout: it was not over in time.
            McpError: a question was not answered: the handler refused.
            ProtocolFault: the result does not fit the output schema of its tool.
            ClientError: the server could not be asked.
        """
        return await self.wait_for(self._requests.patience(timeout))

    async def wait_for(self, patience: Patience, report: Report | None = None) -> CallToolResult:
        """Wait as `wait` does, for as long as *patience* lasts; *report* is told of progress."""
        if self._result is None:
            try:
                async with patience.limit():
                    self._result = await self._outcome(report)
            except TimeoutError:
                raise Timeout(f"the task {self.id}", self._where, patience.total or 0) from None
        return self._result

    async def update(self, answers: Mapping[str, Any]) -> None:
        """Answer what the task asks, each answer under the key of its question.

        Raises:
            ServerSaid: the server does not know the task, or does not take the answers.
            ClientError: the server could not be told.
        """
        self._answered.update(answers)  # it may be told of again before the server knows
        await self._send("tasks/update", inputResponses=answers)

    async def cancel(self) -> None:
        """Ask the server to cancel the task; whether and when it does, `status` tells.

        Raises:
            ServerSaid: the server does not know the task.
            ClientError: the server could not be told.
        """
        await self._send("tasks/cancel")

    async def _send(self, method: str, **params: Any) -> Any:
        if self.id is None:
            raise LookupError("the call was answered at once: there is no task")
        return await self._requests.result(method, {"taskId": self.id, **params})

    async def _outcome(self, report: Report | None) -> CallToolResult:
        async with self._news() as news:
            task = await self.status()
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
                task = await self._next(task, news)

    async def _next(self, task: DetailedTask, news: Listening | None) -> DetailedTask:
        """Answer what is asked, and return how the task stands when that may have changed."""
        asked = {
            key: raw
            for key, raw in (task.input_requests or {}).items()
            if key not in self._answered
        }
        if not asked:
            return await self._change(task, news)
        loop = asyncio.get_running_loop()
        answering = loop.create_task(self._requests.answering.answer_all(self._questions(asked)))
        try:
            # Somebody else may answer, or cancel the task, while a person thinks.
            while task.status == "input_required" and not answering.done():
                looking = loop.create_task(self._change(task, news))
                try:
                    await asyncio.wait({answering, looking}, return_when="FIRST_COMPLETED")
                    if looking.done():
                        task = looking.result()
                finally:
                    await _end(looking)
            if task.status == "input_required":
                await self.update(answering.result())
                task = await self.status()
            return task
        finally:
            await _end(answering)

    def _questions(self, asked: Mapping[str, msgspec.Raw]) -> dict[str, InputRequest]:
        try:
            return {key: decoder_for(InputRequest).decode(raw) for key, raw in asked.items()}
        except msgspec.MsgspecError as error:
            raise ProtocolFault(f"a question of a task: {error}", self._where) from None

    async def _change(self, task: DetailedTask, news: Listening | None) -> DetailedTask:
        """Wait until there may be something new, and return it."""
        if news is None or news.is_over:
            interval = task.poll_interval_ms
            await asyncio.sleep(_USUAL if interval is None else max(interval, _LEAST) / 1000)
        else:
            with suppress(ClientError, StopAsyncIteration, TimeoutError):
                async with asyncio.timeout(_BACKSTOP):
                    told = (await anext(news)).params
                    # What was told on the way may be older than what was asked for meanwhile.
                    if getattr(told, "status", "working") not in _UNDER_WAY:
                        return _detailed(told)
        return await self.status()

    @asynccontextmanager
    async def _news(self) -> AsyncIterator[Listening | None]:
        """What the server tells of the task, or None if it does not."""
        listening = self._listen(self.id or "")
        try:
            await listening.__aenter__()
        except ClientError:
            yield None
            return
        try:
            yield listening if self.id in (listening.honored.task_ids or ()) else None
        finally:
            await listening.__aexit__()

    async def _completed(self, task: DetailedTask) -> CallToolResult:
        try:
            result: CallToolResult = decoder_for(CallToolResult).decode(task.result)
        except msgspec.MsgspecError as error:
            raise ProtocolFault(f"the result of a task: {error}", self._where) from None
        await self._check(result)
        return result

    def _failed(self, task: DetailedTask) -> GenmcpError:
        try:
            body: ErrorBody = decoder_for(ErrorBody).decode(task.error)
        except msgspec.MsgspecError as error:
            return ProtocolFault(f"the error of a task: {error}", self._where)
        return ServerSaid(body.code, body.message, body.data, where=self._where)


class _Progress(Value):
    """How far a task is."""

    progress: float
    total: float | None = None


def _progress_of(task: DetailedTask) -> _Progress | None:
    """Return how far *task* is, None if it does not say, or not so that it can be understood."""
    try:
        return msgspec.convert((task.meta or {}).get(PROGRESS), _Progress)
    except msgspec.ValidationError:
        return None


def _detailed(told: TaskStatusNotificationParams) -> DetailedTask:
    return DetailedTask(**{name: getattr(told, name) for name in DetailedTask.__struct_fields__})


async def _end(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # whoever wanted it has it
