"""What a process does with an id that an engine delivers to it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import random
from secrets import token_hex
from typing import Any, Final, TypeAlias

import msgspec

from genmcp.core.outcome import Outcome, unpack
from genmcp.core.task import (
    LOST,
    Ended,
    Following,
    Job,
    Parked,
    Ref,
    Task,
    Working,
    passed_on,
    run_id,
    with_saved,
)
from genmcp.errors import (
    ContractError,
    InternalError,
    OutOfTurn,
    StoreError,
    Unavailable,
)
from genmcp.jobs.agenda import Agenda
from genmcp.jobs.attempt import Tried, attempt
from genmcp.jobs.blocking import StillRuns, Threads
from genmcp.jobs.elsewhere import Elsewhere, pause_after
from genmcp.jobs.foreign import Foreign
from genmcp.jobs.options import JobOptions
from genmcp.jobs.progress import Progress
from genmcp.jobs.records import Transition
from genmcp.jobs.run import Reports, Run, SavedState
from genmcp.jobs.watches import Watched, Watches

__all__ = ["Resume", "Steps"]

logger = logging.getLogger("genmcp")

_HOUR: Final = 3600.0

Resume: TypeAlias = Callable[[Task, bytes, Outcome], Awaitable[Parked | Ended]]
"""Runs `continue_`, for a task, the raw request it is about, and the outcome of its wait."""


class Steps:
    """Takes the next step of a task, whatever that is.

    A job is claimed, run and settled; what is settled is continued. Each is written before the next
    begins, so that nothing is lost with a process: its id is delivered again, to one that goes on
    behind what was written last. What a task comes to happens once; `continue_` at least once.
    """

    def __init__(
        self,
        agenda: Agenda,
        resume: Resume,
        foreign: Sequence[Foreign],
        options: JobOptions,
        *,
        ending: Callable[[], bool],
    ) -> None:
        """*ending*: returns whether this process stops working and hands its steps on."""
        self._agenda = agenda
        self._records = agenda.records
        self._resume = resume
        self.watches = Watches(foreign, options)
        self._options = options
        self._ending = ending
        self._threads = Threads()
        self._taken: set[tuple[str, int]] = set()  # what is worked on here, each in its turn

    async def step(self, engine_id: str) -> None:
        """Take the step that *engine_id* is about, if it is still to be taken.

        Raises:
            StoreError: the store failed; the id is to be delivered again.
        """
        try:
            id, delivery, looks = _parsed(engine_id)
        except ValueError:
            logger.error("an engine delivered %r, which is no step of a task", engine_id)
            return
        task = await self._records.find(id)
        if task is None or task.over:
            return
        if task.lives_in is not None:
            if delivery == task.delivery:
                await self._look(task, task.lives_in, looks + 1)
            elif delivery == task.held:  # what held it may have failed before any look was begun
                await self._look(task, task.lives_in, 0)
        elif task.delivered and delivery == task.delivery:
            await self._take(task)
        else:  # whoever wrote the one that counts may have died before it was submitted
            await self._agenda.submit(task)

    async def _look(self, task: Task, node: str, looks: int) -> None:
        """See whether the task lives where it says; if it does, look again: for the *looks*th time.

        What a step awaits here, and no step does, was left in a hurry.
        """
        nodes = self._agenda.nodes
        here = node == nodes.own and task.held is not None
        lives = (task.id, task.turn) in self._taken if here else await nodes.lives(node)
        if lives:
            await self._records.touch(task)
            doubt = 0.0 if node == nodes.own else nodes.presence.doubt
            await self._agenda.look_later(task, looks, doubt)
        else:
            await self._agenda.abandoned(task)

    async def _take(self, task: Task) -> None:
        try:
            task = await self._records.change_at(
                task.id, task.turn, partial(Task.claimed, crashes=self._options.crashes)
            )
            if not task.over:
                async with self._kept(task):
                    await self._go_on(task)
        except StoreError:
            await self._agenda.writes.insist(lambda: self._drop(task))
            raise
        except OutOfTurn as refused:
            logger.debug("%s", refused)
            # Perhaps it was kept before, and only not submitted, when the store failed.
            now = await self._records.find(task.id)
            if now is not None and now.delivered:
                await self._agenda.submit(now)
        except asyncio.CancelledError as error:
            # A delivery that another process has claimed must not be handed on: once released, its
            # job would start there as if it had never run, whatever `on_lost` is.
            if self._ending():
                await self._hand_back(task, runs_on=isinstance(error, StillRuns))
            raise

    async def _go_on(self, task: Task) -> None:
        if task.job is not None:
            task = await self._work(task, task.job)
        elif isinstance(task.work, Following) and not task.settled:
            task = await self._watch(task, task.work.ref)
        if task.settled:
            await self._continue(task)
        else:
            await self._records.touch(task)
            await self._agenda.submit(task)

    async def _work(self, task: Task, job: Job) -> Task:
        """Make an attempt at a job; return the task settled, or waiting for the next attempt."""
        try:
            tried = await attempt(
                job,
                partial(self._run, task),
                write=partial(self._report, task),
                in_thread=self._options.in_thread,
                threads=self._threads,
                linger=self._options.linger if _has_retries(task) else None,
            )
        except Elsewhere as unknown:
            if passed := await self._passed_on(task, unknown):
                return passed
            outcome = unknown.outcome(task.passed)
            return await self._agenda.settle_work(
                task, lambda task, now: task.settled_with(outcome, now)
            )
        return await self._agenda.settle_work(task, partial(_after, tried))

    async def _passed_on(self, task: Task, unknown: Elsewhere) -> Task | None:
        """Pass the step on to another process; return None if `unknown_timeout` is over."""
        if task.passed >= self._options.unknown_timeout:
            return None
        pause = pause_after(task.passed)
        logger.warning("task %s is passed on: %s", task.id, unknown)
        return await self._write(task, lambda task, now: passed_on(task, now, pause))

    async def _watch(self, task: Task, ref: Ref) -> Task:
        """Follow a job of another queue; return the task settled, or waiting for another turn."""
        outcome = await self._agenda.refs.outcome(ref)
        watched = Watched(outcome)
        if outcome is None:
            watched = await self.watches.follow(ref, partial(self._report, task))

        def after(task: Task, now: float) -> Task:
            if watched.outcome is None:
                return task.resubmitted(now, watched.pause)
            return task.settled_with(watched.outcome, now)

        return await self._agenda.settle_work(task, after)

    async def _continue(self, task: Task) -> None:
        call = await self._records.call(task.id)
        try:
            came = Ended(error=LOST) if call is None else await self._resumed(task, call)
        except Elsewhere as unknown:
            if passed := await self._passed_on(task, unknown):
                await self._records.touch(passed)
                await self._agenda.submit(passed)
                return
            came = unknown.ended(task.passed)
        await self._agenda.go_on(task, came)

    async def _resumed(self, task: Task, call: bytes) -> Parked | Ended:
        assert task.outcome is not None
        try:
            came = await self._resume(task, call, unpack(task.outcome))
            if not isinstance(came, Parked | Ended):
                raise ContractError(f"resume gave {came!r}, not Parked or Ended")
        except (StoreError, Elsewhere):
            raise
        except Exception as error:
            if isinstance(error, OutOfTurn):  # refused; or else a defect, as any other
                await self._records.change_at(task.id, task.turn, _same)
            return _failed(task, error)
        return came

    async def _drop(self, task: Task) -> None:
        """Let go on what the step of a task awaited here: it ends, and nobody else would see it."""
        now = await self._records.find(task.id)
        if now is not None and now.turn == task.turn and now.lives_in is not None:
            await self._agenda.abandoned(now)

    async def _hand_back(self, task: Task, *, runs_on: bool) -> None:
        """Hand the step to another process at once, because this one stops working.

        A `def` job that *runs_on* in its thread is killed with this process: it starts again
        elsewhere if it may, and is lost otherwise.
        """
        lost = runs_on and task.on_lost == "fail"
        give = Task.abandoned if lost else _handed_back
        try:
            given = await self._records.change_at(task.id, task.turn, give)
            if given.delivery != task.delivery:
                await self._agenda.submit(given)
        except (OutOfTurn, StoreError) as refused:
            logger.debug("%s", refused)

    async def _report(self, task: Task, progress: Progress) -> None:
        await self._records.change_at(task.id, task.turn, partial(_progressed, progress))

    def _run(self, task: Task, reports: Reports) -> Run:
        id = run_id(task)
        assert isinstance(task.work, Working) and id is not None
        return Run(
            id,
            task.work.attempt,
            self._options.assigns(task),
            reports,
            asyncio.get_running_loop(),
            SavedState(task.work.saved, partial(self._save, task), self._options.max_saved_bytes),
        )

    async def _save(self, task: Task, state: bytes) -> None:
        step = self._records.step(
            task.id, task.turn, lambda task, now: with_saved(task, state, now)
        )
        await self._agenda.writes.insist(step, _has_no_room)

    async def _write(self, task: Task, transition: Transition) -> Task:
        return await self._agenda.writes.insist(self._records.step(task.id, task.turn, transition))

    @asynccontextmanager
    async def _kept(self, task: Task) -> AsyncIterator[None]:
        """Keep the task in its store while it is worked on, however long that takes."""
        following = task.work.ref if isinstance(task.work, Following) else None
        taken = (task.id, task.turn)
        self._taken.add(taken)
        keeping = asyncio.create_task(self._keep(task, following))
        try:
            yield
        finally:
            self._taken.discard(taken)
            keeping.cancel()
            await asyncio.wait({keeping})

    async def _keep(self, task: Task, following: Ref | None) -> None:
        pause = min(_HOUR, self._options.life / 3)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._records.touch(task)
                if following is not None:
                    await self._agenda.refs.touch(following)
            except StoreError as error:
                logger.warning("task %s may be kept too short: %s", task.id, error)


def _parsed(engine_id: str) -> tuple[str, int, int]:
    """Return the task, the delivery, and how often its process was looked after."""
    id, _, delivery = engine_id.rpartition(":")
    delivery, _, looks = delivery.partition(".")
    return id, int(delivery), int(looks or 0)


def _has_retries(task: Task) -> bool:
    return isinstance(task.work, Working) and task.work.failures < task.work.job.retries


def _after(tried: Tried, task: Task, now: float) -> Task:
    task = _progressed(tried.progress, task, now)
    assert isinstance(task.work, Working)
    if tried.again and _has_retries(task):
        return task.retried(now, random())
    return task.settled_with(tried.outcome, now)


def _progressed(progress: Progress, task: Task, now: float) -> Task:
    return task.progressed(now, progress.progress, progress.total, progress.message)


def _handed_back(task: Task, now: float) -> Task:
    return task.left(now) if task.lives_in else task.released(now)


async def _has_no_room(error: Unavailable) -> Task:
    raise StoreError(f"run.save: the state was not stored: {error}") from error


def _same(task: Task, now: float) -> Task:
    return task


def _failed(task: Task, error: Exception) -> Ended:
    reference = token_hex(6)
    logger.error("%s was not continued [%s]", task.tool, reference, exc_info=error)
    failure = InternalError(f"Internal error (reference {reference})", reference=reference)
    shown: dict[str, Any] = {
        "code": failure.code,
        "message": failure.message,
        "data": failure.data,
    }
    return Ended(error=msgspec.json.encode(shown))
