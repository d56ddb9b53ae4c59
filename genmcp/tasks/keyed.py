"""The tasks of calls with idempotency keys.

Such a call has a private task from before its hook runs until its key expires. A key therefore has
one record, which names the process that runs the call. A copy of the call reads there whether the
call still runs, waits for its client, has become an ordinary task, or has a result. The key has no
lease of its own. If the heartbeat of that process expires, the process counts as dead, and the key
is free again. Clocks of different machines are never compared. A process that was suspended itself,
or could not reach its store, considers no other process dead.

Each run of the call has an identity: the random id of the task, and its fencing token, which is
increased by a random number when the call is resumed. Two copies of the call, in one process or in
several, never have the same identity, even if their writes fail and it is unknown which of them
took effect. Every write and deletion of a run is conditioned on its identity. A write that takes
effect late can therefore change nothing of another run.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from genmcp._core.task import Task, require_input, resume_in, slot_of
from genmcp._core.waiting import Awaiting, AwaitingInput, Finished, Running, Suspended
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
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.records import HeldTask, Stored, Transition
from genmcp.tasks.transitions import TaskWriter

logger = logging.getLogger("genmcp")

_TOKEN_BITS: Final = 40
_NOT_STORED: Final = finished_with_error(
    InternalError(
        "The call with this idempotency key has ended, but its result was not stored: "
        "there was no room for it"
    ),
    raised=False,
)


class KeyedTasks:
    """The tasks of calls with idempotency keys. Owned by a `TaskService`.

    Args:
        follower: waits for changes of tasks.
        writer: writes tasks.
        heartbeats: show which processes are alive.
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
        # If not, every call of the store runs in this process, which is alive.
        self._has_others = store.shared or store.durable
        self._running: set[tuple[str, int]] = set()  # ids and fencing tokens

    def __len__(self) -> int:
        """Return the number of keyed calls that run in this process."""
        return len(self._running)

    async def find(self, slot: str) -> Stored | None:
        """Return the latest task of the key that has *slot*."""
        return await self._records.latest_in_slot(slot)

    async def create(self, task: Task, replaces: Stored | None) -> HeldTask | None:
        """Write the private *task* of a call that is about to run; None if a copy was faster.

        Args:
            task: the new task. Call `release` with it when the call has ended in this process.
            replaces: the task that was read from the slot of the key, which is free again.

        Raises:
            StoreError: it cannot be written; the call must not run.
        """
        held = HeldTask(self._records, task.id, task.fencing_token)

        async def create() -> bool:
            return await self._records.create(task, None, replaces=replaces)

        return held if await self._take(held, create, lambda task, now: None) else None

    async def resume(self, stored: Stored) -> HeldTask | None:
        """Return the task of a call that its client has answered; None if a copy was faster.

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
        """Start a run of the call by *write*, which returns False if a copy was faster.

        If it is unknown whether the record was written (the store failed, or the client has
        disconnected), the call does not run, and *undo* is written in the background. The undo
        cannot affect another run: see the docstring of the module.
        """
        if self._has_others:
            await self._start()
        run = held.id, held.token
        # Registered before the write: a copy of the call that reads the record must find that the
        # call runs.
        self._running.add(run)
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
        """Record that the call no longer runs in this process."""
        self._running.discard((held.id, held.token))

    async def publish(self, held: HeldTask, suspended: Suspended, call: bytes, ttl: float) -> Task:
        """Make the call an ordinary task, with its raw request, retained for *ttl* seconds.

        While the hook runs, the caller repeats a write that fails. If the call waits for a job, the
        write is repeated here: the hook has run, so that a failing store must not free the key. The
        job starts as soon as the store accepts the write. If the store rejects the task for lack of
        room, the key becomes free, whether the caller still waits or not.

        Raises:
            IllegalTransition: the call has ended, or another call has its key.
            StoreUnavailable: it is not written, or not yet.
        """
        write = self._writer.publishing(held, suspended, call, ttl)
        started = False

        async def publish() -> Task:
            nonlocal started
            # If the worker was stopped in the meantime, a repeated write must not start it again.
            if not started or not self._retry.is_stopping():
                started = True
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
        """Write that the call waits for its client to answer *question* by another request.

        A promotion that was reported as failed may have taken effect after all, so that other
        clients may have the handle. The call then waits like any task, as *suspended* describes.

        Returns:
            Whether the question was written. False if the call was promoted, or another process has
            taken it over: the result is to be read from the record.
        """
        published = False

        def ask(task: Task, now: float) -> Task:
            nonlocal published
            published = not task.private
            return task.suspend(suspended, now) if published else require_input(task, question, now)

        return await self._end(held, ask) and not published

    async def close(self, held: HeldTask, ended: Finished | None) -> bool:
        """Write the result of the call. The client does not wait for a store that fails.

        If *ended* is None, there is no result, and the key becomes free: the record is deleted,
        unless a late promotion has just published it. If the store fails, the end is written in the
        background, and the key becomes free only then.

        Returns:
            False if the result is to be read from the record, as for `ask`.
        """

        def end(task: Task, now: float) -> Task | None:
            if ended is not None:
                return task.finish(ended, now)
            return None if task.private else task

        size = 0 if ended is None else len(ended.result or b"")
        return await self._end(held, end, size)

    async def runs(self, task: Task) -> bool:
        """Return whether the call of a private *task* still runs, as far as this process knows.

        If a call of this process neither runs nor has pending writes, it has ended, and its end
        could not be written. A call of another process counts as running while that process is
        alive, which then frees the key itself.
        """
        if task.bound_node is None or task.bound_node == self._heartbeats.own:
            return (task.id, task.fencing_token) in self._running or self._retry.is_pending(task.id)
        if not self._has_others:
            return True
        await self._start()  # only a process with a heartbeat of its own can judge others
        return await self._heartbeats.is_alive(task.bound_node)

    async def next_event(self, task: Task, after: str | None) -> str | None:
        """Wait for an event of *task* after the position *after*; return the new position.

        Return *after* if none arrives in a third of a lease, because the death of a process is
        not announced by an event: the caller then checks whether the call still `runs`.
        """
        try:
            async with asyncio.timeout(self._heartbeats.lease / 3):
                return await self._follower.next_event(task.id, after)
        except TimeoutError:
            return after

    async def _undo(self, held: HeldTask, transition: Transition) -> None:
        """Write *transition*, if an earlier write of unknown outcome has taken effect."""
        await self._records.barrier(held.id)
        with suppress(IllegalTransition, TaskNotFound):
            await self._write(held, transition)

    async def _end(self, held: HeldTask, transition: Transition, size: int = 0) -> bool:
        try:
            await self._retry.write_or_defer(
                held.id,
                lambda: self._write(held, transition),
                (lambda _: self._write(held, _not_stored)) if size else None,
                size,
            )
        except IllegalTransition:
            return False
        except TaskNotFound:  # the task has expired, or another call uses the key
            with suppress(StoreError):
                return await self.find(slot_of(held.id)) is None
        except Exception as error:  # a defect of the store: the client gets its result nevertheless
            logger.error(
                "the result of a call with an idempotency key is not stored", exc_info=error
            )
        return True

    async def _write(self, held: HeldTask, transition: Transition) -> None:
        await self._records.change(
            held.id, lambda task, now: transition(task.check_token(held.token), now)
        )


def _not_stored(task: Task, now: float) -> Task:
    return task.finish(_NOT_STORED, now)
