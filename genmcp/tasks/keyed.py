"""The tasks of calls with idempotency keys.

Such a call has a private task from before its hook runs until its key expires. So a key has one
record, which names the process that runs the call. Copies of the call find in it what became of
that: it runs, it asks its client, it has become an ordinary task, or it has a result. There is no
lease of its own: the key is free again when that process is gone by its heartbeats, by which all
tasks are taken over. Clocks of different machines are never compared, and a process that was
suspended itself, or could not reach its store, considers no other process gone.

Each run of the call has an identity of its own: the id of the task, which is random, and its
fencing token, which is increased by a random number when the call is resumed. So two copies of the
call, of one process or of several, never have the same one, even if their writes fail and it is
unknown which of them took place. All that a run writes or deletes is conditioned on its identity,
and this process remembers by it what runs here. A run that fails can therefore change nothing of
another one.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from genmcp.core.task import Task, require_input, resume_in, slot_of
from genmcp.core.waiting import Awaiting, AwaitingInput, Finished, Running, Suspended
from genmcp.errors import (
    IllegalTransition,
    InternalError,
    OverShare,
    StoreError,
    StoreFull,
    TaskNotFound,
)
from genmcp.tasks.attempt import finished_with_error
from genmcp.tasks.follower import TaskFollower
from genmcp.tasks.records import HeldTask, Stored, Transition
from genmcp.tasks.transitions import TaskWriter
from genmcp.tasks.worker import Heartbeats

__all__ = ["KeyedTasks"]

logger = logging.getLogger("genmcp")

_TOKEN_BITS: Final = 40
_NOT_KEPT: Final = finished_with_error(
    InternalError(
        "The call with this idempotency key has ended, but its result was not kept: "
        "there was no room for it"
    ),
    raised=False,
)


class KeyedTasks:
    """The tasks of keyed calls of one service.

    Args:
        start: starts the worker of this process, and with it the heartbeat by which others see that
            a call runs.
    """

    def __init__(
        self,
        follower: TaskFollower,
        writer: TaskWriter,
        heartbeats: Heartbeats,
        start: Callable[[], Awaitable[None]],
    ) -> None:
        self._follower = follower
        self._records = writer.records
        self._writer = writer
        self._retry = writer.retry
        self._heartbeats = heartbeats
        self._start = start
        store = self._records.store
        # Otherwise all nodes are in this process, and alive.
        self._has_others = store.shared or store.durable
        self._running: set[tuple[str, int]] = set()  # ids and fencing tokens

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
        held = HeldTask(self._records, task.id, task.fencing_token)

        async def create() -> bool:
            return await self._records.create(task, None, replaces=replaces)

        return held if await self._take(held, create, lambda task, now: None) else None

    async def resume(self, stored: Stored) -> HeldTask | None:
        """Return the task of a call whose client has answered; None if a copy was faster.

        Raises:
            StoreError: as for `create`.
        """
        was, question, node = stored.task, stored.task.work, self._heartbeats.own
        assert isinstance(question, AwaitingInput)
        token = was.fencing_token + 1 + secrets.randbits(_TOKEN_BITS)
        before = HeldTask(self._records, was.id, was.fencing_token, stored)
        held = HeldTask(self._records, was.id, token)

        async def resume() -> bool:
            try:
                await before.change(lambda task, now: resume_in(task, node, token, now))
            except IllegalTransition:
                return False
            return True

        def ask_again(task: Task, now: float) -> Task:
            return require_input(task, question, now)

        return held if await self._take(held, resume, ask_again) else None

    async def _take(
        self, held: HeldTask, write: Callable[[], Awaitable[bool]], undo: Transition
    ) -> bool:
        """Begin a run of the call by *write*, which returns False if a copy was faster.

        If it is unknown whether the record was written (the store failed, or the client left),
        the call does not run, and *undo* is written in the background. That cannot concern another
        run: see the module.
        """
        if self._has_others:
            await self._start()
        run = held.id, held.token
        self._running.add(run)  # first, so that no copy finds a record without its call
        taken = False
        try:
            taken = await write()
        except BaseException as error:
            if not isinstance(error, OverShare | StoreFull):
                self._retry.defer(
                    held.id,
                    lambda: self._undo(held, undo),
                    lambda _: self._undo(held, lambda task, now: None),
                )
            raise
        finally:
            if not taken:
                self._running.discard(run)
        return taken

    def release(self, held: HeldTask) -> None:
        """Record that the call does not run here any more."""
        self._running.discard((held.id, held.token))

    async def publish(self, held: HeldTask, suspended: Suspended, call: bytes, ttl: float) -> Task:
        """Make the call an ordinary task: with its raw request, retained for *ttl* seconds.

        A promotion that fails is repeated by its caller, while the call runs on. A wait for a job
        is repeated here, and the record needs no other end: a store that fails does not free the
        key, since the hook has run, and the job begins once the store is back. One that rejects
        the task frees it, whether the caller still waits or not.

        Raises:
            IllegalTransition: the call has ended, or another call has its key.
            StoreUnavailable: it is not written, or not yet.
        """
        write = self._writer.publishing(held, suspended, call, ttl)
        begun = False

        async def publish() -> Task:
            nonlocal begun
            if not begun or not self._retry.ending():  # a repetition does not start it again
                begun = True
                await self._start()
            return await write()

        async def publish_or_free() -> Task:
            refusals = (OverShare, StoreFull)
            try:
                return await self._retry.retry_until_written(publish, refusals=refusals)
            except IllegalTransition:
                raise
            except Exception:
                await self.close(held, None)
                raise

        if isinstance(suspended.work, Running | Awaiting):
            return await publish()
        return await self._retry.wait_for_write(publish_or_free(), held.id)

    async def ask(self, held: HeldTask, question: AwaitingInput, suspended: Suspended) -> bool:
        """Write that the call waits for a request of its client.

        If a promotion that was reported as failed has published it after all, other clients may
        have its handle: then it waits as a task does, as in *suspended*. Return False then, and if
        another process has taken it over: the question is to be read from the record.
        """
        published = False

        def ask(task: Task, now: float) -> Task:
            nonlocal published
            published = not task.private
            return task.suspend(suspended, now) if published else require_input(task, question, now)

        return await self._end(held, ask) and not published

    async def close(self, held: HeldTask, ended: Finished | None) -> bool:
        """Write the result of the call; None: it has none. Return False as `ask` does.

        A call without a result frees its key: its record is deleted, unless a promotion that came
        too late has just published it. The client does not wait for a store that fails: the end is
        written later, and until then the key stays taken.
        """

        def end(task: Task, now: float) -> Task | None:
            if ended is not None:
                return task.finish(ended, now)
            return None if task.private else task

        size = 0 if ended is None else len(ended.result or b"")
        return await self._end(held, end, size)

    async def runs(self, task: Task) -> bool:
        """Return whether the call of a private *task* still runs, as far as this process can tell.

        A call of this process that neither runs nor has writes pending has ended, and the store has
        never accepted that. A living process is trusted to free the keys of its own calls.
        """
        if task.bound_node is None or task.bound_node == self._heartbeats.own:
            return (task.id, task.fencing_token) in self._running or self._retry.is_pending(task.id)
        if not self._has_others:
            return True
        await self._start()  # only a process that has a heartbeat of its own can judge others
        return await self._heartbeats.lives(task.bound_node)

    async def changed(self, task: Task, after: str | None) -> str | None:
        """Wait for an event of *task* behind *after*; return the last position.

        After a third of a lease without one: the death of a process is not announced by an event.
        """
        try:
            async with asyncio.timeout(self._heartbeats.lease / 3):
                return await self._follower.changed(task.id, after)
        except TimeoutError:
            return after

    async def _undo(self, held: HeldTask, transition: Transition) -> None:
        """Write *transition* of a record of which it is unknown whether it was written."""
        await self._records.mark(held.id)
        with suppress(IllegalTransition, TaskNotFound):
            await self._write(held, transition)

    async def _end(self, held: HeldTask, transition: Transition, size: int = 0) -> bool:
        try:
            await self._retry.write_or_defer(
                held.id,
                lambda: self._write(held, transition),
                (lambda _: self._write(held, _not_kept)) if size else None,
                size,
            )
        except IllegalTransition:
            return False
        except TaskNotFound:  # it has expired, or another call has the key
            with suppress(StoreError):
                return await self.find(slot_of(held.id)) is None
        except Exception as error:  # a defect of the store: the call is answered nevertheless
            logger.error("the end of a call with an idempotency key is not kept", exc_info=error)
        return True

    async def _write(self, held: HeldTask, transition: Transition) -> None:
        await self._records.change(
            held.id, lambda task, now: transition(task.check_token(held.token), now)
        )


def _not_kept(task: Task, now: float) -> Task:
    return task.finish(_NOT_KEPT, now)
