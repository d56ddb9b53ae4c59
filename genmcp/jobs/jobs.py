"""The tasks of a store: made, read, changed and followed, by any process that has it."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from genmcp.core.task import Ended, Following, Parked, Ref, Task, Work, is_id
from genmcp.errors import ConfigurationError, StoreError, TaskNotFound
from genmcp.jobs.agenda import Agenda
from genmcp.jobs.engine import Engine
from genmcp.jobs.foreign import Foreign, Snapshot
from genmcp.jobs.nodes import Nodes
from genmcp.jobs.options import JobOptions
from genmcp.jobs.presence import Presence
from genmcp.jobs.records import Change, Note, records_of
from genmcp.jobs.refs import Refs, outcome_of
from genmcp.jobs.service import Service
from genmcp.jobs.steps import Resume, Steps
from genmcp.jobs.writes import Writes
from genmcp.stores.store import Store

__all__ = ["Change", "Jobs", "Note", "Resume"]

logger = logging.getLogger("genmcp")

_DEFAULTS: Final = JobOptions()


class Jobs:
    """The tasks in *store*, and the steps of them that *engine* delivers to this process.

    node: the name of this process, unique among present and earlier ones; nodes: which processes
    are alive. resume: continues a call whose wait is over. foreign: the queues whose jobs calls may
    wait for. service: runs the steps here.

    A worker passes the *turn* of the Task it was given. If the task has ended, or was taken over by
    another process, that raises OutOfTurn, and the work must stop.

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
        foreign: Sequence[Foreign] = (),
        options: JobOptions = _DEFAULTS,
    ) -> None:
        schemes = [each.scheme for each in foreign]
        if len({*schemes}) < len(schemes):
            raise ConfigurationError(f"foreign: several of one scheme: {', '.join(schemes)}")
        self.now = store.now
        self.nodes = Nodes(store, node, options.lease, Presence(options.lease, store.now))
        self._refs = Refs(store)
        self._records = records_of(store, options)
        follows = bool(foreign)
        self.service = Service(engine, self.nodes, self.step, options, follows=follows)
        writes = Writes(patience=options.lease, ending=lambda: self.service.closed)
        self._agenda = Agenda(
            self._records,
            engine,
            self._refs,
            self.nodes,
            store.now,
            writes=writes,
            follows=follows,
        )
        self._steps = Steps(
            self._agenda, resume, foreign, options, ending=lambda: self.service.ending
        )

    async def start(self) -> None:
        """Start to run delivered steps, unless this process does already or rests.

        Raises:
            Unavailable: the store could not be reached.
        """
        if not self.service.resting:
            await self.service.start()

    async def aclose(self, *, within: float | None = None) -> None:
        """Stop working; open steps are handed to other processes, or wait for the next one.

        Args:
            within: shortens the grace, in seconds. None (the default): `JobOptions.grace`.
        """
        await self.service.aclose(within=within)

    async def create(self, task: Task, call: bytes) -> Task:
        """Write a new task with the raw request it is about, and have its first step taken.

        If there is one of that id, it is returned as it stands: the request was sent twice.

        Raises:
            TaskNotFound: there is one, and it is somebody else's.
            Unavailable: the store could not be reached, or is full.
        """
        await self.start()
        if await self._agenda.create(task, call):
            return task
        return await self.get(task.id, task.owner)

    async def get(self, id: str, owner: str | None) -> Task:
        """Return a task of *owner*; what a process that died left undone is done.

        If the store takes that: to be read, it need not.

        Raises:
            TaskNotFound: there is none, or not any more, or it is somebody else's.
        """
        task = await self._owned(id, owner)
        try:
            if not task.over:
                await self.start()
            return await self._agenda.nudge(task)
        except StoreError as error:
            logger.warning("task %s is not seen to: %s", id, error)
            return task

    async def follow(
        self, id: str, owner: str | None, after: str | None = None
    ) -> AsyncGenerator[Change | Note, None]:
        """Yield a task of *owner*, now and as it changes, and the messages on it, in their order.

        Each has its place, `id`; whoever has seen some goes on *after* that of the last, and is
        told what is new. The last to come is the task when it is over; several changes may be told
        as one.

        Raises:
            TaskNotFound: there is none, or not any more, or it is somebody else's.
        """
        await self.get(id, owner)
        async with aclosing(self._records.follow(id, after)) as followed:
            async for each in followed:
                yield each

    async def call(self, id: str) -> bytes | None:
        """Return the raw request that a task is about, None if it has ended uncancelled."""
        return await self._records.call(id)

    async def note(self, id: str, data: bytes) -> None:
        """Log a message on a task, for those who follow it.

        Raises:
            TaskNotFound: there is no such task.
        """
        await self._records.note(id, data)

    async def progress(
        self,
        id: str,
        *,
        turn: int,
        progress: float | None = None,
        total: float | None = None,
        message: str | None = None,
    ) -> Task:
        """Write how far the work is; None changes nothing.

        Raises:
            OutOfTurn: see above.
        """
        return await self._records.change_at(
            id, turn, lambda task, now: task.progressed(now, progress, total, message)
        )

    async def park(self, id: str, step: int, continuation: bytes, work: Work, *, turn: int) -> Task:
        """Let the call wait for *work*, and have that begun if an engine does it.

        It waits as long as the store takes nothing.

        Raises:
            OutOfTurn: see above; or the call has come to that step already.
        """
        await self.start()
        return await self._agenda.park(id, Parked(step, continuation, work), turn)

    async def finish(self, id: str, ended: Ended, *, turn: int) -> Task:
        """End the task.

        Raises:
            OutOfTurn: see above.
            Unavailable: the store has taken nothing for a lease; it is written when it does.
        """
        return await self._agenda.writes.patiently(self._agenda.finish(id, ended, turn))

    async def leave(self, id: str, *, turn: int) -> Task:
        """Let the task go on without this process, which shuts down: as it does if that dies.

        Raises:
            OutOfTurn: see above; or it does not live in a process.
            Unavailable: as for `finish`.
        """
        return await self._agenda.writes.patiently(self._agenda.leave(id, turn))

    async def discard(self, id: str) -> None:
        """Forget a task that nobody was told of.

        Raises:
            Unavailable: as for `finish`.
        """
        writes = self._agenda.writes
        await writes.patiently(writes.insist(lambda: self._records.discard(id)))

    async def update(self, id: str, owner: str | None, answers: Mapping[str, bytes]) -> Task:
        """Take answers to what the task asks, as JSON; with the last one the call goes on.

        What is not asked, or answered already, is ignored (SEP-2663, "Task Update Requests").

        Raises:
            TaskNotFound: there is none, or not any more, or it is somebody else's.
        """
        await self._owned(id, owner)
        task = await self._agenda.answer(id, answers)
        if task.settled:
            await self.start()
        return task

    async def cancel(self, id: str, owner: str | None) -> Task | None:
        """Cancel a task: nothing that comes of its work later counts.

        Return it as it was until then, so that who runs its hook can stop that; None if it was
        over.

        Raises:
            TaskNotFound: there is none, or not any more, or it is somebody else's.
        """
        was = await self._owned(id, owner)

        def cancelled(task: Task, now: float) -> Task:
            nonlocal was
            was = task
            return task if task.over else task.cancelled(now)

        await self._records.change(id, cancelled)
        if was.over:
            return None
        await self._agenda.stop(was)
        if isinstance(was.work, Following):
            await self._steps.watches.cancel(was.work.ref)
        return was

    async def settle(self, ref: Ref, outcome: Snapshot) -> None:
        """Tell that somebody else's job is over: from a hook of its queue, or a webhook.

        Nobody needs to wait for it yet. Whichever comes first counts, this or what `Foreign.watch`
        gives.

        Raises:
            ValueError: *outcome* says that it is not over.
        """
        if not outcome.over:
            raise ValueError(f"{ref} cannot be settled: it is {outcome.phase}")
        packed = outcome_of(ref, outcome)
        for id in await self._refs.settle(ref, packed):
            was = await self._agenda.settle(id, ref, packed)
            if was is not None:
                await self.start()
                await self._agenda.stop(was)

    async def step(self, id: str) -> None:
        """Take the step that an engine delivers.

        Raises:
            StoreError: the store failed; it is to be delivered again.
        """
        await self._steps.step(id)

    async def _owned(self, id: str, owner: str | None) -> Task:
        # Other records have keys that begin with an id: text of another form names no task.
        task = await self._records.find(id) if is_id(id) else None
        if task is None or task.owner != owner:
            raise TaskNotFound(id)
        return task
