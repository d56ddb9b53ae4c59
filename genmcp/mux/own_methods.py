"""The methods that a mux answers itself, for any server; those of tasks are SEP-2663."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Outcome, pack
from genmcp.core.request import Request
from genmcp.core.server import is_offered
from genmcp.core.server_dispatch import discovered
from genmcp.core.task import Asking, Task
from genmcp.errors import (
    ArgumentFaults,
    ConfigurationError,
    InvalidParams,
    MissingCapability,
    Overloaded,
    ResourceNotFound,
    StoreError,
    TaskNotFound,
)
from genmcp.mux.changes import Listeners
from genmcp.mux.continuations import has_tasks
from genmcp.mux.limits import Owners
from genmcp.mux.sessions import Sessions
from genmcp.mux.task_results import result_of, shown
from genmcp.mux.tasks import Tasks
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.meta import SUBSCRIPTION_ID, RequestId
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tasks import PROGRESS, DetailedTask, TaskStatusNotificationParams
from genmcp.question.elicitation import FormQuestion
from genmcp.question.packing import unpack
from genmcp.server import Server
from genmcp.tasks.service import Change, TaskService
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import ErrorBody

__all__ = [
    "LISTEN",
    "SUBSCRIBING",
    "TASKS_CHANGED",
    "OwnMethods",
    "TaskMethods",
    "TaskWatcher",
    "detailed_of",
    "status_of",
]

logger = logging.getLogger("genmcp")

TASKS_CHANGED: Final = "notifications/tasks"


class TaskMethods:
    """What answers `tasks/get`, `tasks/update` and `tasks/cancel`.

    most: how many tasks one stream hears of.
    """

    def __init__(self, tasks: Tasks, encoder: Encoder, *, most: int) -> None:
        self._tasks = tasks
        self._encoder = encoder
        self._most = most

    async def answer(self, request: Request, channel: Channel) -> Result:
        """Answer *request*.

        Raises:
            MissingCapability: the client did not declare the extension.
            TaskNotFound: there is no such task, or it is somebody else's.
        """
        if not has_tasks(request):
            raise MissingCapability({"extensions": {TASKS: {}}})
        return await _OF_TASKS[request.method](self, request, channel)

    async def get(self, request: Request, channel: Channel) -> Result:
        """Tell how a task stands."""
        params: Any = request.params
        task = await self._tasks.service.get(params.task_id, channel.principal)
        return detailed_of(task, self._encoder, self._tasks.service.records.now())

    async def update(self, request: Request, channel: Channel) -> Result:
        """Accept answers, all of them or none.

        Raises:
            InvalidParams: an answer does not fit its question; the message says why. The question
                stays open.
        """
        params: Any = request.params
        task = await self._tasks.service.get(params.task_id, channel.principal)
        if isinstance(task.work, Asking):
            continuation = Continuation.unpack(task.continuation)
            answers = _good(continuation, task.work, params.input_responses)
            packed = {name: pack(each) for name, each in answers.items()}
            await self._tasks.service.answer(task.id, channel.principal, packed)
        return Result()

    async def cancel(self, request: Request, channel: Channel) -> Result:
        """Cancel a task; one that is over stays as it is."""
        params: Any = request.params
        await self._tasks.cancel(params.task_id, channel.principal)
        return Result()

    async def heard(self, request: Request, principal: str | None) -> list[str]:
        """Return those of the tasks *request* wants to hear of that there are for *principal*.

        Raises:
            MissingCapability: the client did not declare the extension.
            Overloaded: it wants to hear of too many.
        """
        params: Any = request.params
        wanted = params.notifications.task_ids
        if not wanted:
            return []
        if not has_tasks(request):
            raise MissingCapability({"extensions": {TASKS: {}}})
        if len(wanted) > self._most:
            raise Overloaded(
                f"A stream hears of at most {self._most} tasks (limit: subscriptions)", status=429
            )
        known = []
        for id in dict.fromkeys(wanted):
            with suppress(TaskNotFound):
                known.append((await self._tasks.service.get(id, principal)).id)
        return known


class TaskWatcher:
    """The changes of the tasks that one client is subscribed to; of each, only the latest.

    SEP-2663, "Task Status Notifications".
    """

    def __init__(self) -> None:
        self._news: dict[str, Task] = {}
        self._event = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def of(
        cls, service: TaskService, ids: Sequence[str], principal: str | None
    ) -> AsyncGenerator["TaskWatcher", None]:
        """Follow the tasks *ids* while this is entered."""
        news = cls()
        followers = [asyncio.create_task(news._follow(service, id, principal)) for id in ids]
        try:
            yield news
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def take(self) -> list[Task]:
        """Wait until there is something new, and return it; of one task only the newest."""
        await self._event.wait()
        self._event.clear()
        news, self._news = self._news, {}
        return list(news.values())

    async def _follow(self, service: TaskService, id: str, principal: str | None) -> None:
        told: tuple[object, ...] = ()
        with suppress(TaskNotFound):  # its time has run out
            try:
                async with aclosing(service.follow(id, principal)) as changes:
                    async for change in changes:
                        if isinstance(change, Change) and _seen(change.task) != told:
                            told = _seen(change.task)
                            self._news[id] = change.task
                            self._event.set()
            except StoreError as error:
                logger.warning("a subscriber gets no more of task %s: %s", id, error)


def detailed_of(task: Task, encoder: Encoder, now: float) -> DetailedTask:
    """Return the state of *task* as of *now* (`Store.now`), for its client."""
    return DetailedTask(**_members(task, encoder, now))


def status_of(
    task: Task, encoder: Encoder, subscription: RequestId, now: float
) -> TaskStatusNotificationParams:
    """Return the same as a notification on the stream of *subscription*."""
    members = _members(task, encoder, now)
    members["meta"] = {**(members.get("meta") or {}), SUBSCRIPTION_ID: subscription}
    return TaskStatusNotificationParams(**members)


def _members(task: Task, encoder: Encoder, now: float) -> dict[str, Any]:
    members = shown(task, now)
    if task.progress is not None:
        numbers = {"progress": task.progress, "total": task.total}
        members["meta"] = {PROGRESS: {k: v for k, v in numbers.items() if v is not None}}
    if task.error is not None:
        # "Task Execution Errors": what it said of its work last is of no use any more.
        members["status_message"] = msgspec.json.decode(task.error, type=ErrorBody).message
        members["error"] = msgspec.Raw(task.error)
    elif task.result is not None:
        result = result_of(task, "tools/call")
        members["result"] = msgspec.Raw(encoder.result(LATEST, result))
    elif isinstance(task.work, Asking) and task.status == "input_required":
        asked = task.work.missing.items()
        members["input_requests"] = {name: msgspec.Raw(each) for name, each in asked}
    return members


def _good(
    continuation: Continuation, asking: Asking, responses: Mapping[str, msgspec.Raw]
) -> dict[str, Outcome]:
    """Return those of *responses*, by their names on the wire, that answer an open question.

    Others are ignored (SEP-2663, "Task Update Requests").

    Raises:
        InvalidParams: one does not fit (SEP-2663, "Splitting Reads": servers SHOULD return errors
            for clearly invalid requests).
    """
    good: dict[str, Outcome] = {}
    for each in continuation.asked:
        if each.name in responses and each.name in asking.missing:
            answer = msgspec.json.decode(responses[each.name])
            try:
                _check(each.question, asking.questions[each.name], answer)
            except ArgumentFaults as error:
                raise InvalidParams(f"The answer to {each.name!r} does not fit: {error}") from None
            good[each.name] = Done(answer)
    return good


def _check(question: bytes, shown: bytes, answer: Any) -> None:
    """Check *answer* against *question*, or else against the question *shown* to the client.

    The two differ if the expected type changed in a deploy while the question was open. The tool
    then gets an error that its type does not accept the answer.

    Raises:
        ArgumentFaults: it fits neither.
    """
    try:
        unpack(question).read(answer)
    except (ArgumentFaults, ConfigurationError):
        asked = msgspec.json.decode(shown, type=_Shown)
        if asked.params.requested_schema is None:
            raise
        FormQuestion("", schema=asked.params.requested_schema).read(answer)
        logger.warning("an answer fits what the client was shown, and not the type of today")


def _seen(task: Task) -> tuple[object, ...]:
    """Return what a client sees of a *task*, but for when it was changed last."""
    asked = task.work.missing if isinstance(task.work, Asking) else ()
    return task.status, task.message, task.progress, task.total, (*asked,)


class _ShownParams(msgspec.Struct, rename="camel"):
    requested_schema: Mapping[str, Any] | None = None


class _Shown(msgspec.Struct):
    """A question as it was sent to the client."""

    params: _ShownParams = msgspec.field(default_factory=_ShownParams)


_OF_TASKS: Final[
    Mapping[str, Callable[[TaskMethods, Request, Channel], Coroutine[Any, Any, Result]]]
] = {
    "tasks/get": TaskMethods.get,
    "tasks/update": TaskMethods.update,
    "tasks/cancel": TaskMethods.cancel,
}


LISTEN: Final = "subscriptions/listen"
"""The method whose answer is a stream: a transport serves it, for as long as both sides want."""

SUBSCRIBING: Final = ("resources/subscribe", "resources/unsubscribe")


class OwnMethods:
    """What a mux of *server* answers itself."""

    def __init__(
        self,
        server: Server,
        sessions: Sessions,
        listeners: Listeners,
        tasks: TaskMethods,
        owners: Owners,
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._listeners = listeners
        self._tasks = tasks
        self._owners = owners
        self.offers = partial(is_offered, server, _METHODS)

    def __contains__(self, method: str) -> bool:
        return method in _METHODS

    async def answer(self, request: Request, channel: Channel) -> Result:
        """Answer *request*, which is for one of them."""
        return await _METHODS[request.method](self, request, channel)

    async def discover(self, request: Request, channel: Channel) -> Result:
        """Say what the server is."""
        return discovered(self._server.capabilities, self._server.instructions)

    async def ping(self, request: Request, channel: Channel) -> Result:
        """Say that it is there."""
        return Result()

    async def set_level(self, request: Request, channel: Channel) -> Result:
        """Keep the least severe log message that a session wants to see."""
        params: Any = request.params
        if request.session is not None:
            owner = self._owners.of(channel.client_key)
            await self._sessions.set_level(request.session, params.level, owner)
        return Result()

    async def subscribe(self, request: Request, channel: Channel) -> Result:
        """Keep whether a session wants to hear of a resource."""
        params: Any = request.params
        uri, session = params.uri, request.session
        owner = self._owners.of(channel.client_key)
        if request.method != "resources/subscribe":
            if session is not None:
                await self._listeners.subscribe(session, uri, wanted=False, owner=owner)
            return Result()
        if not self.has(channel.principal, uri):
            raise ResourceNotFound(uri)
        async with self._server.hearing((uri,)) as told:
            if uri not in told:
                raise InvalidParams(f"No updates are told of: {uri}")
            if session is not None:
                await self._listeners.subscribe(session, uri, wanted=True, owner=owner)
        return Result()

    async def task(self, request: Request, channel: Channel) -> Result:
        """Tell of a task, or change it."""
        return await self._tasks.answer(request, channel)

    def has(self, principal: str | None, uri: str) -> bool:
        """Whether there is a resource at *uri* for *principal*."""
        route = self._server.find("resources/read", uri)
        return route is not None and route.is_visible(principal)


_METHODS: Final[
    Mapping[str, Callable[[OwnMethods, Request, Channel], Coroutine[Any, Any, Result]]]
] = {
    "server/discover": OwnMethods.discover,
    "ping": OwnMethods.ping,
    "logging/setLevel": OwnMethods.set_level,
    "resources/subscribe": OwnMethods.subscribe,
    "resources/unsubscribe": OwnMethods.subscribe,
    **dict.fromkeys(_OF_TASKS, OwnMethods.task),
}
