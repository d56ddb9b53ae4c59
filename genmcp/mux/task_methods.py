"""The methods of the tasks extension: SEP-2663."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Done, Outcome
from genmcp.core.request import Request
from genmcp.core.task import Asking, Task
from genmcp.errors import ArgumentFaults, MissingCapability
from genmcp.mux.continuations import has_tasks
from genmcp.mux.tasks import Tasks, result_of, shown
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.question.packing import unpack
from genmcp.wire.encoder import Encoder

__all__ = ["TaskMethods"]


class TaskMethods:
    """What answers `tasks/get`, `tasks/update` and `tasks/cancel`."""

    def __init__(self, tasks: Tasks, encoder: Encoder) -> None:
        self._tasks = tasks
        self._encoder = encoder

    async def answer(self, request: Request, channel: Channel) -> Result:
        """Answer *request*.

        Raises:
            MissingCapability: the client did not declare the extension.
            TaskNotFound: there is no such task, or it is somebody else's.
        """
        if not has_tasks(request):
            raise MissingCapability({"extensions": {TASKS: {}}})
        return await _METHODS[request.method](self, request, channel)

    async def get(self, request: Request, channel: Channel) -> Result:
        """Tell how a task stands."""
        params: Any = request.params
        return self.detailed(await self._tasks.jobs.get(params.task_id, channel.principal))

    async def update(self, request: Request, channel: Channel) -> Result:
        """Take answers in. Those that are none are left out, so that they are asked for again."""
        params: Any = request.params
        task = await self._tasks.jobs.get(params.task_id, channel.principal)
        if isinstance(task.work, Asking):
            continuation = Continuation.unpack(task.continuation)
            answers = _good(continuation, params.input_responses)
            await self._tasks.answer(task.id, channel.principal, answers)
        return Result()

    async def cancel(self, request: Request, channel: Channel) -> Result:
        """Cancel a task; one that is over stays as it is."""
        params: Any = request.params
        await self._tasks.cancel(params.task_id, channel.principal)
        return Result()

    def detailed(self, task: Task) -> DetailedTask:
        """Return how *task* stands, for its client."""
        members = shown(task)
        if task.progress is not None:
            numbers = {"progress": task.progress, "total": task.total}
            members["meta"] = {PROGRESS: {k: v for k, v in numbers.items() if v is not None}}
        if task.error is not None:
            members["error"] = msgspec.Raw(task.error)
        elif task.result is not None:
            result = result_of(task, "tools/call")
            members["result"] = msgspec.Raw(self._encoder.result(LATEST, result))
        elif isinstance(task.work, Asking) and task.status == "input_required":
            asked = task.work.missing.items()
            members["input_requests"] = {name: msgspec.Raw(each) for name, each in asked}
        return DetailedTask(**members)


def _good(continuation: Continuation, responses: Mapping[str, msgspec.Raw]) -> dict[str, Outcome]:
    """Return those of *responses*, by names on the wire, that answer what was asked."""
    good: dict[str, Outcome] = {}
    for each in continuation.asked:
        if each.name in responses:
            answer = msgspec.json.decode(responses[each.name])
            try:
                unpack(each.question).read(answer)
            except ArgumentFaults:
                continue
            good[each.name] = Done(answer)
    return good


_METHODS: Final[
    Mapping[str, Callable[[TaskMethods, Request, Channel], Coroutine[Any, Any, Result]]]
] = {
    "tasks/get": TaskMethods.get,
    "tasks/update": TaskMethods.update,
    "tasks/cancel": TaskMethods.cancel,
}
