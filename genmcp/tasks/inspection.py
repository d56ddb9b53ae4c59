"""Tasks and queues of a store as an operator sees them, for the commands `genmcp jobs` and `store`.

Reading changes nothing: unlike `TaskService.get`, it repairs no task that a dead process has left.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from secrets import token_urlsafe
from typing import Final

import msgspec

from genmcp.core.job_transitions import retry_task, untaken
from genmcp.core.outcome import Failed, unpack
from genmcp.core.task import Task
from genmcp.core.waiting import Asking, Awaiting, Following, Gathering, Running, Working
from genmcp.errors import ContractError, IllegalTransition, TaskNotFound, UnknownFormat
from genmcp.stores.deliveries import Backlog
from genmcp.stores.store import FoundEntry, Store
from genmcp.tasks.heartbeats import ENGINE, NODES, SERVED, SERVICE_KEY, SERVICES
from genmcp.tasks.records import MESSAGE, Stored, state_of
from genmcp.tasks.service import TaskService
from genmcp.tasks.writer import CONTINUATIONS, EXTERNAL

OPEN: Final = ("queued", "working", "input_required")
"""The states of tasks that have not ended."""

STATES: Final = (*OPEN, "completed", "failed", "cancelled")
"""All states of tasks."""

_PAGE: Final = 200  # records in one query
_MAX_EVENTS: Final = 10_000


async def services_of(store: Store) -> list[str]:
    """Return the namespaces of the services that have used *store* in the last 30 days."""
    return [
        found.key.removesuffix(SERVICE_KEY).removesuffix("/")
        async for found in _found(store, SERVICES)
    ]


async def _found(store: Store, label: str) -> AsyncGenerator[FoundEntry, None]:
    after = None
    while page := await store.find(label, after, _PAGE):
        for found in page:
            yield found
        after = page[-1].key


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task as the commands show it. Times are Unix time by the clock of the store.

    Attributes:
        service: the name of its service, by default that of its server.
        id: the id of the task.
        state: its status, or "queued" while its next step waits for a process.
        tool: the tool that was called.
        waits_for: the kind of work that it waits for; job: the name of the job that it waits for,
            or after which it has failed.
        queue: the queue of the job that it waits for.
        owner: the principal, None for an anonymous client.
        created, updated: when it was created and changed.
        due: when its next step was or will be due, if it is queued.
        attempt: how often its job was started; failures: how often the job has failed; crashes: the
            workers that have died with it.
        progress, total, message: the last progress of the work.
        reason: why it failed. retries: the failed task that it repeats.
    """

    service: str
    id: str
    state: str
    tool: str
    waits_for: str | None = None
    job: str | None = None
    queue: str | None = None
    owner: str | None = None
    created: float
    updated: float
    due: float | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    progress: float | None = None
    total: float | None = None
    message: str | None = None
    reason: str | None = None
    retries: str | None = None

    @classmethod
    def of(cls, task: Task, service: str) -> "TaskSummary":
        """Return the summary of *task*."""
        work, state, job = task.work, state_of(task), task.job
        named = job if task.failed is None else task.failed.job
        working = work if isinstance(work, Working) else None
        return cls(
            service=service,
            id=task.id,
            state=state,
            tool=task.tool,
            waits_for=None if work is None else _KINDS[type(work)],
            job=None if named is None else named.name,
            queue=None if job is None else job.queue,
            owner=task.owner,
            created=task.created,
            updated=task.updated,
            due=task.due if state == "queued" else None,
            attempt=working.attempt if working else 0,
            failures=working.failures if working else 0,
            crashes=task.crashes,
            progress=task.progress,
            total=task.total,
            message=untaken(task) or task.message,
            reason=_reason(task),
            retries=task.retries,
        )


_KINDS: Final = {
    Working: "job",
    Following: "external job",
    Gathering: "several jobs",
    Asking: "client",
    Awaiting: "awaitable",
    Running: "call",
}


def _reason(task: Task) -> str | None:
    """Return the message of the error that *task* has ended with."""
    if state_of(task) != "failed":
        return None
    if task.failed is not None and task.failed.reason:
        return task.failed.reason
    if task.schedule is not None and task.error is not None:
        outcome = unpack(task.error)
        return str(outcome.error) if isinstance(outcome, Failed) else None
    with suppress(msgspec.MsgspecError, LookupError, TypeError):
        if task.error is not None:
            return str(msgspec.json.decode(task.error)["message"])
        return str(msgspec.json.decode(task.result or b"")["content"][0]["text"])
    return (task.error or task.result or b"").decode(errors="replace")


def _not_retried(task: Task) -> str:
    """Return why *task* cannot be retried."""
    if task.schedule is not None:
        return f"task {task.id} is an occurrence of a schedule: the next one comes by itself"
    return (
        f"task {task.id} is {state_of(task)}, and cannot be retried: only tasks that failed after "
        f"a single job are"
    )


class QueueSummary(msgspec.Struct, frozen=True):
    """A queue: its backlog, and whether a process serves it.

    served: None for a queue of an engine that runs none of its jobs now: only the engine knows its
    workers.
    """

    name: str
    backlog: Backlog
    served: bool | None


class TaskInspector:
    """The tasks of one service in a store, for an operator.

    Args:
        service: accesses the tasks; it is not started.
        cancel: cancels the task with an id, for its owner. Default: `TaskService.cancel`, which
            does not notify the tool of a job. The process in which a call runs finds out within a
            lease.
    """

    def __init__(
        self,
        service: TaskService,
        cancel: Callable[[str, str | None], Awaitable[object]] | None = None,
    ) -> None:
        self._service = service
        self._cancel = cancel or service.cancel
        self._store = service.records.store
        self._prefix = service.records.prefix
        self.name = self._prefix.removesuffix("/")

    async def tasks(
        self,
        states: Collection[str] = STATES,
        *,
        queue: str | None = None,
        owner: str | None = None,
    ) -> AsyncGenerator[Task, None]:
        """Yield the tasks in one of *states*, and of *queue* and *owner* if they are given.

        Queues are those of open tasks: the record of an ended task has none.
        """
        if owner is not None:
            labels = [f"owner:{owner}"]
        elif queue is not None:
            labels = [f"queued:{queue}", f"queue:{queue}"]
        else:
            labels = [f"state:{state}" for state in states]
        for label in labels:
            async for found in _found(self._store, self._prefix + label):
                with suppress(UnknownFormat):  # of another release
                    task = Task.unpack(found.value)
                    job_queue = None if task.job is None else task.job.queue
                    shown = not task.private or task.schedule is not None
                    if shown and state_of(task) in states and queue in (None, job_queue):
                        yield task

    async def get(self, id: str) -> Task:
        """Return the task.

        Raises:
            TaskNotFound: it does not exist, or no client was given its id.
        """
        return (await self._stored(id)).task

    async def messages(self, id: str, limit: int) -> list[bytes]:
        """Return the last *limit* messages of the call to its client, as JSON."""
        events = await self._store.read(self._service.records.key(id), limit=_MAX_EVENTS)
        messages = [event.data for event in events if event.data.startswith(MESSAGE)]
        return [data[len(MESSAGE) :] for data in messages[-limit:]]

    async def cancel(self, id: str) -> Task:
        """Cancel the task and its work; return it as it is then.

        Raises:
            TaskNotFound: as for `get`.
        """
        task = await self.get(id)
        if task.schedule is None:
            await self._cancel(id, task.owner)
        else:
            await self._service.writer.cancel(task, self._service.runner.cancel_work, wait=True)
        return await self.get(id)

    async def retry(self, id: str) -> Task:
        """Create and submit a task that repeats the job of a failed one; return it.

        Raises:
            TaskNotFound: as for `get`.
            ContractError: it has not failed after a job, or its request has expired.
        """
        task, call = await self.get(id), await self._service.records.call(id)
        try:
            node, now = self._service.heartbeats.own, self._store.now()
            retried = retry_task(task, token_urlsafe(20), node, now)
        except IllegalTransition:
            raise ContractError(_not_retried(task)) from None
        if call is None:
            raise ContractError(f"the request of task {id} has expired: it cannot be retried")
        await self._service.writer.create(retried, call)
        return retried

    async def drop(self, id: str) -> None:
        """Delete the record of a task that has ended.

        Raises:
            TaskNotFound: as for `get`.
            ContractError: it has not ended.
        """
        stored = await self._stored(id)
        if not stored.task.ended:
            raise ContractError(f"task {id} is {state_of(stored.task)}: cancel it first")
        await self._service.records.discard(id, stored.version)

    async def counts(self) -> Mapping[str, int]:
        """Return the number of tasks in each state."""
        return {state: await self._store.count(f"{self._prefix}state:{state}") for state in STATES}

    async def owners(self) -> Counter[str]:
        """Return the number of open tasks of each principal; anonymous clients count as ""."""
        return Counter([task.owner or "" async for task in self.tasks(OPEN)])

    async def processes(self) -> list[str]:
        """Return the names of the processes that are alive."""
        start = len(f"{self._prefix}node:")
        return [found.key[start:] async for found in _found(self._store, self._prefix + NODES)]

    async def queues(self) -> list[QueueSummary]:
        """Return the queues that processes serve, or that have tasks, and the internal ones."""
        served = {
            found.key.removeprefix(f"{self._prefix}served:"): found.value
            async for found in _found(self._store, self._prefix + SERVED)
        }
        waiting = {task.job.queue async for task in self.tasks(["queued"]) if task.job is not None}
        names = [*sorted({*served} | waiting), CONTINUATIONS, EXTERNAL]
        return [await self._queue(name, served.get(name)) for name in names]

    async def _queue(self, name: str, served: bytes | None) -> QueueSummary:
        if served == ENGINE:
            backlog = await self._service.backlog(name, on_engine=True)
            return QueueSummary(name, backlog, bool(backlog.held) or None)
        here = served is not None or name in (CONTINUATIONS, EXTERNAL)
        return QueueSummary(name, await self._service.backlog(name), here)

    async def _stored(self, id: str) -> Stored:
        # Other records have keys that begin with an id ("{id}#call").
        stored = None if "#" in id else await self._service.records.find(id)
        if stored is None or (stored.task.private and stored.task.schedule is None):
            raise TaskNotFound(id)
        return stored
