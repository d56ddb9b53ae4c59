"""What is to be done next for each task, and that an engine hears of it."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from msgspec.structs import replace

from genmcp.core.task import Asking, Ended, Following, Parked, Ref, Task, Work
from genmcp.errors import OutOfTurn, OverShare, StoreError, TaskNotFound, Unavailable
from genmcp.jobs.engine import Engine
from genmcp.jobs.nodes import Nodes
from genmcp.jobs.outcomes import no_room, not_kept
from genmcp.jobs.records import Records, Transition
from genmcp.jobs.refs import Refs
from genmcp.jobs.writes import Writes
from genmcp.stores.clocks import steady

__all__ = ["CONTINUATIONS", "REFS", "Agenda"]

logger = logging.getLogger("genmcp")

CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of every step that is no job: none of them waits until long jobs are over."""

REFS: Final = "genmcp:refs"
"""The queue of steps that follow a job of another queue: each takes as long as that job."""


UNSERVED: Final = "Waiting for a worker"
"""The status message of a task whose queue is not served by any process."""

_AGAIN: Final = 60.0  # seconds between two warnings about one queue


class Agenda:
    """Makes tasks wait for something, and has their next step delivered.

    A record is written before the engine hears of it, and nothing but the death of the process
    comes between the two, or that the engine refuses. Then what was not submitted is submitted by
    whoever reads the record later (`nudge`), or is given the delivery before it once more.
    """

    def __init__(
        self,
        records: Records,
        engine: Engine,
        refs: Refs,
        nodes: Nodes,
        clock: Callable[[], float],
        *,
        writes: Writes,
        follows: bool,
    ) -> None:
        """*follows*: whether processes like this one follow jobs of other queues."""
        self.writes = writes
        self.records = records
        self.refs = refs
        self.nodes = nodes
        self._engine = engine
        self._clock = clock
        self._missed = _Missed(nodes)
        self._following = REFS if follows else CONTINUATIONS

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task and submit its first step. False: there is one with its id."""

        async def create() -> bool:
            await self._enter(task.id, task.work)
            created = await self.records.create(task, call)
            if created:
                await self.submit(task)
            return created

        return await self.writes.whole(create())

    async def park(self, id: str, parked: Parked, turn: int) -> Task:
        """Let the task wait again, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or somebody else's.
        """
        step = self.records.step(id, turn, lambda task, now: task.parked(parked, now))

        async def park() -> Task:
            await self._enter(id, parked.work)
            task = await step()
            await self.records.touch(task)
            await self.submit(task)
            return task

        return await self.writes.insist(lambda: self.writes.whole(park()))

    async def finish(self, id: str, ended: Ended, turn: int) -> Task:
        """End the task, if *turn* is current; with an error, if the store has no room for *ended*.

        Raises:
            OutOfTurn: the task has ended, or was taken over by another process.
        """

        def end(ended: Ended) -> Callable[[], Awaitable[Task]]:
            return self.records.step(id, turn, lambda task, now: task.ended(ended, now))

        return await self.writes.insist(end(ended), lambda error: end(no_room(error))())

    async def go_on(self, task: Task, came: Parked | Ended) -> None:
        """Park or end the task; end it with an error if the store has no room for either.

        Raises:
            OutOfTurn: the task has ended, or was taken over by another process.
        """
        if isinstance(came, Parked):
            try:
                await self.park(task.id, came, task.turn)
            except OverShare as error:
                came = no_room(error)
            else:
                return
        await self.finish(task.id, came, task.turn)

    async def leave(self, id: str, turn: int) -> Task:
        """Let the task go on without the process it lives in, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or somebody else's, or lives in no process.
        """
        step = self.records.step(id, turn, Task.left)

        async def leave() -> Task:
            task = await step()
            await self.submit(task)
            return task

        return await self.writes.insist(lambda: self.writes.whole(leave()))

    async def answer(self, id: str, answers: Mapping[str, bytes]) -> Task:
        """Take answers in; with the last one the call goes on."""

        async def answer() -> Task:
            task = await self.records.change(id, lambda task, now: task.answered(answers, now))
            if isinstance(task.work, Asking):
                await self.records.touch(task)
                await self.submit(task)
            return task

        return await self.writes.whole(answer())

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

        async def settle() -> None:
            task = await self.records.change(id, settled)
            if task.work == Following(ref):  # also again: the engine may have refused it before
                await self.submit(task)

        try:
            await self.writes.whole(settle())
        except TaskNotFound:
            return None
        return was

    async def settle_work(self, task: Task, transition: Transition) -> Task:
        """Write the outcome of an attempt, or an error if the store has no room for the outcome."""

        def write(transition: Transition) -> Callable[[], Awaitable[Task]]:
            return self.records.step(task.id, task.turn, transition)

        async def lose(error: Unavailable) -> Task:
            outcome = not_kept(error)
            return await write(lambda task, now: task.settled_with(outcome, now))()

        return await self.writes.insist(write(transition), lose)

    async def stop(self, task: Task) -> None:
        """Cancel the step that works on a task as it was, as well as possible."""
        for delivery in {task.delivery, task.held} - {None}:
            try:
                await self._engine.cancel(f"{task.id}:{delivery}")
            except StoreError as error:  # what it comes to is refused anyway
                logger.warning("a step of task %s was not cancelled: %s", task.id, error)

    async def submit(self, task: Task) -> None:
        """Have the task's next step delivered when it is due."""
        if task.lives_in is not None:
            await self.look_later(task, 0)
        elif task.delivered:
            queue = CONTINUATIONS
            if task.job is not None:
                queue = task.job.queue
                await self._missed.look(queue)
            elif isinstance(task.work, Following) and not task.settled:
                queue = self._following
            delay = _left(task, self._clock())
            owner = self.records.owner_of(task)
            await self._engine.submit(task.engine_id, queue=queue, delay=delay, owner=owner)

    async def look_later(self, task: Task, looks: int, delay: float = 0.0) -> None:
        """Schedule a check whether the process of the task is alive, by default after one lease.

        *looks* counts these checks: an engine does not accept the id that it is delivering.
        """
        await self._engine.submit(
            f"{task.engine_id}.{looks}",
            queue=CONTINUATIONS,
            delay=delay or self.nodes.lease,
            owner=self.records.owner_of(task),
        )

    async def nudge(self, task: Task) -> Task:
        """Submit or abandon the step that a dead process left, if any; return the task then.

        The returned task has a status message if it waits for a worker and there is none.
        """
        if task.lives_in is not None and not await self.nodes.lives(task.lives_in):
            return await self.abandoned(task)
        # What is held is delivered again by the engine itself.
        if task.delivered and task.held is None:
            now = self._clock()
            overdue = now - max(task.due, task.updated)
            was_set = now < task.updated - self.nodes.lease  # this clock or another was set
            if overdue > self.nodes.lease / 2 or was_set:
                await self.submit(task)
                if task.job is not None and not await self.nodes.serves(task.job.queue):
                    return replace(task, message=UNSERVED)
        return task

    async def abandoned(self, task: Task) -> Task:
        """Let a task go on whose process is gone, if it still lives there; return it then."""
        try:
            left = await self.records.change_at(task.id, task.turn, Task.left)
        except OutOfTurn:
            return await self.records.find(task.id) or task
        await self.submit(left)
        return left

    async def _enter(self, id: str, work: Work | None) -> None:
        if isinstance(work, Following):
            await self.refs.enter(work.ref, id)


def _left(task: Task, now: float) -> float:
    """Return the seconds until the next step of *task* is due.

    If the clock was set back, at most the delay that was intended at the last write.
    """
    return max(0.0, min(task.due - now, task.due - task.updated))


class _Missed:
    """Warns of queues that no process of *nodes* serves, at most once a minute each."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._again: dict[str, float] = {}  # next check of each queue

    async def look(self, queue: str) -> None:
        """Log a warning if no process serves *queue*."""
        now = steady()
        if queue in self._nodes.queues or now < self._again.get(queue, now):
            return
        self._again[queue] = now + _AGAIN
        try:
            if not await self._nodes.serves(queue):
                logger.warning(
                    "no process serves the queue %r, so that its jobs wait (JobOptions.queues)",
                    queue,
                )
        except StoreError as error:
            logger.debug("it is not known whether a process serves %r: %s", queue, error)
