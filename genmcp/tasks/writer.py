"""Steps of tasks: each is one transition of the record, and at most one submission."""

from collections.abc import Awaitable, Callable, Mapping

from genmcp.core.task import Task, answered, published
from genmcp.core.waiting import Asking, ExternalJob, Finished, Following, Suspended, Work
from genmcp.errors import OverShare, StoreUnavailable, TaskNotFound
from genmcp.tasks.foreign import ExternalJobs
from genmcp.tasks.outcomes import no_room, not_kept
from genmcp.tasks.records import HeldTask, TaskRecords
from genmcp.tasks.retry import RetriedWrites
from genmcp.tasks.scheduler import StepScheduler

__all__ = ["TaskWriter"]


class TaskWriter:
    """Writes the steps of tasks, and has submitted what follows from them.

    Between a record and its submission comes nothing but the death of the process, or that the
    engine refuses: the cancellation of the caller does not (`RetriedWrites.whole`).
    """

    def __init__(
        self,
        records: TaskRecords,
        scheduler: StepScheduler,
        refs: ExternalJobs,
        retry: RetriedWrites,
    ) -> None:
        self.records = records
        self.scheduler = scheduler
        self.refs = refs
        self.retry = retry

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task and submit its first step. False: there is one with its id."""

        async def create() -> bool:
            await self._enter(task.id, task.work)
            created = await self.records.create(task, call)
            if created:
                await self.scheduler.submit(task)
            return created

        return await self.retry.whole(create())

    def publishing(
        self, held: HeldTask, parked: Suspended, call: bytes, ttl: float
    ) -> Callable[[], Awaitable[Task]]:
        """Return a function that makes a private task an ordinary one, which waits as in *parked*.

        It may be called again if the store failed. It raises IllegalTransition if the task is over,
        or another call has its key.
        """
        step = held.step(lambda task, now: published(task, parked, now, ttl), call)

        async def publish() -> Task:
            await self._enter(held.id, parked.work)
            task = await step()
            await self.scheduler.submit(task)
            return task

        return lambda: self.retry.whole(publish(), held.id)

    async def park(self, held: HeldTask, parked: Suspended) -> Task:
        """Let the task wait again.

        Raises:
            IllegalTransition: it is over, or another process has taken it over.
        """
        step = held.step(lambda task, now: task.parked(parked, now))

        async def park() -> Task:
            await self._enter(held.id, parked.work)
            task = await step()
            await self.records.touch(task)
            await self.scheduler.submit(task)
            return task

        return await self.retry.retry_until_written(lambda: self.retry.whole(park()))

    async def finish(self, held: HeldTask, ended: Finished) -> Task:
        """End the task; with an error, if the store has no room for *ended*.

        Raises:
            IllegalTransition: as for `park`.
        """

        def end(ended: Finished) -> Callable[[], Awaitable[Task]]:
            return held.step(lambda task, now: task.ended(ended, now))

        return await self.retry.retry_until_written(end(ended), lambda error: end(no_room(error))())

    async def go_on(self, held: HeldTask, came: Suspended | Finished) -> None:
        """Park or end the task; end it with an error if the store has no room for either.

        Raises:
            IllegalTransition: as for `park`.
        """
        if isinstance(came, Suspended):
            try:
                await self.park(held, came)
            except OverShare as error:
                came = no_room(error)
            else:
                return
        await self.finish(held, came)

    async def answer(self, id: str, answers: Mapping[str, bytes]) -> Task:
        """Add answers to the questions of a task; after the last one it continues."""

        async def answer() -> Task:
            task = await self.records.change(id, lambda task, now: answered(task, answers, now))
            if isinstance(task.work, Asking):
                await self.records.touch(task)
                await self.scheduler.submit(task)
            return task

        return await self.retry.whole(answer())

    async def leave(self, held: HeldTask) -> Task:
        """Let the task go on without the process it lives in.

        Raises:
            IllegalTransition: as for `park`, or it does not live in a process.
        """
        step = held.step(Task.left)

        async def leave() -> Task:
            task = await step()
            await self.scheduler.submit(task)
            return task

        return await self.retry.retry_until_written(lambda: self.retry.whole(leave()))

    async def cancel(
        self, was: Task, unfollow: Callable[[ExternalJob], Awaitable[None]], *, patient: bool
    ) -> Task | None:
        """Cancel a task and its step; return it as it was until then, None if it was over.

        A write that failed is repeated, since it may have been carried out: the record shows no
        more what is to be stopped. *patient*: the caller waits for that. *unfollow* cancels the job
        of another queue.

        Raises:
            StoreUnavailable: it is written later.
        """

        def cancelled(task: Task, now: float) -> Task:
            nonlocal was
            if task.over:
                return task
            was = task
            return task.cancelled(now)

        async def cancel() -> Task | None:
            task = await self.records.change(was.id, cancelled)
            if task.end != "cancelled":
                return None
            # Also of one that was cancelled before: that process may have died before it did this.
            await self.scheduler.cancel(was)
            if isinstance(was.work, Following):
                await unfollow(was.work.ref)
            return None if was.over else was

        if patient:
            return await self.retry.within_patience(self.retry.retry_until_written(cancel), was.id)
        try:
            return await cancel()
        except StoreUnavailable:
            self.retry.later(was.id, cancel)
            raise

    async def settle(self, held: HeldTask, transition: Callable[[Task, float], Task]) -> Task:
        """Write the outcome of an attempt, or an error if the store has no room for the outcome."""

        async def lose(error: StoreUnavailable) -> Task:
            outcome = not_kept(error)
            return await held.change(lambda task, now: task.settled_with(outcome, now))

        return await self.retry.retry_until_written(held.step(transition), lose)

    async def settle_ref(self, id: str, ref: ExternalJob, outcome: bytes) -> bool:
        """End a task's wait for *ref*; return whether it waited for that."""
        was: Task | None = None

        def settled(task: Task, now: float) -> Task:
            nonlocal was
            waits = task.work == Following(ref) and not task.settled
            was = task if waits else None
            return task.settled_with(outcome, now).taken_over(now) if waits else task

        async def settle() -> None:
            task = await self.records.change(id, settled)
            if task.work == Following(ref):  # also again: the engine may have refused it before
                await self.scheduler.submit(task)

        try:
            await self.retry.whole(settle())
        except TaskNotFound:
            return False
        if was is not None:
            await self.scheduler.cancel(was)
        return was is not None

    async def _enter(self, id: str, work: Work | None) -> None:
        if isinstance(work, Following):
            await self.refs.enter(work.ref, id)
