"""Jobs of external queues (Celery, Temporal, ...): how calls wait for them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from random import uniform
from typing import Final, NamedTuple

import msgspec

from genmcp._core.outcome import Failed, pack
from genmcp._core.waiting import ExternalJob
from genmcp.errors import (
    ConfigurationError,
    Conflict,
    ContractError,
    IllegalTransition,
    StoreError,
    WaitCancelled,
)
from genmcp.stores.store import Delete, Put, Store
from genmcp.tasks.attempt import pack_failure, pack_result
from genmcp.tasks.options import JobBounds, JobOptions
from genmcp.tasks.progress import ProgressWriter, Write
from genmcp.tasks.queues import ExternalQueue, ExternalStatus

__all__ = ["ExternalFollower", "ExternalJob", "ExternalJobs", "FollowResult", "pack_status"]

logger = logging.getLogger("genmcp")

_RETENTION: Final = 86400.0
"""Seconds after the last write for which a record is retained.

Also after a task has read the outcome: a later call may wait for the same job, and a second report
of its end must not change the outcome.
"""


class ExternalJobFailed(Exception):
    """A job of an external queue failed; the text is for the log."""


class WaitingTasks(msgspec.Struct, frozen=True, array_like=True):
    """The stored record of an external job: the tasks that wait for it, and its outcome, packed."""

    tasks: tuple[str, ...] = ()
    outcome: bytes | None = None


class ExternalJobs:
    """The records of external jobs in *store*, under keys that begin with *prefix*.

    Both a webhook (`settle`) and `ExternalQueue.watch` may report the end of a job, before or after
    a task waits for it. Both write the same record by compare-and-set, so that the first outcome
    counts.
    """

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix}ref:"

    async def add_task(self, ref: ExternalJob, id: str) -> None:
        """Record that the task *id* is about to wait for a job."""
        # Also if the job has an outcome already: the step that follows the job then reads that.
        while True:
            record, version = await self._read(ref)
            tasks = tuple(dict.fromkeys((*record.tasks, id)))
            if await self._write(ref, WaitingTasks(tasks, record.outcome), version):
                return

    async def settle(self, ref: ExternalJob, outcome: bytes) -> Sequence[str]:
        """Store the outcome of a job, and return the tasks that wait for it."""
        while True:
            record, version = await self._read(ref)
            if record.outcome is not None or await self._write(
                ref, WaitingTasks(record.tasks, outcome), version
            ):
                return record.tasks

    async def outcome(self, ref: ExternalJob) -> bytes | None:
        """Return the outcome of a job, None if it was not reported."""
        record, _ = await self._read(ref)
        return record.outcome

    async def forget(self, ref: ExternalJob) -> None:
        """Delete the record of a job that was submitted for one task, which has ended its wait."""
        try:
            await self._store.apply(Delete(self._key(ref)))
        except StoreError as error:
            logger.debug("the record of %s expires later: %s", ref, error)

    async def touch(self, ref: ExternalJob) -> None:
        """Extend the retention of the record."""
        await self._store.touch(self._key(ref), _RETENTION)

    async def _read(self, ref: ExternalJob) -> tuple[WaitingTasks, int]:
        entry = await self._store.get(self._key(ref))
        return (_decode(entry.value), entry.version) if entry else (WaitingTasks(), 0)

    async def _write(self, ref: ExternalJob, record: WaitingTasks, version: int) -> bool:
        put = Put(self._key(ref), _encode(record), ttl=_RETENTION, expect=version)
        try:
            await self._store.apply(put)
        except Conflict:
            return False
        return True

    def _key(self, ref: ExternalJob) -> str:
        return f"{self._prefix}{ref.scheme}:{ref.ref}"


def pack_status(ref: ExternalJob, status: ExternalStatus) -> bytes:
    """Return the packed outcome of a job that has ended."""
    work = f"{ref.scheme} job {ref.ref!r}"
    try:
        if status.phase == "completed":
            return pack_result(work, status.result)
        if status.phase == "cancelled":
            return pack(Failed(WaitCancelled()))
        raise ExternalJobFailed(status.error)
    except (ContractError, ExternalJobFailed) as error:
        return pack_failure(work, error)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WaitingTasks).decode


class FollowResult(NamedTuple):
    """The packed outcome of a job. If None, the job is followed again after *pause* seconds."""

    outcome: bytes | None
    pause: float = 0.0


class ExternalFollower:
    """Follows the jobs of external *queues*. Owned by the runner of a process.

    At most `JobBounds.refs` jobs are followed at once. While so many are followed, each of them is
    interrupted after about `JobBounds.watch` seconds, and submitted again behind the waiting jobs:
    all jobs are followed in rotation.
    """

    def __init__(
        self, queues: Sequence[ExternalQueue], options: JobOptions, bounds: JobBounds
    ) -> None:
        self._queues = {each.scheme: each for each in queues}
        self._options = options
        self._bounds = bounds
        self._places = 0

    async def start(self, ref: ExternalJob) -> ExternalJob | None:
        """Submit a job that `ExternalQueue.job` has made; return it with its name in the queue.

        Return None if that failed; the error is logged.
        """
        queue = self._queues.get(ref.scheme)
        if queue is None or ref.call is None:  # `follow` reports a missing queue
            return ExternalJob(ref.scheme, ref.ref)
        try:
            return ExternalJob(ref.scheme, await queue.start(ref.ref, ref.call))
        except Exception as error:
            work = f"{ref.scheme} job {ref.call.name}"
            logger.error("%s is submitted again later: %s", work, error, exc_info=error)
            return None

    async def cancel(self, ref: ExternalJob) -> None:
        """Cancel a job of an external queue; an error is only logged."""
        if queue := self._queues.get(ref.scheme):
            try:
                await queue.cancel(ref.ref)
            except Exception as error:
                logger.error("%s was not cancelled: %s", ref, error, exc_info=error)

    async def follow(self, ref: ExternalJob, write: Write) -> FollowResult:
        """Follow a job to its end, or until it is interrupted for others; see the class.

        *write* stores the progress of the job.

        Raises:
            IllegalTransition: the write of progress was rejected: the call has ended, or another
                process follows the job.
        """
        queue = self._queues.get(ref.scheme)
        if queue is None:
            missing = ConfigurationError(f"no ExternalQueue was given for scheme {ref.scheme!r}")
            return FollowResult(pack_failure(f"following {ref.ref!r}", missing))
        progress = ProgressWriter(write, interval=self._bounds.progress_interval)
        place = asyncio.timeout(None)
        try:
            async with self._place(place), place:
                return FollowResult(await self._watch(queue, ref, progress), self._options.lease)
        except IllegalTransition:
            raise
        except Exception as error:
            if place.expired():
                return FollowResult(None)
            logger.error("%s is followed again later: %s", ref, error, exc_info=error)
            return FollowResult(None, self._options.lease)
        finally:
            await progress.close()

    async def _watch(
        self, queue: ExternalQueue, ref: ExternalJob, progress: ProgressWriter
    ) -> bytes | None:
        clock = asyncio.get_running_loop().time
        reported: ExternalStatus | None = None
        due = 0.0
        async with aclosing(queue.watch(ref.ref)) as statuses:
            async for status in statuses:
                if status.over:
                    return pack_status(ref, status)
                if progress.rejected:
                    raise IllegalTransition("progress", "ended, or taken over by another process")
                # A queue that polls mostly yields the same status again, which needs no write. The
                # status is written at intervals nevertheless: if the write is rejected, the task
                # was cancelled, and the cancellation did not reach this process.
                if status != reported or clock() >= due:
                    reported, due = status, clock() + self._options.lease / 3
                    progress.report(status.progress, status.total, status.message)
        return None

    @asynccontextmanager
    async def _place(self, place: asyncio.Timeout) -> AsyncIterator[None]:
        """Count one followed job while this is entered.

        About every `JobBounds.watch` seconds, check whether `JobBounds.refs` jobs are followed;
        if so, let *place* expire, which interrupts this job.
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._turn(), lambda: check())

        def check() -> None:
            nonlocal timer
            if self._places >= self._bounds.refs:
                place.reschedule(loop.time())
            else:
                timer = loop.call_later(self._turn(), check)

        self._places += 1
        try:
            yield
        finally:
            timer.cancel()
            self._places -= 1

    def _turn(self) -> float:
        """Return `JobBounds.watch`, varied at random: not all jobs are interrupted at once."""
        return self._bounds.watch * uniform(0.75, 1.25)
