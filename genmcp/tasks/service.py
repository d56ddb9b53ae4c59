"""The tasks of a store: created, read, changed and followed by any process that has the store."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from genmcp.core.outcome import Outcome, unpack
from genmcp.core.task import Task, is_task_id
from genmcp.core.waiting import ExternalJob, Finished, Suspended
from genmcp.errors import ConfigurationError, StoreError, TaskNotFound
from genmcp.stores.accounts import Owner
from genmcp.stores.store import Put, Store
from genmcp.tasks.engine import Engine
from genmcp.tasks.external import ExternalJobs, ExternalQueue, ExternalStatus, pack_outcome
from genmcp.tasks.follower import TaskChange, TaskFollower, TaskMessage
from genmcp.tasks.jobs import JobProgress, progressed
from genmcp.tasks.keyed import KeyedTasks
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import HeldTask, TaskRecords
from genmcp.tasks.retry import RetriedWrites
from genmcp.tasks.runner import Resume, TaskRunner
from genmcp.tasks.transitions import TaskScheduler, TaskWriter
from genmcp.tasks.worker import Heartbeats, Presence, TaskWorker

__all__ = ["JobValues", "Resume", "TaskChange", "TaskMessage", "TaskService"]

logger = logging.getLogger("genmcp")

_DEFAULTS: Final = JobOptions()


class TaskService:
    """The tasks in *store*, and the steps of them that *engine* delivers to this process.

    Each operation is one transition of the record (`core.task`), one `apply` of the store and at
    most one submission to the engine. A process that works on a task passes the `fencing_token` of
    the Task that it was given. If the task has ended, or was taken over by another process, that
    raises IllegalTransition, and the work must stop.

    Args:
        store: keeps the records. Keys, logs and names of queues begin with *namespace*, so that
            several services can share a store and an engine.
        engine: delivers the steps.
        node: the name of this process, unique among present and earlier ones.
        resume: continues a call whose wait is over. foreign: the queues whose jobs calls wait for.
        options: how this process works on jobs.
        late_bytes: the maximum size of results of keyed calls that wait in memory for the store.

    Attributes:
        heartbeats: which processes are alive.
        records: what is stored of the tasks.
        keyed: the tasks of calls with idempotency keys.
        runner, worker: take the delivered steps, and serve the engine, in this process.
        values: the outcomes of jobs whose calls have made too large results of them.

    Raises:
        ConfigurationError: two of *foreign* have one scheme.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        node: str,
        resume: Resume,
        foreign: Sequence[ExternalQueue] = (),
        options: JobOptions = _DEFAULTS,
        namespace: str = "",
        late_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        schemes = [each.scheme for each in foreign]
        if len({*schemes}) < len(schemes):
            raise ConfigurationError(f"foreign: several of one scheme: {', '.join(schemes)}")
        prefix = f"{namespace}/" if namespace else ""
        presence = Presence(options.lease, store.now)
        self.heartbeats = Heartbeats(store, node, options.lease, presence, prefix)
        self._refs = ExternalJobs(store, prefix)
        self.records = TaskRecords(store, options, prefix)
        self._follower = TaskFollower(self.records)
        follows = bool(foreign)
        self._scheduler = TaskScheduler(
            self.records, engine, self.heartbeats, prefix=prefix, follows=follows
        )
        self._retry = RetriedWrites(
            patience=options.lease, late_bytes=late_bytes, ending=lambda: self.worker.closed
        )
        self._writer = TaskWriter(self.records, self._scheduler, self._refs, self._retry)
        self.values = JobValues(store, options.accounts, prefix)
        self.keyed = KeyedTasks(self._follower, self._writer, self.heartbeats, self.start)
        self.runner = TaskRunner(
            self._writer, resume, foreign, options, ending=lambda: self.worker.ending
        )
        self.worker = TaskWorker(
            engine,
            self.heartbeats,
            self.runner.step,
            options,
            prefix=prefix,
            follows=follows,
            durable=store.durable,
        )

    async def start(self) -> None:
        """Start to run delivered steps, unless this process does already or rests.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        if not self.worker.resting:
            await self.worker.start()

    async def aclose(self, *, within: float | None = None) -> None:
        """Stop working; open steps are handed to other processes, or wait for the next one.

        *within* shortens `JobOptions.shutdown_grace`, in seconds.
        """
        await self.worker.aclose(within=within)
        await self._retry.aclose()

    # Tasks and their clients.

    async def create(self, task: Task, call: bytes) -> Task:
        """Write a new task with the raw request it is about, and have its first step taken.

        If there is one of that id, it is returned as it stands: the request was sent twice.

        Raises:
            TaskNotFound: there is one, and it has another owner.
            StoreUnavailable: the store could not be reached, or is full.
        """
        await self.start()
        if await self._writer.create(task, call):
            return task
        return await self.get(task.id, task.owner)

    async def get(self, id: str, owner: str | None) -> Task:
        """Return a task of *owner*, after doing what a process that died left undone.

        A store that does not accept that does not keep the task from being read.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        task = await self._owned(id, owner)
        try:
            if not task.ended:
                await self.start()
            return await self._scheduler.recover(task)
        except StoreError as error:
            logger.warning("task %s is not seen to: %s", id, error)
            return task

    async def follow(
        self, id: str, owner: str | None, after: str | None = None, *, known: Task | None = None
    ) -> AsyncGenerator[TaskChange | TaskMessage, None]:
        """Yield a task of *owner*, now and as it changes, and the messages on it, in order.

        Each has its position, `id`; a caller continues *after* the last one it has seen. The last
        to come is the task when it is over. Several changes may be reported as one. *known* is the
        task as `create` has just returned it.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        if known is None:
            await self.get(id, owner)
        async with aclosing(self._follower.follow(id, after, known)) as followed:
            async for each in followed:
                yield each

    async def answer(self, id: str, owner: str | None, answers: Mapping[str, bytes]) -> Task:
        """Add answers to the questions of the task, as JSON; after the last one it continues.

        Answers to questions that are not open are ignored (SEP-2663, "Task Update Requests").

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        await self._owned(id, owner)
        task = await self._writer.answer(id, answers)
        if task.settled:
            await self.start()
        return task

    async def cancel(self, id: str, owner: str | None, *, private: bool = False) -> Task | None:
        """Cancel a task: whatever its work comes to later is rejected.

        Return it as it was until then, so that the process that runs its hook can be notified; None
        if it was over. *private*: also a task whose id no client was given.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
            StoreUnavailable: as for `finish`, at once if *private*; it is written later.
        """
        was = await self._owned(id, owner, private=private)
        return await self._writer.cancel(was, self.runner.watches.cancel, patient=not private)

    async def discard(self, id: str) -> None:
        """Delete a task whose id no client was given. Raises StoreUnavailable as `finish` does."""
        delete = self._retry.retry_until_written(lambda: self.records.discard(id))
        await self._retry.wait_for_write(delete)

    async def settle(self, ref: ExternalJob, outcome: ExternalStatus) -> None:
        """Record that another queue's job is over: for a hook of that queue, or a webhook.

        A task need not wait for it yet. The first outcome counts, this or that of
        `ExternalQueue.watch`.

        Raises:
            ValueError: *outcome* is not the end of a job.
        """
        if not outcome.over:
            raise ValueError(f"{ref} cannot be settled: it is {outcome.phase}")
        packed = pack_outcome(ref, outcome)
        for id in await self._refs.settle(ref, packed):
            if await self._writer.settle_ref(id, ref, packed):
                await self.start()

    # Tasks and the processes that work on them.

    async def progress(self, id: str, progress: JobProgress, *, fencing_token: int) -> Task:
        """Write the progress of the work.

        Raises:
            IllegalTransition: see above.
        """
        return await self._held(id, fencing_token).change(partial(progressed, progress))

    async def park(self, id: str, suspended: Suspended, *, fencing_token: int) -> Task:
        """Let the call wait for something else, which begins if an engine does it.

        It waits as long as the store accepts no write.

        Raises:
            IllegalTransition: see above; or the call has reached that step already.
        """
        await self.start()
        return await self._writer.park(self._held(id, fencing_token), suspended)

    async def finish(self, id: str, ended: Finished, *, fencing_token: int) -> Task:
        """End the task.

        Raises:
            IllegalTransition: see above.
            StoreUnavailable: the store has accepted no write for a lease; it is written later.
        """
        held = self._held(id, fencing_token)
        return await self._retry.wait_for_write(self._writer.finish(held, ended), id)

    async def leave(self, id: str, *, fencing_token: int) -> Task:
        """Let the task go on without this process, which shuts down: as it does if that dies.

        Raises:
            IllegalTransition: see above; or it does not live in a process.
            StoreUnavailable: as for `finish`.
        """
        held = self._held(id, fencing_token)
        return await self._retry.wait_for_write(self._writer.leave(held), id)

    async def _owned(self, id: str, owner: str | None, *, private: bool = False) -> Task:
        # Other records have keys that begin with an id: text of another form names no task.
        stored = await self.records.find(id) if is_task_id(id) else None
        if stored is None or stored.task.owner != owner or (stored.task.private and not private):
            raise TaskNotFound(id)
        return stored.task

    def _held(self, id: str, fencing_token: int) -> HeldTask:
        return HeldTask(self.records, id, fencing_token)


class JobValues:
    """Stores the outcome of a job if the result that `continue_` made of it exceeds the limit.

    Otherwise the work of hours would be lost with that result. The host can read the value. Keys
    begin with *prefix*.
    """

    def __init__(self, store: Store, accounts: Callable[[Task], Owner], prefix: str) -> None:
        self._store = store
        self._accounts = accounts
        self._prefix = f"{prefix}value:"

    async def keep(self, task: Task) -> bool:
        """Store the outcome of *task* for its ttl; return False if there is none, or no room."""
        if task.outcome is None:
            return False
        owner, key = self._accounts(task), self._prefix + task.id
        try:
            await self._store.apply(Put(key, task.outcome, ttl=task.ttl, owner=owner, new=True))
        except StoreError as error:
            logger.warning("the value of the job of task %s is not kept: %s", task.id, error)
            return False
        return True

    async def find(self, id: str) -> Outcome | None:
        """Return the outcome that was stored for the task *id*, None if there is none."""
        entry = await self._store.get(self._prefix + id)
        return None if entry is None else unpack(entry.value)
