"""What a process does with the id of a step that an engine delivers to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import random
from secrets import token_hex
from typing import Final, TypeAlias

from genmcp.core.outcome import Outcome, unpack
from genmcp.core.task import LOST, Task, defer, fail_wait, lose_process, run_id, save_state
from genmcp.core.waiting import ExternalJob, Finished, Following, Job, Suspended, Working
from genmcp.errors import (
    ContractError,
    IllegalTransition,
    InternalError,
    StoreError,
    StoreUnavailable,
)
from genmcp.tasks.attempt import (
    AbandonedThreads,
    AttemptResult,
    NotRunnableHere,
    StillRuns,
    attempt,
    finished_with_error,
    pass_on_delay,
)
from genmcp.tasks.external import ExternalFollower, ExternalQueue, FollowResult
from genmcp.tasks.jobs import JobProgress, Reports, Run, SavedState, progressed
from genmcp.tasks.options import JobOptions
from genmcp.tasks.records import HeldTask, Stored
from genmcp.tasks.transitions import TaskWriter

__all__ = ["Resume", "TaskRunner"]

logger = logging.getLogger("genmcp")

_HOUR: Final = 3600.0

Resume: TypeAlias = Callable[[Task, bytes, Outcome], Awaitable[Suspended | Finished]]
"""Runs `continue_`, for a task, the raw request it is about, and the outcome of its wait."""


class TaskRunner:
    """Takes the next step of a task, whatever that is.

    A job is claimed, run, settled and continued. Each is written before the next begins, so
    that another process can continue after a crash. A task ends once; `continue_` may run again.
    """

    def __init__(
        self,
        writer: TaskWriter,
        resume: Resume,
        foreign: Sequence[ExternalQueue],
        options: JobOptions,
        *,
        ending: Callable[[], bool],
    ) -> None:
        """*ending*: returns whether this process stops working and hands its steps on."""
        self._writer = writer
        self._records = writer.records
        self._scheduler = writer.scheduler
        self._resume = resume
        self.watches = ExternalFollower(foreign, options)
        self._options = options
        self._ending = ending
        self._threads = AbandonedThreads()
        # The steps of this process, by task and fencing token, and when each is retained again.
        self._taken: dict[tuple[str, int], asyncio.TimerHandle] = {}
        self._retaining: set[asyncio.Task[None]] = set()

    async def step(self, engine_id: str) -> None:
        """Take the step that *engine_id* is about, if it is still to be taken.

        Raises:
            StoreError: the store failed; the id is to be delivered again.
        """
        try:
            id, delivery, liveness_checks = _parsed(engine_id)
        except ValueError:
            logger.error("an engine delivered %r, which is no step of a task", engine_id)
            return
        stored = await self._records.find(id)
        if stored is None or stored.task.ended:
            return
        task = stored.task
        if task.bound_node is not None:
            if delivery == task.delivery_id:
                await self._look(task, task.bound_node, liveness_checks + 1)
            elif (
                delivery == task.held_delivery
            ):  # its holder may have failed before it began any look
                await self._look(task, task.bound_node, 0)
        elif task.needs_delivery and delivery == task.delivery_id:
            await self._take(stored)
        else:  # the writer of the current one may have died before it was submitted
            await self._scheduler.submit(task)

    async def _look(self, task: Task, node: str, liveness_checks: int) -> None:
        """Check whether the process of the task is alive; if it is, schedule the next check.

        A wait in this process without a step of this process was left behind.
        """
        beats = self._scheduler.heartbeats
        here = node == beats.own and task.held_delivery is not None
        lives = (task.id, task.fencing_token) in self._taken if here else await beats.lives(node)
        if lives:
            await self._records.touch(task)
            doubt = 0.0 if node == beats.own else beats.presence.takeover_delay
            await self._scheduler.check_later(task, liveness_checks, doubt)
        else:
            await self._scheduler.abandon(task)

    async def _take(self, stored: Stored) -> None:
        """Claim the task and take its step.

        The claim gives this process a new fencing token and the version of the record. With these
        every later write of the step is compared, so that it reads the record no more.
        """
        held = HeldTask(self._records, stored.task.id, stored.task.fencing_token, stored)
        claimed = False
        try:
            claim = held.claim(self._options.max_crashes)
            task = await self._writer.retry.retry_until_written(claim)
            claimed = True
            if not task.ended:
                await self._work(held, task)
        except StoreError:
            if claimed:
                await self._writer.retry.retry_until_written(lambda: self._drop(held))
            else:  # nothing of the step was begun, even if the claim was written
                await self._hand_back(held, stored.task, runs_on=False)
            raise
        except IllegalTransition as refused:
            logger.debug("%s", refused)
            # It may have been written before, and not submitted, when the store failed.
            now = await self._records.find(held.id)
            if now is not None and now.task.needs_delivery:
                await self._scheduler.submit(now.task)
        except asyncio.CancelledError as error:
            # A delivery claimed by another process is not handed on: once released, its job would
            # start there as if it had never run. A claim that was cut off is: it did not run.
            if self._ending() or not claimed:
                await self._hand_back(held, stored.task, runs_on=isinstance(error, StillRuns))
            raise

    async def _work(self, held: HeldTask, task: Task) -> None:
        """Take the step of a claimed task, which is retained meanwhile, however long that takes."""
        ref = task.work.ref if isinstance(task.work, Following) else None
        taken = (task.id, task.fencing_token)
        self._retain_later(taken, task, ref)
        try:
            if (job := task.job) is not None:
                task = await self._run_job(held, task, job)
            elif isinstance(task.work, Following) and not task.settled:
                task = await self._watch(held, task, task.work.ref)
            if task.settled:
                await self._continue(held, task)
            else:
                await self._records.touch(task)
                await self._scheduler.submit(task)
        finally:
            self._taken.pop(taken).cancel()

    async def _run_job(self, held: HeldTask, task: Task, job: Job) -> Task:
        """Make an attempt at a job; return the task settled, or waiting for the next attempt."""
        try:
            tried = await attempt(
                job,
                partial(self._run, held, task),
                write=partial(_report, held),
                in_thread=self._options.in_thread,
                threads=self._threads,
                linger=self._options.linger if _has_retries(task) else None,
            )
        except NotRunnableHere as unknown:
            if passed := await self._passed_on(held, task, unknown):
                return passed
            outcome = unknown.outcome(task.deferred_seconds)
            return await self._writer.settle(held, lambda task, now: task.settle(outcome, now))
        return await self._writer.settle(held, partial(_after, tried))

    async def _passed_on(self, held: HeldTask, task: Task, unknown: NotRunnableHere) -> Task | None:
        """Pass the step on to another process; return None if `unknown_timeout` is over."""
        if task.deferred_seconds >= self._options.unknown_timeout:
            return None
        pause = pass_on_delay(task.deferred_seconds)
        logger.warning("task %s is passed on: %s", task.id, unknown)
        step = held.step(lambda task, now: defer(task, now, pause))
        return await self._writer.retry.retry_until_written(step)

    async def _watch(self, held: HeldTask, task: Task, ref: ExternalJob) -> Task:
        """Follow a job of another queue; return the task settled, or waiting for another turn."""
        outcome = await self._writer.refs.outcome(ref)
        watched = FollowResult(outcome)
        if outcome is None:
            watched = await self.watches.follow(ref, partial(_report, held))

        def after(task: Task, now: float) -> Task:
            if watched.outcome is None:
                return task.resubmit(now, watched.pause)
            return task.settle(watched.outcome, now)

        return await self._writer.settle(held, after)

    async def _continue(self, held: HeldTask, task: Task) -> None:
        call = await self._records.call(task.id)
        try:
            if call is None:
                came: Suspended | Finished = Finished(error=LOST, raised=True)
            else:
                came = await self._resumed(held, task, call)
        except NotRunnableHere as unknown:
            if passed := await self._passed_on(held, task, unknown):
                await self._records.touch(passed)
                await self._scheduler.submit(passed)
                return
            came = unknown.ended(task.deferred_seconds)
        await self._writer.go_on(held, came)

    async def _resumed(self, held: HeldTask, task: Task, call: bytes) -> Suspended | Finished:
        assert task.outcome is not None
        try:
            came = await self._resume(task, call, unpack(task.outcome))
            if not isinstance(came, Suspended | Finished):
                raise ContractError(f"resume gave {came!r}, not Suspended or Finished")
        except (StoreError, NotRunnableHere):
            raise
        except Exception as error:
            if isinstance(error, IllegalTransition):  # rejected; or else a defect, as any other
                await held.check()
            return _failed(task, error)
        return came

    async def _drop(self, held: HeldTask) -> None:
        """Abandon what the step of a task awaited here: it ends, and no other process sees that."""
        stored = await self._records.find(held.id)
        if stored is not None:
            task = stored.task
            if task.fencing_token == held.token and task.bound_node is not None:
                await self._scheduler.abandon(task)

    async def _hand_back(self, held: HeldTask, task: Task, *, runs_on: bool) -> None:
        """Hand the step to another process at once, because this one stops working.

        A `def` job that *runs_on* in its thread is killed with this process: it starts again
        elsewhere if it may, and is lost otherwise.
        """
        lost = runs_on and task.on_lost == "fail"
        try:
            given = await held.change(fail_wait if lost else _handed_back)
            if given.delivery_id != task.delivery_id:
                await self._scheduler.submit(given)
        except (IllegalTransition, StoreError) as refused:
            logger.debug("%s", refused)

    def _run(self, held: HeldTask, task: Task, reports: Reports) -> Run:
        id = run_id(task)
        assert isinstance(task.work, Working) and id is not None
        return Run(
            id,
            task.work.attempt,
            self._options.assigns(task),
            reports,
            asyncio.get_running_loop(),
            SavedState(task.work.saved, partial(self._save, held), self._options.max_saved_bytes),
        )

    async def _save(self, held: HeldTask, state: bytes) -> None:
        step = held.step(lambda task, now: save_state(task, state, now))
        await self._writer.retry.retry_until_written(step, _has_no_room)

    def _retain_later(self, taken: tuple[str, int], task: Task, ref: ExternalJob | None) -> None:
        pause = min(_HOUR, self._options.retention / 3)
        self._taken[taken] = asyncio.get_running_loop().call_later(
            pause, self._retain, taken, task, ref
        )

    def _retain(self, taken: tuple[str, int], task: Task, ref: ExternalJob | None) -> None:
        """Retain a task while it is worked on: its record would expire in a long step."""
        self._retain_later(taken, task, ref)
        retaining = asyncio.get_running_loop().create_task(self._touch(task, ref))
        self._retaining.add(retaining)
        retaining.add_done_callback(self._retaining.discard)

    async def _touch(self, task: Task, ref: ExternalJob | None) -> None:
        try:
            await self._records.touch(task)
            if ref is not None:
                await self._writer.refs.touch(ref)
        except StoreError as error:
            logger.warning("task %s may be retained too short: %s", task.id, error)


async def _report(held: HeldTask, progress: JobProgress) -> None:
    await held.change(partial(progressed, progress))


def _parsed(engine_id: str) -> tuple[str, int, int]:
    """Return the task, the delivery, and how often its process was looked after."""
    id, _, delivery = engine_id.rpartition(":")
    delivery, _, liveness_checks = delivery.partition(".")
    return id, int(delivery), int(liveness_checks or 0)


def _has_retries(task: Task) -> bool:
    return isinstance(task.work, Working) and task.work.failures < task.work.job.retries


def _after(tried: AttemptResult, task: Task, now: float) -> Task:
    task = progressed(tried.progress, task, now)
    assert isinstance(task.work, Working)
    if tried.again and _has_retries(task):
        return task.retry(now, random())
    return task.settle(tried.outcome, now)


def _handed_back(task: Task, now: float) -> Task:
    return lose_process(task, now) if task.bound_node else task.release(now)


async def _has_no_room(error: StoreUnavailable) -> Task:
    raise StoreError(f"run.save: the state was not stored: {error}") from error


def _failed(task: Task, error: Exception) -> Finished:
    reference = token_hex(6)
    logger.error("%s was not continued [%s]", task.tool, reference, exc_info=error)
    return finished_with_error(
        InternalError(f"Internal error (reference {reference})", reference=reference)
    )
