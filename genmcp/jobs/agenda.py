"""What is to be done next for each task, and that an engine hears of it."""

from collections.abc import Callable
from typing import Final

from genmcp.core.task import Ended, Following, Parked, Ref, Task, Work
from genmcp.errors import OutOfTurn, TaskNotFound
from genmcp.jobs.engine import Engine
from genmcp.jobs.nodes import Nodes
from genmcp.jobs.records import Records
from genmcp.jobs.refs import Refs

__all__ = ["CONTINUATIONS", "Agenda"]

CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of every step that is no job: none of them waits until long jobs are over."""


class Agenda:
    """Makes tasks wait for something, and has their next step delivered.

    A record is written before the engine hears of it. Where a process dies between the two, what
    was not submitted is submitted by whoever reads the record later (`nudge`), or is given the
    delivery before it once more.
    """

    def __init__(
        self,
        records: Records,
        engine: Engine,
        refs: Refs,
        nodes: Nodes,
        clock: Callable[[], float],
    ) -> None:
        self.records = records
        self.refs = refs
        self.nodes = nodes
        self._engine = engine
        self._clock = clock

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task and submit its first step. False: there is one with its id."""
        await self._enter(task.id, task.work)
        if not await self.records.create(task, call):
            return False
        await self.submit(task)
        return True

    async def park(self, id: str, parked: Parked, turn: int) -> Task:
        """Let the task wait again, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or somebody else's.
        """
        await self._enter(id, parked.work)
        task = await self.records.change_at(id, turn, lambda task, now: task.parked(parked, now))
        await self.records.touch(task)
        await self.submit(task)
        return task

    async def finish(self, id: str, ended: Ended, turn: int) -> Task:
        """End the task, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or somebody else's.
        """
        return await self.records.change_at(id, turn, lambda task, now: task.ended(ended, now))

    async def settle(self, id: str, ref: Ref, outcome: bytes) -> Task | None:
        """End a task's wait for somebody else's job.

        Return it as it was until then; None if it did not wait for that.
        """
        was: Task | None = None

        def settled(task: Task, now: float) -> Task:
            nonlocal was
            waits = task.work == Following(ref) and not task.settled
            was = task if waits else None
            return task.settled_with(outcome, now).taken_over(now) if waits else task

        try:
            task = await self.records.change(id, settled)
        except TaskNotFound:
            return None
        if was is not None:
            await self.submit(task)
        return was

    async def submit(self, task: Task) -> None:
        """Have the task's next step delivered when it is due."""
        if task.lives_in is not None:
            await self.look_later(task, 0)
        elif task.delivered:
            queue = task.job.queue if task.job else CONTINUATIONS
            delay = max(0.0, task.due - self._clock())
            await self._engine.submit(task.engine_id, queue=queue, delay=delay)

    async def look_later(self, task: Task, looks: int) -> None:
        """Have somebody look, a lease from now, whether the process is there that it lives in.

        *looks* is how often that was done: an engine does not take the id it is just delivering.
        """
        await self._engine.submit(
            f"{task.engine_id}.{looks}", queue=CONTINUATIONS, delay=self.nodes.lease
        )

    async def nudge(self, task: Task) -> Task:
        """Do what a process that died had left to others, if it did; return the task then."""
        if task.lives_in is not None and not await self.nodes.lives(task.lives_in):
            return await self.leave(task)
        # What is held is delivered again by the engine itself.
        if task.delivered and task.held is None:
            overdue = self._clock() - max(task.due, task.updated)
            if overdue > self.nodes.lease / 2:
                await self.submit(task)
        return task

    async def leave(self, task: Task) -> Task:
        """Let a task go on without the process it lives in, if it still does; return it then."""
        try:
            left = await self.records.change_at(
                task.id, task.turn, lambda task, now: task.left(now)
            )
        except OutOfTurn:
            return await self.records.find(task.id) or task
        await self.submit(left)
        return left

    async def _enter(self, id: str, work: Work | None) -> None:
        if isinstance(work, Following):
            await self.refs.enter(work.ref, id)
