"""The task service: tasks in a store, used by every process that has the store."""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

from genmcp.cancellation import run_to_completion
from genmcp.core.task import Task, is_task_id
from genmcp.core.waiting import ExternalJob, Finished, Suspended
from genmcp.errors import ConfigurationError, StoreError, TaskNotFound
from genmcp.stores.deliveries import Backlog
from genmcp.stores.store import Store
from genmcp.tasks.engine_worker import EngineWorker
from genmcp.tasks.follower import TaskChange, TaskMessage, follow_task
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.progress import JobProgress
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.reconciler import TaskReconciler
from genmcp.tasks.records import HeldTask, TaskRecords
from genmcp.tasks.retrying import RetriedWrites
from genmcp.tasks.runner import Resume, TaskRunner
from genmcp.tasks.worker import TaskWorker, WorkerLifecycle
from genmcp.tasks.writer import TaskWriter, delivery_queue

__all__ = ["Resume", "TaskChange", "TaskMessage", "TaskService"]

logger = logging.getLogger("genmcp")

_DEFAULTS: Final = JobOptions()
_ENVIRONMENT: Final = JobEnvironment()


class TaskService:
    """The tasks in *store*, and the steps of them that this process runs.

    Each operation is one transition of the record (`core/task.py`), one `apply` of the store, and
    at most one submission to `Store.deliveries`. A process that works on a task passes the
    `fencing_token` of the Task that it was given. If the task has ended, or another process has
    taken it over, the operation raises IllegalTransition, and the work must stop.

    Args:
        store: stores the records, and delivers the steps.
        process_name: returns the name of this process (`ProcessName`).
        resume: continues a call whose wait has ended.
        external: the queues with jobs that calls may wait for.
        options: how this process works on jobs.
        environment: the parts of the mux that jobs use.
        namespace: begins all keys, logs and names of queues, so that several services can share a
            store.

    Attributes:
        heartbeats: which processes are alive.
        records, writer: the stored tasks, and their transitions.
        runner, worker: run delivered steps, and claim them in this process.
        start: starts to run delivered steps, unless this process does already, or was released.
        running: the calls that run as tasks in this process.

    Raises:
        ConfigurationError: two of *external* have the same scheme; the store delivers no jobs, or
            is not shared, which engines need.
    """

    def __init__(
        self,
        store: Store,
        *,
        process_name: Callable[[], str],
        resume: Resume,
        external: Sequence[ExternalQueue] = (),
        options: JobOptions = _DEFAULTS,
        environment: JobEnvironment = _ENVIRONMENT,
        namespace: str = "",
    ) -> None:
        deliveries, self._engines = store.deliveries, options.engines
        if deliveries is None:
            raise ConfigurationError(
                f"store: {store!r} does not deliver jobs: implement Store.deliveries"
            )
        self._deliveries = deliveries
        self._logged_in = 0  # a process id
        schemes = [each.scheme for each in external]
        if len({*schemes}) < len(schemes):
            raise ConfigurationError(f"external queues of the same scheme: {', '.join(schemes)}")
        queues = (*self._engines.values(), *external)  # the last one of a scheme counts
        prefix = f"{namespace}/" if namespace else ""
        lifecycle = WorkerLifecycle()
        self.heartbeats = Heartbeats(store, process_name, options.lease, prefix)
        self.records = TaskRecords(store, options, prefix)
        self._retry = RetriedWrites(timeout=options.lease, is_stopping=lifecycle.has_ended)
        self.writer = TaskWriter(
            self.records, deliveries, self.heartbeats, self._retry, options, environment.observer
        )
        self.runner = TaskRunner(
            self.writer, resume, queues, options, environment, is_stopping=lifecycle.is_stopping
        )
        self.running = self.runner.running
        self.worker = TaskWorker(
            deliveries,
            self.heartbeats,
            self.runner.handle,
            options,
            lifecycle,
            prefix=prefix,
            has_work=store.durable or bool(options.schedules),
            schedules=self.runner.jobs.schedules.run,
            checks=(self.runner.check, TaskReconciler(self.writer, self._engines).check),
            calls=self.running,
        )
        self.start = self.worker.start
        engine_worker = EngineWorker(self.runner, self.records, options.lease)
        for name, engine in self._engines.items():
            if not store.shared:
                raise ConfigurationError(
                    f"JobOptions.queues[{name!r}] is {engine!r}, whose workers need the store, but "
                    f"{store!r} is not shared: give the Mux a URL, or set GENMCP_STORE"
                )
            engine.bind(f"genmcp.{namespace}.{name}", engine_worker.run)

    def __str__(self) -> str:
        return f"store: {self.records.store!r}, queues: {', '.join(self.worker.options.queues)}"

    def log_start(self) -> None:
        """Log which store and queues this process uses, once in each process."""
        if self._logged_in != os.getpid():
            self._logged_in = os.getpid()
            logger.info("process %d started, %s", os.getpid(), self)

    async def aclose(self, *, within: float = inf) -> None:
        """Stop working. Steps that still run are handed to other processes, or to the next start.

        *within* shortens `JobOptions.shutdown_grace`, in seconds.
        """
        await self.worker.aclose(within=within)
        self.runner.jobs.limits.close()
        await self._retry.aclose()
        for engine in self._engines.values():
            await engine.aclose()

    # For clients.

    async def create(self, task: Task, call: bytes) -> Task:
        """Write a new task with its raw request, and submit its first step.

        If the id exists, that task is returned: the request was sent twice.

        Raises:
            TaskNotFound: the id exists, and the task has another owner.
            StoreUnavailable: the store cannot be reached, or is full.
        """
        # Without a heartbeat of this process, others would consider the call that runs here lost.
        await self.start()
        if await run_to_completion(self.writer.create(task, call)):
            return task
        return await self.get(task.id, task.owner)

    async def get(self, id: str, owner: str | None) -> Task:
        """Return a task of *owner*, after repairing it if a dead process has left it (`recover`).

        If the store fails during the repair, the task is returned as it was read.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        return await self.recover(await self._owned(id, owner))

    async def recover(self, task: Task) -> Task:
        """Return *task*, which was just read, after the repair that `get` describes."""
        # Only a reader of the record can find a step that was written and not submitted.
        try:
            if not task.ended:
                await self.start()
            return await self.writer.recover(task)
        except StoreError as error:
            logger.warning("task %s may wait without a worker: %s", task.id, error)
            return task

    def follow(
        self, id: str, owner: str | None, after: str | None = None, *, known: Task | None = None
    ) -> AsyncGenerator[TaskChange | TaskMessage, None]:
        """Yield a task of *owner*, now and as it changes, and its messages, in order.

        The attribute `id` of each item is its position. Several changes may be reported as one. The
        last item is the task after its end.

        Args:
            after: the position of the last item that the caller has seen. None: from the start.
            known: the task that `create` has just returned; it is then not read again.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        return follow_task(self.records, id, after, known or partial(self.get, id, owner))

    async def backlog(self, queue: str, *, on_engine: bool | None = None) -> Backlog:
        """Return how many steps of *queue* wait and are held.

        *on_engine*: whether an engine runs the jobs of the queue. None: by `JobOptions.queues`.

        Raises:
            StoreError: the store failed.
        """
        if queue in self._engines if on_engine is None else on_engine:
            return await self.records.backlog(queue)
        return await self._deliveries.backlog(delivery_queue(self.records.prefix, queue))

    async def answer(self, id: str, owner: str | None, answers: Mapping[str, bytes]) -> Task:
        """Add answers to the questions of the task, as JSON; after the last one it continues.

        Answers to questions that are not open are ignored (SEP-2663, "Task Update Requests").

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
        """
        await self._owned(id, owner)
        task = await self.writer.answer(id, answers)
        if task.settled:
            await self.start()
        return task

    async def cancel(self, id: str, owner: str | None, *, wait: bool = True) -> Task | None:
        """Cancel a task. Later results of its work are rejected.

        Args:
            id: the task.
            owner: the client that cancels it.
            wait: whether to wait for a store that fails.

        Returns:
            The task as it was before, so that the process that runs its hook can be notified; None
            if it had ended.

        Raises:
            TaskNotFound: it does not exist, has expired, or has another owner.
            StoreUnavailable: it is not written yet, but will be.
        """
        before = await self._owned(id, owner)
        return await self.writer.cancel(before, self.runner.cancel_work, wait=wait)

    async def discard(self, id: str) -> None:
        """Delete a task whose id no client has. Raises StoreUnavailable as `finish` does."""
        delete = self._retry.retry_until_written(lambda: self.records.discard(id))
        await self._retry.wait_for_write(delete)

    def withdraw(self, task: Task, finished: Finished) -> None:
        """End a new *task* with *finished*, in case that it exists: its write has failed."""
        held = HeldTask(self.records, task.id, task.fencing_token, unsure=True)
        self._retry.defer(lambda: self.writer.finish(held, finished))

    async def settle(self, ref: ExternalJob, status: ExternalStatus) -> None:
        """Record the end of an external job: for a callback of its queue, or a webhook.

        No task needs to wait for the job yet. If the status of the queue has an outcome too, the
        first one counts.

        Raises:
            ValueError: *status* is not that of a job that has ended.
        """
        if await self.runner.external.settle(ref, status):
            await self.start()

    # For the process that works on a task. IllegalTransition: see the class.

    async def progress(self, id: str, progress: JobProgress, *, fencing_token: int) -> Task:
        """Write the progress of the work."""
        return await self._held(id, fencing_token).write_progress(progress)

    async def suspend(self, id: str, suspended: Suspended, *, fencing_token: int) -> Task:
        """Write that the call waits, and submit its work if that is work for a worker.

        This returns only when the store has accepted the write.

        Raises:
            IllegalTransition: also if the call has reached that step already.
        """
        await self.start()
        return await self.writer.suspend(self._held(id, fencing_token), suspended)

    async def finish(self, id: str, finished: Finished, *, fencing_token: int) -> Task:
        """End the task.

        Raises:
            StoreUnavailable: the store has accepted no write for a lease; it is written later.
        """
        held = self._held(id, fencing_token)
        return await self._retry.wait_for_write(self.writer.finish(held, finished))

    async def abandon(self, id: str, *, fencing_token: int) -> Task:
        """Give up a task that is bound to this process, which shuts down.

        The task continues as after the death of the process: see `lose_process`.

        Raises:
            IllegalTransition: also if the task is not bound to a process.
            StoreUnavailable: as for `finish`.
        """
        held = self._held(id, fencing_token)
        return await self._retry.wait_for_write(self.writer.abandon(held))

    async def _owned(self, id: str, owner: str | None) -> Task:
        # Checked, because other records have keys that begin with an id ("{id}#call").
        stored = await self.records.find(id) if is_task_id(id) else None
        if stored is None or stored.task.owner != owner or stored.task.private:
            raise TaskNotFound(id)
        return stored.task

    def _held(self, id: str, fencing_token: int) -> HeldTask:
        return HeldTask(self.records, id, fencing_token)
