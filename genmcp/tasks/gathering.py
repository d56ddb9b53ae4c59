"""Waits for several jobs: creates their tasks, counts their ends, and collects their outcomes.

The transitions are in `core/gathering.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from genmcp.cancellation import run_to_completion
from genmcp.core.gathering import (
    collect,
    end_part,
    new_parts,
    outcome_parts,
    part_id,
    part_ids,
    start_parts,
    waits_for_part,
)
from genmcp.core.outcome import has_succeeded
from genmcp.core.task import Task
from genmcp.core.waiting import Finished, Gathering, PartOf
from genmcp.errors import IllegalTransition, OverShare, TaskNotFound
from genmcp.tasks.outcomes import outcome_rejected
from genmcp.tasks.records import HeldTask
from genmcp.tasks.writer import TaskWriter, settlement

_AT_ONCE: Final = 16  # records of parts that are written or read at the same time


class TaskParts:
    """The parts of the tasks that wait for several jobs. Owned by a `TaskRunner`.

    Args:
        writer: writes the tasks.
        cancel_work: cancels work of a part that its own delivery does not cancel.
    """

    def __init__(self, writer: TaskWriter, cancel_work: Callable[[Task], Awaitable[None]]) -> None:
        self._writer = writer
        self._records = writer.records
        self._retry = writer.retry.retry_until_written
        self._cancel_work = cancel_work

    # The steps of the task that waits.

    async def advance(self, held: HeldTask, task: Task) -> Task:
        """Start the parts of a claimed *task*, or settle it with their outcomes; return it."""
        assert isinstance(task.work, Gathering)
        if not task.work.started:
            return await self._start(held, task)
        outcome = await self._retry(partial(self._outcome, task, task.work))
        # Before the task is settled: if this process dies in between, the repeated step cancels
        # them again.
        await self._retry(partial(self.cancel, task))
        settled = await self._writer.settle(held, settlement(outcome))
        await self._retry(partial(self._each, part_ids(task), self._records.delete))
        return settled

    async def _start(self, held: HeldTask, task: Task) -> Task:
        parts = {each.id: each for each in new_parts(task, task.node, self._records.now())}

        async def start(id: str) -> None:
            await self._writer.create_once(parts[id])

        try:
            await self._retry(partial(self._each, [*parts], start))
            return await self._writer.settle(held, start_parts)
        except IllegalTransition:  # cancelled meanwhile, when some of the parts did not exist yet
            await self._retry(partial(self.cancel, task))
            raise
        except OverShare as error:
            outcome = outcome_rejected(error)
            await self._retry(partial(self.cancel, task))
            return await self._writer.settle(held, settlement(outcome))

    async def _outcome(self, task: Task, work: Gathering) -> bytes:
        outcomes: dict[str, bytes | None] = {}

        async def read(id: str) -> None:
            stored = await self._records.find(id)
            outcomes[id] = None if stored is None else _outcome_of(stored.task)

        ids = [part_id(task.id, task.step, index) for index in outcome_parts(work)]
        await self._each(ids, read)
        return collect(work, [outcomes[id] for id in ids])

    async def cancel(self, task: Task) -> None:
        """Cancel the parts of *task* that have not ended."""
        # A part that was counted is not cancelled, although it may not have ended yet: that would
        # drop its outcome.
        ended = task.work.ended if isinstance(task.work, Gathering) else {}
        running = [id for index, id in enumerate(part_ids(task)) if index not in ended]
        await self._each(running, self._cancel)

    async def _cancel(self, id: str) -> None:
        stored = await self._records.find(id)
        if stored is not None and not stored.task.ended:
            with suppress(TaskNotFound):
                await self._writer.cancel(stored.task, self._cancel_work, wait=False)

    async def _each(self, ids: Sequence[str], act: Callable[[str], Awaitable[object]]) -> None:
        for first in range(0, len(ids), _AT_ONCE):
            await asyncio.gather(*(act(id) for id in ids[first : first + _AT_ONCE]))

    async def touch_group(self, id: str) -> None:
        """Extend the expiry of the task *id*, which waits for several jobs, and of ended parts."""
        stored = await self._records.find(id)
        if stored is None or not isinstance(stored.task.work, Gathering):
            return
        await self._records.touch(stored.task)
        for index in stored.task.work.ended:
            part = await self._records.find(part_id(id, stored.task.step, index))
            if part is not None:
                await self._records.touch(part.task)

    # The parts.

    async def check_wanted(self, held: HeldTask, part: PartOf) -> None:
        """Check that the task of a claimed *part* still waits for it; otherwise cancel the part.

        The process that has cancelled the task may have died before it cancelled the parts.

        Raises:
            IllegalTransition: it does not.
        """
        parent = await self._records.find(part.task)
        if parent is None or parent.task.ended or not waits_for_part(parent.task, part):
            await held.change(Task.cancel)
            raise IllegalTransition(f"attempt at {held.id}", "not needed any more")

    async def end(self, held: HeldTask, task: Task, part: PartOf) -> None:
        """Count the settled *task* of a part as ended, and end it."""
        assert task.outcome is not None
        succeeded = has_succeeded(task.outcome)

        async def count() -> Task | None:
            try:
                parent = await self._records.change(
                    part.task, lambda task, now: end_part(task, part, succeeded, now)
                )
            except TaskNotFound:
                return None
            # Also if it was counted before: the process that counted it may have died since then.
            if not parent.ended and parent.needs_delivery:
                await self._writer.submit(parent)
            return parent

        await self._retry(lambda: run_to_completion(count()))
        result, error = (task.outcome, None) if succeeded else (None, task.outcome)
        finished = Finished(result=result, error=error)
        # Without the fallback of `TaskWriter.finish`, as the count above: the outcome is stored
        # already, so that its record does not grow, and the task that waits will read it.
        await self._retry(partial(held.change, lambda task, now: task.finish(finished, now)))


def _outcome_of(part: Task) -> bytes | None:
    return part.outcome or part.result or part.error
