"""The tasks of calls with idempotency keys.

Such a call has a private task from before its hook runs until its key expires. So a key has one
record, which names the process that runs the call. Copies of the call find in it what became of
that: it runs, it asks its client, it has become an ordinary task, or it has a result. There is no
lease of its own: the key is free again when that process is gone by its heartbeats, by which all
tasks are taken over. Clocks of different machines are never compared, and a process that was
suspended itself, or could not reach its store, considers no other process gone.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from genmcp.core.task import Finished, InputRequired, Suspended, Task, asked, resumed, slot_of
from genmcp.errors import InternalError, OutOfTurn, OverShare, StoreError, StoreFull, TaskNotFound
from genmcp.tasks.follower import TaskFollower
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.outcomes import error_end
from genmcp.tasks.records import HeldTask, Stored, Transition
from genmcp.tasks.writer import TaskWriter

__all__ = ["KeyedTasks"]

logger = logging.getLogger("genmcp")

_NOT_KEPT: Final = error_end(
    InternalError(
        "The call with this idempotency key has ended, but its result was not kept: "
        "there was no room for it"
    ),
    raised=False,
)


class KeyedTasks:
    """The tasks of keyed calls of one service.

    *shared*: whether other processes use the store. Otherwise all nodes are in this process, and
    alive.
    """

    def __init__(
        self, follower: TaskFollower, writer: TaskWriter, heartbeats: Heartbeats, *, shared: bool
    ) -> None:
        self._follower = follower
        self._records = writer.records
        self._writer = writer
        self._retry = writer.retry
        self._heartbeats = heartbeats
        self._shared = shared
        self._running: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether keyed calls run in this process."""
        return bool(self._running)

    async def find(self, slot: str) -> Stored | None:
        """Return the last task of the key that has *slot*, None if there is none."""
        return await self._records.in_slot(slot)

    async def create(self, task: Task, replaces: Stored | None) -> HeldTask | None:
        """Write the private *task* of a call that is about to run; None if a copy was faster.

        *replaces* is the task that was found in its slot, whose key is free. `release` the task
        when the call has ended here.

        Raises:
            StoreError: it cannot be written, and the call must not run.
        """
        self._running.add(task.id)  # first, so that no copy finds a record without its call
        held = HeldTask(self._records, task.id, task.fencing_token)
        created = False
        try:
            created = await self._records.create(task, None, replaces=replaces)
        except (StoreError, asyncio.CancelledError) as error:
            self._free(held, error)
            raise
        finally:
            if not created:
                self.release(held)
        return held if created else None

    async def resume(self, stored: Stored) -> HeldTask | None:
        """Return the task of a call whose client has answered; None if a copy was faster.

        Raises:
            StoreError: as for `create`.
        """
        task, node = stored.task, self._heartbeats.own
        held = HeldTask(self._records, task.id, task.fencing_token, stored)
        self._running.add(task.id)
        written = False
        try:
            after = await held.change(lambda task, now: resumed(task, node, now))
            held.token, written = after.fencing_token, True
        except OutOfTurn:
            return None
        except (StoreError, asyncio.CancelledError) as error:
            held.token += 1
            self._free(held, error)
            raise
        finally:
            if not written:
                self.release(held)
        return held

    def release(self, held: HeldTask) -> None:
        """Record that the call does not run here any more."""
        self._running.discard(held.id)

    async def publish(self, held: HeldTask, parked: Suspended, call: bytes, ttl: float) -> Task:
        """Make the call an ordinary task: with its raw request, retained for *ttl* seconds.

        Raises:
            OutOfTurn: the call has ended, or another call has its key.
            Unavailable: it is not written: a wait for a job is written later, for anything else
                this is to be called again.
        """
        return await self._writer.publish(held, parked, call, ttl)

    async def ask(self, held: HeldTask, question: InputRequired) -> bool:
        """Write that the call waits for its client; False if another process has taken it over."""
        return await self._end(held, lambda task, now: asked(task, question, now))

    async def close(self, held: HeldTask, ended: Finished | None) -> bool:
        """Write the result of the call; None: it has none. Return False as `ask` does.

        A call without a result frees its key: its record is deleted, unless a promotion that came
        too late has just published it. The client does not wait for a store that fails: the end is
        written later, and until then the key stays taken.
        """

        def end(task: Task, now: float) -> Task | None:
            if ended is not None:
                return task.ended(ended, now)
            return None if task.private else task

        size = 0 if ended is None else len(ended.result or b"")
        return await self._end(held, end, size)

    async def runs(self, task: Task) -> bool:
        """Return whether the call of a private *task* still runs, as far as this process can tell.

        A call of this process that neither runs nor has writes pending has ended, and the store has
        never accepted that. A living process is trusted to free the keys of its own calls.
        """
        if task.lives_in is None or task.lives_in == self._heartbeats.own:
            return task.id in self._running or self._retry.has(task.id)
        return not self._shared or await self._heartbeats.lives(task.lives_in)

    async def changed(self, task: Task, after: str | None) -> str | None:
        """Wait for an event of *task* behind *after*; return the last position.

        After a third of a lease without one: the death of a process is not announced by an event.
        """
        try:
            async with asyncio.timeout(self._heartbeats.lease / 3):
                return await self._follower.changed(task.id, after)
        except TimeoutError:
            return after

    def _free(self, held: HeldTask, error: BaseException) -> None:
        """Delete in the background a record of which it is unknown whether it was written.

        It is deleted by its version, and its id is random: the record of another call that has the
        key meanwhile stays.
        """

        async def free() -> None:
            await self._records.mark(held.id)
            with suppress(OutOfTurn, TaskNotFound):
                await self._write(held, lambda task, now: None)

        if not isinstance(error, OverShare | StoreFull):
            self._retry.later(held.id, free)

    async def _end(self, held: HeldTask, transition: Transition, size: int = 0) -> bool:
        try:
            await self._retry.first_attempt(
                held.id,
                lambda: self._write(held, transition),
                (lambda _: self._write(held, _not_kept)) if size else None,
                size,
            )
        except OutOfTurn:
            return False
        except TaskNotFound:  # it has expired, or another call has the key
            with suppress(StoreError):
                return await self.find(slot_of(held.id)) is None
        except Exception as error:  # a defect of the store: the call is answered nevertheless
            logger.error("the end of a call with an idempotency key is not kept", exc_info=error)
        return True

    async def _write(self, held: HeldTask, transition: Transition) -> None:
        await self._records.change(held.id, lambda task, now: transition(task.at(held.token), now))


def _not_kept(task: Task, now: float) -> Task:
    return task.ended(_NOT_KEPT, now)
