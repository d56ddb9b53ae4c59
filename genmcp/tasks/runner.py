"""Runs the steps of tasks that are delivered to this process.

If a process dies, its work continues as follows:

- A job, or a step that resumes a call: the lease of its delivery expires, and another process
  claims the delivery. `Task.claim` counts a crash and increments the fencing token. The step runs
  again. After `max_crashes`, or at the first crash of a job with `on_worker_lost="fail"`, the wait
  for a job ends with `Failed(WorkerLost())` instead, and a call that was resumed fails with `LOST`
  (after `max_crashes` only, whatever `on_worker_lost` is).
- A call, or an awaitable, that runs in the process (`Task.bound_node`): the process does not renew
  its heartbeat (`tasks/heartbeats.py`). The next liveness check, `_check_node`, calls
  `lose_process`: the running call fails, or its wait ends with WorkerLost.
- A step that was written and not submitted: the next reader of the record submits it
  (`TaskWriter.recover`), or a process that examines the queued tasks (`TaskReconciler`).
- An external job does not depend on the process: another process follows it again.
- A step that was cancelled calls `on_cancel` of its tool when it has ended. Another process does
  so if it has not after a lease (`Task.stopped`, `TaskWriter.cancel`).
- A call that is not a task ends with its connection.

A process that stops in an orderly way hands its steps to other processes (`_hand_over`). That does
not count as a crash.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeAlias

from genmcp.core.job_transitions import defer
from genmcp.core.outcome import Outcome, unpack
from genmcp.core.task import LOST, Task, fail_wait, lose_process
from genmcp.core.waiting import Finished, Following, Gathering, Suspended, Working
from genmcp.errors import (
    IllegalTransition,
    InternalError,
    OverShare,
    StoreError,
    StoreUnavailable,
    UnknownFormat,
)
from genmcp.stores.clocks import steady
from genmcp.tasks.attempt import StillRuns
from genmcp.tasks.external import ExternalJobs
from genmcp.tasks.gathering import TaskParts
from genmcp.tasks.job_runner import JobRunner
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.outcomes import NotRunnableHere, finished_with_error, result_rejected
from genmcp.tasks.queues import EngineQueue, ExternalQueue
from genmcp.tasks.records import HeldTask, Stored
from genmcp.tasks.retrying import ProcessStops
from genmcp.tasks.writer import TaskWriter, settlement

logger = logging.getLogger("genmcp")

_HOUR: Final = 3600.0
_SHORTEST_DEFERRAL: Final = 0.5  # seconds
_LONGEST_DEFERRAL: Final = 30.0
_SUBMIT_TIMEOUT: Final = 10.0  # seconds for an engine to accept a job

Resume: TypeAlias = Callable[[Task, bytes, Outcome], Awaitable[Suspended | Finished]]
"""Resumes a call, given its task, its raw request, and the outcome of its wait.

The hook that runs is the method that was passed to `.then`, or the tool's `continue_`. The texts in
`genmcp/tasks` call either of them `continue_`.
"""


class TaskRunner:
    """Runs delivered steps: claims the task, runs its job, writes the outcome, resumes the call.

    Each transition is written before the next begins, so that another process can continue after a
    crash. Each step is delivered at least once: a job may run again after a crash
    (`Tool.on_worker_lost`), and so may `continue_`. Each result is written exactly once: fencing
    rejects every write without the current token.

    Args:
        writer: writes the tasks.
        resume: continues calls.
        queues: the external queues whose jobs are followed.
        options: how this process works on jobs.
        environment: the parts of the mux that jobs use.
        is_stopping: returns whether this process stops working, and hands its steps to others.

    Attributes:
        running: the calls that run as tasks in this process, each with a function that cancels its
            hook. A process that cancels a task sends a message to the process that runs it. The
            store may fail between the two writes, and that process may die: `check` therefore stops
            the calls whose records have ended.
    """

    def __init__(
        self,
        writer: TaskWriter,
        resume: Resume,
        queues: Sequence[ExternalQueue],
        options: JobOptions,
        environment: JobEnvironment,
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        # By task and fencing token: the next call with the same idempotency key has the same id,
        # and may begin while the cancelled one still ends.
        self.running: dict[tuple[str, int], Callable[[], object]] = {}
        self._writer = writer
        self._records = writer.records
        self._retry = writer.retry.retry_until_written
        self._resume = resume
        self._engines = options.engines
        self.parts = TaskParts(writer, self.cancel_work)
        self.external = ExternalJobs(writer, queues, options)
        self.jobs = JobRunner(writer, self.parts, options, environment)
        self._options = options
        self._observer = environment.observer
        self._cancelled = environment.cancelled
        self._is_stopping = is_stopping
        self._touch_interval = min(_HOUR, options.retention / 3)
        self._touch_due = 0.0  # by the clock `steady`
        self._steps: dict[tuple[str, int], asyncio.Task[Any]] = {}  # by task and fencing token

    async def handle(self, queued_id: str) -> None:
        """Run the step that *queued_id* identifies, if the record shows that it is still due.

        Raises:
            StoreError: the store failed; the id must be delivered again.
        """
        try:
            id, delivery, liveness_checks = parse_queued_id(queued_id)
        except ValueError:
            logger.error("a queue delivered %r, which does not identify a step", queued_id)
            return
        stored = await self._records.find(id)
        if stored is None:
            return
        task = stored.task
        if task.end is not None:
            await self._notify_tool(stored, task.fencing_token)
            return
        if task.bound_node is not None:
            if delivery == task.delivery_id:
                await self._check_node(task, task.bound_node, liveness_checks + 1)
            elif delivery == task.held_delivery:
                # A repetition of the delivery whose step has started this wait: its process may
                # have failed before it scheduled the first check.
                await self._check_node(task, task.bound_node, 0)
        elif task.needs_delivery and delivery == task.delivery_id:
            if not self._engines or task.job is None or task.job.queue not in self._engines:
                await self.run_step(stored)
            elif task.held_delivery is None:
                await self._submit(self._engines[task.job.queue], task)
        else:
            # A repetition of an earlier delivery. The process that wrote the present delivery to
            # the record may have died before it submitted that.
            await self._writer.submit(task)

    async def _check_node(self, task: Task, node: str, liveness_checks: int) -> None:
        """Check whether the process of the task is alive; if it is, schedule the next check."""
        beats = self._writer.heartbeats
        # A wait for an awaitable of this process is lost as soon as its step does not run here any
        # more, although the process is alive: the step may have failed with the store.
        here = node == beats.own and task.held_delivery is not None
        alive = (task.id, task.fencing_token) in self._steps if here else await beats.is_alive(node)
        if alive:
            await self._records.touch(task)
            delay = 0.0 if node == beats.own else beats.presence.takeover_delay
            await self._writer.check_later(task, liveness_checks, delay)
        else:
            await self._writer.take_from_dead(task)

    async def _submit(self, engine: EngineQueue, task: Task) -> None:
        """Submit the job of *task* to an engine.

        Raises:
            StoreUnavailable: the engine cannot be reached; the id must be delivered again.
        """
        assert task.job is not None
        id = f"{task.queued_id}.{task.submissions}"
        try:
            async with asyncio.timeout(_SUBMIT_TIMEOUT):
                await engine.submit(id, task.job.name)
        except Exception as error:
            raise StoreUnavailable(f"{engine!r} does not accept the job: {error!r}") from error

    async def run_step(self, stored: Stored, engine_node: str | None = None) -> Task | None:
        """Claim the task, and run its step; return it as it is then.

        The claim returns a new fencing token and the version of the record. Every later write of
        the step is conditional on both, so that the record is not read again.

        *engine_node* is the name of this process if it is one of an engine. Return None if another
        process has the task.
        """
        held = HeldTask(self._records, stored.task.id, stored.task.fencing_token, stored)
        claimed = False
        try:
            claim = partial(held.claim, self._options.max_crashes, engine_node)
            task = await self._retry(claim)
            claimed = True
            if stored.task.held_delivery is not None:
                self._observer.lease_lost(task)
                _log_takeover(stored.task, task)
            return task if task.end is not None else await self._work(held, task)
        except OverShare as error:  # a repetition would fail, too
            return await self._writer.finish(held, result_rejected(error))
        except StoreError:  # this process stops: it would have repeated the write otherwise
            await self._hand_over(held, stored.task, engine_node, still_runs=False)
            raise
        except IllegalTransition as rejected:
            # Another process has taken the task over, or the task has ended. Or this delivery is a
            # repetition: its earlier run has written the next state, and failed to submit that.
            logger.debug("%s", rejected)
            now = await self._records.find(held.id)
            if now is not None and now.task.needs_delivery and engine_node is None:
                await self._writer.submit(now.task)
            await self._notify_tool(now, held.token)
            return None
        except asyncio.CancelledError as error:
            # There are three reasons: this process stops, the task was cancelled, or its lease was
            # lost to another process. The step is handed over only if this process stops. If it
            # were released after the lease was lost, the job would run twice at the same time. A
            # step whose claim was cancelled is always handed over: no work was started. An engine
            # has no leases, and a task that has ended or was taken over is not changed.
            if engine_node is not None or self._is_stopping() or not claimed:
                still_runs = isinstance(error, StillRuns)
                await self._hand_over(held, stored.task, engine_node, still_runs=still_runs)
            raise

    async def _work(self, held: HeldTask, task: Task) -> Task:
        """Run the step of a claimed task; return the task as it is then.

        Its call continues here, unless it waits for a delivery.
        """
        running = asyncio.current_task()
        assert running is not None
        step = task.id, task.fencing_token
        self._steps[step] = running
        try:
            work = task.work
            try:
                if task.outcome is not None:
                    pass  # its wait has ended before
                elif isinstance(work, Working):
                    task = await self.jobs.attempt(held, task, work.job)
                elif isinstance(work, Following):
                    task = await self.external.follow(held, task, work.ref)
                elif isinstance(work, Gathering):
                    task = await self.parts.advance(held, task)
            except NotRunnableHere as missing:
                settling = settlement(missing.outcome(task.deferred_seconds))
                deferred = await self._defer(held, task, missing)
                task = deferred or await self._writer.settle(held, settling)
            if task.outcome is not None and task.held_delivery is not None:
                await self._continue(held, task)
            else:
                await self._retry(partial(self._writer.deliver_later, task))
            return task
        finally:
            del self._steps[step]

    async def _defer(self, held: HeldTask, task: Task, missing: NotRunnableHere) -> Task | None:
        """Resubmit the step for another process, and return the task.

        Return None if it was deferred for `unknown_timeout` already; nothing is written then.
        """
        # Without a shared store, no other process could have the code that this one lacks.
        waited = task.deferred_seconds >= self._options.unknown_timeout
        if waited or not self._records.store.shared:
            return None
        # Each pause is as long as all before it: a process of the other release gets the step soon
        # if there is one, and a backlog that no process can run costs little.
        delay = min(max(_SHORTEST_DEFERRAL, task.deferred_seconds), _LONGEST_DEFERRAL)
        logger.warning("task %s is deferred to another process: %s", task.id, missing)
        return await self._retry(partial(held.change, lambda task, now: defer(task, now, delay)))

    async def check(self) -> None:
        """Cancel the steps and calls that run here although their tasks have ended.

        The process that cancelled the task may have died before it cancelled the delivery, or sent
        a message to this process. The records of the others would expire during a long step: their
        expiry is extended after each third of their retention, and at least once an hour.

        Raises:
            StoreError: the store failed.
        """
        is_touch_due = steady() >= self._touch_due
        if is_touch_due:
            self._touch_due = steady() + self._touch_interval
        for id, token in [*self._steps, *self.running]:
            try:
                stored = await self._records.find(id)
            except UnknownFormat:  # of another release; repeated reads would not change that
                continue
            task, step = None if stored is None else stored.task, self._steps.get((id, token))
            if task is None or task.ended or task.fencing_token != token:
                self.stop_call(id, token)
                if step is not None and not step.cancelling():
                    step.cancel()
            elif is_touch_due and step is not None:
                await self._touch(task)

    def stop_call(self, id: str, fencing_token: int) -> None:
        """Cancel the hook of the task *id*, if it runs here."""
        if (stop := self.running.get((id, fencing_token))) is not None:
            stop()

    async def _touch(self, task: Task) -> None:
        try:
            await self._records.touch(task)
            if task.parent is not None:
                await self.parts.touch_group(task.parent.task)
        except StoreError as error:
            logger.warning("the record of task %s may expire too early: %s", task.id, error)
            self._touch_due = 0.0  # repeated at the next check

    async def _notify_tool(self, stored: Stored | None, fencing_token: int) -> None:
        """Call `on_cancel`, if the step with *fencing_token* was cancelled, and has not done so.

        The step has ended, its process has died, or it takes longer than a lease to clean up there.
        """
        task = None if stored is None else stored.task
        if task is None or task.stopped is None or task.fencing_token != fencing_token:
            return
        if (task.id, fencing_token) not in self._steps:
            await self._cancelled(task)
            await self._records.notified(task)

    async def cancel_work(self, task: Task) -> None:
        """Cancel the work of *task* that its own delivery does not cancel."""
        if isinstance(task.work, Following):
            # One that a process submits at this moment is cancelled by that process as well.
            if task.work.ref.call is None or task.held_delivery is not None:
                await self.external.cancel(task.work.ref)
        elif isinstance(task.work, Gathering):
            await self.parts.cancel(task)

    async def _continue(self, held: HeldTask, task: Task) -> None:
        if task.parent is not None:
            await self.parts.end(held, task, task.parent)
            return
        if task.schedule is not None:
            await self.jobs.schedules.end(held, task)
            return
        call = await self._retry(partial(self._records.call, task.id))
        try:
            if call is None:
                result: Suspended | Finished = Finished(error=LOST, raised=True)
            else:
                assert task.outcome is not None
                step = self._resume(task, call, unpack(task.outcome))
                result = await self._result_of(held, task, step)
        except NotRunnableHere as missing:
            if deferred := await self._defer(held, task, missing):
                await self._retry(partial(self._writer.deliver_later, deferred))
                return
            result = missing.finished(task.deferred_seconds)
        await self._writer.advance(held, result)

    async def run_call(
        self, task: Task, step: Callable[[], Awaitable[Suspended | Finished]]
    ) -> None:
        """Run *step*, the hook `call` of a *task* that is bound to this process.

        Its result is written. If this is cancelled, the task is lost (`lose_process`), unless it
        has ended.
        """
        held = HeldTask(self._records, task.id, task.fencing_token)
        try:
            await self._writer.advance(held, await self._result_of(held, task, step()))
        except IllegalTransition as rejected:  # it was cancelled
            logger.debug("%s", rejected)
        except (StoreError, asyncio.CancelledError):
            await self._hand_over(held, task, None, still_runs=False)
            raise

    async def _result_of(
        self, held: HeldTask, task: Task, step: Awaitable[Suspended | Finished]
    ) -> Suspended | Finished:
        try:
            return await step
        except (ProcessStops, NotRunnableHere):
            raise
        except Exception as error:
            # If the task was taken over, `check` raises. Otherwise the hook itself has raised
            # IllegalTransition, which is a defect like any other error.
            if isinstance(error, IllegalTransition):
                await self._retry(held.check)
            return _internal_error(task, error)

    async def _hand_over(
        self, held: HeldTask, task: Task, engine_node: str | None, *, still_runs: bool
    ) -> None:
        """Hand the step to another process at once, because this one stops working.

        *still_runs*: it is a `def` job that still runs in its thread, and is killed with this
        process. It starts again in another process, unless `Tool.on_worker_lost` is "fail": its
        wait then ends with an error.
        """
        lost = still_runs and task.on_lost == "fail"

        async def hand_over() -> None:
            released = await held.change(fail_wait if lost else _released)
            if released.delivery_id != task.delivery_id:
                await self._writer.submit(released)

        retry = self._writer.retry
        try:
            if engine_node is None:
                await hand_over()
            else:  # there is no lease that would expire while the process is alive
                await retry.wait_for_write(retry.retry_until_written(hand_over))
        except (IllegalTransition, StoreError) as rejected:
            logger.debug("%s", rejected)


def _log_takeover(before: Task, task: Task) -> None:
    """Log that this process has claimed *task* from one that has died or was suspended."""
    if before.outcome is None and task.outcome is not None:
        logger.warning(
            "the job of %s is lost: its process has died or was suspended, and it may not run "
            "again (Tool.on_worker_lost, JobOptions.max_crashes); task %s",
            task.tool,
            task.id,
        )
    else:
        logger.info(
            "a step of %s is taken over from a process that has died or was suspended; task %s",
            task.tool,
            task.id,
        )


def parse_queued_id(queued_id: str) -> tuple[str, int, int]:
    """Return the task, the delivery, and the number of liveness checks before this one."""
    id, _, delivery = queued_id.rpartition(":")
    delivery, _, liveness_checks = delivery.partition(".")
    return id, int(delivery), int(liveness_checks or 0)


def _released(task: Task, now: float) -> Task:
    return lose_process(task, now) if task.bound_node else task.release(now)


def _internal_error(task: Task, error: Exception) -> Finished:
    reference = token_hex(6)
    logger.error("continue_ of %s failed [%s]", task.tool, reference, exc_info=error)
    return finished_with_error(
        InternalError(f"Internal error (reference {reference})", reference=reference)
    )
