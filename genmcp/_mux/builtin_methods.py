"""The methods that a mux answers for any server. The `tasks/...` methods are those of SEP-2663."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Final

import msgspec

from genmcp._mux.changes import Subscription
from genmcp._mux.continuations import Continuations, has_tasks
from genmcp._mux.services import MuxServices
from genmcp._mux.stored_request import StoredRequest
from genmcp._mux.task_results import detailed_task
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, pack
from genmcp.core.request import Request, check_length
from genmcp.core.server_dispatch import discover_result
from genmcp.core.subscription import supported_subset
from genmcp.core.task import Task
from genmcp.core.waiting import Asking
from genmcp.errors import (
    ArgumentFaults,
    InvalidParams,
    MissingCapability,
    Overloaded,
    ResourceNotFound,
    StoreError,
    TaskNotFound,
)
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.resources import SubscriptionFilter, SubscriptionsListenRequestParams
from genmcp.protocol.revisions.v2025_11_25 import (
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from genmcp.protocol.tasks import TaskParams, UpdateTaskParams
from genmcp.protocol.value import Result
from genmcp.question.elicitation import FormQuestion
from genmcp.question.packing import unpack
from genmcp.tasks.outcomes import NotRunnableHere
from genmcp.tasks.service import TaskChange, TaskService

logger = logging.getLogger("genmcp")

TASKS_CHANGED: Final = "notifications/tasks"


class BuiltinMethods(msgspec.Struct, eq=False):
    """The methods that a mux answers for any server. Owned by the mux."""

    _mux: MuxServices
    _continuations: Continuations

    async def handle(self, request: Request, channel: Channel) -> Result:
        """Handle *request*, which calls one of the `BUILTIN` methods.

        Raises:
            McpError: the request names a resource or task that does not exist for its principal, or
                an answer that does not fit its question, or its client lacks a capability.
        """
        # Those methods that need a session exist only within one.
        session, client = request.session or "", channel.context.client
        server, streams = self._mux.server, self._mux.session_streams
        match request.params:
            case TaskParams() | UpdateTaskParams():
                return await self._task(request, request.params, channel)
            case SetLevelRequestParams(level=level):
                await self._mux.sessions.set_level(session, level, client)
            case SubscribeRequestParams(uri=uri):
                if not self._has(channel.access, uri):
                    raise ResourceNotFound(uri)
                async with server.watch_resources((uri,)) as announced:
                    if uri not in announced:
                        raise InvalidParams(f"The server announces no updates of {uri}")
                    await streams.subscribe(session, uri, wanted=True, client=client)
            case UnsubscribeRequestParams(uri=uri):
                await streams.subscribe(session, uri, wanted=False, client=client)
        if request.method == "server/discover":
            return discover_result(server.capabilities, server.instructions)
        return Result()

    async def _task(
        self, request: Request, params: TaskParams | UpdateTaskParams, channel: Channel
    ) -> Result:
        service, principal = self._continuations.tasks.service, channel.principal
        if request.method == "tasks/cancel":  # a task that has ended stays as it is
            await self._continuations.cancel(params.task_id, principal)
            return Result()
        task = await service.get(params.task_id, principal)
        if isinstance(params, TaskParams):
            return detailed_task(task, self._mux.encoder, service.records.now())
        if isinstance(task.work, Asking):
            if scopes := await self._scopes_of(task.id):
                channel.context.caller.require_scopes(scopes)
            continuation = Continuation.unpack(task.continuation)
            # If one answer is invalid, none is accepted, and all questions stay open.
            answers = _valid_answers(continuation, task.work, params.input_responses)
            await service.answer(task.id, principal, answers)
        return Result()

    async def _scopes_of(self, task: str) -> Sequence[str]:
        """Return the scopes that the call of *task* needed when it began."""
        packed = await self._continuations.tasks.service.records.call(task)
        if packed is None:  # it has just ended
            return ()
        try:
            return StoredRequest.unpack(packed).scopes
        except NotRunnableHere:
            return ()

    async def honored(self, request: Request, access: Access | None) -> SubscriptionFilter:
        """Return the part of the filter of *request*, a listen request, that the server honors.

        Raises:
            Overloaded: it names more resources or tasks than one stream may subscribe to.
            MalformedParams: a URI is longer than `MAX_NAME_BYTES`.
            MissingCapability: it names tasks, and the client did not declare the extension.
        """
        assert isinstance(request.params, SubscriptionsListenRequestParams)
        wanted, most = request.params.notifications, self._mux.limits.max_subscriptions
        uris, tasks = wanted.resource_subscriptions or (), wanted.task_ids or ()
        if max(len(uris), len(tasks)) > most:
            bound = (
                f"{most} {'resources' if len(uris) > most else 'tasks'} (limit: max_subscriptions)"
            )
            raise Overloaded(f"A stream is subscribed to at most {bound}", status=429)
        for uri in uris:
            check_length(uri)
        if tasks and not has_tasks(request):
            raise MissingCapability({"extensions": {TASKS: {}}})
        known = []
        principal = None if access is None else access.principal
        for id in dict.fromkeys(tasks):
            with suppress(TaskNotFound):
                known.append((await self._continuations.tasks.service.get(id, principal)).id)
        exists = partial(self._has, access)
        honored = supported_subset(wanted, self._mux.server.capabilities, exists)
        return msgspec.structs.replace(honored, task_ids=known or None)

    def _has(self, access: Access | None, uri: str) -> bool:
        route = self._mux.server.find("resources/read", uri)
        return route is not None and route.is_visible(access)


@asynccontextmanager
async def watching(
    service: TaskService, ids: Sequence[str], principal: str | None, subscription: Subscription
) -> AsyncGenerator[None, None]:
    """Notify *subscription* of the changes of the tasks *ids*, as a context manager.

    SEP-2663, "Task Status Notifications".
    """
    watchers = [asyncio.create_task(_watch(service, id, principal, subscription)) for id in ids]
    try:
        yield
    finally:
        await cancel_and_wait(*watchers)


async def _watch(
    service: TaskService, id: str, principal: str | None, subscription: Subscription
) -> None:
    seen: tuple[object, ...] = ()
    try:
        async with aclosing(service.follow(id, principal)) as changes:
            async for change in changes:
                if isinstance(change, TaskChange) and _seen(change.task) != seen:
                    seen = _seen(change.task)
                    subscription.notify(task=change.task)
    except TaskNotFound as error:
        logger.debug("a task has expired: %s", error)
    except StoreError as error:
        logger.warning("the changes of task %s cannot be read any more: %s", id, error)


def _valid_answers(
    continuation: Continuation, asking: Asking, responses: Mapping[str, msgspec.Raw]
) -> dict[str, bytes]:
    """Return the answers to open questions among *responses*, packed, by their keys.

    Other answers are ignored (SEP-2663, "Task Update Requests"). An answer is checked against the
    form that the client was shown: the type of the tool may have changed in a deploy since.

    Raises:
        InvalidParams: an answer does not fit its question (SEP-2663, "Splitting Reads": servers
            SHOULD return errors for clearly invalid requests).
    """
    good = {}
    for each in continuation.asked:
        if each.name in responses and each.name in asking.missing:
            answer = msgspec.json.decode(responses[each.name])
            shown = msgspec.json.decode(asking.questions[each.name]).get("params", {})
            schema = shown.get("requestedSchema")
            question = unpack(each.question) if schema is None else FormQuestion("", schema=schema)
            try:
                question.read(answer)
            except ArgumentFaults as error:
                raise InvalidParams(f"The answer to {each.name!r} does not fit: {error}") from None
            good[each.name] = pack(Done(answer))
    return good


def _seen(task: Task) -> tuple[object, ...]:
    """Return the state of a *task* that clients see, without the time of its last change."""
    asked = task.work.missing if isinstance(task.work, Asking) else ()
    return task.status, task.message, task.progress, task.total, (*asked,)
